"""Configuration that a worker process receives at its start."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from gigl_loader.dataset.view import A, PartitionView
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.transport import SILENCE_S
from gigl_loader.workers.peers import Access


@dataclass(frozen=True)
class SeedInput(Generic[A]):
    """Seeds and what goes with them, in the user's order."""

    seeds: A
    """``[num_seeds]`` int64, global ids of the input type."""
    extra: dict[str, A] = field(default_factory=dict)
    """Further columns, one row per seed."""

    def __len__(self) -> int:
        seeds: Any = self.seeds
        return int(seeds.shape[0])


@dataclass(frozen=True)
class Plugins:
    """Classes and functions of the user that a worker runs."""

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
    access: Access | None
    """How to answer other partitions and ask them; None: there are none."""
    rpc_timeout_s: float
    """Longest wait for the answer of another partition."""
    replaceable: bool
    """Whether another worker takes the place of one that dies."""
    plugins: bytes
    """`Plugins`, pickled by themselves: they may hold tensors, for which the worker needs torch."""
    users_code: bool = True
    """Whether some of these are the user's own."""
    main_path: str | None = None
    """The user's script, where something above is defined in it."""

    @property
    def patience_s(self) -> float:
        """How long a worker of another partition may be silent, in seconds.

        Where workers are replaced, one that is stopped comes back as another one, and a link that
        is cut may heal: as long as an answer may take.
        """
        return max(SILENCE_S, self.rpc_timeout_s) if self.replaceable else SILENCE_S
