"""What a loader remembers of its batches: how far the epoch is, and what was counted."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigl_loader.errors import ConfigError
from gigl_loader.loader.world import WorldShare
from gigl_loader.message import BatchCounts, Received
from gigl_loader.sizes import size_in_words

_STATE_VERSION = 1
_OF_OLD_STATES = {"shard": "machine", "draw_version": 1}
"""Values of older states, saved before there was a choice."""
_OF_A_RANK = ("rank", "num_seeds", "seeds_digest")
"""Entries that may differ between ranks that take the same number of steps."""
_PAD = "pad"
"""Entry of a loader that may split batches: the sizes that its parts depend on."""


@dataclass
class EpochProgress:
    """The position within an epoch, as ``state_dict`` has it. Counts batches handed to the user."""

    epoch: int = 0
    yielded: int = 0
    """Batches of the prefix that is handed out; with shards, of the whole job."""
    ahead: set[int] = field(default_factory=set)
    """Positions handed out beyond that prefix; only with ``in_order=False``."""
    finished: bool = False
    parts: dict[int, int] = field(default_factory=dict)
    """Of batches that are split and not handed out whole: how many parts were, by position."""
    share: WorldShare | None = None
    """This rank's part of the job's batches; None: the positions are of this rank alone."""

    def note(self, position: int) -> None:
        """The batch at ``position`` of the epoch's sequence was handed out."""
        self.parts.pop(position, None)
        if self.share is not None:
            # World sharding is in order, so this place tells of all before it.
            self.yielded = self.share.taken_with(position)
            return
        # In order the set never has more than this place; without, as many as may be under way.
        self.ahead.add(position)
        while self.yielded in self.ahead:
            self.ahead.remove(self.yielded)
            self.yielded += 1

    def note_part(self, position: int) -> None:
        """A part of the batch at ``position`` was handed out, and not the last one."""
        self.parts[position] = self.parts.get(position, 0) + 1

    def positions_left(self, total: int) -> list[int]:
        """Return the positions that are still to come, of ``total`` or of the share."""
        if self.share is not None:
            return list(self.share.positions(self.yielded))
        return [position for position in range(self.yielded, total) if position not in self.ahead]

    def to_dict(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return a plain dict, safe to ``torch.save``."""
        return {
            "version": _STATE_VERSION,
            "epoch": self.epoch,
            "yielded": self.yielded,
            "ahead": sorted(self.ahead),
            "finished": self.finished,
            # Only where there are some: all other states are those that earlier versions read.
            **({"parts": sorted(self.parts.items())} if self.parts else {}),
            **identity,
        }

    @classmethod
    def from_dict(
        cls, state: dict[str, Any], identity: dict[str, Any], *, in_step: bool = False
    ) -> "EpochProgress":
        """Undo `to_dict`.

        Args:
            state: What `to_dict` returned.
            identity: Of the loader that goes on.
            in_step: All ranks take the same number of steps. Then the state of any rank will do:
                where one rank writes the checkpoints, it is the only one there is.

        Raises:
            ConfigError: The state is of another loader: names what differs.
        """
        if isinstance(state, dict) and "shard" in identity:
            state = {**_OF_OLD_STATES, **state}
        version = state.get("version") if isinstance(state, dict) else type(state).__name__
        if version != _STATE_VERSION:
            raise ConfigError(
                f"not a loader state of this version: version={version!r}, expected "
                f"{_STATE_VERSION}; give the result of a state_dict()"
            )
        of_other_rank = state.get("rank") != identity.get("rank")
        # Not with batches taken out of order: which ones they were is true of one rank only.
        may_differ = _OF_A_RANK if of_other_rank and in_step and not state["ahead"] else ()
        parts = dict(state.get("parts", ()))
        if not parts:  # sizes decide which seeds a part has, and nothing between batches
            may_differ = (*may_differ, _PAD)
        now = {_PAD: None, **identity} if parts else identity
        changed = {
            name: (state.get(name), value)
            for name, value in now.items()
            if state.get(name) != value and name not in may_differ
        }
        if changed:
            texts = [f"{name}: {old!r} -> {new!r}" for name, (old, new) in changed.items()]
            # The last hint that fits wins: the most telling one is asked for last.
            hint = "build this loader with the saved values to resume"
            if "rank" in changed:
                hint = "every rank loads what it saved itself; with even_ranks, any rank's will do"
            if "world_size" in changed:
                hint = (
                    "each state is of one rank's own seeds, so another number of ranks cannot go "
                    'on with it; build the loaders with shard="world", then their states can'
                )
            if "draw_version" in changed:
                hint = "this version draws other batches: begin an epoch, or go on with the old one"
            if _PAD in changed:
                hint = "it was saved within a batch that is split: give pad= the saved sizes"
            if "shard" in changed:
                hint = "change shard between epochs, with set_epoch() in place of the state"
            raise ConfigError(
                "the state was saved by a loader that differs in (saved -> now) "
                f"{', '.join(texts)}: {hint}"
            )
        return cls(
            state["epoch"], state["yielded"], set(state["ahead"]), state["finished"], parts
        )  # fmt: skip


@dataclass
class LoaderStats(BatchCounts):
    """Sums over the batches handed out; `BaseDistLoader.stats` returns their `summary`."""

    wait_s: float = 0.0
    collate_s: float = 0.0
    depth: int = 0
    """Sum of the queue's depth at each hand-over."""
    asked: int = 0
    """Most partitions that a worker asks over TCP."""
    restarts_before: int = 0
    """Restarts that the last reset had counted; `restarts` are since the loader was built."""
    network_s: float = 0.0
    """Seconds of workers' time in which they waited for other machines."""
    received: Counter[str] = field(default_factory=Counter)
    """Bytes that crossed machines, by kind."""
    rows_from: Counter[int] = field(default_factory=Counter)
    """Rows that were fetched, by partition."""
    cached_rows: int = 0
    """Rows of other machines that a cache had."""
    has_cache: bool = False
    started: float = field(default_factory=time.perf_counter)

    def after(self) -> "LoaderStats":
        """Return counts that begin now."""
        return LoaderStats(
            restarts=dict(self.restarts), restarts_before=sum(self.restarts.values())
        )

    def add(self, received: Received, wait_s: float, depth: int) -> None:
        """Count one batch."""
        stats = received.stats
        worker = stats.get("worker", 0)
        # Of a graph store a worker is (server, number), and replaced workers are counted by server;
        # a colocated producer counts as one place.
        self.count(stats, worker, worker[0] if isinstance(worker, tuple) else 0)
        self.wait_s += wait_s
        self.depth += depth
        # Not a sum: each batch says how many partitions its worker asks at all.
        self.asked = max(self.asked, stats.get("asked", 0))
        self.network_s += stats.get("network_s", 0.0)
        self.received.update(stats.get("received", {}))
        self.rows_from.update(stats.get("rows_from", {}))
        self.cached_rows += stats.get("cached_rows", 0)
        self.has_cache = self.has_cache or "cached_rows" in stats

    def summary(
        self, remote_bytes: int = 0, link_bytes_per_s: float | None = None
    ) -> dict[str, Any]:
        """Return counts, rates and shares since they began.

        Args:
            remote_bytes: Bytes of all rows that only other machines have; 0: not known.
            link_bytes_per_s: What this machine's network carries; None: not known.
        """
        # Read right after a reset, clocks may say that no time has passed.
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        batches = max(self.batches, 1)
        link_share = None
        if link_bytes_per_s is not None:
            # Of the time since counting began, not of the time that was waited: a link that is full
            # half of the time has room.
            link_share = self.received.total() / elapsed / link_bytes_per_s
        shares = {worker: busy / elapsed for worker, busy in sorted(self.busy_s.items())}
        return {
            "batches": self.batches,
            "seeds": self.seeds,
            "bytes": self.nbytes,
            "elapsed_s": elapsed,
            "wait_s": self.wait_s,
            "collate_s": self.collate_s,
            "sample_s": self.sample_s,
            "gather_s": self.gather_s,
            "worker_busy_s": dict(sorted(self.busy_s.items())),
            "seeds_per_s": self.seeds / elapsed,
            "bytes_per_s": self.nbytes / elapsed,
            "wait_share": self.wait_s / elapsed,
            "collate_share": self.collate_s / elapsed,
            "queue_depth": self.depth / batches,
            "sample_ms": 1e3 * self.sample_s / batches,
            "gather_ms": 1e3 * self.gather_s / batches,
            "worker_busy_share": shares,
            "partitions_over_tcp": self.asked,
            "restarts": sum(self.restarts.values()) - self.restarts_before,
            "network_bytes": {kind: self.received[kind] for kind in ("rows", "structure")},
            "network_share": self._network_share,
            "link_share": link_share,
            "rows_by_partition": dict(sorted(self.rows_from.items())),
            "hit_rate": self._hit_rate,
            "verdict": self._verdict(self.wait_s / elapsed, shares, remote_bytes, link_share),
        }

    @property
    def _network_share(self) -> float:
        return self.network_s / max(self.sample_s + self.gather_s, 1e-9)

    @property
    def _hit_rate(self) -> float | None:
        asked = self.cached_rows + self.rows_from.total()
        return self.cached_rows / max(asked, 1) if self.has_cache else None

    def _verdict(
        self, wait_share: float, busy: dict[int, float], remote_bytes: int,
        link_share: float | None,
    ) -> str:  # fmt: skip
        if not self.batches:
            return _NO_BATCH
        # First who keeps workers waiting, then what is full: a cache, which the first one advises,
        # helps with both.
        if wait_share >= _MUCH_WAIT and self._network_share > _MUCH_NETWORK and self.rows_from:
            return self._network_verdict(remote_bytes)
        if wait_share >= _MUCH_WAIT and link_share is not None and link_share > _MUCH_OF_LINK:
            return (
                f"network-bound: the link of this machine is used to {link_share:.0%}; give the "
                "loader remote_cache or more of it, lower num_neighbors, or store rows in fewer "
                "bytes"
            )
        return _verdict(wait_share, busy)

    def _network_verdict(self, remote_bytes: int) -> str:
        """Say where rows come from, and what a cache would do, or does, about it."""
        partition, most = self.rows_from.most_common(1)[0]
        where = f"{most / self.rows_from.total():.0%} of rows come from partition {partition}"
        if self._hit_rate is not None:
            return (
                f"network-bound: {where}; the cache has {self._hit_rate:.0%} of the rows that are "
                "asked for: raise remote_cache, lower num_neighbors, or store quantized rows"
            )
        if remote_bytes == 0:
            return f"network-bound: {where}; lower num_neighbors, or use a faster network"
        size = min(_CACHE_TO_SUGGEST, remote_bytes)
        return (
            f"network-bound: {where}; a cache of {size_in_words(size)} would hold "
            f"{size / remote_bytes:.0%} of them: give the loader remote_cache"
        )


@dataclass
class HandedOut:
    """Counts of the batches that a loader handed out, over all epochs."""

    stats: LoaderStats = field(default_factory=LoaderStats)
    recorders: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    """Called with what workers noted of each batch; see `profile_workers`."""
    num_received: int = 0
    """Batches of the epoch under way, those before a resume included."""

    def add(self, received: Received, wait_s: float, collate_s: float, waiting: int) -> None:
        """Count one batch.

        Args:
            received: The batch.
            wait_s: Seconds that the training loop waited for it.
            collate_s: Seconds that it took to make a PyG batch of it.
            waiting: Batches that could be handed out next without waiting.
        """
        self.num_received += 1
        self.stats.add(received, wait_s, waiting)
        self.stats.collate_s += collate_s
        for record in self.recorders:
            record(received.stats)


# Of the elapsed time: below it, a faster loader would hardly be noticed.
_MUCH_WAIT = 0.1
# Of the workers' time: more of it than all else they do.
_MUCH_NETWORK = 0.5
# Of the nominal speed: overhead and other traffic take their part of the rest, and it is a mean, so
# a link that is used to 60% is full in its bursts.
_MUCH_OF_LINK = 0.6
# Bytes: what a training machine can mostly spare.
_CACHE_TO_SUGGEST = 2 * 10**9


_NO_BATCH = "no batch was handed out yet: nothing to tell"


def _verdict(wait_share: float, busy: dict[int, float]) -> str:
    if wait_share < _MUCH_WAIT:
        return "training-bound: batches are ready before they are asked for"
    # Workers that are at work most of the time lack hands, and those that are not lack answers.
    mean_busy = sum(busy.values()) / max(len(busy), 1)
    if mean_busy > 0.7:
        return "sampling-bound: add workers (num_workers), or lower num_neighbors"
    return (
        "latency-bound: workers wait, for other partitions or for a CPU: raise worker_concurrency "
        "where there are several partitions, and look at the load of the machine"
    )


def link_bytes_per_s(interfaces: Path = Path("/sys/class/net")) -> float | None:
    """Return the nominal speed of the fastest network interface that is up, in bytes per second.

    None: no interface says, as on systems other than Linux, or in some virtual machines. What
    limits a link elsewhere, as `tc` or a switch, does not show.

    Args:
        interfaces: A folder for each interface, with files ``operstate`` and ``speed`` (Mbit/s).
    """
    speeds = []
    for one in interfaces.glob("*"):
        try:
            if one.name != "lo" and (one / "operstate").read_text().strip() == "up":
                # -1 stands for unknown: virtual interfaces say so, and never are the fastest.
                speeds.append(int((one / "speed").read_text()))
        except (OSError, ValueError):  # wireless ones have no speed, and reading it is an error
            continue
    fastest = max(speeds, default=0)
    # Mbit/s are decimal.
    return fastest * 1e6 / 8 if fastest > 0 else None
