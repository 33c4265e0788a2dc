import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gigl_loader.errors import (
    ConfigError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
    ProtocolError,
    RemoteError,
    UsageError,
)
from gigl_loader.runtime.transport import Caller, EndReason, IncomingArray, Security, listener
from gigl_loader.runtime.transport import caller as caller_module
from gigl_loader.testing import free_port, wait_until
from tests.runtime.transport.network import AT_ONCE_S, PATIENCE_S, Network
from tests.runtime.transport.outage import BYTES, BYTES_PER_S, outage
from tests.runtime.transport.relay import Relay
from tests.runtime.transport.service import SECURITIES, Answer, Service, question
from tests.support.conditions import SetConstants

pytestmark = pytest.mark.waits


def test_answers_come_in_the_order_of_the_questions(network: Network) -> None:
    service = network.service()
    caller = network.caller(service.listener.address)
    replies = [caller.ask("double", question(i), Answer) for i in range(50)]
    for i in reversed(range(50)):  # the last one first: the others are filed on the way
        answer = replies[i].wait(60)
        assert (answer.number, answer.rows.tolist()) == (i, [2 * i, 2 * i + 2, 2 * i + 4])
    assert service.asked == list(range(50))


def test_many_threads_share_a_caller(network: Network) -> None:
    caller = network.caller(network.service().listener.address)

    def work(thread: int) -> list[int]:
        asked = range(thread * 100, thread * 100 + 20)
        return [caller.ask("double", question(i), Answer).wait(60).number for i in asked]

    with ThreadPoolExecutor(8) as pool:
        for thread, numbers in enumerate(pool.map(work, range(8))):
            assert numbers == list(range(thread * 100, thread * 100 + 20))


def test_large_questions_and_answers_in_both_directions_do_not_block_each_other(
    network: Network,
) -> None:
    """The peer is blocked sending us answers while we are blocked sending it questions."""
    caller = network.caller(network.service().listener.address)
    replies = [caller.ask("double", question(i, 1 << 20), Answer) for i in range(8)]
    for i, reply in enumerate(replies):
        assert np.array_equal(reply.wait(60).rows, (np.arange(1 << 20) + i) * 2)


def test_an_answer_is_received_into_memory_of_the_asker(network: Network) -> None:
    caller = network.caller(network.service().listener.address)
    mine = np.zeros(3, np.int64)

    def into(specs: list[IncomingArray]) -> list[np.ndarray]:
        assert specs == [IncomingArray(np.dtype("int64"), (3,))]
        return [mine]

    answer = caller.ask("double", question(5), Answer, into=into).wait(60)
    assert answer.rows is mine
    assert mine.tolist() == [10, 12, 14]


def test_memory_that_does_not_fit_fails_that_answer_only(network: Network) -> None:
    caller = network.caller(network.service().listener.address)
    wrong = caller.ask("double", question(1), Answer, into=lambda specs: [np.zeros(2)])
    right = caller.ask("double", question(2), Answer)
    assert right.wait(60).number == 2
    with pytest.raises(UsageError, match="into"):
        wrong.wait(60)


def test_errors_of_a_handler_come_back(network: Network) -> None:
    caller = network.caller(network.service().listener.address, what="the store")
    with pytest.raises(RemoteError, match=r"the store.*ZeroDivisionError") as caught:
        caller.ask("fail", question(1), Answer).wait(60)
    assert "in _fail" in caught.value.remote_traceback
    with pytest.raises(ProtocolError, match="no method 'nothing'"):
        caller.ask("nothing", question(1), Answer).wait(60)
    with pytest.raises(ProtocolError, match="is not a Question"):
        caller.ask("double", (1, 2), Answer).wait(60)
    with pytest.raises(ProtocolError, match="is not a str"):
        caller.ask("double", question(1), str).wait(60)
    assert caller.ask("double", question(3), Answer).wait(60).number == 3


def test_a_slow_answer_times_out_and_can_be_waited_for_again(network: Network) -> None:
    service = network.service()
    caller = network.caller(service.listener.address)
    reply = caller.ask("gated", question(4), Answer)
    with pytest.raises(PeerTimeoutError, match=r"'gated' within 0\.1 s"):
        reply.wait(0.1)
    assert not reply.done
    service.gate.set()
    assert reply.wait(60).number == 4
    assert service.asked == [4]


def test_a_busy_peer_is_not_silent(plain: Network, constants: SetConstants) -> None:
    constants(listener, TICK_S=0.05)  # so that a busy machine is not silent for long
    service = plain.service()
    caller = plain.caller(service.listener.address, patience_s=2.0)
    reply = caller.ask("gated", question(4), Answer)
    with pytest.raises(PeerTimeoutError):  # longer than the limit, and the peer said that it lives
        reply.wait(3.5)
    service.gate.set()
    assert reply.wait(60).number == 4
    assert set(service.asked) == {4}


def test_a_question_that_is_too_large_is_refused_here(network: Network) -> None:
    caller = network.caller(network.service(max_ask_bytes=1000).listener.address)
    caller.connect(time.monotonic() + 10)
    with pytest.raises(ProtocolError, match="takes 1000"):
        caller.ask("double", question(1, 1 << 20), Answer)
    assert caller.ask("double", question(1), Answer).wait(60).number == 1


def test_a_lost_connection_is_replaced_and_asked_again(network: Network) -> None:
    service = network.service()
    with Relay(service.listener.address) as relay:
        caller = network.caller(relay.address)
        replies = [caller.ask("gated", question(i), Answer) for i in range(3)]
        wait_until(lambda: service.asked, "the first question is there")
        relay.reset()
        service.gate.set()
        assert [reply.wait(60).number for reply in replies] == [0, 1, 2]
        assert service.asked.count(0) == 2


def test_nothing_is_asked_again_of_another_process(network: Network) -> None:
    """Its port was given to the next one that asked for it."""
    first, second = network.service(), network.service()
    with Relay(first.listener.address) as relay:
        caller = network.caller(relay.address)
        waiting = caller.ask("gated", question(1), Answer)
        wait_until(lambda: first.asked, "the question is there")
        relay.target = second.listener.address
        relay.reset()
        with pytest.raises(PeerLostError, match="another process listens there") as lost:
            waiting.wait(60)
        assert lost.value.end == EndReason.GONE
        with pytest.raises(PeerLostError):
            caller.ask("double", question(2), Answer).wait(60)
        meant = network.caller(relay.address, incarnation=caller.incarnation)
        with pytest.raises(PeerLostError):
            meant.connect(time.monotonic() + 60)
        first.gate.set()
        assert second.asked == []
        assert network.caller(relay.address).ask("double", question(3), Answer).wait(60).number == 3


def test_a_peer_that_drops_every_connection_is_given_up(plain: Network) -> None:
    def drop(peer: object) -> None:
        raise OSError("a bug in the owner")

    service = plain.service()
    service.listener.on_peer = drop
    caller = plain.caller(service.listener.address, patience_s=1.0)
    with pytest.raises(PeerLostError, match="then drops the connection"):
        caller.ask("double", question(1), Answer).wait(60)


def test_goodbyes_are_typed(network: Network) -> None:
    service = network.service()
    caller = network.caller(service.listener.address)
    reply = caller.ask("never", question(1), Answer)
    wait_until(lambda: service.never, "the question is there")
    service.listener.close(EndReason.JOB_OVER, "the job is done")
    with pytest.raises(PeerLostError, match="the job is done") as caught:
        reply.wait(60)
    assert caught.value.end is EndReason.JOB_OVER
    wait_until(lambda: service.ends == [("tester", EndReason.CLOSED)], "its end is known here, too")
    assert service.never[0].cancelled()


def test_the_listener_learns_how_a_caller_ended(network: Network) -> None:
    service = network.service()
    caller = network.caller(service.listener.address)
    caller.ask("never", question(1), Answer)
    wait_until(lambda: service.never, "the question is there")
    caller.close(EndReason.LOST_PEER, "somebody else died")
    wait_until(lambda: service.ends, "the end is known")
    assert service.ends == [("tester", EndReason.LOST_PEER)]
    assert service.never[0].cancelled()


def test_closing_wakes_those_who_wait(network: Network) -> None:
    service = network.service()
    caller = network.caller(service.listener.address)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(caller.ask("never", question(i), Answer).wait, 60) for i in range(3)]
        wait_until(lambda: service.never, "the question is there")
        started = time.monotonic()
        caller.close()
        caller.close()
        for wait in waits:
            error = wait.exception(60)
            assert isinstance(error, PeerLostError)
            assert error.end is EndReason.CLOSED
        assert time.monotonic() - started < AT_ONCE_S
    with pytest.raises(PeerLostError, match="closed on this side"):
        caller.ask("double", question(1), Answer)


def test_nothing_listens_there(plain: Network) -> None:
    caller = plain.caller(("127.0.0.1", free_port("127.0.0.1")), what="server 3")
    started = time.monotonic()
    with pytest.raises(PeerLostError, match=r"server 3 at 127.0.0.1.*nothing listens") as caught:
        caller.ask("double", question(1), Answer).wait(60)
    assert caught.value.end is EndReason.GONE
    with pytest.raises(PeerLostError, match="nothing listens"):
        caller.connect(time.monotonic() + 10)
    assert time.monotonic() - started < AT_ONCE_S


def test_a_listener_that_is_not_up_yet_is_waited_for(network: Network) -> None:
    port = free_port("127.0.0.1")
    caller = network.caller(("127.0.0.1", port))
    with pytest.raises(PeerTimeoutError, match="did not come up within"):
        caller.connect(time.monotonic() + 0.2, lambda why: None)
    services: list[Service] = []

    def start_one(why: str) -> None:
        if not services:
            services.append(_at_port(network, port))

    caller.connect(time.monotonic() + 60, start_one)
    assert services, "it said that it waits"
    assert caller.ask("double", question(1), Answer).wait(60).number == 1


def _at_port(network: Network, port: int) -> Service:
    return network.service(port=port)


ROOT = Path(__file__).parents[3]
SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.runtime.transport.service import SECURITIES, Service
service = Service(SECURITIES[sys.argv[2]]())
print(service.listener.address[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process(network: Network) -> "object":
    mode = "tls" if network.security.mode.encrypted else "plain"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, ROOT, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield server
    server.kill()
    server.communicate()


def _address(process: "subprocess.Popen[bytes]") -> tuple[str, int]:
    assert process.stdout is not None
    return "127.0.0.1", int(process.stdout.readline())


def test_a_killed_peer_is_known_at_once(
    network: Network, process: "subprocess.Popen[bytes]"
) -> None:
    caller = network.caller(_address(process))
    reply = caller.ask("never", question(1), Answer)
    with pytest.raises(PeerTimeoutError):
        reply.wait(0.2)
    process.kill()
    started = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        reply.wait(60)
    assert caught.value.end is EndReason.GONE
    assert time.monotonic() - started < AT_ONCE_S


def test_a_stopped_peer_is_known_after_the_limit(
    network: Network, process: "subprocess.Popen[bytes]"
) -> None:
    caller = network.caller(_address(process), patience_s=2.0)
    assert caller.ask("double", question(1), Answer).wait(60).number == 1
    process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        caller.ask("never", question(1), Answer).wait(60)
    waited = time.monotonic() - started
    process.send_signal(signal.SIGCONT)
    assert caught.value.end is EndReason.SILENT
    assert 1.9 < waited < 2.0 + AT_ONCE_S


def test_outages_cost_their_length() -> None:
    """Nothing is lost in an outage shorter than the limit, in a batch or while idle."""
    transfer_s = BYTES / BYTES_PER_S
    cases: list[tuple[Security, float, bool]] = [
        (make(), length_s, idle)
        for make in SECURITIES.values()
        for length_s in (2, 4, 7)
        for idle in (False, True)
    ]
    with ThreadPoolExecutor(len(cases)) as pool:  # at once: nearly all of it is waiting
        found = pool.map(lambda case: outage(case[0], case[1], case[2], PATIENCE_S), cases)
        for case, extra_s in zip(cases, found, strict=True):
            assert extra_s < AT_ONCE_S + transfer_s, case


def test_a_longer_outage_is_an_error(plain: Network) -> None:
    service = plain.service()
    with Relay(service.listener.address) as relay:
        caller = plain.caller(relay.address, patience_s=2.5)
        reply = caller.ask("never", question(1), Answer)
        wait_until(lambda: service.never, "the question is there")
        relay.cut.set()
        started = time.monotonic()
        with pytest.raises(PeerLostError, match="is lost") as caught:
            reply.wait(60)
        assert caught.value.end is EndReason.SILENT
        assert time.monotonic() - started < 2.5 + AT_ONCE_S


def test_a_name_without_an_address_is_waited_for(
    plain: Network, host_names: dict[str, str]
) -> None:
    """As that of a pod that is being started: the listener and its address come later."""
    port = plain.service().listener.address[1]
    host_names["storage-0"] = ""
    caller = plain.caller(("storage-0", port))
    said: list[str] = []
    with pytest.raises(ConfigError, match="host 'storage-0' has no address"):
        caller.connect(time.monotonic() + 60)
    with pytest.raises(PeerTimeoutError, match=r"did not come up .*'storage-0' has no address"):
        caller.connect(time.monotonic() + 0.1, said.append)

    def wait(why: str) -> None:
        said.append(why)
        host_names["storage-0"] = "127.0.0.1"

    caller.connect(time.monotonic() + 60, wait)
    assert caller.ask("double", question(2), Answer).wait(60).number == 2
    assert all("host 'storage-0' has no address" in why for why in said)


def test_time_in_which_the_asker_is_suspended_is_no_silence(plain: Network) -> None:
    """As when a job is suspended and resumed, and this process wakes up before its peer does."""
    service = plain.service()
    with Relay(service.listener.address) as relay:
        script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.runtime.transport.service import Answer, question
from gigl_loader.runtime.transport import Caller, Security
caller = Caller(*{relay.address}, Security.local(), "asker", patience_s=2.0)
caller.ask("gated", question(7), Answer).wait()
"""
        asker = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
        wait_until(lambda: service.asked, "the question is there")
        asker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, asker.pid, os.WSTOPPED)
        relay.cut.set()
        time.sleep(4.0)  # longer than its patience
        connections = relay.taken
        asker.send_signal(signal.SIGCONT)
        wait_until(lambda: relay.taken > connections or asker.poll() is not None, "it tries again")
        relay.cut.clear()
        service.gate.set()
        assert (asker.communicate(timeout=100)[1], asker.returncode) == (b"", 0)


def test_a_process_that_is_starved_gives_a_silent_peer_up_too(
    plain: Network, clock_of: Callable[..., None]
) -> None:
    """Each look comes more than a second after the one before: all of that once was forgiven."""
    service = plain.service()
    with Relay(service.listener.address) as relay:
        caller = plain.caller(relay.address, patience_s=5.0)
        reply = caller.ask("gated", question(7), Answer)
        wait_until(lambda: service.asked, "the question is there")
        relay.cut.set()
        now = [time.monotonic()]

        def starved() -> float:
            now[0] += 1.1
            return now[0]

        clock_of(caller_module, SimpleNamespace(monotonic=starved, sleep=lambda seconds: None))
        with pytest.raises(PeerLostError) as caught:
            reply.wait(1000.0)  # of that clock
        assert caught.value.end is EndReason.SILENT
        service.gate.set()


def test_a_peer_that_lives_and_takes_no_bytes_holds_up_nobody_for_ever(plain: Network) -> None:
    """It says each second that it is alive, as its handler of the question before goes on."""
    service = plain.service()
    caller = plain.caller(service.listener.address)
    before = caller.ask("gated", question(1), Answer)
    wait_until(lambda: service.asked, "the handler has begun")
    with ThreadPoolExecutor(1) as pool:  # 64 MiB: more than any socket's buffer
        asked = pool.submit(caller.ask, "double", question(2, 8 << 20), Answer, timeout_s=1.0)
        try:
            reply = asked.result(AT_ONCE_S)
            with pytest.raises(PeerTimeoutError, match="did not answer 'double' within 2"):
                reply.wait(2.0)
        finally:
            service.gate.set()
    assert before.wait(60).number == 1


def test_a_slow_link_is_no_silence(plain: Network) -> None:
    """A message takes longer than the limit in both directions, and every byte is progress."""
    service = plain.service(silence_s=2.0)
    with Relay(service.listener.address, 1.6e6) as relay:
        caller = plain.caller(relay.address, patience_s=2.4)
        answer = caller.ask("double", question(1, 1 << 19), Answer).wait(100)  # 4 MiB each way
        assert np.array_equal(answer.rows, (np.arange(1 << 19) + 1) * 2)
        assert service.asked == [1]


def test_a_caller_that_reads_nothing_for_long_loses_nothing(plain: Network) -> None:
    service = plain.service(silence_s=0.5)
    caller = plain.caller(service.listener.address, patience_s=2.0)
    replies = [caller.ask("zeros", question(1 << 24), Answer) for _ in range(3)]
    time.sleep(2.5)
    assert [reply.wait(60).number for reply in replies] == [1 << 24] * 3
    assert len(service.asked) == 3


def test_a_fork_has_a_connection_of_its_own(network: Network) -> None:
    service = network.service()
    caller = network.caller(service.listener.address)
    former = caller.ask("gated", question(1), Answer)
    wait_until(lambda: service.asked, "the question is there")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            good = caller.ask("double", question(21), Answer).wait(60).number == 21
            try:
                former.wait(1)
            except PeerError:
                code = 0 if good else 2
        finally:
            os.write(writing, bytes([code]))
            os._exit(code)
    assert os.read(reading, 1) == b"\0"
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    service.gate.set()
    assert former.wait(60).number == 1  # the parent's connection is as it was


def test_a_process_may_exit_while_it_waits(plain: Network) -> None:
    service = plain.service()
    script = f"""
import threading, time, numpy as np
from gigl_loader.runtime.transport import Caller, Security
caller = Caller("127.0.0.1", {service.listener.address[1]}, Security.local(), "x")
caller.connect(time.monotonic() + 60)
reply = caller.ask("never", {{"number": 1, "rows": np.zeros(1)}}, int)
threading.Thread(target=reply.wait, daemon=True).start()
while caller._reader is None:
    time.sleep(0.01)
time.sleep(0.1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, b"")
    wait_until(lambda: service.ends == [("x", EndReason.GONE)], "the end is known")


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_names_and_ipv6(network: Network, host: str) -> None:
    service = network.service(host=host)
    caller = network.caller((host, service.listener.address[1]))
    assert caller.ask("double", question(1), Answer).wait(60).number == 1


def test_another_service_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        token = "kq3Jv0aWZbX7mT9rLs2UdQ"
        for security in (Security.local(), Security.resolve("", token, False)):
            host, port = server.getsockname()
            with Caller(host, port, security, "x") as caller:
                with pytest.raises(PeerLostError, match=r"HTTP/1\.1") as caught:
                    caller.connect(time.monotonic() + 5)
                assert caught.value.end is EndReason.REFUSED_SERVICE
        thread.join()
