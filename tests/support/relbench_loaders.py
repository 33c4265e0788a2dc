"""RelBench's loader for recommendation, made of three loaders of ours."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gigl_loader import DistNeighborLoader

Three = tuple[Any, Any, Any]


class LinkNeighborLoader:
    """Yields batches of sources, of one positive of each, and of uniform negatives.

    Takes the keywords of ``relbench.modeling.loader.LinkNeighborLoader``. Each of the three loaders
    has all seeds that may be asked for, and gives a batch for the positions that a step draws.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: list[int],
        src_nodes: tuple[str, Tensor],
        dst_nodes: tuple[str, Tensor],
        num_dst_nodes: int,
        src_time: Tensor,
        batch_size: int,
        share_same_time: bool = False,
        shuffle: bool = False,
        **how: Any,
    ) -> None:
        self._size, self._num_dst, self._shares = batch_size, num_dst_nodes, share_same_time
        self._shuffle = shuffle or share_same_time
        self._times, self._time_of = src_time.unique(return_inverse=True)
        kind, lists = dst_nodes
        self._starts, ids = lists.crow_indices(), lists.col_indices()
        row_of = torch.arange(len(src_time)).repeat_interleave(self._starts.diff())
        every = torch.arange(num_dst_nodes).repeat(len(self._times))
        of_every = self._times.repeat_interleave(num_dst_nodes)

        def loader(nodes: tuple[str, Tensor], time: Tensor) -> DistNeighborLoader:
            return DistNeighborLoader(data, num_neighbors, nodes, input_time=time, **how)

        self._sources = loader(src_nodes, src_time)
        self._positives = loader((kind, ids), src_time[row_of])
        self._negatives = loader((kind, every), of_every)

    def _steps(self) -> list[Tensor]:
        rows = torch.arange(len(self._time_of))
        if not self._shares:
            return list(
                (rows[torch.randperm(len(rows))] if self._shuffle else rows).split(self._size)
            )
        found = []
        for time in range(len(self._times)):
            of_time = rows[self._time_of == time]
            found += of_time[torch.randperm(len(of_time))].split(self._size)
        found = [step for step in found if len(step) == self._size]
        random.shuffle(found)
        return found

    def __len__(self) -> int:
        return len(self._steps())

    def __iter__(self) -> Iterator[Three]:
        for rows in self._steps():
            first, count = self._starts[rows], self._starts[rows + 1] - self._starts[rows]
            positives = first + (torch.rand(len(rows)) * count).long()
            drawn = torch.randint(0, self._num_dst, (len(rows),))
            negatives = self._time_of[rows] * self._num_dst + drawn
            yield self._sources(rows), self._positives(positives), self._negatives(negatives)
