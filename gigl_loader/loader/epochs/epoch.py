"""A loader's memory of its batches: the position in the epoch, and counts."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from gigl_loader.batch.message import BatchCounts, Received
from gigl_loader.errors import ConfigError
from gigl_loader.loader.epochs.state_options import differing_options
from gigl_loader.loader.seeds.world import WorldShare
from gigl_loader.runtime.sizes import size_in_words

logger = logging.getLogger(__name__)

_STATE_VERSION = 1
_OF_OLD_STATES = {"shard": "machine", "draw_version": 1}
"""Values of older states, saved before they could be chosen."""
_OF_A_RANK = ("rank", "num_seeds", "seeds_digest")
"""Entries that may differ between ranks that take the same number of steps."""
_PAD = "pad"
"""Entry of a loader that may split batches: the sizes that its parts depend on."""
_GROUPS = "groups_per_batch"
"""Entry of a loader that shuffles its seeds in groups; it decides their order."""
_DRAWS = "draw_version"


def saved_seed(state: Any) -> int | None:
    """Return the seed of a state; None: it has no valid one, and `from_dict` will refuse it."""
    seed = state.get("seed") if isinstance(state, dict) else None
    if not isinstance(seed, int) or isinstance(seed, bool):
        return None
    return seed if 0 <= seed < 2**63 else None


@dataclass
class EpochProgress:
    """The position within an epoch, as ``state_dict`` has it. Counts batches handed to the user."""

    epoch: int = 0
    yielded: int = 0
    """Batches of the handed-out prefix; with shards, of the whole job."""
    ahead: set[int] = field(default_factory=set)
    """Positions handed out beyond that prefix; only with ``in_order=False``."""
    finished: bool = False
    parts: dict[int, int] = field(default_factory=dict)
    """For batches that are split and partly handed out: the number of parts, by position."""
    share: WorldShare | None = None
    """This rank's part of the job's batches; None if the positions are this rank's alone."""

    def note(self, position: int) -> None:
        """Note that the batch at ``position`` of the epoch's sequence was handed out."""
        self.parts.pop(position, None)
        if self.share is not None:
            # World sharding is in order, so this position includes all before it.
            self.yielded = self.share.taken_with(position)
            return
        # In order the set never has more than this position; else, at most those under way.
        self.ahead.add(position)
        while self.yielded in self.ahead:
            self.ahead.remove(self.yielded)
            self.yielded += 1

    def note_part(self, position: int) -> None:
        """Note that a part of the batch at ``position`` was handed out, but not the last one."""
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
            # Only if there are some: all other states can be read by earlier versions.
            **({"parts": sorted(self.parts.items())} if self.parts else {}),
            **identity,
        }

    @classmethod
    def from_dict(
        cls,
        state: dict[str, Any],
        identity: dict[str, Any],
        *,
        in_step: bool = False,
        options: Mapping[str, str] | None = None,
        strict: bool = True,
    ) -> "EpochProgress":
        """Undo `to_dict`.

        Args:
            state: The result of `to_dict`.
            identity: Identity of the loader that continues: its seeds and their order.
            in_step: All ranks take the same number of steps. Then the state of any rank is valid:
                if one rank writes the checkpoints, there is no other.
            options: What decides the content of its batches; see `recorded_options`.
            strict: Refuse a state with other options; else log them.

        Raises:
            ConfigError: The state is another loader's; names the differences.
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
        # Not with batches taken out of order: these differ between ranks.
        may_differ = _OF_A_RANK if of_other_rank and in_step and not state.get("ahead") else ()
        parts = dict(state.get("parts", ()))
        if not parts:  # sizes decide the seeds of a part, but nothing between batches
            may_differ = (*may_differ, _PAD)
        current = {_GROUPS: None, **({_PAD: None} if parts else {}), **identity}
        changed = {
            name: (state.get(name), value)
            for name, value in current.items()
            if state.get(name) != value and name not in may_differ
        }
        others = {} if options is None else differing_options(state, options)
        texts = [f"{name}: {old!r} -> {new!r}" for name, (old, new) in changed.items()]
        texts += [f"{name}: {old} -> {new}" for name, (old, new) in others.items()]
        # Draws and options change what batches hold; all else, which seeds a position means.
        moved = {*changed} - {_DRAWS}
        if moved or (texts and strict):
            raise ConfigError(
                "the state was saved by a loader that differs in (saved -> now) "
                f"{', '.join(texts)}: {_hint(changed, others=bool(others), strict=strict)}"
            )
        if texts:
            logger.warning(
                "strict=False: batches go on from a loader that differs in (saved -> now) %s",
                ", ".join(texts),
            )
        progress = cls(*_read(state), parts)
        _check_within(progress, identity.get("num_batches"))
        return progress


def _hint(changed: Mapping[str, Any], *, others: bool, strict: bool) -> str:
    """Return what to do about a state that is refused.

    Args:
        changed: The entries of the loader's identity that differ.
        others: Whether options that decide the content of batches differ.
        strict: As `EpochProgress.from_dict`.
    """
    # The last matching hint wins, so the most useful one is checked last.
    hint = "build this loader with the saved values to resume"
    if not strict:
        hint = (
            "these decide which seeds a position means, also with strict=False: build this loader "
            "with the saved values, or begin an epoch with set_epoch() in place of the state"
        )
    if _DRAWS in changed:
        hint = (
            "this version draws other batches: begin an epoch, go on with the old version, or draw "
            "anew from here by load_state_dict(state, strict=False)"
        )
    if others and strict:
        hint = (
            "batches would hold something else than those before: build this loader with the saved "
            "values, or go on with the new ones by load_state_dict(state, strict=False)"
        )
    if "rank" in changed:
        hint = "every rank loads what it saved itself; with even_ranks, any rank's will do"
    if "world_size" in changed:
        hint = (
            "each state is of one rank's own seeds, so another number of ranks cannot go "
            'on with it; build the loaders with shard="world", then their states can'
        )
    if _PAD in changed:
        hint = "it was saved within a batch that is split: give pad= the saved sizes"
    if "shard" in changed:
        hint = "change shard between epochs, with set_epoch() in place of the state"
    return hint


def _read(state: dict[str, Any]) -> tuple[int, int, set[int], bool]:
    """Return epoch, batches handed out in order, those out of order, and whether it was the end.

    Raises:
        ConfigError: One is missing, or is none.
    """
    epoch, yielded, ahead, finished = found = [
        state.get(name) for name in ("epoch", "yielded", "ahead", "finished")
    ]
    numbers = [epoch, yielded, *(ahead if isinstance(ahead, list) else [None])]
    if any(type(one) is not int or one < 0 for one in numbers) or type(finished) is not bool:
        raise ConfigError(
            "not a loader state: epoch, yielded and the positions in ahead are integers from 0 on, "
            f"and finished is a bool, got {found}; give the result of a state_dict()"
        )
    return epoch, yielded, set(ahead), finished  # type: ignore[return-value, arg-type]  # checked above


def _check_within(progress: EpochProgress, num_batches: int | None) -> None:
    """Raise `ConfigError` if batches were handed out that an epoch does not have.

    Args:
        progress: Read from a state.
        num_batches: Batches of an epoch; None: unknown.
    """
    most = max([progress.yielded, *(position + 1 for position in progress.ahead)])
    if num_batches is not None and most > num_batches:
        raise ConfigError(
            f"not a loader state: batch {most} was handed out, beyond the {num_batches} batches of "
            "an epoch; give the result of a state_dict()"
        )


@dataclass
class LoaderStats(BatchCounts):
    """Sums over the batches handed out; `BaseDistLoader.stats` returns their `summary`."""

    wait_s: float = 0.0
    collate_s: float = 0.0
    """With the time that the user's functions took in it."""
    transform_s: float = 0.0
    """Seconds of the user's own functions, ``transform`` and ``transform_sampler_output``."""
    tokens: int = 0
    depth: int = 0
    """Sum of the queue's depth at each hand-over."""
    asked: int = 0
    """Most partitions that a worker asks over TCP."""
    restarts_before: int = 0
    """Restarts counted up to the last reset; `restarts` counts since the loader was built."""
    network_s: float = 0.0
    """Seconds of workers' time spent waiting for other machines."""
    received: Counter[str] = field(default_factory=Counter)
    """Bytes that crossed machines, by kind."""
    rows_from: Counter[int] = field(default_factory=Counter)
    """Rows that were fetched, by partition."""
    cached_rows: int = 0
    """Rows of other machines that a cache had."""
    has_cache: bool = False
    started: float = field(default_factory=time.perf_counter)
    num_received: int = 0
    """Batches of the epoch under way, those before a resume included."""
    recorders: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    """Called with the workers' notes on each batch; see `profile_workers`."""

    def reset(self) -> None:
        """Begin to count now."""
        now = LoaderStats(
            restarts=self.restarts,
            restarts_before=sum(self.restarts.values()),
            num_received=self.num_received,
            recorders=self.recorders,
        )
        vars(self).update(vars(now))

    def timed(self, function: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        """Return a user's function with its time counted; None: there is none."""
        if function is None:
            return None

        @wraps(function)
        def call(value: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(value)
            finally:
                self.transform_s += time.perf_counter() - began

        return call

    def add(self, received: Received, wait_s: float, depth: int, collate_s: float = 0.0) -> None:
        """Count one batch.

        Args:
            received: The batch.
            wait_s: Seconds that the training loop waited for it.
            depth: Batches that could be handed out next without waiting.
            collate_s: Seconds to make a PyG batch of it.
        """
        stats = received.stats
        worker = stats.get("worker", 0)
        # With a graph store a worker is (server, number), and replaced workers are counted by
        # server; a colocated producer counts as one place.
        self.count(stats, worker, worker[0] if isinstance(worker, tuple) else 0)
        self.num_received += 1
        self.wait_s += wait_s
        self.collate_s += collate_s
        self.depth += depth
        # Not a sum: each batch has the total number of partitions that its worker asks.
        self.asked = max(self.asked, stats.get("asked", 0))
        self.network_s += stats.get("network_s", 0.0)
        self.received.update(stats.get("received", {}))
        self.rows_from.update(stats.get("rows_from", {}))
        self.cached_rows += stats.get("cached_rows", 0)
        self.has_cache = self.has_cache or "cached_rows" in stats
        for record in self.recorders:
            record(stats)

    def summary(
        self, remote_bytes: int = 0, link_bytes_per_s: float | None = None, cores: float = math.inf
    ) -> dict[str, Any]:
        """Return counts, rates and shares since they began.

        Args:
            remote_bytes: Bytes of all rows that only other machines have; 0 if unknown.
            link_bytes_per_s: Capacity of this machine's network; None if unknown.
            cores: Cores that this process and its workers may use.
        """
        # Right after a reset, clocks may show that no time has passed.
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        batches = max(self.batches, 1)
        link_share = None
        if link_bytes_per_s is not None:
            # A share of the time since counting began, not of the waiting time: a link that is full
            # half of the time has room.
            link_share = self.received.total() / elapsed / link_bytes_per_s
        shares = {worker: busy / elapsed for worker, busy in sorted(self.busy_s.items())}
        return {
            "batches": self.batches,
            "seeds": self.seeds,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "elapsed_s": elapsed,
            "wait_s": self.wait_s,
            "collate_s": max(self.collate_s - self.transform_s, 0.0),
            "transform_s": self.transform_s,
            "sample_s": self.sample_s,
            "gather_s": self.gather_s,
            "worker_busy_s": dict(sorted(self.busy_s.items())),
            "seeds_per_s": self.seeds / elapsed,
            "tokens_per_s": self.tokens / elapsed,
            "bytes_per_s": self.nbytes / elapsed,
            "wait_share": self.wait_s / elapsed,
            "collate_share": max(self.collate_s - self.transform_s, 0.0) / elapsed,
            "transform_share": self.transform_s / elapsed,
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
            "verdict": self._verdict(elapsed, shares, remote_bytes, link_share, cores),
        }

    @property
    def _network_share(self) -> float:
        return self.network_s / max(self.sample_s + self.gather_s, 1e-9)

    @property
    def _hit_rate(self) -> float | None:
        total = self.cached_rows + self.rows_from.total()
        return self.cached_rows / max(total, 1) if self.has_cache else None

    def _verdict(
        self,
        elapsed: float,
        busy: dict[Any, float],
        remote_bytes: int,
        link_share: float | None,
        cores: float,
    ) -> str:
        if not self.batches:
            return _NO_BATCH
        wait_share, transform_share = self.wait_s / elapsed, self.transform_s / elapsed
        # What is left is the training loop's own.
        training_share = 1.0 - (self.wait_s + self.collate_s) / elapsed
        if transform_share >= max(_MUCH_WAIT, wait_share, training_share):
            return (
                f"transform-bound: your transform takes {transform_share:.0%} of the time, in this "
                "process: make it cheaper, or do its work once, in the features of the dataset"
            )
        # First the cause of workers' waits, then full resources: a cache, which the first one
        # advises, helps with both.
        if wait_share >= _MUCH_WAIT and self._network_share > _MUCH_NETWORK and self.rows_from:
            return self._network_verdict(remote_bytes)
        if wait_share >= _MUCH_WAIT and link_share is not None and link_share > _MUCH_OF_LINK:
            return (
                f"network-bound: the link of this machine is used to {link_share:.0%}; give the "
                "loader remote_cache or more of it, lower num_neighbors, or store rows in fewer "
                "bytes"
            )
        if wait_share < _MUCH_WAIT:
            return "training-bound: batches are ready before they are asked for"
        # Workers that are mostly busy are too few; those that are not wait for responses.
        mean_busy = sum(busy.values()) / max(len(busy), 1)
        if mean_busy > 0.7:
            advice = "sampling-bound: add workers (num_workers), or lower num_neighbors"
            # those of a graph store have other machines' cores
            here = sum(share for worker, share in busy.items() if not isinstance(worker, tuple))
            if here and here + 1.0 - wait_share > cores - _MUCH_WAIT:
                advice = (
                    f"sampling-bound: workers and the training loop fill the {cores:g} cores that "
                    "they have: lower num_neighbors, or give the job more cores"
                )
            if self.tokens == 0:
                return advice
            return f"{advice}; a seed has {self.tokens / max(self.seeds, 1):.0f} tokens"
        return (
            "latency-bound: workers wait, for other partitions or for a CPU: raise "
            "worker_concurrency where there are several partitions, and look at the load of the "
            "machine"
        )

    def _network_verdict(self, remote_bytes: int) -> str:
        """Describe the sources of rows, and the effect of a cache, present or not."""
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


# Share of the elapsed time: below it, a faster loader would hardly be noticed.
_MUCH_WAIT = 0.1
# Share of the workers' time: above it, they do more of this than of all else.
_MUCH_NETWORK = 0.5
# Share of the nominal speed: overhead and other traffic take part of the rest. It is a mean, so a
# link that is used to 60% is full in its bursts.
_MUCH_OF_LINK = 0.6
# Bytes that a training machine can usually spare.
_CACHE_TO_SUGGEST = 2 * 10**9


_NO_BATCH = "no batch was handed out yet: nothing to tell"


def link_bytes_per_s(interfaces: Path = Path("/sys/class/net")) -> float | None:
    """Return the nominal speed of the fastest network interface that is up, in bytes per second.

    None if no interface reports it, as on systems other than Linux, or in some virtual machines.
    Limits elsewhere, such as `tc` or a switch, do not show.

    Args:
        interfaces: A folder for each interface, with files ``operstate`` and ``speed`` (Mbit/s).
    """
    speeds = []
    for interface in interfaces.glob("*"):
        try:
            if interface.name != "lo" and (interface / "operstate").read_text().strip() == "up":
                # -1 stands for unknown: virtual interfaces report it, and never are the fastest.
                speeds.append(int((interface / "speed").read_text()))
        except (OSError, ValueError):  # wireless ones have no speed, and reading it is an error
            continue
    fastest = max(speeds, default=0)
    # Mbit/s are decimal.
    return fastest * 1e6 / 8 if fastest > 0 else None
