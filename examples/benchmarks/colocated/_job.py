"""What a contestant is asked to do, and how it is timed. Runs in any contestant's environment.

A contestant is a script that takes one argument, a `Job` as JSON, and prints one line, ``RESULT``
and a JSON object.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import _cpu
import _graph
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MARK = "RESULT "
Batch = tuple[Sequence[Tensor], Sequence[Tensor]]
"""``x`` (``[rows, dim]``) of each node type, and ``edge_index`` (``[2, edges]``, local ids) of each
edge type of one batch."""


@dataclass(frozen=True)
class Job:
    """One measurement of one contestant."""

    folder: str
    """Where the graph is."""
    fanout: list[int]
    batch_size: int
    warmup: int
    """Batches before the clock starts."""
    batches: int
    """Batches on the clock."""
    mode: str = "throughput"
    num_workers: int = 1
    seed: int | None = None
    replace: bool = False
    task: str = "nodes"
    """The kind of loader, a key of `_tasks.KINDS`; "untimed" is "nodes" on the graph of "times"."""
    types: int = 4
    """Node types of "typed", each of which has edges to each."""
    temporal_strategy: str = "uniform"
    """Of "times"."""
    rank: int = 0
    world_size: int = 1
    """Ranks = partitions; rank ``r`` owns the ``r``-th block of the node ids."""
    port: int = 0
    """A free port of this machine, for the process group of the ranks."""
    rpc_port: int = 0
    """Another one, for the RPC of GLT's workers."""
    epochs: int = 1

    def to_json(self) -> str:
        """Return the argument of a contestant."""
        return json.dumps(asdict(self))

    @property
    def graph(self) -> _graph.GraphArrays:
        """The graph, mapped."""
        return _graph.load(Path(self.folder))

    @property
    def needed_seeds(self) -> int:
        """Seeds of one rank: exactly the batches that are asked for."""
        return (self.warmup + self.batches) * self.batch_size


def read_job() -> Job:
    """Return the job on the command line."""
    return Job(**json.loads(sys.argv[1]))


def seeds(job: Job) -> Tensor:
    """Return this rank's seeds, ``[needed_seeds]`` int64: nodes it owns, in a fixed order."""
    first, last = owned_block(job)
    order = np.random.default_rng(1).permutation(last - first) + first
    if job.needed_seeds > order.size:
        raise SystemExit(
            f"{job.needed_seeds} seeds are needed and the rank owns {order.size} nodes: "
            "lower --batches or raise --nodes"
        )
    return torch.from_numpy(order[: job.needed_seeds].astype(np.int64))


def seeds_of_all_ranks(job: Job) -> Tensor:
    """Return `seeds` of rank 0, 1..., one after another."""
    return torch.cat([seeds(replace(job, rank=rank)) for rank in range(job.world_size)])


def owned_block(job: Job) -> tuple[int, int]:
    """Return the first node of this rank's partition and the one past its last."""
    nodes = job.graph.indptr.size - 1
    return nodes * job.rank // job.world_size, nodes * (job.rank + 1) // job.world_size


def owners(job: Job) -> Tensor:
    """Return the partition of each node, ``[nodes]`` int64."""
    nodes = job.graph.indptr.size - 1
    bounds = [nodes * (p + 1) // job.world_size for p in range(job.world_size)]
    return torch.from_numpy(np.searchsorted(np.array(bounds), np.arange(nodes), side="right"))


def measure(batches: Iterable[Batch], job: Job) -> dict[str, Any]:
    """Take all batches of one epoch; time those after the warm-up."""
    source = iter(batches)
    first = next(source)
    if job.task in ("nodes", "untimed", "weighted", "labor"):
        check(first, job)
    del first  # GLT's ring of messages would stall
    for _ in range(job.warmup - 1):
        next(source)
    rows = edges = 0
    cpu, begun = _cpu.CpuClock.now(), time.perf_counter()
    for _ in range(job.batches):
        x, edge_index = next(source)
        rows += sum(part.shape[0] for part in x)
        edges += sum(part.shape[1] for part in edge_index)
        float(x[0][-1, 0])
    seconds, cpu_after = time.perf_counter() - begun, _cpu.CpuClock.now()
    return {
        "seconds": seconds,
        "seeds_per_s": job.batches * job.batch_size / seconds,
        "ms_per_batch": 1e3 * seconds / job.batches,
        "rows_per_batch": rows / job.batches,
        "edges_per_batch": edges / job.batches,
        "cpu_ms_per_batch": 1e3 * _cpu.own_seconds(cpu, cpu_after) / job.batches,
        "others_cpu": _cpu.share_of_others(cpu, cpu_after),
        "memory_mb": _cpu.memory_mb(),
    }


def check(batch: Batch, job: Job) -> None:
    """Raise unless the batch begins with seeds, and holds its features and edges of the graph.

    Which seeds is left open: GLT hands batches out as they come.
    """
    x, edge_index = (part.numpy() for (part,) in batch)
    ids = ids_of(x)
    if not np.isin(ids[: job.batch_size], seeds(job).numpy()).all():
        raise AssertionError("the batch does not begin with its seeds")
    if np.unique(ids).size != ids.size:
        raise AssertionError("a node is in the batch twice")
    check_edges(ids[edge_index], job)


def ids_of(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the node that each feature row belongs to; raise where one is torn."""
    ids = x[:, 0].astype(np.int64)
    if not np.array_equal(x[:, 1].astype(np.int64), ids % 997):
        raise AssertionError("a feature row is torn")
    return ids


def check_edges(ends: NDArray[np.int64], job: Job) -> None:
    """Raise unless some of ``ends``, ``[2, edges]`` by global id, are edges of the graph."""
    graph = job.graph
    for edge in np.random.default_rng(2).integers(0, ends.shape[1], 500):
        source, target = ends[:, edge]
        if source not in graph.indices[graph.indptr[target] : graph.indptr[target + 1]]:
            raise AssertionError(f"({source}, {target}) is not an edge of the graph")


def exactly(batches: Iterator[Batch], count: int) -> None:
    """Take ``count`` batches and raise unless the epoch then ends."""
    taken = sum(1 for _ in batches)
    if taken != count:
        raise AssertionError(f"an epoch had {taken} batches, not {count}")


def report(run: Callable[[Job], dict[str, Any]]) -> None:
    """Run a contestant and print its result."""
    result = run(read_job())
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    print(MARK + json.dumps({**result, "versions": {**versions, **result.pop("versions", {})}}))
    sys.stdout.flush()
