"""Ranks that are threads of one process: many graphs and partitions in a test, in milliseconds."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gigl_loader.runtime.ranks.collectives import RankExchange

_TIMEOUT_S = 60.0


class Meeting:
    """Where the threads of one run put down what they send."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self.sent: list[Any] = [None] * size


class ThreadExchange(RankExchange):
    """Does what `RankExchange` does without a gradient, between threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def gather(self, value: Any, kind: Any) -> list[Any]:
        meeting = self.meeting
        meeting.sent[self.rank] = value
        meeting.barrier.wait()
        found = list(meeting.sent)
        meeting.barrier.wait()
        return found

    def all_to_all_values(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int], out: Tensor | None = None
    ) -> Tensor:
        assert sum(send) == len(rows)
        # what is sent is a copy: its owner may write to the memory before all have read it here
        everyone = self.gather(rows.clone().split(list(send)), None)
        found = [parts[self.rank] for parts in everyone]
        assert [len(part) for part in found] == list(receive)
        return torch.cat(found) if out is None else out.copy_(torch.cat(found))

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        return self.all_to_all_values(rows, send, receive)

    def total(self, values: Tensor) -> Tensor:
        return torch.stack(self.gather(values, None)).sum(0)

    def all_to_all_counts(self, send: Sequence[int]) -> list[int]:
        return [counts[self.rank] for counts in self.gather(list(send), None)]


def run_threads(size: int, job: Callable[[ThreadExchange], Any]) -> list[Any]:
    """Return what ``job`` returned on each rank; raises what one of them raised."""
    meeting = Meeting(size)
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = job(ThreadExchange(meeting, rank))
        except BaseException as error:
            found[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    errors = [one for one in found if isinstance(one, BaseException)]
    cause = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise (cause or errors)[0]
    return found
