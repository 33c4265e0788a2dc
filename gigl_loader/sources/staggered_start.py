"""When the processes of a job start sampling, so that their peaks of memory are apart."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from gigl_loader.errors import ConfigError

logger = logging.getLogger(__name__)


_LONG_S = 10.0
"""Seconds from which a wait is logged, so that the user knows of it."""


@dataclass(frozen=True, kw_only=True)
class WorkerTurns:
    """When each process of a machine starts its workers, so that memory peaks are apart.

    Raises:
        ConfigError: The gap is negative.
    """

    gap_s: float | None = None
    """Local rank ``i`` starts its own after ``i`` times this many seconds; None: once the local
    rank before it is ready."""
    local_rank: int = 0
    local_world_size: int = 1

    def __post_init__(self) -> None:
        _check_gap(self.gap_s)

    @property
    def total_s(self) -> float:
        """Seconds from the first start on a machine to the last."""
        return (self.gap_s or 0.0) * self.local_world_size

    def wait(self, wait_for_rank_before: Callable[[str], None]) -> None:
        """Wait until this local rank may start its workers.

        Args:
            wait_for_rank_before: Returns once the rank before this one has announced its argument.
        """
        if self.local_rank == 0:
            return
        if self.gap_s is None:
            wait_for_rank_before("started")
        elif self.gap_s > 0:
            seconds = self.local_rank * self.gap_s
            logger.log(
                logging.WARNING if seconds >= _LONG_S else logging.INFO,
                "local rank %d starts its workers in %.0f s; with process_start_gap_seconds=None "
                "it would as soon as the rank before it is ready",
                self.local_rank,
                seconds,
            )
            threading.Event().wait(seconds)


@dataclass(frozen=True, kw_only=True)
class LeaderTurns:
    """When each leader of a job creates its producers on a graph store, batch by batch.

    Raises:
        ConfigError: The gap is negative, or the batch size is below 1.
    """

    gap_s: float | None = None
    """Seconds between two batches of leaders; None: none."""
    max_concurrent: int | None = None
    """Leaders in a batch; None: all."""

    def __post_init__(self) -> None:
        _check_gap(self.gap_s)
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ConfigError(
                f"max_concurrent_producer_inits must be >= 1, got {self.max_concurrent}"
            )

    def wait(self, position: int) -> None:
        """Wait until the leader at ``position`` of all leaders may create its producers."""
        # by position, so that leaders need not talk: each knows its position from the terms
        batch = 0 if self.max_concurrent is None else position // self.max_concurrent
        seconds = batch * (self.gap_s or 0.0)
        if seconds > 0:
            logger.info("this process creates its producers in %.0f s", seconds)
            threading.Event().wait(seconds)


def _check_gap(gap_s: float | None) -> None:
    if gap_s is not None and gap_s < 0:
        raise ConfigError(f"process_start_gap_seconds must be >= 0 or None, got {gap_s}")
