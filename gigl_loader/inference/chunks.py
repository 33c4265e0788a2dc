"""Some destination rows at a time, with the rows of all their in-neighbours.

Ranks go in step: in each, a rank asks for what the chunk of its own needs, and answers the others;
one that has no chunk left, or has done it before, only answers.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gigl_loader.dataset.schema import NodeType
from gigl_loader.dataset.view import Adjacency
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.plan import edges_into, place_of
from gigl_loader.inference.shares import NodeShares
from gigl_loader.sampler.nodes import NodeLabels


@dataclass(frozen=True)
class Chunk:
    """Rows ``start`` to ``stop`` of a rank's own, ready to be computed."""

    index: int
    start: int
    stop: int
    x: Tensor
    """``[num_src, width]``: the destinations, then their other in-neighbours."""
    edge_index: Tensor
    """``[2, num_edges]`` int64, in local numbers; destinations ascend."""
    indptr: Tensor
    """``[num_dst + 1]`` int64, where the edges of each destination start."""
    extra: list[Tensor]
    """``[num_src]`` each: further values of the nodes."""

    @property
    def num_dst(self) -> int:
        """Rows to compute."""
        return self.stop - self.start


@dataclass(frozen=True)
class Matrix:
    """Rows of a rank's own nodes, in memory or in a mapped file."""

    values: Tensor
    """``[num_rows, ...]``."""
    rows: Tensor | None = None
    """``[num_own]`` int64, the row of each own node; None: in order."""

    def take(self, places: Tensor) -> Tensor:
        """Return the rows of own nodes."""
        return self.values[places if self.rows is None else self.rows[places]]


class ChunkReader:
    """Cuts a rank's own nodes into chunks and fetches what each reads.

    Args:
        adjacency: The edges into them.
        node_type: Their type.
        shares: Who owns which.
        exchange: The ranks.
        batch_size: Destination rows of a chunk.
    """

    def __init__(
        self, adjacency: Adjacency, node_type: NodeType, shares: NodeShares,
        exchange: RankExchange, batch_size: int,
    ) -> None:  # fmt: skip
        self._adjacency, self._node_type = adjacency, node_type
        self._shares, self._exchange, self._batch_size = shares, exchange, batch_size
        self.own = shares.own[node_type]
        """``[num_own]`` int64, global ids, ascending."""
        first = int(self.own[0]) if self.own.numel() else 0
        dense = self.own.numel() and int(self.own[-1]) - first + 1 == self.own.numel()
        self._first = first if dense else None
        self.num_chunks = -(-self.own.numel() // batch_size)

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first row of a chunk, and the one after its last."""
        start = index * self._batch_size
        return start, min(start + self._batch_size, self.own.numel())

    def read(self, matrices: Sequence[Matrix], done: set[int]) -> Iterator[Chunk]:
        """Yield the chunks that are not ``done``, each read while the one before is computed.

        All ranks read together, whatever each has done.
        """
        everyone = self._exchange.gather((self.num_chunks, done), tuple[int, set[int]])
        steps = [
            step
            for step in range(max(count for count, _ in everyone))
            if any(step < count and step not in them for count, them in everyone)
        ]
        with ThreadPoolExecutor(1, "gigl_loader reads chunks") as pool:
            ahead: Future[Chunk | None] | None = None
            due: Future[Chunk | None] | None
            for step in [*steps, None]:
                due, ahead = ahead, None
                chunk = None if due is None else due.result()
                if step is not None:
                    ahead = pool.submit(self._read, step, matrices, step in done)
                if chunk is not None:
                    yield chunk

    def _read(self, index: int, matrices: Sequence[Matrix], done: bool) -> Chunk | None:
        start, stop = self.bounds(index)
        if done or start >= stop:
            self._fetch(torch.empty(0, dtype=torch.int64), matrices)
            return None
        edge_index, indptr, nodes = self.structure(start, stop)
        x, *extra = self._fetch(nodes, matrices)
        return Chunk(index, start, stop, x, edge_index, indptr, extra)

    def structure(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return (edges in local numbers, where each destination's start, global ids by number)."""
        targets = self.own[start:stop]
        edges = edges_into(self._adjacency, targets)
        labels = NodeLabels()
        labels.append(targets.numpy())
        sources = torch.from_numpy(labels.label(edges.sources.numpy()))
        indptr = torch.zeros(targets.numel() + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(edges.targets, minlength=targets.numel()), 0, out=indptr[1:])
        nodes = torch.from_numpy(labels.nodes.copy())
        return torch.stack([sources, edges.targets]), indptr, nodes

    def _fetch(self, nodes: Tensor, matrices: Sequence[Matrix]) -> list[Tensor]:
        """Return the rows of ``nodes`` of each matrix, wherever they are. Collective."""
        if self._exchange.size == 1:
            return [matrix.take(self._places(nodes)) for matrix in matrices]
        owner = self._shares.owner(self._node_type, nodes)
        order = torch.argsort(owner, stable=True)
        ask = torch.bincount(owner, minlength=self._exchange.size)
        here = slice(int(ask[: self._exchange.rank].sum()), None)
        here = slice(here.start, here.start + int(ask[self._exchange.rank]))
        mine, others = order[here], torch.cat([order[: here.start], order[here.stop :]])
        ask[self._exchange.rank] = 0  # what is here needs no exchange
        send = ask.tolist()
        receive = self._exchange.swap_counts(send)
        theirs = self._places(self._exchange.swap_values(nodes[others], send, receive))
        found = []
        for matrix in matrices:
            out = matrix.values.new_empty((nodes.numel(), *matrix.values.shape[1:]))
            out[others] = self._exchange.swap_values(matrix.take(theirs), receive, send)
            out[mine] = matrix.take(self._places(nodes[mine]))
            found.append(out)
        return found

    def _places(self, ids: Tensor) -> Tensor:
        return place_of(ids, self.own) if self._first is None else ids - self._first
