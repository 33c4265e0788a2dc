"""Insight into a run: the workers' sampling in the trainer's trace, and a batch sampled again.

Workers are other processes, which ``torch.profiler`` does not see. Each batch brings the times when
it was sampled and gathered, by the wall clock, which is the clock of the trace.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from gigl_loader.batch.collate import Batch
from gigl_loader.batch.device.prefetch import DevicePrefetcher
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.loader.base import BaseDistLoader

_SAMPLE, _GATHER = "gigl_loader.sample", "gigl_loader.gather"


class _WorkedOn(NamedTuple):
    """The times when a worker worked on one batch, in nanoseconds since 1970."""

    began: int
    sampled: int
    ended: int


class WorkerRanges:
    """Times at which workers of a loader sampled and gathered, in a `profile_workers` block."""

    def __init__(self) -> None:
        self._batches: dict[Any, list[_WorkedOn]] = {}

    def note(self, stats: dict[str, Any]) -> None:
        """Keep the times that came with a batch; for the loader."""
        if "ended_ns" not in stats:
            return
        # The wall clock, as only that is shared by processes; durations are by the workers' own
        # clocks, which no correction of the time affects.
        ended = stats["ended_ns"]
        sampled = ended - round(stats["gather_s"] * 1e9)
        began = sampled - round(stats["sample_s"] * 1e9)
        self._batches.setdefault(stats["worker"], []).append(_WorkedOn(began, sampled, ended))

    def add_to(self, path: str | PathLike[str]) -> None:
        """Add the ranges to a trace that ``profiler.export_chrome_trace(path)`` wrote.

        They are called ``gigl_loader.sample`` and ``gigl_loader.gather``, and stand in one row per
        worker, or in several if it had several batches under way. Times outside the profiled time
        are left out.

        Args:
            path: The trace; rewritten. Compressed if it ends in ``.gz``.

        Raises:
            ConfigError: ``path`` holds no trace, or an empty one.
        """
        path = Path(path)
        try:
            with _opened(path, "rt") as file:
                trace = json.load(file)
            events: list[dict[str, Any]] = trace["traceEvents"]
            # Complete events only ("X"): instants and metadata may be stamped outside of the
            # profiled time.
            ends = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X"]
            span = min(ends)[0], max(end for _, end in ends)
        except (ValueError, TypeError, KeyError) as error:  # json's error is a ValueError
            raise ConfigError(
                f"{path} holds no trace of torch.profiler: let export_chrome_trace(path) of a "
                "profiler that has run write it first"
            ) from error
        # The pid of the rows. A second loader's rows have another process: its workers count from
        # 0 as well.
        process = f"gigl_loader workers {sum(_is_ours(event) for event in events)}"
        events += self._events(process, trace.get("baseTimeNanoseconds", 0), span)
        with _opened(path, "wt") as file:
            json.dump(trace, file)

    def _events(
        self, process: str, base_ns: int, span: tuple[float, float]
    ) -> Iterator[dict[str, Any]]:
        yield _named("process_name", process, 0, name="gigl_loader workers")
        # Above the trainer's rows, to which this is to be compared.
        yield _named("process_sort_index", process, 0, sort_index=-1)
        row = 0
        for worker, batches in sorted(self._batches.items(), key=lambda item: str(item[0])):
            for lane in _lanes(batches):
                row += 1
                yield _named("thread_name", process, row, name=_name_of(worker))
                yield _named("thread_sort_index", process, row, sort_index=row)
                for batch in lane:
                    for name, began, ended in (
                        (_SAMPLE, batch.began, batch.sampled),
                        (_GATHER, batch.sampled, batch.ended),
                    ):
                        # In microseconds since the base time of the trace; traces of older torch
                        # have none, and count from 1970.
                        start = max((began - base_ns) / 1e3, span[0])
                        stop = min((ended - base_ns) / 1e3, span[1])
                        if start < stop:
                            yield {
                                "ph": "X",
                                "cat": "user_annotation",
                                "name": name,
                                "pid": process,
                                "tid": row,
                                "ts": start,
                                "dur": stop - start,
                            }


@contextmanager
def profile_workers(loader: BaseDistLoader | DevicePrefetcher[Any]) -> Iterator[WorkerRanges]:
    """Record the work of the workers of ``loader``, to add it to a trace of ``torch.profiler``.

    ::

        with profile() as profiler, profile_workers(loader) as workers:
            for batch in loader:
                step(batch)
        profiler.export_chrome_trace("trace.json")
        workers.add_to("trace.json")

    The trace then shows wait, copy and collate in the training process, and sample and gather in
    its workers, of the batches that came in the block. Times are of the wall clock: rows of storage
    servers on other machines are off by as much as the machines' clocks differ.

    Args:
        loader: A loader of this package, or a `DevicePrefetcher` around one.

    Raises:
        ConfigError: It is another loader, which reports nothing about its workers.
    """
    recorders = getattr(loader, "_recorders", None)
    if recorders is None:
        raise ConfigError(
            f"profile_workers takes a loader of gigl_loader, got {type(loader).__name__}"
        )
    ranges = WorkerRanges()
    recorders.append(ranges.note)
    try:
        yield ranges
    finally:
        recorders.remove(ranges.note)


def _opened(path: Path, mode: str) -> Any:
    return gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode)


def _is_ours(event: dict[str, Any]) -> bool:
    name = event.get("args", {}).get("name") if event.get("name") == "process_name" else None
    return name == "gigl_loader workers"


def _named(kind: str, process: str, row: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "ts": 0, "args": args}


def _name_of(worker: Any) -> str:
    if isinstance(worker, tuple):
        return "server {} worker {}".format(*worker)
    return f"worker {worker}"


def _lanes(batches: list[_WorkedOn]) -> list[list[_WorkedOn]]:
    """Return ``batches`` in the fewest rows without overlaps."""
    # Ranges of one row that overlap without one being inside the other are drawn wrongly by
    # viewers. First fit over batches by their beginning needs no more rows than overlap at once.
    lanes: list[list[_WorkedOn]] = []
    for batch in sorted(batches):
        for lane in lanes:
            if lane[-1].ended <= batch.began:
                lane.append(batch)
                break
        else:
            lanes.append([batch])
    return lanes


# --- one batch again ------------------------------------------------------------------------------


def replay(loader: BaseDistLoader, epoch: int, batch: int) -> Batch:
    """Return batch ``batch`` of epoch ``epoch`` again, bit for bit, sampled now and alone.

    It may be of any epoch, past or to come, of this run or an earlier one, if the loader is built
    in the same way, with the same ``seed``. The position of the loader and its
    `BaseDistLoader.stats` do not change.

    Args:
        loader: Any loader of this package, in any deployment, with no epoch under way. Ranks that
            sample together (``exchange="collective"``) have to call it together, with one epoch.
        epoch: Number of the epoch.
        batch: Position of the batch in the epoch: the first batch of this rank is 0. With
            ``shard="world"`` it counts over the whole job, and any rank has every batch.

    Raises:
        ConfigError: There is no such epoch or batch.
        UsageError: An epoch is under way, or the loader was shut down.
        PeerError: A worker or server failed.
    """
    if not isinstance(loader, BaseDistLoader):
        raise WrongTypeError(f"replay takes a loader of gigl_loader, got {type(loader).__name__}")
    loader._check_usable()
    return loader._alone(loader._epochs.sample_again(epoch, batch))
