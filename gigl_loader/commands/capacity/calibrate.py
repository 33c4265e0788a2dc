"""Measures the costs of work on this machine.

There are three steps, each of which measures the costs that the previous ones do not explain.
Sampling and reading only: in as many processes at once as there are ranks (``num_workers=0``), over
a random graph, with batches of different fanouts and widths. Requests to other partitions, and
caching their rows: two ranks with workers. Delivering batches, and caching rows at the receiver:
two storage servers and two ranks. The costs of an edge, a node, a row and a byte are the
non-negative ones that explain the CPU seconds best. The transport is timed between two processes,
and to a second host. The memory of a process without a graph is read from a trainer at its first
batch (`gigl_loader.commands.capacity.measure`).
"""

import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from gigl_loader import DistNeighborLoader
from gigl_loader.commands.capacity import measure, trial_cluster
from gigl_loader.commands.capacity.needs import Costs
from gigl_loader.commands.capacity.trial_cluster import BatchKind, MeasuredBatch
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.glt_files import bytes_to_read
from gigl_loader.partitioning.partition_graph import partition_graph
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.processes import start_fork_server

_NODES, _DEGREE = 500_000, 16
_WIDTHS = (0, 16, 128)
"""Float32 columns of each of the graphs that batches are taken from."""
_FANOUTS, _BATCH_SIZES, _CACHE = (15, 10), (1024, 128), 0.6
"""Small batches show the fixed cost; their cache has nearly all rows: the cost of a cached row
cannot be found by extrapolation."""
_CASES: tuple[tuple[list[int], int, bool], ...] = (
    ([1], 64, False),
    ([15, 10], 1024, False),
    ([15, 10], 1024, True),
    ([4, 2], 1024, True),
    ([5], 1024, False),
    ([5], 1024, True),
)
"""Cases of sampling only: fanouts, batch size, and whether there are features."""
_TAKEN = 14
"""Batches of each case; two of them warm up, and the median of the others counts."""
_ALONE_S = 300.0
"""Time limit of a step in the pool: steps take seconds, and more on a busy machine. The pool
replaces a killed process but loses its task, so without a limit the wait would not end."""


def calibrate(
    rounds: int = 3,
    say: Callable[[str], None] = lambda line: None,
    other: measure.SecondHost | None = None,
) -> Costs:
    """Return the costs of work on this machine; takes about a minute.

    Args:
        rounds: Number of measurements of sampling and the transport; the spread is over the rounds.
        say: Called with a line for each step.
        other: A second host, to which the transport is measured as well.

    Raises:
        PeerError: The second host does not answer.
        JoinRefusedError: It refuses this process, or is another service.
    """
    # Before a minute of useless work.
    if other is not None:
        measure.meet(other)
    start_fork_server()
    with tempfile.TemporaryDirectory() as folder:
        say(f"graphs of {_NODES:,} nodes and {_NODES * _DEGREE:,} edges")
        with multiprocessing.get_context("forkserver").Pool(trial_cluster.RANKS) as pool:
            roots, idle = _write_graphs(pool, Path(folder))
            say(f"sampling alone, {rounds} rounds in {trial_cluster.RANKS} processes at once")
            alone = _sampling_costs(pool, rounds)
            # In a process of the pool, which has imported everything, and whose memory is freed
            # with it.
            load_s_per_gb = pool.apply_async(_load_s_per_gb, (roots[_WIDTHS[-1]],)).get(_ALONE_S)
        sampling = [statistics.median(column) for column in zip(*alone, strict=True)]
        say("asking other partitions, with and without a cache")
        asking = asking_costs(sampling, _measure_asking(roots))
        say("delivering batches from storage servers")
        delivered = _measure_delivering(roots)
        delivering = delivering_costs(sampling, asking, delivered)
    say("the transport")
    one_host = measure.time_within_machine(rounds)
    if other is not None:
        say(f"the transport to {other.host}:{other.port}")
    two_hosts = {} if other is None else measure.between(other, rounds)
    return Costs(
        machine=f"{_processor()}, {platform.system()} {platform.release()}",
        date=date.today().isoformat(),
        **dict(zip(_SAMPLING, sampling, strict=True)),
        **asking,
        **delivering,
        **measure.costs_of(one_host, two_hosts),
        **dict(zip(_OF_PROCESSES, idle, strict=True)),
        load_s_per_gb=load_s_per_gb,
        spread=_spread(alone),
    )


_OF_PROCESSES = (
    "process_bytes",
    "supervisor_bytes",
    "worker_bytes",
    "library_bytes",
    "process_start_s",
    "supervisor_start_s",
    "worker_start_s",
)
_SAMPLING = ("batch_s", "edge_s", "node_s", "row_byte_s")


def _spread(alone: list[list[float]]) -> float:
    """Return half the range of the cost of a usual batch, over its median."""
    # Single costs differ much more between rounds: least squares exchanges an edge for a node at
    # the same cost of a batch.
    usual = [c[0] + c[1] * 80_000 + c[2] * 60_000 + c[3] * 60_000 * 400 for c in alone]
    return (max(usual) - min(usual)) / 2 / statistics.median(usual)


# --- sampling only --------------------------------------------------------------------------------


def _write_graphs(pool: Pool, folder: Path) -> tuple[dict[int, str], tuple[float, ...]]:
    """Return by width the path of the graph with as many columns, and the memory of processes.

    The memory does not depend on other processes.
    """
    wanted = [(width, folder / str(width)) for width in _WIDTHS]
    with ThreadPoolExecutor(1) as meanwhile:
        idle = meanwhile.submit(measure.idle)
        paths = pool.starmap_async(_write_graph, wanted, 1).get(_ALONE_S)
        return dict(zip(_WIDTHS, paths, strict=True)), idle.result()


def _write_graph(width: int, root: Path) -> str:
    """Partition a random graph, one part for each rank."""
    # The graph of `_loading_costs`, so that the difference is the cost of requests.
    partition_graph(_graph(width), trial_cluster.RANKS, root, method="random", progress=False)
    return str(root)


def _graph(width: int) -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, _NODES, (2, _NODES * _DEGREE), generator=generator, device="cpu")
    data = Data(edge_index=edge_index, num_nodes=_NODES)
    if width:
        data.x = torch.ones(_NODES, width, device="cpu")
    return data


def _load_s_per_gb(root: str) -> float:
    """Return the seconds for 10**9 bytes of a new partition."""
    # Wall time, and from the page cache: disks are an argument of the plan.
    times = []
    for _ in range(3):
        began = time.perf_counter()
        DistDataset.load(root, 0, verify="off")
        times.append(time.perf_counter() - began)
    return statistics.median(times) / bytes_to_read(root, 0) * 1e9


def _sampling_costs(pool: Pool, rounds: int) -> list[list[float]]:
    """Return for each round the costs of sampling, measured in simultaneous processes.

    Cores that share memory, or hardware threads of a core, are slower when all of them work.
    """
    pending = pool.starmap_async(_loading_costs, [(rounds,)] * trial_cluster.RANKS, 1)
    each: list[list[list[float]]] = pending.get(_ALONE_S)
    return [np.mean(costs, axis=0).tolist() for costs in zip(*each, strict=True)]


def _loading_costs(rounds: int) -> list[list[float]]:
    """Return for each round the CPU seconds of a batch, an edge, a node and a byte of a row."""
    # All kinds in each round, so that a slowdown of the machine shows in the spread.
    plain, featured = (DistDataset.from_pyg(_graph(width)) for width in (0, _WIDTHS[-1]))
    costs = []
    for _ in range(rounds):
        rows, seconds = [], []
        for fanouts, batch_size, with_rows in _CASES:
            dataset = featured if with_rows else plain
            took, nodes, edges = _time_batches(dataset, fanouts, batch_size)
            rows.append([1.0, edges, nodes, nodes * _WIDTHS[-1] * 4.0 * with_rows])
            seconds.append(took)
        costs.append([float(cost) for cost in non_negative(np.array(rows), np.array(seconds))])
    return costs


def _time_batches(dataset: Any, fanouts: list[int], batch_size: int) -> tuple[float, float, float]:
    """Return median seconds, mean nodes and mean edges of a batch."""
    # Seeds are spread over all nodes, and a batch has each only once. Time of this thread: with
    # `num_workers=0` it does all the work, and others of the process do not count.
    times, nodes, edges = [], 0, 0
    seeds = torch.arange(0, _NODES, _NODES // (_TAKEN * batch_size) or 1, device="cpu")[
        : _TAKEN * batch_size
    ]
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


def non_negative(rows: Array, seconds: Array, per: Array | None = None) -> Array:
    """Return the costs that explain times best: relative least squares, non-negative.

    Args:
        rows: ``[cases, kinds]`` float64, the amount of each kind of work.
        seconds: ``[cases]`` float64.
        per: ``[cases]`` float64, the reference of relative errors. None: ``seconds``.

    Source:
        The active set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), here by
        trying all sets: there are few kinds.
    """
    kinds = rows.shape[1]
    per = seconds if per is None else per
    scaled, wanted = rows / per[:, None], seconds / per
    best, costs = float(np.square(wanted).sum()), np.zeros(kinds)
    # Relative errors: otherwise batches of 64 seeds would not count beside those of 1,024. Bits of
    # ``chosen`` are the kinds with costs above 0.
    for chosen in range(1, 2**kinds):
        columns = [k for k in range(kinds) if chosen >> k & 1]
        part, *_ = np.linalg.lstsq(scaled[:, columns], wanted, rcond=None)
        error = float(np.square(scaled[:, columns] @ part - wanted).sum())
        # A set comes after all of its subsets: the margin keeps the smaller one if it is as good.
        if (part >= 0).all() and error < best - 1e-12:
            best, costs = error, np.zeros(kinds)
            costs[columns] = part
    return costs


# --- a small cluster ------------------------------------------------------------------------------


def _measure_asking(roots: dict[int, str]) -> list[MeasuredBatch]:
    """Take batches of each width and size, then of each width with rows, with a cache."""
    plain = [_kinds(roots, width, 0.0) for width in _WIDTHS]
    cached = [_kinds(roots, width, _CACHE) for width in _WIDTHS[1:]]
    return trial_cluster.measure([kind for kinds in [*plain, *cached] for kind in kinds])


def _kinds(
    roots: dict[int, str], width: int, cache: float, from_store: bool = False
) -> list[BatchKind]:
    return [BatchKind(roots[width], _FANOUTS, size, cache, from_store) for size in _BATCH_SIZES]


def asking_costs(sampling: list[float], measured: list[MeasuredBatch]) -> dict[str, float]:
    """Return the costs in all processes of requests to other partitions, and of caching rows.

    Args:
        sampling: Costs of a batch, an edge, a node and a byte without requests.
        measured: For each width and batch size, then for each with rows and a cache.
    """
    remote = 1 - 1 / trial_cluster.RANKS
    left = [took.cpu_s - _alone_s(sampling, took, width) for took, width in _with_widths(measured)]
    costs = _costs_of_a_step("asked", left, measured, remote)
    return costs | _caching_costs("cached", costs, "asked", left, measured, remote)


def _measure_delivering(roots: dict[int, str]) -> list[MeasuredBatch]:
    """Take batches of each width and size from storage servers, with a cache if it has rows."""
    caches = {width: (0.0, _CACHE) if width else (0.0,) for width in _WIDTHS}
    kinds = [
        _kinds(roots, width, cache, from_store=True) for width in _WIDTHS for cache in caches[width]
    ]
    # All batches of a graph are consecutive, since servers serve one graph after the other; then
    # they get the order of `delivering_costs`, those with a cache last.
    every = [kind for some in kinds for kind in some]
    measured = dict(zip(every, trial_cluster.measure(every), strict=True))
    return [measured[kind] for kind in sorted(every, key=lambda kind: kind.cache > 0)]


def delivering_costs(
    sampling: list[float], asking: dict[str, float], measured: list[MeasuredBatch]
) -> dict[str, float]:
    """Return the costs of sending batches, of receiving them, and of caching rows there.

    Args:
        sampling: As for `asking_costs`.
        asking: From there.
        measured: For each width and batch size, then for each with rows and a cache.
    """
    remote = 1 - 1 / trial_cluster.RANKS
    asked = [asking["asked_batch_s"] + asking["asked_edge_s"] * remote * t.edges for t in measured]
    sent = [
        took.storage_s - _alone_s(sampling, took, 0) - seconds
        for took, seconds in zip(measured, asked, strict=True)
    ]
    received = [took.training_s for took in measured]
    costs = _costs_of_a_step("sent", sent, measured) | _costs_of_a_step(
        "received", received, measured
    )
    return costs | _caching_costs("kept", costs, "received", received, measured)


def _costs_of_a_step(
    name: str, seconds: list[float], measured: list[MeasuredBatch], share: float = 1.0
) -> dict[str, float]:
    """Return the costs that explain CPU seconds: of batches and edges, then of rows.

    Args:
        name: Of the step, before the names of its costs.
        seconds: CPU seconds of each measurement that earlier steps do not explain.
        measured: As for `asking_costs`.
        share: Share of edges and nodes that take part.
    """
    # Each explains the rest of the one before: batches without rows give the cost of edges, those
    # with rows that of rows.
    num = len(_BATCH_SIZES)
    plain, rows = measured[:num], slice(num, num * len(_WIDTHS))
    edges = [[1.0, share * took.edges] for took in plain]
    batch_s, edge_s = _explain(edges, seconds[:num], plain)
    left, amounts = [], []
    for cpu_s, (took, width) in zip(seconds[rows], _with_widths(measured)[rows], strict=True):
        left.append(cpu_s - batch_s - edge_s * share * took.edges)
        amounts.append(_rows_and_bytes(share * took.nodes, width))
    rows_s, row_s, byte_s = _explain(amounts, left, measured[rows])
    return {
        f"{name}_batch_s": batch_s,
        f"{name}_edge_s": edge_s,
        f"{name}_rows_s": rows_s,
        f"{name}_row_s": row_s,
        f"{name}_byte_s": byte_s,
    }


def _caching_costs(
    name: str,
    costs: dict[str, float],
    step: str,
    seconds: list[float],
    measured: list[MeasuredBatch],
    share: float = 1.0,
) -> dict[str, float]:
    """Return the costs of caching rows, which explain the rest of the batches with a cache.

    Args:
        name: Of the costs.
        costs: From `_costs_of_a_step`, of ``step``.
        step: Name of the step that rows in the cache do without.
        seconds: As there, and so are the others.
        measured: As there.
        share: As there.
    """
    first = len(_BATCH_SIZES) * len(_WIDTHS)
    batch_s, edge_s, rows_s, row_s, byte_s = (
        costs[f"{step}_{kind}_s"] for kind in ("batch", "edge", "rows", "row", "byte")
    )
    left, kept = [], []
    for cpu_s, (took, width) in zip(seconds[first:], _with_widths(measured)[first:], strict=True):
        missed = share * took.nodes * (1 - took.hit_rate)
        structure_s = batch_s + edge_s * share * took.edges
        left.append(cpu_s - structure_s - rows_s - missed * (row_s + byte_s * width * 4))
        kept.append(_rows_and_bytes(share * took.nodes, width, took.hit_rate))
    of_a_batch, of_a_row, of_a_byte = _explain(kept, left, measured[first:])
    return {f"{name}_batch_s": of_a_batch, f"{name}_row_s": of_a_row, f"{name}_byte_s": of_a_byte}


def _with_widths(measured: list[MeasuredBatch]) -> list[tuple[MeasuredBatch, int]]:
    """Return each measurement with the width of its rows; those with a cache are last."""
    widths = [width for width in (*_WIDTHS, *_WIDTHS[1:]) for _ in _BATCH_SIZES]
    return list(zip(measured, widths, strict=True))


def _alone_s(sampling: list[float], took: MeasuredBatch, width: int) -> float:
    """Return the CPU seconds of a batch if one process sampled and read it."""
    batch_s, edge_s, node_s, byte_s = sampling
    return batch_s + edge_s * took.edges + (node_s + byte_s * 4 * width) * took.nodes


def _rows_and_bytes(rows: float, width: int, share: float = 1.0) -> list[float]:
    """Return the amounts of a batch, of rows and of their bytes."""
    return [1.0, rows, rows * share * 4 * width]


def _explain(
    amounts: list[list[float]], seconds: list[float], of: list[MeasuredBatch]
) -> list[float]:
    """Return the costs, non-negative, of each kind of work.

    Args:
        amounts: The amount, by measurement and kind.
        seconds: CPU seconds that are left over, by measurement.
        of: The measurements: the error of each is relative to its total time, not to the rest.
    """
    every = np.array([took.cpu_s for took in of])
    return [float(cost) for cost in non_negative(np.array(amounts), np.array(seconds), every)]


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
