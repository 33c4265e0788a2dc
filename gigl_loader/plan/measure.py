"""Single measurements of this machine: processes at rest, and the transport.

The transport is timed within this machine, and to a second host that answers. The second host
runs ``gigl-loader plan --answer``, the first one ``--calibrate FILE --with``. Rows go to the first
one only, in the mode that both ends were given; with a token, over plain sockets as well, as rows
of ones are no secret.
"""

import multiprocessing
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import gigl_loader
from gigl_loader.errors import PeerError
from gigl_loader.memory.segments import Array
from gigl_loader.processes import ForkedProcess
from gigl_loader.system import read_stat
from gigl_loader.transport import Caller, Listener, Method, Mode, Security
from gigl_loader.transport.certs import token

_REPLY_BYTES, _AHEAD = 8_000_000, 4
"""About the rows of a batch; and how many are asked for at a time, so that the connection never
waits for a question."""
_CONNECTIONS = 4
"""To a second host, at once: as many as a worker has with each other partition."""
_MEET_S, _ANSWER_S = 10.0, 60.0
"""How long the second host may take to let this one in, and for an answer."""
WAIT_S = 120.0
"""For a word of another process: it may have to read a graph first, and all share these cores."""
_TICKS = os.sysconf("SC_CLK_TCK")


# --- processes ------------------------------------------------------------------------------------


class Child:
    """A process of a measurement, and a pipe to it; it ends with the ``with`` block.

    Args:
        function: Called with the other end of the pipe, and ``args``.
        args: More for ``function``; picklable.
        kind: Class of the process: forked from one that has imported what it needs, so that nothing
            that is counted depends on imports.
        wait_s: How long to wait for a word of it, in seconds.
    """

    def __init__(
        self, function: Callable[..., None], *args: Any, kind: type[BaseProcess] = ForkedProcess,
        wait_s: float = WAIT_S,
    ) -> None:  # fmt: skip
        self._wait_s = wait_s
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = kind(target=function, args=(theirs, *args))
        self._process.start()
        theirs.close()  # so that `hear` sees the end of a process that ends

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid or 0

    def hear(self) -> Any:
        """Return what it says next.

        Raises:
            PeerError: It ended, or says nothing.
        """
        try:
            if not self._pipe.poll(self._wait_s):
                limit = f"{self._wait_s:.0f} s"
                raise PeerError(f"a process of the measurement said nothing for {limit}")
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise PeerError("a process of the measurement ended early: see above") from error

    def go_on(self) -> None:
        """Let it go on from `say`."""
        self._pipe.send("go on")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        # One that waits for a word is told by this to end.
        self._pipe.close()
        # After an error nobody is waited for: a process may wait for one that is gone.
        if error is None:
            self._process.join(self._wait_s)
        self._process.kill()
        self._process.join()


def say(pipe: Connection, word: Any, wait_s: float = WAIT_S) -> None:
    """Say something to the process that measures, and wait until it lets this one go on."""
    pipe.send(word)
    if not pipe.poll(wait_s):
        raise PeerError("the process that measures is gone")
    pipe.recv()


def cpu_s_below(pid: int) -> float:
    """Return the CPU seconds so far of a process and of its descendants that live."""
    return sum(used for _, used in _below(pid))


def _below(pid: int) -> list[tuple[int, float]]:
    """Return (pid, CPU seconds) of a process and of its descendants, each after its parent."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for one in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields = read_stat(one)
        if fields is not None:
            used[one] = (int(fields[11]) + int(fields[12])) / _TICKS
            children.setdefault(int(fields[1]), []).append(one)
    found = [pid]
    for one in found:  # which grows meanwhile
        found += children.get(one, [])
    return [(one, used[one]) for one in found if one in used]


def idle() -> tuple[float, ...]:
    """Return what a loader's processes take before there is a graph to speak of.

    They start as users' do, in new interpreters: what is forked shares memory.

    Bytes of the training process, of the supervisor and of a worker, each for itself, and of the
    libraries that they share; then CPU seconds of the same three until the first batch.

    Raises:
        PeerError: They did not start.
    """
    with Child(_idle, kind=multiprocessing.get_context("spawn").Process) as one:
        one.hear()
        # While it stands still at its first batch, with all of its processes there. Parents come
        # first, so: training, supervisor, workers.
        pids, seconds = zip(*_below(one.pid), strict=True)
        own = [_own_bytes(pid) for pid in pids]
        files = max(_kilobytes(pid, "status", "RssFile") for pid in pids)
        one.go_on()
    training, supervisor, *workers = own
    start_s, supervisor_start_s, *worker_start_s = seconds
    return (
        training, supervisor, sum(workers), 1024 * files,
        start_s, supervisor_start_s, sum(worker_start_s),
    )  # fmt: skip


def _own_bytes(pid: int) -> float:
    # Proportional: what processes share is split among them, so their sum is what the machine has.
    # Files, which are libraries mostly, are counted once, apart.
    found = [_kilobytes(pid, "smaps_rollup", name) for name in ("Pss_Anon", "Pss_Shmem")]
    return 1024 * sum(found)


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
    ring = torch.arange(64)
    data = Data(edge_index=torch.stack([ring, (ring + 1) % 64]), x=torch.ones(64, 1))
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
class Other:
    """A second host, which runs an `Answerer`."""

    host: str
    port: int
    security: Security


@dataclass(frozen=True)
class _Rows:
    data: Array


class Answerer:
    """Sends rows to whoever measures, and says what that cost; until it is closed.

    Args:
        host: Address of this machine.
        port: 0: any that is free.
        security: Authentication and encryption.

    Raises:
        ConfigError: It would be open to strangers, or cannot listen there.
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
            # A second port, since a listener has one mode. Whoever knows the token is told which.
            plain = 0
            if security.mode is Mode.TOKEN:
                _, plain = self._listen(host, 0, _unencrypted(security), table)
            table["plain"] = Method(int, int, lambda request, peer: plain)
            self.address = self._listen(host, port, security, table)
        except BaseException:  # the first listener runs already, and nobody would close it
            self.close()
            raise

    def _listen(
        self, host: str, port: int, security: Security, table: dict[str, Method]
    ) -> tuple[str, int]:
        self._listeners.append(Listener(host, port, security, table, "calibrate").start())
        return self._listeners[-1].address

    def close(self) -> None:
        """Stop answering."""
        for listener in self._listeners:
            listener.close()

    def __enter__(self) -> "Answerer":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _unencrypted(security: Security) -> Security:
    return replace(security, mode=Mode.INSECURE)


def machine_s() -> float:
    """Return for how many seconds processors of this machine have worked, packets included."""
    # The machine's, not a process's: packets are received in interrupts, which are nobody's time.
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


# --- within this machine --------------------------------------------------------------------------


def within(rounds: int, seconds: float = 0.5) -> dict[bool, Timed]:
    """Time one connection between two processes of this machine.

    Args:
        rounds: How often; the medians are returned.
        seconds: How long each time.

    Returns:
        By whether it is encrypted.
    """
    security = Security.resolve("", token(), False)
    with Child(_serve, security.for_workers()) as answerer:
        host, port = answerer.hear()
        other = Other(host, port, security)
        return _in_each_mode(other, 1, rounds, lambda callers: _time_one(callers[0], seconds))


def _serve(ready: Connection, security: Security) -> None:
    with Answerer("127.0.0.1", 0, security) as answerer:
        ready.send(answerer.address)
        ready.poll(WAIT_S)  # until the caller is done, or gone


def _time_one(caller: Caller, seconds: float) -> Timed:
    # Of the two processes alone: both are on this machine, and others may work meanwhile.
    there, here = _ask(caller, "process"), time.process_time()
    began = time.monotonic()
    received = _receive(caller, seconds)
    took, here = time.monotonic() - began, time.process_time() - here
    return Timed(received / took, (here + _ask(caller, "process") - there) / received)


def _receive(caller: Caller, seconds: float) -> float:
    """Return how many GB of rows came; waits for all that was asked for."""
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


def meet(other: Other) -> None:
    """See that a second host answers.

    Raises:
        PeerError: It does not.
        JoinRefusedError: It does not let this process in, or is another service.
    """
    _plain_port(other)


def between(other: Other, rounds: int, seconds: float = 1.0) -> dict[bool, Timed]:
    """Time connections to a second host; nothing else may run on both machines.

    What they cost is all that the processors of both did, packets included, but for what they did
    for as long before that.

    Args:
        other: Where it answers.
        rounds: How often; the medians are returned.
        seconds: How long each time.

    Returns:
        By whether they are encrypted: of the modes that both ends have.

    Raises:
        PeerError: It does not answer, or not any more.
        JoinRefusedError: It does not let this process in, or is another service.
    """
    return _in_each_mode(
        other, _CONNECTIONS, rounds, lambda callers: _time_at_once(callers, seconds)
    )


def _time_at_once(callers: list[Caller], seconds: float) -> Timed:
    # What both machines do without us, first, so that it can be taken off.
    before = _both(callers[0])
    time.sleep(seconds)
    idle = (_both(callers[0]) - before) / seconds
    before, began = _both(callers[0]), time.monotonic()
    with ThreadPoolExecutor(len(callers)) as pool:
        received = sum(pool.map(_receive, callers, [seconds] * len(callers)))
    took = time.monotonic() - began
    worked = _both(callers[0]) - before - idle * took
    return Timed(received / took, max(0.0, worked) / received)


def _both(caller: Caller) -> float:
    """Return for how long the processors of both machines have worked."""
    return _ask(caller, "machine") + machine_s()


# --- both -----------------------------------------------------------------------------------------


def _in_each_mode(
    other: Other, count: int, rounds: int, time_once: Callable[[list[Caller]], Timed]
) -> dict[bool, Timed]:
    """Return the medians by whether ``count`` connections are encrypted."""
    ways = {other.security.mode.encrypted: (other.port, other.security)}
    if plain := _plain_port(other):
        ways[False] = plain, _unencrypted(other.security)
    found = {}
    for encrypted, (port, security) in ways.items():
        with _calling(other.host, port, security, count) as callers:
            found[encrypted] = _median([time_once(callers) for _ in range(rounds)])
    return found


def _plain_port(other: Other) -> int:
    """Return where a host answers over plain sockets as well; 0: it does not."""
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


def _median(found: list[Timed]) -> Timed:
    return Timed(
        statistics.median(one.gb_per_s for one in found),
        statistics.median(one.s_per_gb for one in found),
    )


# --- what a plan takes of it ----------------------------------------------------------------------


def costs_of(here: dict[bool, Timed], there: dict[bool, Timed]) -> dict[str, Any]:
    """Return the costs of the transport.

    Args:
        here: From `within`.
        there: From `between`; empty without a second host.
    """
    # What a link costs beyond memory, in the modes that were measured both ways.
    link_s = [timed.s_per_gb - here[encrypted].s_per_gb for encrypted, timed in there.items()]
    # Halves: both ends were measured together, and costs are of one. Rates are of the link if there
    # is one: that is what people ask.
    found = here | there
    return {
        "plain_s_per_gb": here[False].s_per_gb / 2, "tls_s_per_gb": here[True].s_per_gb / 2,
        "plain_gb_per_s": found[False].gb_per_s, "tls_gb_per_s": found[True].gb_per_s,
        "link_s_per_gb": max(0.0, statistics.mean(link_s)) if link_s else 0.0,
        "link_gbit": 8 * max((timed.gb_per_s for timed in there.values()), default=0.0),
    }  # fmt: skip
