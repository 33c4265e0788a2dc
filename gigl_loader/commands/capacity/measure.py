"""Single measurements of this machine: processes at rest, and the transport.

The transport is timed within this machine, and to a second host that responds. The second host runs
``gigl-loader plan --answer``, the first one ``--calibrate FILE --with``. Rows go to the first one
only, in the mode that both ends were given; with a token, over plain sockets as well, as rows of
ones are no secret.
"""

import multiprocessing
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import gigl_loader
from gigl_loader.errors import PeerError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.runtime.system import descendants, read_stat
from gigl_loader.runtime.transport import Caller, Listener, Method, Mode, Security
from gigl_loader.runtime.transport.certs import token

_REPLY_BYTES, _AHEAD = 8_000_000, 4
"""Approximate rows of a batch; and rows requested at a time, so that the connection never waits for
a request."""
_CONNECTIONS = 4
"""Simultaneous connections to a second host: as many as a worker has to each partition."""
_MEET_S, _ANSWER_S = 10.0, 60.0
"""Time limit for the second host to accept this one, and for a response."""
WAIT_S = 120.0
"""Time limit for a message of another process: it may read a graph first, on shared cores."""
_TICKS = os.sysconf("SC_CLK_TCK")


# --- processes ------------------------------------------------------------------------------------


class Child(AbstractContextManager["Child"]):
    """A process of a measurement, and a pipe to it; it ends with the ``with`` block.

    Args:
        function: Called with the other end of the pipe, and ``args``.
        args: Further arguments of ``function``; picklable.
        kind: Class of the process: forked from one with all imports done, so that no measurement
            depends on imports.
        wait_s: How long to wait for its messages, in seconds.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *args: Any,
        kind: type[BaseProcess] = ForkedProcess,
        wait_s: float = WAIT_S,
    ) -> None:
        self._wait_s = wait_s
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = kind(target=function, args=(theirs, *args))
        self._process.start()
        theirs.close()  # so that `hear` notices the end of the process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid or 0

    def hear(self) -> Any:
        """Return its next message.

        Raises:
            PeerError: It ended, or sends nothing.
        """
        try:
            if not self._pipe.poll(self._wait_s):
                limit = f"{self._wait_s:.0f} s"
                raise PeerError(f"a process of the measurement said nothing for {limit}")
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise PeerError("a process of the measurement ended early: see above") from error

    def go_on(self) -> None:
        """Let it continue after `say`."""
        self._pipe.send("go on")

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        # This ends a process that waits for a message.
        self._pipe.close()
        # After an error, do not wait: a process may wait for one that is gone.
        if error is None:
            self._process.join(self._wait_s)
        self._process.kill()
        self._process.join()


def say(pipe: Connection, word: Any, wait_s: float = WAIT_S) -> None:
    """Send a message to the measuring process, and wait until it lets this one continue."""
    pipe.send(word)
    if not pipe.poll(wait_s):
        raise PeerError("the process that measures is gone")
    pipe.recv()


def cpu_s_below(pid: int) -> float:
    """Return the CPU seconds so far of a process and of its live descendants."""
    return sum(used for _, used in _cpu_s_by_process(pid))


def _cpu_s_by_process(pid: int) -> list[tuple[int, float]]:
    """Return (pid, CPU seconds) of a process and of its descendants, each after its parent."""
    stats = [(process, read_stat(process)) for process in (pid, *descendants(pid))]
    return [(process, (int(stat[11]) + int(stat[12])) / _TICKS) for process, stat in stats if stat]


def idle() -> tuple[float, ...]:
    """Return the memory of a loader's processes with a negligible graph.

    They start like a user's, in new interpreters: forked processes would share memory.

    Bytes of the training process, of the supervisor and of a worker, each by itself, and of their
    shared libraries; then CPU seconds of the same three until the first batch.

    Raises:
        PeerError: They did not start.
    """
    with Child(_idle, kind=multiprocessing.get_context("spawn").Process) as child:
        child.hear()
        # While it is stopped at its first batch, with all of its processes running. Parents come
        # first, so: training, supervisor, workers.
        pids, seconds = zip(*_cpu_s_by_process(child.pid), strict=True)
        nbytes = [_own_bytes(pid) for pid in pids]
        files = max(_kilobytes(pid, "status", "RssFile") for pid in pids)
        child.go_on()
    training, supervisor, *workers = nbytes
    start_s, supervisor_start_s, *worker_start_s = seconds
    return (
        training,
        supervisor,
        sum(workers),
        1024 * files,
        start_s,
        supervisor_start_s,
        sum(worker_start_s),
    )


def _own_bytes(pid: int) -> float:
    # Proportional: shared memory is split among processes, so their sum is the machine's. Files,
    # mostly libraries, are counted once, separately.
    kilobytes = [_kilobytes(pid, "smaps_rollup", name) for name in ("Pss_Anon", "Pss_Shmem")]
    return 1024 * sum(kilobytes)


def _kilobytes(pid: int, file: str, name: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1])
    return 0.0


def _idle(pipe: Connection) -> None:
    import torch
    import torch.distributed as dist
    from torch_geometric.data import Data

    assert dist.is_available(), "what trains has it in memory"
    ring = torch.arange(64, device="cpu")
    data = Data(edge_index=torch.stack([ring, (ring + 1) % 64]), x=torch.ones(64, 1, device="cpu"))
    dataset = gigl_loader.DistDataset.from_pyg(data)
    with gigl_loader.DistNeighborLoader(dataset, [1], ring, num_workers=1) as loader:
        next(iter(loader))
        say(pipe, "at work")


# --- the transport --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """Measured bytes and CPU seconds of a transport."""

    gb_per_s: float
    """10**9 bytes per second of rows."""
    s_per_gb: float
    """CPU seconds of both ends for each of these."""


@dataclass(frozen=True)
class SecondHost:
    """A second host, which runs an `Answerer`."""

    host: str
    port: int
    security: Security


@dataclass(frozen=True)
class _Rows:
    data: Array


class Answerer(AbstractContextManager["Answerer"]):
    """Sends rows to a measuring host, and reports the costs; until it is closed.

    Args:
        host: Address of this machine.
        port: 0: any that is free.
        security: Authentication and encryption.

    Raises:
        ConfigError: It would be open without authentication, or cannot listen there.
    """

    def __init__(self, host: str, port: int, security: Security) -> None:
        rows = _Rows(np.ones(_REPLY_BYTES, np.uint8))
        table = {
            "rows": Method(int, _Rows, lambda request, peer: rows),
            "process": Method(int, float, lambda request, peer: time.process_time()),
            "machine": Method(int, float, lambda request, peer: machine_s()),
        }
        self._listeners: list[Listener] = []
        try:
            # A second port, since a listener has one mode. Clients with the token learn the port.
            plain = 0
            if security.mode is Mode.TOKEN:
                _, plain = self._listen(host, 0, _unencrypted(security), table)
            table["plain"] = Method(int, int, lambda request, peer: plain)
            self.address = self._listen(host, port, security, table)
        except BaseException:  # the first listener already runs, and must be closed
            self.close()
            raise

    def _listen(
        self, host: str, port: int, security: Security, table: dict[str, Method]
    ) -> tuple[str, int]:
        self._listeners.append(Listener(host, port, security, table, "calibrate").start())
        return self._listeners[-1].address

    def close(self) -> None:
        """Stop responding."""
        for listener in self._listeners:
            listener.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _unencrypted(security: Security) -> Security:
    return replace(security, mode=Mode.INSECURE)


def machine_s() -> float:
    """Return the busy seconds of this machine's processors, including packets."""
    # The machine's, not a process's: interrupts receive packets, and belong to no process.
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


# --- within this machine --------------------------------------------------------------------------


def time_within_machine(rounds: int, seconds: float = 0.5) -> dict[bool, Timed]:
    """Time one connection between two processes of this machine.

    Args:
        rounds: Number of measurements; the medians are returned.
        seconds: Duration of each.

    Returns:
        By encryption (bool).
    """
    security = Security.resolve("", token(), False)
    with Child(_serve, security.for_workers()) as answerer:
        host, port = answerer.hear()
        other = SecondHost(host, port, security)
        return _in_each_mode(other, 1, rounds, lambda callers: _time_one(callers[0], seconds))


def _serve(ready: Connection, security: Security) -> None:
    with Answerer("127.0.0.1", 0, security) as answerer:
        ready.send(answerer.address)
        ready.poll(WAIT_S)  # until the caller has finished or ended


def _time_one(caller: Caller, seconds: float) -> Timed:
    # Only of the two processes: both are on this machine, and others may work meanwhile.
    peer_s, own_s = _ask(caller, "process"), time.process_time()
    began = time.monotonic()
    received = _receive_gigabytes(caller, seconds)
    took, own_s = time.monotonic() - began, time.process_time() - own_s
    return Timed(received / took, (own_s + _ask(caller, "process") - peer_s) / received)


def _receive_gigabytes(caller: Caller, seconds: float) -> float:
    """Return how many GB of rows came; waits for all requested rows."""
    began, received = time.monotonic(), 0
    replies = deque(caller.ask("rows", 0, _Rows) for _ in range(_AHEAD))
    while replies:
        received += replies.popleft().wait(_ANSWER_S).data.nbytes
        if time.monotonic() - began < seconds:
            replies.append(caller.ask("rows", 0, _Rows))
    return received / 1e9


def _ask(caller: Caller, method: str) -> float:
    return caller.ask(method, 0, float).wait(_ANSWER_S)


# --- to a second host -----------------------------------------------------------------------------


def meet(other: SecondHost) -> None:
    """Check that a second host responds.

    Raises:
        PeerError: It does not.
        JoinRefusedError: It refuses this process, or is another service.
    """
    _plain_port(other)


def between(other: SecondHost, rounds: int, seconds: float = 1.0) -> dict[bool, Timed]:
    """Time connections to a second host; nothing else may run on both machines.

    The cost is all work of both machines' processors, including packets, minus their work in an
    equal time before.

    Args:
        other: Address of the second host.
        rounds: Number of measurements; the medians are returned.
        seconds: Duration of each.

    Returns:
        By encryption (bool): the modes that both ends have.

    Raises:
        PeerError: It does not respond, or no longer does.
        JoinRefusedError: It refuses this process, or is another service.
    """
    return _in_each_mode(
        other, _CONNECTIONS, rounds, lambda callers: _time_at_once(callers, seconds)
    )


def _time_at_once(callers: list[Caller], seconds: float) -> Timed:
    # First the background work of both machines, to subtract it.
    before = _busy_s(callers[0])
    time.sleep(seconds)
    idle = (_busy_s(callers[0]) - before) / seconds
    before, began = _busy_s(callers[0]), time.monotonic()
    with ThreadPoolExecutor(len(callers)) as pool:
        received = sum(pool.map(_receive_gigabytes, callers, [seconds] * len(callers)))
    took = time.monotonic() - began
    worked = _busy_s(callers[0]) - before - idle * took
    return Timed(received / took, max(0.0, worked) / received)


def _busy_s(caller: Caller) -> float:
    """Return the busy seconds of both machines' processors."""
    return _ask(caller, "machine") + machine_s()


# --- both -----------------------------------------------------------------------------------------


def _in_each_mode(
    other: SecondHost, count: int, rounds: int, time_once: Callable[[list[Caller]], Timed]
) -> dict[bool, Timed]:
    """Return the medians by encryption (bool) for ``count`` connections."""
    ways = {other.security.mode.encrypted: (other.port, other.security)}
    if plain := _plain_port(other):
        ways[False] = plain, _unencrypted(other.security)
    medians = {}
    for encrypted, (port, security) in ways.items():
        with _calling(other.host, port, security, count) as callers:
            medians[encrypted] = _median([time_once(callers) for _ in range(rounds)])
    return medians


def _plain_port(other: SecondHost) -> int:
    """Return the port of a host's plain sockets; 0: it has none."""
    with _calling(other.host, other.port, other.security, 1) as (caller,):
        return caller.ask("plain", 0, int).wait(_MEET_S)


@contextmanager
def _calling(host: str, port: int, security: Security, count: int) -> Iterator[list[Caller]]:
    """Yield callers that are connected."""
    what = "the other end of the measurement"
    callers = [Caller(host, port, security, "calibrate", what=what) for _ in range(count)]
    try:
        for caller in callers:
            caller.connect(time.monotonic() + _MEET_S)
        yield callers
    finally:
        for caller in callers:
            caller.close()


def _median(timings: list[Timed]) -> Timed:
    return Timed(
        statistics.median(timing.gb_per_s for timing in timings),
        statistics.median(timing.s_per_gb for timing in timings),
    )


# --- costs for a plan -----------------------------------------------------------------------------


def costs_of(one_host: dict[bool, Timed], two_hosts: dict[bool, Timed]) -> dict[str, Any]:
    """Return the costs of the transport.

    Args:
        one_host: From `within`.
        two_hosts: From `between`; empty without a second host.
    """
    # The cost of a link beyond memory, in the modes that were measured both ways.
    link_s = [
        timed.s_per_gb - one_host[encrypted].s_per_gb for encrypted, timed in two_hosts.items()
    ]
    # Halves: both ends were measured together, and costs are per end. Rates are those of the link
    # if there is one, as people expect.
    measured = one_host | two_hosts
    return {
        "plain_s_per_gb": one_host[False].s_per_gb / 2,
        "tls_s_per_gb": one_host[True].s_per_gb / 2,
        "plain_gb_per_s": measured[False].gb_per_s,
        "tls_gb_per_s": measured[True].gb_per_s,
        "link_s_per_gb": max(0.0, statistics.mean(link_s)) if link_s else 0.0,
        "link_gbit": 8 * max((timed.gb_per_s for timed in two_hosts.values()), default=0.0),
    }
