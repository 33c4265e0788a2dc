"""Seeds per second, memory and connections of a job, from what it is and what work costs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from gigl_loader.errors import ConfigError
from gigl_loader.plan.costs import Costs
from gigl_loader.plan.expect import BatchSize, Degrees, expect

Deployment = Literal["colocated", "graph-store"]

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}
_ID_BYTES = 4.0
"""On the wire, of an id that is asked for; packed ids of the first billions of nodes."""
_EDGE_BYTES = 3.0
"""On the wire, of an edge; more where degrees are small."""
_LINK_SHARE = 0.9
"""Of a link's bits that carry what is sent."""
_CONCURRENCY = 4
"""Batches under way per worker, the loaders' default."""


@dataclass(frozen=True)
class Job:
    """A graph, how it is sampled, and the machines."""

    nodes: float
    edges: float
    dim: int
    """Columns of the node features."""
    fanouts: tuple[int, ...]
    batch_size: int
    machines: int
    """Training machines."""
    dtype: str = "float32"
    ranks_per_machine: int = 1
    workers: int = 1
    """Sampling processes of each rank; graph store: of each server and rank."""
    cores: int = 16
    """Of each machine."""
    link_gbit: float = 10.0
    """10**9 bits per second of a machine, in each direction."""
    step_ms: float = 0.0
    """What the model needs for a batch; 0: nothing, loading is all there is."""
    deployment: Deployment = "colocated"
    servers: int = 0
    """Storage machines of a graph store."""
    cache: float = 0.0
    """Share of the rows of other machines that each machine keeps."""
    encrypted: bool = False
    memory_gb: float | None = None
    """10**9 bytes of each machine; None: not checked."""
    remote: float | None = None
    """Share of neighbours that are in another partition. None: as if parts were drawn."""
    law: str = "uniform"
    """Of degrees, where the graph is not there: ``"uniform"`` or ``"power-law"``."""

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "batch_size", "machines", "ranks_per_machine", "workers",
                     "cores", "link_gbit"):  # fmt: skip
            value = getattr(self, name)
            if not value > 0 or not math.isfinite(value):
                raise ConfigError(f"{name} must be above 0, got {value}")
        if self.dim < 0 or self.step_ms < 0:
            raise ConfigError(f"dim and step_ms must not be negative: {self.dim}, {self.step_ms}")
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        if self.deployment not in ("colocated", "graph-store"):
            raise ConfigError(
                f'deployment must be "colocated" or "graph-store", got {self.deployment!r}'
            )
        if (self.deployment == "graph-store") != (self.servers > 0):
            raise ConfigError("servers must be above 0 with a graph store, and 0 without")
        for name in ("cache", "remote"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ConfigError(f"{name} is a share, 0 to 1, got {share}")
        if self.law not in ("uniform", "power-law"):
            raise ConfigError(f'law must be "uniform" or "power-law", got {self.law!r}')

    @property
    def parts(self) -> int:
        """Machines that hold the graph."""
        return self.servers or self.machines

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of features, as it is stored."""
        return self.dim * DTYPE_BYTES[self.dtype]

    @property
    def remote_share(self) -> float:
        """Share of what a machine samples that another machine holds."""
        return (1 - 1 / self.parts) if self.remote is None else self.remote

    def degrees(self) -> Degrees:
        """Return the graph by the law of its degrees."""
        make = Degrees.uniform if self.law == "uniform" else Degrees.power_law
        return make(self.nodes, self.edges)


@dataclass(frozen=True)
class Plan:
    """What a job will need and give."""

    job: Job
    batch: BatchSize
    memory: dict[str, float]
    """By part: bytes on the machine that has most."""
    memory_machine: str
    """Which one that is: ``"training"`` or ``"storage"``."""
    wire: dict[str, float]
    """By kind: bytes per seed that cross between machines."""
    cpu: dict[str, float]
    """By process: CPU seconds per seed, of all machines together."""
    bounds: dict[str, float]
    """By what limits it: seeds/s of all ranks."""
    connections: int
    """Of the process that has most."""
    spread: float
    changes: dict[str, float] = field(default_factory=dict)
    """What a change would multiply seeds/s by, the best first."""

    @property
    def bottleneck(self) -> str:
        """Return what limits seeds/s."""
        return min(self.bounds, key=lambda name: self.bounds[name])

    @property
    def seeds_per_second(self) -> float:
        """Return seeds/s of all ranks together."""
        return self.bounds[self.bottleneck]

    @property
    def total_memory(self) -> float:
        """Return the bytes of the machine that needs most."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Return whether that is there; None: not known."""
        have = self.job.memory_gb
        return None if have is None else self.total_memory <= have * 1e9


def estimate(job: Job, costs: Costs, degrees: Degrees | None = None) -> Plan:
    """Return what a job will need and give.

    Args:
        job: The job.
        costs: Of the machines.
        degrees: The graph, where it is known better than by a law.

    Raises:
        ConfigError: The batches cannot be.
    """
    plan = _estimate(job, costs, degrees)
    found = {}
    for name, change in _CHANGES.items():
        changed = change(job)
        if changed is not None and changed != job:
            gain = _estimate(changed, costs, degrees).seeds_per_second / plan.seeds_per_second
            if gain > 1.01:
                found[name] = gain
    return replace(plan, changes=dict(sorted(found.items(), key=lambda item: -item[1])))


def _estimate(job: Job, costs: Costs, degrees: Degrees | None) -> Plan:
    batch = expect(degrees or job.degrees(), job.fanouts, job.batch_size, job.cache)
    wire = _bytes_per_seed(job, batch)
    cpu = _cpu_per_seed(job, batch, wire, costs)
    memory, machine = _memory(job, batch, costs)
    spread = costs.spread
    bounds = _bounds(job, wire, cpu)
    return Plan(job, batch, memory, machine, wire, cpu, bounds, _connections(job), spread)


def _bytes_per_seed(job: Job, batch: BatchSize) -> dict[str, float]:
    """Return what crosses between machines: in a graph store, batches too."""
    remote, store = job.remote_share, job.deployment == "graph-store"
    rows = batch.nodes * job.row_bytes
    found = {
        "questions": batch.asked * remote * _ID_BYTES,
        "neighbours": batch.edges * remote * _ID_BYTES,
        "rows between partitions": 0.0 if store and job.cache else batch.nodes * remote * (
            job.row_bytes + _ID_BYTES
        ) * (1 - batch.hit_rate),
    }  # fmt: skip
    if store:
        found["ids and edges of batches"] = batch.nodes * _ID_BYTES + batch.edges * _EDGE_BYTES
        found["rows of batches"] = rows * (1 - batch.hit_rate)
    return {name: nbytes / batch.seeds for name, nbytes in found.items()}


def _cpu_per_seed(
    job: Job, batch: BatchSize, wire: dict[str, float], costs: Costs
) -> dict[str, float]:
    per_byte = (costs.tls_s_per_gb if job.encrypted else costs.plain_s_per_gb) / 1e9
    sampling = (
        costs.batch_s + costs.edge_s * batch.edges + costs.node_s * batch.nodes
        + costs.row_byte_s * batch.nodes * job.row_bytes
    ) / batch.seeds  # fmt: skip
    between = sum(nbytes for name, nbytes in wire.items() if "batches" not in name)
    delivered = sum(nbytes for name, nbytes in wire.items() if "batches" in name)
    return {
        "sampling": sampling,
        "asking and answering": 2 * per_byte * between + costs.row_byte_s * between,
        "sending batches": per_byte * delivered,
        "receiving batches": per_byte * delivered,
    }


def _bounds(job: Job, wire: dict[str, float], cpu: dict[str, float]) -> dict[str, float]:
    """Return seeds/s of all ranks by what limits them."""
    ranks, store = job.machines * job.ranks_per_machine, job.deployment == "graph-store"
    work = cpu["sampling"] + cpu["asking and answering"]
    between = sum(nbytes for name, nbytes in wire.items() if "batches" not in name)
    delivered = sum(nbytes for name, nbytes in wire.items() if "batches" in name)
    link = job.link_gbit * 1e9 / 8 * _LINK_SHARE
    if store:
        samplers = job.servers * ranks * job.workers
        found = {
            "workers": samplers / work,
            "cores of servers": job.servers * job.cores / (work + cpu["sending batches"]),
            "links of servers": job.servers * link / (between + delivered),
            "links of training machines": job.machines * link / delivered,
            "cores of training machines": job.machines * job.cores / cpu["receiving batches"],
        }
    else:
        found = {
            "workers": ranks * job.workers / work,
            "cores": job.machines * job.cores / work,
        }
        if between > 0:
            found["links"] = job.machines * link / between
    if job.step_ms:
        found["the model's step"] = ranks * job.batch_size / (job.step_ms / 1e3)
    return found


def _memory(job: Job, batch: BatchSize, costs: Costs) -> tuple[dict[str, float], str]:
    index = 4 if job.nodes < 2**31 else 8
    rows = job.nodes * (job.row_bytes + 8)  # and labels
    graph = {
        "rows and labels": rows / job.parts,
        "edges": (8 * job.nodes + index * job.edges) / job.parts,
    }
    batch_bytes = batch.nodes * (8 + job.row_bytes) + batch.edges * 16
    slots = (job.workers * _CONCURRENCY + 2) * batch_bytes
    cache = job.cache * job.remote_share * job.nodes * job.row_bytes
    ranks, processes = job.ranks_per_machine, costs.process_bytes
    training = {
        "batches under way": ranks * slots, "cache": cache, "training processes": ranks * processes,
    }  # fmt: skip
    workers = costs.worker_bytes * job.workers
    if job.deployment == "colocated":
        return {**graph, **training, "workers": ranks * workers}, "training"
    all_ranks = job.machines * ranks
    storage = {
        **graph, "batches under way": all_ranks * slots, "workers": all_ranks * workers,
        "server": processes,
    }  # fmt: skip
    most = max((storage, "storage"), (training, "training"), key=lambda one: sum(one[0].values()))
    return most


def _connections(job: Job) -> int:
    ranks = job.machines * job.ranks_per_machine
    if job.deployment == "graph-store":
        return max(job.servers, ranks + (job.servers - 1) * 2)
    return (job.machines - 1) * job.ranks_per_machine


def _smaller_dtype(job: Job) -> Job | None:
    return replace(job, dtype="float16") if DTYPE_BYTES[job.dtype] > 2 else None


_CHANGES: dict[str, Callable[[Job], Job | None]] = {
    "one more worker per rank": lambda job: replace(job, workers=job.workers + 1),
    "a cache of 20% of the remote rows": lambda job: replace(job, cache=max(job.cache, 0.2)),
    "features as float16": _smaller_dtype,
    "links 2.5 times as fast": lambda job: replace(job, link_gbit=2.5 * job.link_gbit),
    "twice the training machines": lambda job: replace(job, machines=2 * job.machines),
    "twice the storage machines": lambda job: (
        replace(job, servers=2 * job.servers) if job.servers else None
    ),
}
"""Changes by name, the cheapest first."""
