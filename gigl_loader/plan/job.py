"""The subject of a plan: a graph, how it is sampled, and the machines."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from gigl_loader.errors import ConfigError
from gigl_loader.plan.expect import DegreeDistribution

Deployment = Literal["colocated", "graph-store"]

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1,
    "int16": 2, "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip
BOOKS = "books"
"""Key of `Job.resident` for the partition books, which are the same in each part."""
CONCURRENCY = 4
"""Batches under way per worker, and fetches per server: the loaders' default."""


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
    """CPU cores of each machine."""
    link_gbit: float = 10.0
    """10**9 bits per second of a machine, in each direction."""
    step_ms: float = 0.0
    """Milliseconds of the model for a batch; 0: none, loading is all there is."""
    deployment: Deployment = "colocated"
    servers: int = 0
    """Storage machines of a graph store."""
    cache: float = 0.0
    """Share of the rows of other machines that each machine keeps."""
    encrypted: bool = False
    resident: tuple[tuple[str, float], ...] = ()
    """Bytes by part that the largest partition takes in memory; empty: reckoned, not known."""
    memory_gb: float | None = None
    """10**9 bytes of each machine; None: not checked."""
    disk_gb_per_s: float = 1.0
    """10**9 bytes per second that partitions are read with."""
    remote: float | None = None
    """Share of neighbours that are in another partition. None: as if parts were drawn."""
    law: str = "uniform"
    """Distribution of degrees, where the graph is not there: ``"uniform"`` or ``"power-law"``."""

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "batch_size", "machines", "ranks_per_machine", "workers",
                     "cores", "link_gbit", "memory_gb", "disk_gb_per_s"):  # fmt: skip
            value = getattr(self, name)
            # "not (>)", so that NaN, of which every comparison is false, is refused as well.
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be above 0, got {value}")
        if not (self.dim >= 0 and 0 <= self.step_ms < math.inf):
            raise ConfigError(f"dim and step_ms must not be negative: {self.dim}, {self.step_ms}")
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        self._check_machines()
        for name in ("cache", "remote"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ConfigError(f"{name} is a share, 0 to 1, got {share}")
        if self.law not in ("uniform", "power-law"):
            raise ConfigError(f'law must be "uniform" or "power-law", got {self.law!r}')

    def _check_machines(self) -> None:
        if self.deployment not in ("colocated", "graph-store"):
            raise ConfigError(
                f'deployment must be "colocated" or "graph-store", got {self.deployment!r}'
            )
        # Said twice, so that neither is guessed: a count of servers alone may be a slip.
        if (self.deployment == "graph-store") != (self.servers > 0) or self.servers < 0:
            raise ConfigError(
                'servers must be above 0 with deployment "graph-store", and 0 with "colocated": '
                f"got {self.servers} with {self.deployment!r}"
            )
        if self.parts > self.nodes:
            raise ConfigError(f"{self.nodes:,.0f} nodes cannot be in {self.parts:,} parts")

    @property
    def is_store(self) -> bool:
        """Whether storage machines are apart from those that train."""
        return self.servers > 0

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
        if self.parts == 1:
            return 0.0
        return (1 - 1 / self.parts) if self.remote is None else self.remote

    def with_machines(self, machines: int, servers: int) -> "Job":
        """Return the job on others: a partitioning is as much better than drawn parts as before."""
        # Parts become smaller as they become more; the book of owners is of all nodes in each.
        found = replace(self, machines=machines, servers=servers, remote=None)
        times = self.parts / found.parts
        resident = [(name, n if name == BOOKS else n * times) for name, n in self.resident]
        found = replace(found, resident=tuple(resident))
        if self.remote is None or self.parts == 1:
            return found
        # Relative to parts that are drawn: half as many remote neighbours stay half as many.
        drawn = 1 - 1 / self.parts
        return replace(found, remote=min(1.0, self.remote * found.remote_share / drawn))

    def degrees(self) -> DegreeDistribution:
        """Return the graph by the distribution of its degrees."""
        make = DegreeDistribution.uniform if self.law == "uniform" else DegreeDistribution.power_law
        return make(self.nodes, self.edges)
