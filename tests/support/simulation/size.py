"""What is simulated, and what its processes hold."""

from dataclasses import dataclass, field

from tests.support.simulation.rows import RowLaw
from tests.support.simulation.workers import WorkCosts


@dataclass(frozen=True, kw_only=True)
class Size:
    """What is simulated."""

    ranks: int
    servers: int
    partitions: int = 0
    """Of the graph. Fewer than servers: server ``i`` has a replica, server ``i + partitions``. 0:
    as many as servers."""
    batches: int = 100
    """Per rank and epoch."""
    epochs: int = 1
    seed: int = 0
    ranks_per_machine: int = 8
    workers: int = 4
    """Sampling processes of each server."""
    concurrency: int = 4
    prefetch: int = 4
    latency_s: float = 100e-6
    gbit: float = 25.0
    """Of each machine's link."""
    batch_bytes: int = 2_000_000
    costs: WorkCosts = field(default_factory=WorkCosts)
    timeout_s: float = 120.0
    start_spread_s: float = 2.0
    """Processes come up within that time, in an order that is drawn."""
    save_every: int = 0
    """Steps after which ranks save their states; 0: never."""
    cache: float = 0.0
    """Share of all rows that each rank keeps; 0: batches have no rows."""
    rows: RowLaw = field(default_factory=RowLaw)
    in_step: bool = False
    """Whether ranks wait for each other after each step, as they do where gradients are summed."""


@dataclass(frozen=True)
class Held:
    """Bytes that processes hold in tables of their own, when the last rank has its loader."""

    rank: int = 0
    """The last one."""
    server: int = 0
    """The last one."""
    first_rank: int = 0
    """Rank 0, which created the producers."""
    first_server: int = 0
    """Server 0, which knows all ranks and servers."""
