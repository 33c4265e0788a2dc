"""Measures what work costs on this machine.

Loading is timed in this process (``num_workers=0``), over a random graph that does not fit into the
processor's caches, with batches of different fanouts and widths; the cost of a batch, an edge, a
node and a byte are the non-negative ones that explain the times best. The transport is timed
between two processes.
"""

import multiprocessing
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from gigl_loader.errors import PeerError
from gigl_loader.memory.segments import Array
from gigl_loader.plan.costs import Costs
from gigl_loader.transport import Caller, Listener, Method, Security
from gigl_loader.transport.certs import token

_NODES, _DEGREE, _WIDTH = 400_000, 16, 128
_CASES: tuple[tuple[list[int], int, bool], ...] = (
    ([1], 64, False), ([15, 10], 256, False), ([15, 10], 256, True), ([4, 2], 1024, True),
    ([5], 1024, False), ([5], 1024, True),
)  # fmt: skip
"""Fanouts, batch size, and whether there are features."""
_REPLY_BYTES, _AHEAD = 8_000_000, 4
_WAIT_S = 60.0


def calibrate(rounds: int = 3, say: Callable[[str], None] = lambda line: None) -> Costs:
    """Return what work costs on this machine; takes about a minute.

    Args:
        rounds: How often everything is measured; the spread is that of the rounds.
        say: Called with a line for each step.
    """
    say(f"a graph of {_NODES:,} nodes and {_NODES * _DEGREE:,} edges")
    plain, featured = _datasets()
    loading, wires = [], []
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        loading.append(_loading_costs(plain, featured))
        wires.append([_wire_costs(security) for security in _securities()])
    middle = [statistics.median(column) for column in zip(*loading, strict=True)]
    plain_s, tls_s = (statistics.median(column) for column in zip(*wires, strict=True))
    return Costs(
        machine=f"{_processor()}, {platform.system()} {platform.release()}",
        date=date.today().isoformat(),
        batch_s=middle[0], edge_s=middle[1], node_s=middle[2], row_byte_s=middle[3],
        plain_s_per_gb=plain_s, tls_s_per_gb=tls_s,
        process_bytes=float(_resident_bytes()), worker_bytes=_WORKER_BYTES,
        spread=_spread(loading),
    )  # fmt: skip


_WORKER_BYTES = 45e6
"""A worker does without torch, and shares the graph: what it has of its own varies little."""


def _spread(loading: list[list[float]]) -> float:
    """Return half the range of what a usual batch costs, over its median."""
    usual = [c[0] + c[1] * 80_000 + c[2] * 60_000 + c[3] * 60_000 * 400 for c in loading]
    return (max(usual) - min(usual)) / 2 / statistics.median(usual)


# --- loading --------------------------------------------------------------------------------------


def _datasets() -> tuple[Any, Any]:
    from torch_geometric.data import Data

    from gigl_loader.dataset.local import DistDataset

    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, _NODES, (2, _NODES * _DEGREE), generator=generator)
    x = torch.ones(_NODES, _WIDTH)
    graph = Data(edge_index=edge_index, num_nodes=_NODES)
    return DistDataset.from_pyg(graph), DistDataset.from_pyg(Data(x=x, edge_index=edge_index))


def _loading_costs(plain: Any, featured: Any) -> list[float]:
    """Return CPU seconds of a batch, an edge, a node and a byte of a row."""
    rows, seconds = [], []
    for fanouts, batch_size, with_rows in _CASES:
        took, nodes, edges = _time_batches(featured if with_rows else plain, fanouts, batch_size)
        rows.append([1.0, edges, nodes, nodes * _WIDTH * 4.0 * with_rows])
        seconds.append(took)
    return [float(cost) for cost in non_negative(np.array(rows), np.array(seconds))]


def _time_batches(dataset: Any, fanouts: list[int], batch_size: int) -> tuple[float, float, float]:
    """Return median seconds, mean nodes and mean edges of a batch."""
    from gigl_loader.loader.neighbor import DistNeighborLoader

    times, nodes, edges = [], 0, 0
    seeds = torch.arange(0, _NODES, _NODES // (24 * batch_size) or 1)[: 24 * batch_size]
    with DistNeighborLoader(
        dataset, fanouts, seeds, num_workers=0, batch_size=batch_size, seed=0, num_cpu_threads=1
    ) as loader:
        batches = iter(loader)
        while True:
            began = time.thread_time()
            batch = next(batches, None)
            if batch is None:
                break
            times.append(time.thread_time() - began)
            nodes, edges = nodes + batch.num_nodes, edges + batch.num_edges
    return statistics.median(times[2:]), nodes / len(times), edges / len(times)


def non_negative(rows: Array, seconds: Array) -> Array:
    """Return the costs that explain times best: relative least squares, none below zero.

    Args:
        rows: ``[cases, kinds]`` float64, how much there was of each kind of work.
        seconds: ``[cases]`` float64.

    Source:
        The active set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), by
        trying all sets: there are few kinds.
    """
    kinds = rows.shape[1]
    scaled, ones = rows / seconds[:, None], np.ones(len(seconds))
    best, found = np.inf, np.zeros(kinds)
    for chosen in range(1, 2**kinds):
        columns = [k for k in range(kinds) if chosen >> k & 1]
        part, *_ = np.linalg.lstsq(scaled[:, columns], ones, rcond=None)
        error = float(np.square(scaled[:, columns] @ part - 1).sum())
        if (part >= 0).all() and error < best - 1e-12:
            best, found = error, np.zeros(kinds)
            found[columns] = part
    return found


# --- the transport --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    data: Array


def _securities() -> list[Security]:
    return [Security.local(), Security.resolve("", token(), False)]


def _serve(security: Security, ready: Connection) -> None:
    rows = _Rows(np.ones(_REPLY_BYTES, np.uint8))
    table = {
        "rows": Method(int, _Rows, lambda request, peer: rows),
        "cpu": Method(int, float, lambda request, peer: time.process_time()),
    }
    listener = Listener("127.0.0.1", 0, security, table, "calibrate").start()
    try:
        ready.send(listener.address)
        ready.poll(_WAIT_S)  # until the caller is done, or gone
    finally:
        listener.close()


def _wire_costs(security: Security, seconds: float = 1.0) -> float:
    """Return CPU seconds per GB of one end."""
    with _first_word_of(_serve, security.for_workers()) as (host, port):
        caller = Caller(host, port, security, "calibrate")
        try:
            return _time_replies(caller, seconds)
        finally:
            caller.close()


@contextmanager
def _first_word_of(function: Callable[..., None], *args: Any) -> Iterator[Any]:
    """Run ``function(*args, pipe)`` in a fresh process; yield what it sends first, then end it.

    Raises:
        PeerError: It sent nothing.
    """
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=function, args=(*args, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_WAIT_S):
            raise PeerError(f"a process of the measurement did not start within {_WAIT_S:.0f} s")
        try:
            word = ours.recv()
        except EOFError as error:
            raise PeerError("a process of the measurement ended early: see above") from error
        yield word
    finally:
        ours.close()
        process.join(5)
        process.kill()
        process.join()


def _time_replies(caller: Caller, seconds: float) -> float:
    there = caller.ask("cpu", 0, float).wait(_WAIT_S)
    here, began, received = time.process_time(), time.monotonic(), 0
    replies = deque(caller.ask("rows", 0, _Rows) for _ in range(_AHEAD))
    while replies:
        received += replies.popleft().wait(_WAIT_S).data.nbytes
        if time.monotonic() - began < seconds:
            replies.append(caller.ask("rows", 0, _Rows))
    here = time.process_time() - here
    there = caller.ask("cpu", 0, float).wait(_WAIT_S) - there
    return (here + there) / 2 / (received / 1e9)


# --- the machine ----------------------------------------------------------------------------------


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _resident_bytes() -> int:
    """Return the memory of a fresh process that imports what training does."""
    with _first_word_of(_report_memory) as nbytes:
        return int(nbytes)


def _report_memory(pipe: Connection) -> None:
    import torch_geometric.nn  # noqa: F401

    import gigl_loader.loader.neighbor  # noqa: F401

    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1])
    pipe.send(resident * 4096)
