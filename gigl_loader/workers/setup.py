"""What a worker process is told when it starts, and the names of the messages that follow.

::

    trainer -> worker   SETUP (once), PEERS, ROUND, TASK, STOP
    worker -> trainer   READY or FAILED (once), BATCH, ERROR or STALE per task, LINGERING
    supervisor -> trainer  EXITED
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from gigl_loader.dataset.view import A, PartitionView
from gigl_loader.sampler.plan import SamplingPlan

PEERS, ROUND, TASK, STOP = "peers", "round", "task", "stop"
READY, FAILED, BATCH, ERROR, STALE = "ready", "failed", "batch", "error", "stale"
LINGERING, EXITED = "lingering", "exited"


@dataclass(frozen=True)
class SeedInput(Generic[A]):
    """What is sampled, in the user's order."""

    seeds: A
    """``[num_seeds]`` int64, global ids of the input type."""
    extra: dict[str, A] = field(default_factory=dict)
    """Further columns, one row per seed."""

    def __len__(self) -> int:
        seeds: Any = self.seeds
        return int(seeds.shape[0])


@dataclass(frozen=True)
class Plugins:
    """What else a worker runs."""

    sampler: tuple[str, dict[str, Any]] | None = None
    """Import path ``package.module.Class`` and keywords; None: the k-hop neighbour sampler."""
    init_fn: Callable[[int], None] | None = None
    """Called in each worker with its number, before sampling."""


@dataclass(frozen=True, kw_only=True)
class WorkerSetup(Generic[A]):
    """Everything that a worker needs to sample, but for its peers."""

    view: PartitionView[A]
    plan: SamplingPlan
    seed_input: SeedInput[A]
    batch_size: int
    concurrency: int
    """Batches under way at once, at most."""
    cpus: int
    """This worker's share of the CPUs, at least 1."""
    peer_host: str | None
    """Address to answer other partitions on; None: there are none."""
    token: bytes
    """Secret that peers prove to know."""
    rpc_timeout_s: float
    plugins: bytes
    """`Plugins`, pickled by themselves: they may hold tensors, for which the worker needs torch."""
    main_path: str | None = None
    """The user's script, where something above is defined in it."""
