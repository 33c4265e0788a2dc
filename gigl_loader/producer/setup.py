"""What a worker process is told when it starts, and the names of the messages that follow.

::

    trainer -> worker   SETUP (once), PEERS, ROUND, TASK, STOP
    worker -> trainer   READY or FAILED (once), BATCH, ERROR or STALE per task, LINGERING
    steward -> trainer  EXITED
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gigl_loader.dataset.view import PartitionView
from gigl_loader.sampler.plan import SamplingPlan

PEERS, ROUND, TASK, STOP = "peers", "round", "task", "stop"
READY, FAILED, BATCH, ERROR, STALE = "ready", "failed", "batch", "error", "stale"
LINGERING, EXITED = "lingering", "exited"


@dataclass(frozen=True)
class SeedInput:
    """What is sampled, in the user's order."""

    seeds: Tensor
    """``[num_seeds]`` int64, global ids of the input type."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """Further columns, one row per seed."""

    def __len__(self) -> int:
        return self.seeds.numel()


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """Everything that a worker needs to sample, but for its peers."""

    view: PartitionView
    plan: SamplingPlan
    seed_input: SeedInput
    batch_size: int
    num_samplers: int
    """Threads that sample, a batch each."""
    num_threads: int
    """Threads of one torch operation."""
    peer_host: str | None
    """Address to answer other partitions on; None: there are none."""
    token: bytes
    """Secret that peers prove to know."""
    rpc_timeout_s: float
    sampler: tuple[str, dict[str, Any]] | None = None
    """Import path ``package.module.Class`` and keywords of a sampler of the user's own."""
    init_fn: Callable[[int], None] | None = None
    """Called in each worker with its number, before sampling."""
    main_path: str | None = None
    """The user's script, where something above is defined in it."""
