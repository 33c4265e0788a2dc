"""Neighbours and rows by global id, from this partition or, over the peers, from another.

`LocalStore` answers from shared memory; `GraphStore` splits a question by owner, asks the other
partitions while it works out its own share, and puts the answers back in the order of the question.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeType, NodeType, is_label_edge_type
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows
from gigl_loader.errors import ProtocolError
from gigl_loader.sampler import _kernels as kernels

NEIGHBORS, ROWS = 1, 2
"""Operations between partitions."""

_KINDS = ("node_features", "node_labels", "edge_features")
_REPLACE, _WEIGHT, _EDGE_IDS = 1, 2, 4
_NOTHING = torch.empty(0, dtype=torch.int64)


class Call(Protocol):
    """An answer under way."""

    def wait(self) -> list[Tensor]:
        """Return it, or raise what went wrong."""
        ...


class Peers(Protocol):
    """The other partitions."""

    def call(
        self,
        partition: int,
        op: int,
        args: tuple[int, ...],
        tensors: list[Tensor],
        out: list[Tensor] | None = None,
    ) -> Call:
        """Ask a worker of ``partition``; returns before the answer is there.

        Tensor ``i`` of the answer may come to lie in ``out[i]``.
        """
        ...


@dataclass(frozen=True)
class Draw:
    """A question for neighbours; everything but the nodes."""

    edge_type: EdgeType
    fanout: int
    key: int
    replace: bool = False
    with_weight: bool = False
    with_edge: bool = False


@dataclass(frozen=True)
class Drawn:
    """Neighbours of some nodes, row after row."""

    counts: Tensor
    """``[num_nodes]`` int64, neighbours of each."""
    neighbors: Tensor
    """``[counts.sum()]`` int64, global ids."""
    edge_ids: Tensor | None
    """The same length, int64; None where not asked for."""


class Scratch:
    """Named work arrays that only grow: fresh memory is what costs."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}

    def get(self, name: str, size: int, dtype: Any = np.int64) -> Any:
        """Return ``size`` items of the array ``name``; what they hold is left over."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.zeros(max(size + size // 4, 1024), dtype)
        return array[:size]

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return a contiguous tensor over the array ``name``."""
        count = 1
        for size in shape:
            count *= size
        words = self.get(name, -(-count * dtype.itemsize // 8))
        return torch.from_numpy(words).view(dtype)[:count].view(shape)


Split = dict[int, Tensor]
"""By partition, the places of the ids that it owns: int64, ascending."""


class LocalStore:
    """This partition. One object per thread: it owns scratch memory."""

    def __init__(self, view: PartitionView) -> None:
        self._view = view
        self._scratch = Scratch()
        self._edge_types = sorted(view.adjacency)
        self._arrays = {name: _Arrays(adjacency) for name, adjacency in view.adjacency.items()}

    def draw(self, draw: Draw, nodes: Tensor) -> Drawn:
        """Draw neighbours of ``nodes`` (``[n]`` int64, global ids owned here)."""
        arrays, ids = self._arrays[draw.edge_type], nodes.numpy()
        positions, counts = self._draw_positions(draw, arrays, ids)
        neighbors = torch.empty(len(positions), dtype=torch.int64)
        kernels.gather(arrays.indices, positions, neighbors.numpy())
        edge_ids = None
        if draw.with_edge:
            if arrays.edge_ids is None:
                raise ProtocolError(f"edge ids of {draw.edge_type} were asked for, none are kept")
            edge_ids = torch.empty(len(positions), dtype=torch.int64)
            kernels.gather(arrays.edge_ids, positions, edge_ids.numpy())
        return Drawn(torch.from_numpy(counts.copy()), neighbors, edge_ids)

    def _draw_positions(self, draw: Draw, arrays: "_Arrays", ids: Any) -> tuple[Any, Any]:
        get, size = self._scratch.get, len(ids)
        rows = get("starts", size), get("degrees", size), get("counts", size)
        key = np.uint64(draw.key)
        replace = draw.replace and draw.fanout >= 0  # all neighbours are all neighbours, once each
        weights = arrays.weights if draw.with_weight else None
        if weights is not None:
            total, most = kernels.count_weighted(
                arrays.indptr, weights, ids, draw.fanout, replace, *rows
            )
            positions = get("positions", total)
            keys, items = get("keys", most, np.float64), get("items", most)
            kernels.draw_weighted(weights, ids, *rows, replace, key, keys, items, positions)
        else:
            total, most = kernels.count_uniform(arrays.indptr, ids, draw.fanout, replace, *rows)
            positions, taken = get("positions", total), get("taken", most, np.uint8)
            kernels.draw_uniform(ids, *rows, replace, key, taken, positions)
        return positions, rows[2]

    def rows(self, kind: str, name: NodeType | EdgeType) -> Rows:
        """Return the matrix ``kind`` (``node_features``...) of a type."""
        rows: Rows = getattr(self._view, kind)[name]
        return rows

    def answer(self, op: int, args: tuple[int, ...], tensors: list[Tensor]) -> list[Tensor]:
        """Answer another partition's question, as `GraphStore` packs it."""
        if op == NEIGHBORS:
            edge_type, fanout, flags, key = args
            draw = Draw(
                self._edge_types[edge_type], fanout, key, bool(flags & _REPLACE),
                bool(flags & _WEIGHT), bool(flags & _EDGE_IDS),
            )  # fmt: skip
            drawn = self.draw(draw, tensors[0])
            edge_ids = _NOTHING if drawn.edge_ids is None else drawn.edge_ids
            return [drawn.counts, drawn.neighbors, edge_ids]
        if op == ROWS:
            kind = _KINDS[args[0]]
            rows = self.rows(kind, sorted(getattr(self._view, kind))[args[1]])
            shape = (tensors[0].numel(), *rows.values.shape[1:])
            out = self._scratch.tensor("answer", rows.values.dtype, shape)
            _select(rows.values, rows.locate(tensors[0]), out)
            return [out]  # sent before this thread is asked again
        raise ProtocolError(f"unknown operation {op} between partitions")


class _Arrays:
    """An adjacency as the kernels take it."""

    def __init__(self, adjacency: Adjacency) -> None:
        self.indptr, self.indices = adjacency.indptr.numpy(), adjacency.indices.numpy()
        self.edge_ids = None if adjacency.edge_ids is None else adjacency.edge_ids.numpy()
        self.weights = None if adjacency.weights is None else adjacency.weights.numpy()


class GraphStore:
    """All partitions. One object per sampling thread."""

    def __init__(self, view: PartitionView, peers: Peers | None) -> None:
        self._view = view
        self._peers = peers
        self._local = LocalStore(view)
        self._edge_types = sorted(view.adjacency)
        self._own = view.partition_idx
        self._scratch = Scratch()

    def draw(self, draw: Draw, nodes: Tensor) -> Callable[[], Drawn]:
        """Ask for neighbours of ``nodes``; the remote part is on its way when this returns."""
        split = self.split(self._view.node_books.get(self._row_type(draw.edge_type)), nodes)
        if split is None:
            return lambda: self._local.draw(draw, nodes)
        flags = _REPLACE * draw.replace | _WEIGHT * draw.with_weight | _EDGE_IDS * draw.with_edge
        args = (self._edge_types.index(draw.edge_type), draw.fanout, flags, draw.key)
        calls = self._ask(NEIGHBORS, args, split, nodes)
        return lambda: self._merge(draw, nodes, split, calls)

    def _row_type(self, edge_type: EdgeType) -> NodeType:
        """Return the type of the nodes that edges are grouped by; of label edges, the anchors."""
        by_source = self._view.edge_dir == "out" or is_label_edge_type(edge_type)
        return edge_type[0] if by_source else edge_type[2]

    def split(self, book: Book | None, ids: Tensor) -> Split | None:
        """Return the places of ``ids`` by owner; None: all of them are here."""
        if self._peers is None or book is None or ids.numel() == 0:
            return None
        order = torch.empty(ids.numel(), dtype=torch.int64)
        sizes = torch.empty(self._view.num_partitions, dtype=torch.int64)
        kernels.group_by_owner(book.owner(ids).numpy(), order.numpy(), sizes.numpy())
        if int(sizes[self._own]) == ids.numel():
            return None
        parts = torch.split(order, sizes.tolist())
        return {p: part for p, part in enumerate(parts) if part.numel()}

    def _ask(self, op: int, args: tuple[int, ...], split: Split, ids: Tensor) -> dict[int, Call]:
        assert self._peers is not None
        call = self._peers.call
        return {p: call(p, op, args, [ids[at]]) for p, at in split.items() if p != self._own}

    def _merge(self, draw: Draw, nodes: Tensor, split: Split, calls: dict[int, Call]) -> Drawn:
        parts: dict[int, Drawn] = {}
        if self._own in split:
            parts[self._own] = self._local.draw(draw, nodes[split[self._own]])
        for partition, call in calls.items():
            theirs = call.wait()
            parts[partition] = Drawn(theirs[0], theirs[1], theirs[2] if draw.with_edge else None)
        counts = torch.empty(nodes.numel(), dtype=torch.int64)
        for partition, at in split.items():
            counts[at] = parts[partition].counts
        starts = (counts.cumsum(0) - counts).numpy()
        total = int(counts.sum())
        neighbors = torch.empty(total, dtype=torch.int64)
        edge_ids = torch.empty(total, dtype=torch.int64) if draw.with_edge else None
        for partition, at in split.items():
            part, rows = parts[partition], at.numpy()
            kernels.scatter_segments(
                starts, rows, part.counts.numpy(), part.neighbors.numpy(), neighbors.numpy()
            )
            if edge_ids is not None and part.edge_ids is not None:
                kernels.scatter_segments(
                    starts, rows, part.counts.numpy(), part.edge_ids.numpy(), edge_ids.numpy()
                )
        return Drawn(counts, neighbors, edge_ids)

    def fetch(
        self, kind: str, name: NodeType | EdgeType, ids: Tensor, split: Split | None = None
    ) -> tuple[torch.dtype, tuple[int, ...], Callable[[Tensor], None]]:
        """Ask for rows; they are on their way when this returns.

        Args:
            kind: ``node_features``, ``node_labels`` or ``edge_features``.
            name: The type.
            ids: ``[n]`` int64, global ids.
            split: From `split` for the same ids; None: all of them are here.

        Returns:
            (dtype, shape, a function that writes the rows to a tensor of that dtype and shape).
        """
        rows = self._local.rows(kind, name)
        values = rows.values
        shape = (ids.numel(), *values.shape[1:])
        if split is None or rows.whole:
            return values.dtype, shape, lambda out: _select(values, rows.locate(ids), out)
        args = (_KINDS.index(kind), sorted(getattr(self._view, kind)).index(name))
        calls = self._ask_rows(args, split, ids, values)

        def write(out: Tensor) -> None:
            if self._own in split:
                at = split[self._own]
                _scatter(values, rows.locate(ids[at]), at, out)
            for partition, call in calls.items():
                answer = call.wait()[0]
                _scatter(answer, torch.arange(answer.shape[0]), split[partition], out)

        return values.dtype, shape, write

    def _ask_rows(
        self, args: tuple[int, int], split: Split, ids: Tensor, like: Tensor
    ) -> dict[int, Call]:
        assert self._peers is not None
        calls = {}
        for partition, at in split.items():
            if partition != self._own:
                name = f"{args} of {partition}"  # the answer lands in memory that is mapped already
                room = self._scratch.tensor(name, like.dtype, (at.numel(), *like.shape[1:]))
                calls[partition] = self._peers.call(partition, ROWS, args, [ids[at]], [room])
        return calls


def _select(values: Tensor, rows: Tensor, out: Tensor) -> None:
    if rows.numel():
        torch.index_select(values, 0, rows, out=out)


def _scatter(values: Tensor, rows: Tensor, places: Tensor, out: Tensor) -> None:
    """Write ``values[rows]`` to ``out[places]``."""
    nbytes = values[0].nbytes if values.shape[0] else 0
    if nbytes % 8 or nbytes == 0 or not (_is_aligned(values) and _is_aligned(out)):
        out.index_copy_(0, places, values.index_select(0, rows))
        return
    kernels.copy_rows(_words(values), rows.numpy(), places.numpy(), _words(out))


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % 8 == 0


def _words(tensor: Tensor) -> Any:
    return tensor.view(tensor.shape[0], -1).view(torch.int64).numpy()
