"""Sockets, threads and processes on this machine; ports are the system's choice."""

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
    UsageError,
)
from gigl_loader.memory.segments import Array
from gigl_loader.sampler import _peer_wire as wire
from gigl_loader.sampler.peers import PeerAddress, PeerPool, PeerServer
from gigl_loader.testing._forked import ForkedProcess

HOST, TOKEN = "127.0.0.1", b"a secret of this job"
ECHO, ARGS, RAISE, SLEEP, BIG = range(5)


def _handle(op: int, args: tuple[int, ...], arrays: list[Array]) -> list[Array]:
    if op == ARGS:
        return [np.array([ord(c) for c in repr(args)], np.int32)]
    if op == RAISE:
        raise LookupError(f"no row {args[0]}")
    if op == SLEEP:
        time.sleep(args[0] / 1000)
    if op == BIG:
        return [np.full(args[0], args[1], np.int64)]
    return arrays


@contextlib.contextmanager
def _served(token: bytes = TOKEN) -> Iterator[PeerServer]:
    server = PeerServer(HOST, token, _handle, "worker 7")
    server.start()
    try:
        yield server
    finally:
        server.close()


def _pool(
    address: tuple[str, int], token: bytes = TOKEN, timeout_s: float = 20.0, name: str = "me"
) -> contextlib.closing[PeerPool]:
    peers = (PeerAddress(*address, "worker 7"),)
    return contextlib.closing(PeerPool({3: peers}, token, timeout_s, name, spread=5))


def _soon(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def _same(left: Array, right: Array) -> bool:
    same_kind = left.dtype == right.dtype and left.shape == right.shape
    return same_kind and left.tobytes() == right.tobytes()


@pytest.mark.parametrize("dtype", wire._DTYPES, ids=str)
def test_values_of_every_type_arrive(dtype: np.dtype) -> None:
    raw = np.arange(24 * dtype.itemsize).astype(np.uint8)
    if dtype.kind == "b":
        raw = raw % 2
    whole = raw.view(dtype)
    sent = [
        whole.reshape(2, 3, 4),
        whole[:0],
        whole[:0].reshape(0, 7),
        whole[:1].reshape(()),
        whole.reshape(4, 6).T,
        whole[1::3],
    ]
    with _served() as server, _pool(server.address) as pool:
        received = pool.call(3, ECHO, (), sent).wait()
    assert len(received) == len(sent)
    assert all(_same(a, b) for a, b in zip(sent, received, strict=True))


def test_integers_of_64_bits_arrive() -> None:
    args = (0, -1, 1 << 63, (1 << 64) - 1, -(1 << 63), (1 << 63) - 1, 5, -7)
    with _served() as server, _pool(server.address) as pool:
        for some in (args, args[:1], ()):
            (text,) = pool.call(3, ARGS, some).wait()
            assert "".join(map(chr, text.tolist())) == repr(some)


def test_what_does_not_fit_a_frame_is_refused_here_and_harms_nothing() -> None:
    with _served() as server, _pool(server.address) as pool:
        for args, arrays in (
            ((1 << 64,), []),
            ((1,) * 9, []),
            ((), [np.zeros([1] * 9)]),
            ((), [np.array([None, 1])]),
            ((), [np.zeros(1)] * 4097),
        ):
            with pytest.raises(ProtocolError, match="operation 0"):
                pool.call(3, ECHO, args, arrays)
        assert pool.call(3, ECHO, (), [np.ones(2)]).wait()[0].tolist() == [1, 1]


def test_hundreds_of_arrays_fit_one_frame() -> None:
    sent = [np.arange(i) for i in range(1500)]  # more than the kernel takes in one call
    with _served() as server, _pool(server.address) as pool:
        received = pool.call(3, ECHO, (), sent).wait()
    assert all(_same(a, b) for a, b in zip(sent, received, strict=True))


def test_answers_can_be_awaited_in_any_order_and_twice() -> None:
    with _served() as server, _pool(server.address) as pool:
        calls = [pool.call(3, BIG, (1000 + i, i)) for i in range(20)]
        for i in (19, 3, 3, 0, 7, *range(20)):
            (answer,) = calls[i].wait()
            assert answer.shape == (1000 + i,)
            assert np.unique(answer).tolist() == [i]


def test_big_questions_and_big_answers_do_not_block_each_other() -> None:
    block = np.arange(3 << 20)  # 24 MB each way: more than all socket buffers
    with _served() as server, _pool(server.address) as pool:
        calls = [pool.call(3, ECHO, (), [block + i]) for i in range(6)]
        for i, call in reversed(list(enumerate(calls))):
            assert np.array_equal(call.wait()[0], block + i)


def test_answers_land_in_the_given_buffers() -> None:
    room, narrow = np.zeros(100, np.int64), np.zeros(2, np.int64)
    with _served() as server, _pool(server.address) as pool:
        sent = [np.arange(6).reshape(2, 3), np.arange(5), np.ones(2)]
        received = pool.call(3, ECHO, (), sent, out=[room, narrow]).wait()
    assert all(_same(a, b) for a, b in zip(sent, received, strict=True))
    assert received[0].ctypes.data == room.ctypes.data
    assert not room[6:].any()
    assert received[1].ctypes.data != narrow.ctypes.data


def test_many_threads_share_a_pool() -> None:
    failures: list[object] = []

    def ask(me: int, pool: PeerPool) -> None:
        try:
            for i in range(30):
                calls = [pool.call(3, ECHO, (), [np.full(50, me)]) for _ in range(3)]
                for call in calls[:: -1 if i % 2 else 1]:
                    assert (call.wait()[0] == me).all()
        except BaseException as error:
            failures.append(error)

    with _served() as server, _pool(server.address) as pool:
        threads = [threading.Thread(target=ask, args=(i, pool)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert not any(thread.is_alive() for thread in threads)


def test_another_thread_can_wait_for_the_answer() -> None:
    answers: list[list[Array]] = []
    with _served() as server, _pool(server.address) as pool:
        call = pool.call(3, ECHO, (), [np.ones(3)])
        thread = threading.Thread(target=lambda: answers.append(call.wait()))
        thread.start()
        thread.join(10)
    assert answers[0][0].tolist() == [1, 1, 1]


def test_each_worker_asks_its_share_of_a_partition() -> None:
    with _served() as left, _served() as right:
        peers = (PeerAddress(*left.address, "left"), PeerAddress(*right.address, "right"))
        for spread in range(4):
            with contextlib.closing(PeerPool({0: peers}, TOKEN, 10, f"w{spread}", spread)) as pool:
                pool.call(0, ECHO).wait()
        assert left.wait_for_byes({"w0", "w2"}, 10) == set()
        assert right.wait_for_byes({"w1", "w3"}, 10) == set()
        assert left.wait_for_byes({"w1"}, 0) == {"w1"}


def test_what_a_handler_raises_arrives_with_its_traceback() -> None:
    with _served() as server, _pool(server.address) as pool:
        before, bad, after = (
            pool.call(3, ECHO, (), [np.ones(1)]),
            pool.call(3, RAISE, (42,)),
            pool.call(3, ECHO, (), [np.zeros(1)]),
        )
        for _ in range(2):
            with pytest.raises(SamplingError, match="no row 42") as caught:
                bad.wait()
        assert "worker 7" in caught.value.where
        assert "partition 3" in caught.value.where
        assert caught.value.cause == "LookupError: no row 42"
        assert "in _handle" in caught.value.remote_traceback
        assert before.wait()[0].item() == 1
        assert after.wait()[0].item() == 0


def test_an_unknown_partition_and_bad_options_are_named() -> None:
    with _served() as server, _pool(server.address) as pool, pytest.raises(ConfigError, match="9"):
        pool.call(9, ECHO)
    with pytest.raises(ConfigError, match=r"\[4\]"):
        PeerPool({4: ()}, TOKEN, 1, "me", 0)
    with pytest.raises(ConfigError, match="timeout_s"):
        PeerPool({}, TOKEN, 0, "me", 0)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        PeerServer(host, TOKEN, _handle, "worker 7")


def test_nobody_listens() -> None:
    with _served() as server:
        address = server.address
    with _pool(address) as pool, pytest.raises(PeerError, match=r"worker 7 at 127.*partition 3"):
        pool.call(3, ECHO)


def test_another_token_is_refused_by_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    with _served(b"another") as server, _pool(server.address) as pool:
        with pytest.raises(JoinRefusedError, match=r"worker 7 at 127.*does not know this job's"):
            pool.call(3, ECHO)
        # a client that goes on although the server's proof is wrong: the server must say no
        with caplog.at_level(logging.WARNING):
            raw = socket.create_connection(server.address, 10)
            with contextlib.closing(raw):
                raw.settimeout(10)
                raw.sendall(wire._HELLO.pack(b"GLpc", 1, 2, bytes(32)) + b"me")
                assert len(raw.recv(wire._CHALLENGE.size, socket.MSG_WAITALL)) == 69
                raw.sendall(bytes(32))
                assert raw.recv(10) == b"\x00"
                assert raw.recv(10) == b""
            assert _soon(lambda: "does not know this job's token" in caplog.text)


def test_a_refusal_after_a_good_proof_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    real = wire._proof

    def forgetful(token: bytes, side: bytes, nonces: bytes, name: bytes) -> bytes:
        proof = real(token, side, nonces, name)
        server_checks = side == b"client" and threading.current_thread().daemon
        return bytes(32) if server_checks else proof

    monkeypatch.setattr(wire, "_proof", forgetful)
    with (
        _served() as server,
        _pool(server.address) as pool,
        pytest.raises(JoinRefusedError, match="did not accept"),
    ):
        pool.call(3, ECHO)


def test_a_stranger_on_the_port_is_not_taken_for_a_peer() -> None:
    with contextlib.closing(socket.create_server((HOST, 0))) as listener:

        def talk() -> None:
            sock = listener.accept()[0]
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(100))
            time.sleep(1)
            sock.close()

        threading.Thread(target=talk, daemon=True).start()
        with (
            _pool(listener.getsockname()) as pool,
            pytest.raises(JoinRefusedError, match="not a sampling worker"),
        ):
            pool.call(3, ECHO)


def test_garbage_and_half_open_connections_do_not_harm_the_server() -> None:
    hello = wire._HELLO.pack(b"GLpc", 1, 200, bytes(32))
    with _served() as server, _pool(server.address) as pool:
        silent = socket.create_connection(server.address, 10)  # never says a word
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 20, bytes(1000), hello, b"\x80\x04\x95", b""):
            with contextlib.closing(socket.create_connection(server.address, 10)) as sock:
                sock.sendall(garbage)
        assert pool.call(3, ECHO, (), [np.ones(1)]).wait()[0].item() == 1
        silent.close()
        assert _soon(lambda: len(server._streams) == 1)


def test_a_member_that_sends_nonsense_loses_its_connection_only() -> None:
    huge = wire._HEAD.pack(b"GLp1", 1, wire.CALL, 0, 0, 0, 1, 0, 1 << 62, *[0] * 8)
    lying = wire._HEAD.pack(b"GLp1", 1, wire.CALL, 0, 0, 0, 1, 0, 8, *[0] * 8)
    lying += wire._ARRAY.pack(4, 1, 8, 1 << 40, *[0] * 7)
    with _served() as server, _pool(server.address) as pool:
        for nonsense in (huge, lying, bytes(200)):
            stream = wire.Stream(socket.create_connection(server.address, 10))
            deadline = time.monotonic() + 10
            wire.join(stream, TOKEN, "odd", deadline)
            stream.send([memoryview(nonsense)], deadline)
            with pytest.raises((EOFError, ConnectionError)):
                stream.recv([memoryview(bytearray(1))], deadline)
            stream.close()
        assert pool.call(3, ECHO, (), [np.ones(1)]).wait()[0].item() == 1


def test_a_server_that_closes_fails_all_outstanding_calls_and_frees_its_port() -> None:
    server = PeerServer(HOST, TOKEN, _handle, "worker 7")
    server.start()
    with _pool(server.address) as pool:
        calls = [pool.call(3, SLEEP, (3000,)) for _ in range(3)]
        start = time.monotonic()
        server.close()
        server.close()
        for call in reversed(calls):
            with pytest.raises(PeerError, match=r"worker 7 at 127.*partition 3.*broke"):
                call.wait()
        assert time.monotonic() - start < 2.5
        with contextlib.closing(socket.socket()) as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(server.address)
            again.listen()
        with pytest.raises(PeerError, match="cannot connect"):
            pool.call(3, ECHO)
    with pytest.raises(UsageError):
        server.start()


def test_a_server_that_was_never_started_closes() -> None:
    PeerServer(HOST, TOKEN, _handle, "worker 7").close()


def test_a_new_call_reconnects_and_the_old_ones_stay_failed() -> None:
    with _served() as server, _pool(server.address) as pool:
        old = pool.call(3, SLEEP, (300,))
        for stream in list(server._streams):
            stream.shutdown()
        with pytest.raises(PeerError):
            old.wait()
        assert pool.call(3, ECHO, (), [np.ones(1)]).wait()[0].item() == 1
        with pytest.raises(PeerError):
            old.wait()


def test_an_interrupted_wait_does_not_leave_half_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = wire._room

    def interrupted(*what: Any) -> Array:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return room(*what)  # the server has a thread of its own here

    with _served() as server, _pool(server.address) as pool:
        call = pool.call(3, ECHO, (), [np.ones(1)])
        with monkeypatch.context() as patch:
            patch.setattr(wire, "_room", interrupted)
            with pytest.raises(KeyboardInterrupt):
                call.wait()
        with pytest.raises(PeerError, match="interrupted"):
            call.wait()
        assert pool.call(3, ECHO, (), [np.ones(1)]).wait()[0].item() == 1


def test_closing_a_pool_wakes_its_waiters() -> None:
    errors: list[BaseException] = []
    with _served() as server:
        with _pool(server.address) as pool:
            call = pool.call(3, SLEEP, (3000,))

            def wait() -> None:
                try:
                    call.wait()
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.1)
            start = time.monotonic()
        thread.join(10)
        assert time.monotonic() - start < 2
        assert isinstance(errors[0], UsageError)
        pool.close()
        with pytest.raises(UsageError, match="closed"):
            pool.call(3, ECHO)


def test_goodbyes() -> None:
    with _served() as server, _served() as other:
        peers = (PeerAddress(*server.address, "a"), PeerAddress(*other.address, "b"))
        polite = PeerPool({0: peers}, TOKEN, 10, "polite", 0)
        polite.call(0, ECHO).wait()
        abrupt = PeerPool({0: peers}, TOKEN, 10, "abrupt", 0)
        abrupt.call(0, ECHO).wait()
        assert server.wait_for_byes({"polite", "abrupt", "absent"}, 0.05) == {
            *("polite", "abrupt", "absent")
        }
        polite.say_bye()
        assert server.wait_for_byes({"polite"}, 0) == set()
        assert other.wait_for_byes({"polite"}, 0) == set()  # it never asked this one
        abrupt.close()
        assert server.wait_for_byes({"polite", "abrupt"}, 10) == set()
        polite.close()
        waiting = threading.Timer(0.2, server.close)
        waiting.start()
        start = time.monotonic()
        assert server.wait_for_byes({"absent"}, 30) == {"absent"}
        assert time.monotonic() - start < 5
        waiting.join()


def test_a_goodbye_is_repeated_only_to_those_that_it_did_not_reach() -> None:
    late = PeerServer(HOST, TOKEN, _handle, "late")  # listens, and does not answer yet
    with _served() as server, contextlib.closing(late):
        peers = (PeerAddress(*late.address, "late"), PeerAddress(*server.address, "b"))
        with contextlib.closing(PeerPool({0: peers}, TOKEN, 10, "me", 0)) as pool:
            pool.say_bye()
            assert server.wait_for_byes({"me"}, 0) == set()
            server.close()
            late.start()
            pool.say_bye()
            assert late.wait_for_byes({"me"}, 0) == set()


def test_goodbyes_to_dead_peers_are_quick() -> None:
    with _served() as server:
        address = server.address
    with _pool(address) as pool:
        start = time.monotonic()
        pool.say_bye()
        assert time.monotonic() - start < 3


def test_a_slow_reader_is_not_taken_for_a_dead_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_VANISHED_S", 0.2)
    monkeypatch.setattr(wire, "_SLICE_S", 0.1)
    with _served() as server, _pool(server.address) as pool:
        call = pool.call(3, BIG, (4 << 20, 1))  # fills all buffers, then probes a closed window
        time.sleep(3)
        assert call.wait()[0].sum().item() == 4 << 20


def _serve_for_ever(pipe: Connection) -> None:
    server = PeerServer(HOST, TOKEN, _handle, "worker 7")
    server.start()
    pipe.send(server.address)
    pipe.poll(120)  # ends with the test


@contextlib.contextmanager
def _server_process() -> Iterator[tuple[int, tuple[str, int]]]:
    ours, theirs = multiprocessing.Pipe()
    process = ForkedProcess(target=_serve_for_ever, args=(theirs,))
    process.start()
    try:
        assert ours.poll(60), "the server did not start"
        assert process.pid is not None
        yield process.pid, ours.recv()
    finally:
        process.kill()
        process.join()
        ours.close()
        theirs.close()


@pytest.mark.multiprocess
def test_a_stopped_then_killed_server() -> None:
    with _server_process() as (pid, address), _pool(address, timeout_s=1.5) as pool:
        assert pool.call(3, ECHO, (), [np.ones(1)]).wait()[0].item() == 1
        os.kill(pid, signal.SIGSTOP)
        # waiting for an answer, then with a fresh connection: in the handshake
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(PeerTimeoutError, match=r"worker 7 at 127.*1\.5 s"):
                pool.call(3, ECHO).wait()
            assert 1.4 < time.monotonic() - start < 4
        os.kill(pid, signal.SIGCONT)
        assert pool.call(3, ECHO, (), [np.ones(1)]).wait()[0].item() == 1
        os.kill(pid, signal.SIGSTOP)  # sending more than the buffers hold
        with pytest.raises(PeerTimeoutError, match="while sending"):
            pool.call(3, ECHO, (), [np.zeros(8 << 20)])
        os.kill(pid, signal.SIGCONT)
        with _pool(address, timeout_s=60) as patient:
            calls = [patient.call(3, SLEEP, (30_000,)) for _ in range(2)]
            threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
            start = time.monotonic()
            for call in calls:
                with pytest.raises(PeerError, match=r"worker 7 at 127.*partition 3"):
                    call.wait()
            assert time.monotonic() - start < 5


def _vanish(pipe: Connection) -> None:
    """Lose the network under an open connection, as when a machine disappears."""
    import ctypes
    import fcntl

    def loopback(up: bool) -> None:
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
            fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x49 if up else 0x48))

    def ask(sending: bool) -> tuple[float, str]:
        loopback(True)
        with _served() as server, _pool(server.address, timeout_s=60) as pool:
            pool.call(3, ECHO).wait()
            call = None if sending else pool.call(3, SLEEP, (40_000,))
            time.sleep(0.5)
            loopback(False)
            start = time.monotonic()
            try:
                (call or pool.call(3, SLEEP, (1,))).wait()
            except PeerError as error:
                return time.monotonic() - start, str(error)
        return -1.0, ""

    def unshare(flags: int) -> None:  # os.unshare came with Python 3.12
        if ctypes.CDLL(None, use_errno=True).unshare(flags):
            raise OSError(ctypes.get_errno(), "unshare")

    def in_its_own_network(sending: bool) -> tuple[float, str]:
        try:
            unshare(0x40000000)  # of this thread and those it starts; as root
        except OSError:
            unshare(0x50000000)  # with a user namespace
        return ask(sending)

    try:
        with ThreadPoolExecutor(2) as threads:
            pipe.send(list(threads.map(in_its_own_network, [False, True])))
    except OSError as error:
        pipe.send(f"no network namespace here: {error}")


@pytest.mark.multiprocess
def test_a_machine_that_vanishes_is_noticed_in_seconds() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = ForkedProcess(target=_vanish, args=(theirs,))
    process.start()
    try:
        assert ours.poll(100)
        result = ours.recv()
    finally:
        process.kill()
        process.join()
        ours.close()
        theirs.close()
    if isinstance(result, str):
        pytest.skip(result)
    for seconds, text in result:
        assert 5 < seconds < 18, (seconds, text)
        assert "worker 7 at 127" in text
