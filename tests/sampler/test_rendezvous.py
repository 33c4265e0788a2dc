"""Ranks are threads here, except where a process has to die or stop."""

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest

from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    UsageError,
)
from gigl_loader.sampler import rendezvous
from gigl_loader.sampler.rendezvous import Rendezvous
from gigl_loader.testing._forked import ForkedProcess

HOST = "127.0.0.1"


@contextlib.contextmanager
def _ranks(world_size: int, timeout_s: float = 20.0) -> Iterator[list[Rendezvous]]:
    ranks = [Rendezvous(HOST, 0, 0, world_size, timeout_s, is_master=True)]
    ranks += [
        Rendezvous(HOST, ranks[0].port, rank, world_size, timeout_s, is_master=False)
        for rank in range(1, world_size)
    ]
    try:
        yield ranks
    finally:
        for member in reversed(ranks):  # the host last, as it waits for the others
            member.close()


def _at_once(ranks: list[Rendezvous], work: Callable[[Rendezvous], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, ranks, timeout=60))


def test_every_rank_gathers_the_bytes_of_all() -> None:
    values = [b"", b"\x00\xff\x80 raw", b"\x80\x04never unpickled.", bytes(300_000)]

    def work(member: Rendezvous) -> list[bytes]:
        member.publish("addresses", values[member._rank])
        return member.gather("addresses", range(4))

    with _ranks(4) as ranks:
        assert _at_once(ranks, work) == [values] * 4
        assert ranks[1].gather("addresses", [2, 0]) == [values[2], values[0]]
        assert ranks[1].gather("addresses", []) == []
        assert ranks[3].wait_for("addresses", 1) == values[1]


def test_a_late_rank_is_waited_for_and_named_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_REPORT_EVERY_S", 0.2)
    with _ranks(3) as ranks, caplog.at_level(logging.INFO):
        ranks[1].publish("key", b"1")
        late = threading.Timer(1.0, ranks[2].publish, ("key", b"2"))
        late.start()
        start = time.monotonic()
        assert ranks[0].gather("key", [1, 2]) == [b"1", b"2"]
        assert 0.9 < time.monotonic() - start < 3
        late.join()
    assert "of ranks [2]" in caplog.text


def test_a_failed_rank_ends_the_wait_of_the_others_with_its_reason() -> None:
    def work(member: Rendezvous) -> str:
        if member._rank == 2:
            time.sleep(0.3)
            member.fail("ImportError: no module named numba\nat line 3")
            member.fail("a later reason")
            return "failed"
        with pytest.raises(PeerError) as caught:
            member.gather("key", range(3))
        return str(caught.value)

    with _ranks(3, timeout_s=60) as ranks:
        start = time.monotonic()
        first, second, _ = _at_once(ranks, work)
        assert time.monotonic() - start < 3
    for text, rank in ((first, 0), (second, 1)):
        assert f"rank 2 failed while rank {rank} waited for 'key'" in text
        assert "no module named numba\nat line 3" in text


def test_an_exception_in_the_block_of_a_rank_reaches_the_others() -> None:
    with _ranks(2, timeout_s=60) as ranks:
        with pytest.raises(ZeroDivisionError), ranks[1]:
            _ = 1 // 0
        with pytest.raises(PeerError, match=r"rank 1 failed.*ZeroDivisionError"):
            ranks[0].wait_for("key", 1)


def test_a_missing_rank_is_named_at_the_deadline() -> None:
    with _ranks(3, timeout_s=0.7) as ranks:
        ranks[1].publish("key", b"1")
        start = time.monotonic()
        with pytest.raises(PeerTimeoutError, match=r"rank 0 waited 0\.7 s.*ranks \[2\]"):
            ranks[0].gather("key", [1, 2])
        assert 0.6 < time.monotonic() - start < 3


def test_a_taken_port_is_named_at_once() -> None:
    with contextlib.closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*taken.*another port"):
            Rendezvous(HOST, port, 0, 2, 30.0, is_master=True)
        assert time.monotonic() - start < 5


def test_no_host_is_named_at_the_deadline() -> None:
    with contextlib.closing(socket.socket()) as reserved:
        reserved.bind((HOST, 0))  # bound, not listening: connections are refused
        port = reserved.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(PeerTimeoutError, match=rf"{HOST}:{port} did not come up within 0\.8 s"):
            Rendezvous(HOST, port, 1, 2, 0.8, is_master=False)
        assert 0.7 < time.monotonic() - start < 3


def test_something_else_on_the_port_ends_in_time() -> None:
    with contextlib.closing(socket.create_server((HOST, 0))) as mute:
        start = time.monotonic()
        with pytest.raises(PeerError, match=HOST):
            Rendezvous(HOST, mute.getsockname()[1], 1, 2, 1.0, is_master=False)
        assert time.monotonic() - start < 6


@pytest.mark.parametrize(
    ("port", "rank", "timeout_s"), [(0, 1, 1.0), (70000, 1, 1.0), (1, 2, 1.0), (1, 1, 0.0)]
)
def test_bad_values_are_refused(port: int, rank: int, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        Rendezvous(HOST, port, rank, 2, timeout_s, is_master=False)
    with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
        Rendezvous("no-such-host.invalid", 1, 1, 2, 1.0, is_master=False)


def test_another_token_is_refused() -> None:
    with Rendezvous(HOST, 0, 0, 2, 20.0, is_master=True, token=b"ours") as host:
        for token in (b"", b"theirs"):
            with pytest.raises(JoinRefusedError, match=rf"{HOST}:{host.port}.*token"):
                Rendezvous(HOST, host.port, 1, 2, 20.0, is_master=False, token=token)
        other = Rendezvous(HOST, host.port, 1, 2, 20.0, is_master=False, token=b"ours")
        other.publish("key", b"value")
        assert host.wait_for("key", 1) == b"value"
        other.close()


def test_it_listens_no_wider_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous._interface_of(HOST, "") == HOST
    assert rendezvous._interface_of("localhost", "") in (HOST, "::1")
    assert rendezvous._interface_of("192.0.2.77", "") == "0.0.0.0", "of no interface: a gateway's"

    def resolve(host: str, *_: object, **__: object) -> list:
        return [(0, 0, 0, "", ({"trainer-0": "127.0.1.1", "here": HOST}.get(host, host), 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert rendezvous._interface_of("trainer-0", "") == "0.0.0.0", "loopback by /etc/hosts only"


def test_the_reason_of_a_failure_stays_until_all_have_left() -> None:
    with _ranks(2) as ranks:
        ranks[0].fail("no luck")
        closing = threading.Thread(target=ranks[0].close)
        closing.start()
        time.sleep(0.3)
        with pytest.raises(PeerError, match="no luck"):
            ranks[1].wait_for("key")
        ranks[1].close()
        closing.join(10)
        assert not closing.is_alive()


def test_closing_frees_the_port_and_ends_the_use() -> None:
    with _ranks(2) as ranks:
        port = ranks[0].port
        for member in reversed(ranks):
            member.close()
            member.close()
        with pytest.raises(UsageError, match="closed"):
            ranks[0].publish("key", b"")
        ranks[1].fail("too late to matter")
    with contextlib.closing(socket.socket()) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect((HOST, port))


def test_the_host_stays_until_the_others_have_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with _ranks(2) as ranks:
        ranks[0].publish("key", b"value")
        closing = threading.Thread(target=ranks[0].close)
        closing.start()
        time.sleep(0.5)
        assert ranks[1].wait_for("key") == b"value"
        start = time.monotonic()
        ranks[1].close()
        closing.join(10)
        assert time.monotonic() - start < 2
    monkeypatch.setattr(rendezvous, "_LINGER_S", 0.5)
    with _ranks(2) as ranks:  # but not for ever
        start = time.monotonic()
        ranks[0].close()
        assert 0.4 < time.monotonic() - start < 3


def _host(pipe: Connection) -> None:
    member = Rendezvous(HOST, 0, 0, 2, 60.0, is_master=True)
    pipe.send(member.port)
    pipe.poll(120)


@pytest.mark.multiprocess
def test_a_stopped_or_killed_host_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_BOARD_ANSWERS_S", 1.0)
    ours, theirs = multiprocessing.Pipe()
    process = ForkedProcess(target=_host, args=(theirs,))
    process.start()
    try:
        assert ours.poll(60)
        port = ours.recv()
        assert process.pid is not None
        stopped, killed = (Rendezvous(HOST, port, 1, 2, 60.0, is_master=False) for _ in range(2))
        os.kill(process.pid, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(PeerTimeoutError, match=f"{HOST}:{port}.*rank 0"):
            stopped.wait_for("key")
        assert time.monotonic() - start < 5
        stopped.close()
        os.kill(process.pid, signal.SIGCONT)
        threading.Timer(0.3, process.kill).start()
        start = time.monotonic()
        with pytest.raises(PeerError, match=f"{HOST}:{port} is gone.*rank 0"):
            killed.wait_for("key")
        assert time.monotonic() - start < 5
        killed.close()
    finally:
        process.kill()
        process.join()
        ours.close()
        theirs.close()


def _member(rank: int, size: int, port: int, pipe: Connection) -> None:
    with Rendezvous(HOST, port, rank, size, 60.0, is_master=False) as member:
        member.publish("pids", str(os.getpid()).encode())
        pipe.send([int(value) for value in member.gather("pids", range(size))])


@pytest.mark.multiprocess
def test_processes_gather_from_each_other() -> None:
    with Rendezvous(HOST, 0, 0, 3, 60.0, is_master=True) as member:
        pipes = [multiprocessing.Pipe() for _ in range(2)]
        processes = [
            ForkedProcess(target=_member, args=(rank + 1, 3, member.port, theirs))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        try:
            for process in processes:
                process.start()
            member.publish("pids", str(os.getpid()).encode())
            pids = [int(value) for value in member.gather("pids", range(3))]
            assert pids == [os.getpid(), *(process.pid for process in processes)]
            for ours, _ in pipes:
                assert ours.poll(60)
                assert ours.recv() == pids
        finally:
            for process in processes:
                process.join(20)
                process.kill()
                process.join()
            for pipe in pipes:
                pipe[0].close()
                pipe[1].close()
