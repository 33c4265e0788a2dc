"""Options: frozen, checked once where they are built, sent to workers unchanged."""

import math
import os
from dataclasses import dataclass, field
from typing import Any

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError

DEFAULT_TIMEOUT_S = 120.0
"""Seconds without progress after which a wait for workers or servers is an error."""

DEFAULT_RECONNECT_S = 60.0
"""Seconds that a storage server may be away, to be started again or reached again."""
DEFAULT_MAX_RESTARTS = 3
"""Workers of one loader that are replaced in an epoch, on each machine that samples for it."""

CLUSTER_TOKEN_VARIABLE = "GIGL_LOADER_CLUSTER_TOKEN"
"""Environment variable with a secret that all processes of a job share."""

SAME_MEMORY_VARIABLE = "GIGL_LOADER_SAME_MEMORY"
"""Environment variable; "0": what processes of one machine have for each other, partitions and
batches of storage servers, travels over TCP as between machines, instead of being read in place."""


def reads_same_memory() -> bool:
    """Return whether this process reads others' memory, and shows its own: the default."""
    return os.environ.get(SAME_MEMORY_VARIABLE) != "0"


_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


@dataclass(frozen=True)
class KHopNeighborSamplerOptions:
    """Sample a fixed number of neighbours per hop; the default."""

    num_neighbors: list[int] | dict[EdgeType, list[int]]
    """Fanout per hop, as given to the loader."""


@dataclass(frozen=True)
class CustomSamplerOptions:
    """Sample with a class of one's own, imported by the sampling workers.

    The class is built as ``cls(view, plan, peers, **keywords)`` and has
    ``sample(request) -> fields``; see ``gigl_loader.sampler.plan.Sampler``. It reads and returns
    numpy arrays, since workers do without torch; one that imports torch makes them start later.
    """

    class_path: str
    """``package.module.ClassName``, importable in the workers."""
    keywords: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "." not in self.class_path:
            raise ConfigError(
                f"CustomSamplerOptions.class_path must read 'package.module.ClassName', "
                f"got {self.class_path!r}"
            )


SamplerOptions = KHopNeighborSamplerOptions | CustomSamplerOptions


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """How a loader goes through its seeds, beyond what GLT's ``SamplingConfig`` holds."""

    seed: int
    """``[0, 2**63)``; with epoch and batch index it decides every draw and the shuffle."""
    replace: bool = False
    """Draw neighbours with replacement."""
    in_order: bool = True
    """Yield batches in order, as ``torch.utils.data.DataLoader`` does by default."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """Seconds without progress before a wait is an error."""
    max_restarts: int = DEFAULT_MAX_RESTARTS
    """Workers of one producer that are replaced in an epoch; 0: the first that is lost is an
    error."""
    reconnect_timeout_s: float = DEFAULT_RECONNECT_S
    """Seconds that a storage server may be away before that is an error; 0: it is one at once."""

    def __post_init__(self) -> None:
        is_int = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if not (is_int and 0 <= self.seed < 2**63):
            raise ConfigError(f"seed must be an integer in [0, 2**63), got {self.seed!r}")
        if not (isinstance(self.timeout_s, (int, float)) and 0 < self.timeout_s < math.inf):
            raise ConfigError(
                f"timeout must be > 0 seconds, and there always is one; got {self.timeout_s!r}"
            )
        limit = self.reconnect_timeout_s
        if not (isinstance(limit, (int, float)) and 0 <= limit < math.inf):
            raise ConfigError(f"reconnect_timeout must be seconds >= 0, got {limit!r}")
        most = self.max_restarts
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise ConfigError(f"max_restarts must be an integer >= 0, got {most!r}")


def parse_size(size: int | str) -> int:
    """Return a number of bytes: of ``"4GB"``, ``"64MB"`` (powers of 1024, as in GLT), or an int.

    Raises:
        ConfigError: It cannot be read, or is not positive.
    """
    nbytes = size if isinstance(size, int) else 0
    if isinstance(size, str):
        text = size.strip().upper()
        digits = text.rstrip("BKMGT ")
        unit = _UNITS.get(text[len(digits) :].strip())
        try:
            nbytes = int(float(digits) * unit) if unit else 0
        except ValueError:
            nbytes = 0
    if nbytes <= 0:
        raise ConfigError(f"a size must be bytes > 0 or a text such as '512MB', got {size!r}")
    return nbytes


def usable_cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0))
