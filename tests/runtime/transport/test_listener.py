import contextlib
import logging
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from gigl_loader.errors import ConfigError, GiglLoaderError, PeerError, PeerLostError
from gigl_loader.runtime.transport import (
    Caller,
    EndReason,
    Listener,
    Method,
    Peer,
    Security,
    sockets,
)
from gigl_loader.runtime.transport.listener import _PeerConnection
from gigl_loader.runtime.transport.stream import ALIVE_FRAME, KNOCK_FRAME, FrameKind, Stream, pack
from gigl_loader.testing import free_port, wait_until
from tests.runtime.transport.flood import Flooded, enter_during_a_flood, flood
from tests.runtime.transport.hostile import exchange, fuzz_caller, fuzz_listener
from tests.runtime.transport.network import AT_ONCE_S, PATIENCE_S, Network, enter, refusals
from tests.runtime.transport.service import SECURITIES, Answer, question
from tests.support.conditions import SetConstants

pytestmark = pytest.mark.waits


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _has_items(items: list, number: int) -> bool:
    return len(items) == number


@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("mode", SECURITIES)
def test_thousands_of_open_handshakes_keep_nobody_out(mode: str) -> None:
    """1,200 half-open connections and 1,200 stalled handshakes, at 1,024 descriptors."""
    outcome = flood(mode, PATIENCE_S)
    assert outcome.entered_s < AT_ONCE_S
    assert outcome.grown_bytes < 20 << 20
    assert outcome.logged.count("refused") <= 5, outcome.logged  # once a minute


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("many_descriptors")
@pytest.mark.parametrize("mode", SECURITIES)
def test_a_caller_comes_in_while_its_own_address_floods(mode: str) -> None:
    """15,000 connections a second push out a handshake of its address in 4 ms; it tries again."""
    # as long as two tests: on a busy machine the flood takes the time of whoever comes in
    assert enter_during_a_flood(mode, 2 * PATIENCE_S) == [3, 3, 3]


@pytest.mark.usefixtures("many_descriptors")
def test_the_door_survives_the_limits_on_threads_and_descriptors() -> None:
    flooded = Flooded("plain", files=64, threads=8)
    host, port = flooded.address
    callers = [Caller(host, port, Security.local(), str(i)) for i in range(12)]
    strangers: list[socket.socket] = []
    try:
        refused = 0
        for caller in callers:  # more than there are threads
            try:
                caller.ask("double", question(1), Answer).wait(0.3)
            except GiglLoaderError:
                refused += 1
        assert refused
        strangers += [socket.create_connection(flooded.address) for _ in range(100)]
        for caller in callers:
            caller.close()
        for stranger in strangers:
            stranger.close()
        host, port = flooded.address
        with Caller(host, port, Security.local(), "later") as caller:
            assert caller.ask("double", question(3), Answer).wait(60).number == 3
    finally:
        for caller in callers:
            caller.close()
        for stranger in strangers:
            stranger.close()
        flooded.end()


def test_a_faulty_machine_keeps_out_no_other(plain: Network, constants: SetConstants) -> None:
    """Half of the handshakes are for one address: its own make room for its next ones."""
    constants("gigl_loader.runtime.transport.listener", _HANDSHAKE_S=PATIENCE_S)
    service = plain.service()
    address = service.listener.address
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(
            socket.create_connection(address, source_address=("127.0.0.2", 0))
        )
        for _ in range(100):
            stack.enter_context(socket.create_connection(address))
        refused = lambda: service.listener.stats()["refused"].get(EndReason.REFUSED_SLOW.value)  # noqa: E731
        wait_until(lambda: refused() == 100 - 64, "all came in, and the former ones went")
        pending = lambda: service.listener.stats()["pending"]  # noqa: E731
        wait_until(lambda: pending() == 64 + 1, "the last ones came in")
        other.sendall(KNOCK_FRAME)
        assert other.recv(4) == b"GLt\0", "it was silent for longest, and is not shed for others"


def test_a_caller_has_one_connection_on_a_lane(network: Network) -> None:
    """What it still has on a former one is over; those on its other lanes are not."""
    service = network.service()
    with contextlib.ExitStack() as stack:
        for number, lane in enumerate(("other", "lane", "lane")):
            stream = enter(service.listener.address, network.security, lane)
            stack.callback(stream.close)
            wait_until(partial(_has_items, service.peers, number + 1), "it is admitted")
        wait_until(lambda: service.ends, "the former one ends")
        assert service.ends == [("tester", EndReason.REPLACED)]
        wait_until(lambda: service.listener.stats()["open"] == 2, "the former one is closed")
        assert service.peers[1].gone.is_set()


def test_on_a_lane_the_later_connection_stays_though_its_thread_is_first(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, admitted = network.service(), Listener.admitted
    first: list[Peer] = []
    later = threading.Event()

    def out_of_order(listener: Listener, connection: _PeerConnection, peer: Peer) -> None:
        if not first:
            first.append(peer)
            assert later.wait(60)
        admitted(listener, connection, peer)
        later.set()

    monkeypatch.setattr(Listener, "admitted", out_of_order)
    with contextlib.ExitStack() as stack:
        for what in ("the former one is about to be admitted", "the later one is"):
            stream = enter(service.listener.address, network.security, "lane")
            stack.callback(stream.close)
            wait_until(lambda: first, what)
        wait_until(lambda: service.ends, "one of them ends")
        assert service.ends == [("tester", EndReason.REPLACED)]
        wait_until(lambda: service.listener.stats()["open"] == 1, "it is closed")
        assert {peer.gone.is_set(): peer in first for peer in service.peers} == {
            True: True,
            False: False,
        }


@pytest.mark.usefixtures("many_descriptors")
def test_strangers_leave_descriptors_for_the_job() -> None:
    """A quarter of those that are free, and from one address half of that."""
    limit = 120
    flooded = Flooded("plain", files=limit, threads=limit)
    before = flooded.state()[2]
    try:
        with contextlib.ExitStack() as stack:
            most = 0
            for _ in range(2 * limit):
                stack.enter_context(socket.create_connection(flooded.address))
                most = max(most, flooded.state()[2])
        assert 2 < most - before <= (limit - before) // 4
    finally:
        flooded.end()


def test_who_cannot_be_shed_keeps_their_number_bounded() -> None:
    """Their threads wait for this process: each newcomer in place of one of them would be more."""
    free = threading.Event()
    inside: list[Stream] = []

    def stuck(stream: Stream, patience: Callable[[], float]) -> None:
        inside.append(stream)
        assert free.wait(60)

    listener = Listener("127.0.0.1", 0, Security.local(), {}, "service", admit=stuck).start()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(socket.create_connection(listener.address))
            wait_until(lambda: len(inside) == 8, "all are let in")
            listener._spare.for_strangers = lambda held: 4
            late = stack.enter_context(socket.create_connection(listener.address))
            assert late.recv(1) == b"", "it is closed"
            assert listener.stats()["refused"][EndReason.REFUSED_BUSY.value] == 1
            assert len(inside) == 8
    finally:
        free.set()
        listener.close()


def test_refusals_are_logged_once_a_minute(
    plain: Network, caplog: pytest.LogCaptureFixture
) -> None:
    service = plain.service()
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            with socket.create_connection(service.listener.address) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while sock.recv(1000):
                    pass
    wait_until(lambda: refusals(caplog), "the first is logged")
    assert service.listener.stats()["refused"] == {EndReason.REFUSED_SERVICE.value: 50}
    (told,) = refusals(caplog)
    assert "b'GET / '" in told


def test_beyond_loopback_somebody_has_to_say_who_may_connect() -> None:
    with pytest.raises(ConfigError) as caught:
        Listener("0.0.0.0", 0, Security.local(), {}, "open")
    for way_out in ("--tls", "GIGL_LOADER_CLUSTER_TOKEN", "--insecure"):
        assert way_out in str(caught.value)
    with pytest.raises(ConfigError, match="gigl-loader token"):
        Listener("0.0.0.0", 0, Security.resolve("", "hunter2", False), {}, "weak")


def test_an_insecure_listener_says_so(caplog: pytest.LogCaptureFixture) -> None:
    Listener("0.0.0.0", 0, Security.resolve("", "", True), {}, "open").close()
    assert "without encryption" in caplog.text


def test_a_taken_port_is_named(plain: Network) -> None:
    port = plain.service().listener.address[1]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        Listener("127.0.0.1", port, Security.local(), {}, "second")


def test_a_port_that_another_process_tries_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers ended while a client had asked for all free ports of the machine."""
    probe = sockets.listen("127.0.0.1", 0)
    port = probe.getsockname()[1]
    monkeypatch.setattr("gigl_loader.runtime.transport.sockets.time.sleep", lambda _: probe.close())
    Listener("127.0.0.1", port, Security.local(), {}, "server").close()
    assert probe.fileno() == -1


def test_peers_are_told_apart_and_their_ends_reported(network: Network) -> None:
    service = network.service()
    for number, name in enumerate("ab", 1):
        caller = network.caller(service.listener.address, name=name, session="s" + name)
        caller.connect(time.monotonic() + 10)
        wait_until(partial(_has_items, service.peers, number), "it is known")
        assert (service.peers[-1].name, service.peers[-1].session) == (name, "s" + name)
        caller.close(EndReason.JOB_OVER)
        wait_until(partial(_has_items, service.ends, number), "its end is known")
    assert service.ends == [("a", EndReason.JOB_OVER), ("b", EndReason.JOB_OVER)]
    wait_until(lambda: service.listener.stats()["open"] == 0, "nobody is inside")


def test_a_killed_caller_is_known_while_its_question_is_worked_on(network: Network) -> None:
    service = network.service()
    stream = network.enter(service.listener.address)
    assert stream.push(pack(FrameKind.ASK, question(1), "gated"))
    wait_until(lambda: service.asked, "the question is there")
    started = time.monotonic()
    stream.shutdown()  # what the kernel does for a killed process
    assert service.peers[0].gone.wait(60)
    assert time.monotonic() - started < AT_ONCE_S
    service.gate.set()
    wait_until(lambda: service.ends == [("tester", EndReason.GONE)], "its end is reported")


def test_an_asker_that_stops_in_the_middle_is_cut_off(plain: Network) -> None:
    service = plain.service(silence_s=0.5)
    stream = plain.enter(service.listener.address)
    stream.sock.send(bytes(pack(FrameKind.ASK, question(1), "double")[0])[:30])
    wait_until(lambda: service.ends == [("tester", EndReason.SILENT)], "it is cut off")


def test_closing_twice_and_before_starting() -> None:
    listener = Listener("127.0.0.1", 0, Security.local(), {}, "never started")
    listener.close()
    listener.close()
    port = free_port("127.0.0.1")
    for _ in range(2):  # the port is free again at once
        Listener("127.0.0.1", port, Security.local(), {}, "service").start().close()


def test_several_connections_send_at_once(network: Network) -> None:
    service = network.service()
    callers = [network.caller(service.listener.address, name=str(i)) for i in range(3)]
    replies = [caller.ask("zeros", question(1 << 22), Answer) for caller in callers]
    assert [reply.wait(60).rows.nbytes for reply in replies] == [1 << 22] * 3


# --- hostile bytes --------------------------------------------------------------------------------


ROUNDS = 150  # examples/benchmarks/network/fuzz.py does 10,000


def test_hostile_questions_harm_nothing(plain: Network) -> None:
    service = plain.service()
    fuzz_listener(service, ROUNDS, seed=1)
    wait_until(lambda: not any(map(service.listener.stats().get, ("open", "pending"))), "all gone")
    caller = plain.caller(service.listener.address)
    assert caller.ask("double", question(3), Answer).wait(60).number == 3


def test_hostile_answers_raise_errors_of_ours() -> None:
    assert fuzz_caller(ROUNDS // 3, seed=2) >= {"ProtocolError"}


def test_hostile_bytes_inside_tls(network: Network) -> None:
    """Whoever knows the token is not trusted with the listener's health either."""
    service = network.service()
    dice = random.Random(3)
    ask = b"".join(bytes(v) for v in pack(FrameKind.ASK, question(1), "double"))
    for _ in range(40):
        stream = network.enter(service.listener.address)
        with contextlib.suppress(OSError):
            stream.say(exchange([ask, ask, ALIVE_FRAME], dice))
        stream.close()
    wait_until(lambda: service.listener.stats()["open"] == 0, "all of them are gone")
    caller = network.caller(service.listener.address)
    assert caller.ask("double", question(3), Answer).wait(60).number == 3


def test_threads_end_with_their_connections(network: Network) -> None:
    service = network.service()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            host, port = service.listener.address
            callers = [Caller(host, port, network.security, "x") for _ in range(8)]
            list(pool.map(lambda c: c.ask("double", question(1), Answer).wait(60), callers))
            for caller in callers:
                caller.close()
    wait_until(lambda: service.listener.stats()["open"] == 0, "all of them are gone")
    wait_until(lambda: len(service.ends) == 24, "each is told after it is gone")


def test_a_goodbye_reaches_a_caller_with_questions_unread(network: Network) -> None:
    """The listener has questions in its buffer that it never read: no reset may eat its goodbye."""
    service = network.service()
    caller = network.caller(service.listener.address)
    replies = [caller.ask("never", question(i, 1 << 12), Answer) for i in range(20)]
    wait_until(lambda: service.never, "the first one is worked on")
    service.listener.close(EndReason.SHUTDOWN)
    for reply in replies:
        with pytest.raises(PeerLostError) as caught:
            reply.wait(60)
        assert caught.value.end is EndReason.SHUTDOWN


def test_a_listener_that_closes_answers_with_its_goodbye_alone(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails because another connection has ended already must not look like a refusal."""
    ends: list[str] = []
    asks = threading.Event()

    def fail_once_a_is_gone(request: int, peer: Peer) -> int:
        if peer.name == "b":
            asks.set()
            wait_until(lambda: "a" in ends, "the other connection has ended")
            raise PeerError("whoever asks was given up")
        return request

    listener = Listener(
        "127.0.0.1",
        0,
        network.security,
        {"ask": Method(int, int, fail_once_a_is_gone)},
        "service",
        on_end=lambda peer, end: ends.append(peer.name),
    ).start()
    network.opened.append(listener)
    a, b = (network.caller(listener.address, name=name) for name in "ab")
    assert a.ask("ask", 1, int).wait(60) == 1
    asked = b.ask("ask", 2, int)
    assert asks.wait(60), "b asks"
    dismiss = _PeerConnection.dismiss

    def dismiss_once_answered(self: _PeerConnection, *args: Any) -> None:
        assert self.peer is not None
        if self.peer.name == "b":
            wait_until(lambda: not self.owes, "what was asked is answered, or never will be")
        dismiss(self, *args)

    monkeypatch.setattr(_PeerConnection, "dismiss", dismiss_once_answered)
    listener.close(EndReason.SHUTDOWN)
    with pytest.raises(PeerLostError) as caught:
        asked.wait(60)
    assert caught.value.end is EndReason.SHUTDOWN
