"""Some destination rows at a time, with the rows of all their in-neighbours.

Ranks go in step: in each, a rank asks for what the chunk of its own needs, and answers the others;
one that has no chunk left, or has done it before, only answers.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.adjacency import EdgeBlock
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.modules import Norm
from gigl_loader.inference.rows import OwnedRows, RowFetcher, RowSource
from gigl_loader.inference.sources import GraphSource
from gigl_loader.sampler.nodes import NodeLabels


@dataclass(frozen=True)
class Chunk:
    """Rows ``start`` to ``stop`` of a rank's own nodes of a type, ready to be computed."""

    index: int
    start: int
    stop: int
    node_type: NodeType
    """Type of the destination nodes."""
    x: dict[NodeType, Tensor]
    """``[num_src, width]`` by type; of ``node_type`` the destinations come first."""
    edges: dict[EdgeType, EdgeBlock]
    """Those into ``node_type``, from types that have rows, in local numbers."""
    n_id: dict[NodeType, Tensor]
    """``[num_src]`` int64, global ids by type."""
    degrees: dict[Norm, Tensor]
    """``[num_src]`` float32, what a norm divides by."""

    @property
    def num_dst(self) -> int:
        """Rows to compute."""
        return self.stop - self.start

    def map(self, change: Any) -> "Chunk":
        """Return it with ``change`` done to each tensor."""
        return replace(
            self, x=_mapped(self.x, change), edges=_mapped(self.edges, change),
            n_id=_mapped(self.n_id, change), degrees=_mapped(self.degrees, change),
        )  # fmt: skip


def _mapped(value: Any, change: Any) -> Any:
    # not a nested function: one that calls itself is a cycle, and would keep the chunk's memory
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, EdgeBlock):
        # vars() of a dataclass lists the fields in the order of __init__
        return EdgeBlock(*(_mapped(one, change) for one in vars(value).values()))
    return value


@dataclass(frozen=True)
class Reads:
    """What a layer reads.

    Attributes:
        rows: By node type.
        weight: Whether the layer takes edge weights.
        attr: Whether it takes edge features.
        degrees: By norm, those of own nodes.
    """

    rows: Mapping[NodeType, RowSource]
    weight: bool = False
    attr: bool = False
    degrees: Mapping[Norm, OwnedRows] | None = None


class ChunkReader:
    """Cuts a rank's own nodes of a type into chunks and fetches what each reads.

    Args:
        graph: Structure.
        node_type: Type of the destinations.
        exchange: The ranks.
        batch_size: Destination rows of a chunk.
    """

    def __init__(
        self, graph: GraphSource, node_type: NodeType, exchange: RankExchange, batch_size: int
    ) -> None:
        self._graph, self._node_type, self._exchange = graph, node_type, exchange
        self._batch_size = batch_size
        self._fetcher = RowFetcher(graph.owners, exchange)
        self.own: Tensor = graph.owners.own[node_type]
        self._edge_types = [name for name in graph.edge_types if name[2] == node_type]

    @property
    def num_chunks(self) -> int:
        """Chunks of this rank."""
        return -(-self.own.numel() // self._batch_size)

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first row of a chunk, and the one after its last."""
        start = min(index * self._batch_size, self.own.numel())
        return start, min(start + self._batch_size, self.own.numel())

    def read(self, reads: Reads, done: set[int]) -> Iterator[Chunk]:
        """Yield the chunks that are not ``done``, each read while the one before is computed.

        All ranks read together, whatever each has done.
        """
        # A chunk that one rank has done may be open on another, which then needs rows of the first
        # one: a step is left out only where nobody computes in it. Ranks may cut their nodes into
        # chunks of different sizes; a step is just a number that all of them count up to.
        everyone = self._exchange.gather((self.num_chunks, done), tuple[int, set[int]])
        steps = [
            step
            for step in range(max(count for count, _ in everyone))
            if any(step < count and step not in them for count, them in everyone)
        ]
        # One thread: from here on it alone makes collective calls, in the same order on all ranks.
        # The thread that iterates computes, and makes none before the last step was read.
        with ThreadPoolExecutor(1, "gigl_loader reads chunks") as pool:
            ahead: Future[Chunk | None] | None = None
            due: Future[Chunk | None] | None
            for step in [*steps, None]:
                # a future keeps its result, which would outlive the caller's chunk
                due, ahead = ahead, None
                # before the next read is started: a read that failed must not be followed by a
                # collective call
                chunk = None if due is None else due.result()
                if step is not None:
                    ahead = pool.submit(self._read, step, reads, step in done)
                if chunk is not None:
                    yield chunk
                del chunk  # its memory is free before the next but one is read

    def _read(self, index: int, reads: Reads, done: bool) -> Chunk | None:
        start, stop = self.bounds(index)
        nothing_to_do = done or start >= stop
        if nothing_to_do:  # but the others may ask for rows
            stop = start
        found = self.structure(index, start, stop, reads)
        degrees = reads.degrees or {}
        x: dict[NodeType, Tensor] = {}
        scales: dict[Norm, Tensor] = {}
        # get() is collective: n_id is in the order of sorted types, which is the same on all ranks
        for name, nodes in found.n_id.items():
            # norms are of edges between nodes of one type (check_conv), so only that type has
            # degrees
            norms = [norm for norm in degrees if norm.edge_type[2] == self._node_type == name]
            sources = [reads.rows[name]] if name in reads.rows else []
            rows = self._fetcher.get(name, nodes, [*sources, *(degrees[norm] for norm in norms)])
            if sources:
                x[name] = rows.pop(0)
            scales.update(zip(norms, rows, strict=True))
        return None if nothing_to_do else replace(found, x=x, degrees=scales)

    def structure(self, index: int, start: int, stop: int, reads: Reads) -> Chunk:
        """Return a chunk without rows: own nodes ``start`` to ``stop`` and the edges into them."""
        targets = self.own[start:stop]
        names = [name for name in self._edge_types if name[0] in reads.rows]
        labels = {name: NodeLabels() for name in sorted({self._node_type, *(t[0] for t in names)})}
        # first of all, so that the destinations have the numbers 0 to num_dst - 1
        labels[self._node_type].append(targets.numpy())
        edges = {}
        for name in names:
            found = self._graph.edges(name, targets, weight=reads.weight, attr=reads.attr)
            # in place: the block is of this chunk alone
            found.sources.copy_(torch.from_numpy(labels[name[0]].label(found.sources.numpy())))
            edges[name] = EdgeBlock(found.edge_index, found.indptr, found.weights, found.attr)
        # a copy: `nodes` is a view of a table with room for many more
        n_id = {name: torch.from_numpy(one.nodes.copy()) for name, one in labels.items()}
        return Chunk(index, start, stop, self._node_type, {}, edges, n_id, {})
