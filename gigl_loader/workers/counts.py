"""What comes of the batches that workers send: the sums behind ``stats()`` and the metrics."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class BatchCounts:
    """Sums over batches that were handed out."""

    batches: int = 0
    seeds: int = 0
    nbytes: int = 0
    sample_s: float = 0.0
    gather_s: float = 0.0
    busy_s: dict[Any, float] = field(default_factory=dict)
    """Seconds that each worker was at work, on one batch or on several at a time."""
    busy_until: dict[Any, float] = field(default_factory=dict)
    """Up to when that was counted, in seconds since 1970."""
    restarts: dict[Any, int] = field(default_factory=dict)
    """Workers that were replaced, by the position where they are."""

    def count(self, stats: dict[str, Any], worker: Hashable, position: Hashable) -> None:
        """Count one batch.

        Args:
            stats: What the worker measured, and how many workers its producer has replaced.
            worker: Who sampled it.
            position: Its producer or server.
        """
        self.batches += 1
        self.seeds += stats.get("seeds", 0)
        self.nbytes += stats.get("nbytes", 0)
        sample_s, gather_s = stats.get("sample_s", 0.0), stats.get("gather_s", 0.0)
        self.sample_s += sample_s
        self.gather_s += gather_s
        # each batch tells the total of its producer, and an older one may come later
        self.restarts[position] = max(self.restarts.get(position, 0), stats.get("restarts", 0))
        # a worker samples several batches at a time: what two of them took together counts once.
        # Both times are of the worker's own clock
        ended = stats.get("ended_ns", 0) / 1e9
        until = self.busy_until.get(worker, 0.0)
        counted = max(0.0, min(sample_s + gather_s, ended - until))
        self.busy_s[worker] = self.busy_s.get(worker, 0.0) + counted
        self.busy_until[worker] = max(ended, until)
