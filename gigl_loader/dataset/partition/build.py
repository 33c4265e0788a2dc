"""Views built of loose tensors: from users, from a cut graph, or from GLT's files.

Also the parts of a view that are not adjacency: partition books, rows and their indexes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.partition.adjacency import compress, label_adjacency
from gigl_loader.dataset.partition.checks import warn_not_carried
from gigl_loader.dataset.partition.partition_view import Book, PartitionView, Rows, kinds_of
from gigl_loader.dataset.schema import (
    WEIGHT_NAMES,
    EdgeType,
    NodeType,
    expanded_end,
    is_labeled_homogeneous,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.runtime.memory.tensors import empty_shared, share_tensor


class ViewBuilder:
    """Builds the view of a partition in shared memory, of tensors that were checked.

    Types come one after the other, so that the input of one type is freed before the next one is
    read: message-passing edges before label edges, and edges before their rows.

    Args:
        view: The partition without edges and rows; ``is_heterogeneous`` tells whether the input
            graph has types, books are given where they are known, and without ``num_classes``
            classes are counted here.
    """

    def __init__(self, view: PartitionView) -> None:
        self.view = view
        self._weights: dict[EdgeType, tuple[Tensor, Tensor | None]] = {}

    def add_edges(
        self,
        edge_type: EdgeType,
        edge_index: Tensor,
        edge_ids: Tensor | None,
        weights: Tensor | None,
    ) -> None:
        """Add the message-passing edges of a type; see `GraphPartitionData`."""
        view, types = self.view, (edge_type[0], edge_type[2])
        end = expanded_end(view.edge_dir)
        view.adjacency[edge_type] = compress(
            edge_index[end],
            edge_index[1 - end],
            num_rows=view.num_nodes[types[end]],
            edge_ids=edge_ids,
            weights=weights,
        )
        if weights is not None:
            self._weights[edge_type] = weights, edge_ids

    def add_labels(self, edge_type: EdgeType, labels: Tensor) -> None:
        """Add label edges: ``[2, num_labels]``, this partition's anchors first."""
        self.view.adjacency[edge_type] = label_adjacency(labels, edge_type, self.view.num_nodes)

    def add_rows(
        self, kind: str, key: Any, values: Tensor, ids: Tensor | None, scales: Tensor | None = None
    ) -> None:
        """Add the rows of a matrix.

        Args:
            kind: The field of `PartitionView`, ``"node_features"`` and the like.
            key: Node type or edge type; of an attribute (type, name).
            values: ``[num_rows, ...]``.
            ids: ``[num_rows]`` int64, the global id of each row; None: row ``i`` has id ``i``.
            scales: See `Rows`.

        Raises:
            ConfigError: There is no such id, or an id of this partition has no row, or several.
        """
        view: Any = self.view
        name = key[0] if kind.endswith("attributes") else key
        if kind.startswith("node"):
            where, unit = f"features, labels or attributes of node type {name!r}", "nodes"
            num_ids, owned = view.num_nodes[name], None
        else:
            where, unit = f"features or attributes of edge type {name}", "edges"
            # by the edges that are here, not by the book: a batch requests the rows of sampled
            # edges
            num_ids, owned = self._num_edge_ids(name, ids), view.adjacency[name].edge_ids
        _check_known(ids, num_ids, where, unit)
        # matrices share an index if their ids are the same
        kinds = kinds_of("node" if unit == "nodes" else "edge")
        known = [rows for kind in kinds for rows in getattr(view, kind).values()]
        rows = make_rows(values, ids, num_ids, known)
        if unit == "nodes" and rows.index is not None and name in view.node_books:
            # rows of further ids are allowed, and never requested
            owned = owned_ids(view.node_books[name], view.partition_idx)
        _check_owned_ids_have_rows(rows, owned, where)
        getattr(view, kind)[key] = rows if scales is None else replace(rows, scales=scales)

    def _num_edge_ids(self, edge_type: EdgeType, ids: Tensor | None) -> int:
        if edge_type in self.view.edge_books:
            return self.view.edge_books[edge_type].num_ids
        return 0 if ids is None or not ids.numel() else int(ids.max()) + 1

    def completed_view(self) -> PartitionView:
        """Return the view, with what follows from all of its parts."""
        view = self.view
        several = view.num_partitions > 1
        for edge_type, (weights, ids) in self._weights.items():
            # batches carry weights, too; a user's own attribute of that name keeps its own type
            if any((edge_type, name) in view.edge_attributes for name in WEIGHT_NAMES):
                continue
            # a batch has edges of other partitions, and only a book names the owner of their
            # weights
            if several and edge_type not in view.edge_books:
                reason = "there is no edge partition book"
                warn_not_carried({f"weights of {edge_type}": reason}, stacklevel=4)
                continue
            self.add_rows("edge_attributes", (edge_type, WEIGHT_NAMES[0]), weights, ids)
        labeled = is_labeled_homogeneous(view.num_nodes, list(view.adjacency))
        return replace(
            view,
            is_heterogeneous=view.is_heterogeneous and not labeled,
            # without books samplers take a shorter path: there is no other owner
            node_books=view.node_books if several else {},
            edge_books=view.edge_books if several else {},
            # the classes of the whole graph, if the caller knew them; counting here needs all
            # labels
            num_classes=view.num_classes or count_classes(view.node_labels),
        )


def _check_known(ids: Tensor | None, num_ids: int, what: str, unit: str) -> None:
    """Check that each row has an id of the graph, and each id at most one row."""
    if ids is None or not ids.numel():
        return
    low, high = (int(limit) for limit in torch.aminmax(ids))
    if low < 0 or high >= num_ids:
        wrong = ids[(ids < 0) | (ids >= num_ids)]
        raise ConfigError(
            f"{what} are given for ids that there are not: {wrong[:3].tolist()}"
            f"{'...' if wrong.numel() > 3 else ''} ({wrong.numel()} of {ids.numel()}); the "
            f"partition book has {num_ids} {unit} (ids 0 to {num_ids - 1})"
        )
    # the usual case, in one pass; `unique` sorts
    ascending = bool((ids[1:] > ids[:-1]).all())
    if not ascending and torch.unique(ids).numel() < ids.numel():
        raise ConfigError(f"{what}: an id has several rows; give each id once")


def _check_owned_ids_have_rows(rows: Rows, owned: Tensor | None, what: str) -> None:
    """Check that there is a row for each id that this partition owns (None: for all ids)."""
    num_ids = rows.values.size(0) if rows.index is None else rows.index.numel()
    # before the index is used: an id past its end would raise torch's own error
    if owned is not None and owned.numel() and int(owned.max()) >= num_ids:
        raise ConfigError(f"{what}: id {int(owned.max())} has no row, there are {num_ids} ids")
    if rows.index is None:
        return
    missing = int(((rows.index if owned is None else rows.index[owned]) < 0).sum())
    if missing:
        raise ConfigError(f"{what}: {missing} of this partition's ids have no row")


def count_classes(labels: Mapping[NodeType, Rows]) -> dict[NodeType, int]:
    """Return the classes of each type's labels, where all of them are here.

    Source:
        PyG, ``Dataset.num_classes``: one past the highest label; for labels with several columns,
        their number. (PyG counts distinct values of floating-point labels; they are no classes.)
    """
    classes = {}
    for node_type, rows in labels.items():
        values = rows.values
        if values.dim() and values.numel() != len(values):
            classes[node_type] = int(values.size(-1))
        # with a part of the labels, the highest may be elsewhere
        elif rows.whole and not values.is_floating_point() and not values.is_complex():
            classes[node_type] = int(values.max()) + 1 if values.numel() else 0
    return classes


# --- rows and books -------------------------------------------------------------------------------


def make_rows(values: Tensor, ids: Tensor | None, num_ids: int, like: Iterable[Rows] = ()) -> Rows:
    """Return the rows of one matrix in shared memory, found by global id.

    Args:
        values: ``[num_rows, ...]``.
        ids: ``[num_rows]`` int64, each once, below ``num_ids``; None: row ``i`` belongs to id
            ``i``, and all ids are here.
        num_ids: Ids there are over all partitions.
        like: Matrices that usually have the same ids: a fitting index is shared.
    """
    # an index of 8 bytes per id would only repeat the position
    if (
        ids is not None
        and ids.numel() == num_ids
        and torch.equal(ids, torch.arange(num_ids, device="cpu"))
    ):
        ids = None
    if ids is None:
        return Rows(share_tensor(values.contiguous()), None, True)
    positions = torch.arange(ids.numel(), device="cpu")
    # features, labels and attributes of a type usually have the same ids: one index for all
    index = next((rows.index for rows in like if _finds(rows, ids, positions, num_ids)), None)
    if index is None:
        index = empty_shared((num_ids,), torch.int64)
        # samplers and `_check_rows` recognise ids without a row by it
        index.fill_(-1)
        index[ids] = positions
    return Rows(share_tensor(values.contiguous()), index, ids.numel() == num_ids)


def _finds(rows: Rows, ids: Tensor, positions: Tensor, num_ids: int) -> bool:
    """Return whether the index of ``rows`` finds ``ids`` at ``positions``, and nothing else."""
    if rows.index is None or rows.index.numel() != num_ids or len(rows.values) != ids.numel():
        return False
    # the same length, and each of `ids` at its place: no room is left for another id
    return torch.equal(rows.index[ids], positions)


def ids_of(rows: Rows) -> Tensor | None:
    """Return the ids of a matrix's rows, in their order; None: they are 0, 1, 2..."""
    if rows.index is not None:
        # the inverse of an index: its places, sorted by row
        ids = (rows.index >= 0).nonzero().view(-1)
        at = rows.index[ids]
        ascend = bool((at[1:] > at[:-1]).all())  # the usual case
        return (ids if ascend else ids[torch.argsort(at)]) + rows.first
    if rows.ids is not None:
        return rows.ids
    return None if rows.whole else torch.arange(rows.values.size(0), device="cpu") + rows.first


def make_book(table: Tensor, num_partitions: int) -> Book:
    """Return the book of an owner table; as bounds where owners ascend, else as a small table."""
    # bounds take no memory, and finding an owner causes no cache miss per id
    if table.numel() < 2 or bool((table[1:] >= table[:-1]).all()):
        counts = torch.bincount(table.long(), minlength=num_partitions)
        return Book(bounds=share_tensor(torch.cumsum(counts, 0)))
    # every partition holds the owner of each node and edge of the whole graph, so one more byte per
    # id costs that byte everywhere
    dtype = torch.uint8 if num_partitions <= 256 else torch.int32
    # a copy: `share_tensor` keeps a tensor that is in shared memory, and the user may write to it
    return Book(table=share_tensor(table.to(dtype, copy=True)))


def contiguous_book(num_ids: int, num_partitions: int) -> Book:
    """Return the book that cuts ``num_ids`` ids into equal runs, the first ones longer by one."""
    size, longer = divmod(num_ids, num_partitions)
    counts = torch.full((num_partitions,), size, dtype=torch.int64, device="cpu")
    counts[:longer] += 1
    return Book(bounds=share_tensor(torch.cumsum(counts, 0)))


def book_table(book: Book) -> Tensor:
    """Return ``[num_ids]`` int64, the owner of each id."""
    if book.table is not None:
        return book.table.long()
    assert book.bounds is not None
    counts = torch.diff(book.bounds, prepend=book.bounds.new_zeros(1))
    return torch.repeat_interleave(torch.arange(counts.numel(), device="cpu"), counts)


def owned_ids(book: Book, partition_idx: int) -> Tensor:
    """Return the ids that a partition owns, ascending, ``[num_owned]`` int64."""
    if book.bounds is None:
        assert book.table is not None
        return (book.table == partition_idx).nonzero().view(-1)
    start = int(book.bounds[partition_idx - 1]) if partition_idx else 0
    return torch.arange(start, int(book.bounds[partition_idx]), device="cpu")


def read_book(value: Any, num_partitions: int, where: str) -> Book:
    """Return a user's partition book as ours.

    Args:
        value: ``[num_ids]`` integer tensor, or anything with ``partition_bounds`` (GLT's
            ``RangePartitionBook``), or a `Book`.
        num_partitions: Owners must be below it.
        where: Its name in errors.

    Raises:
        ConfigError: It is of another kind, or names a missing partition.
    """
    table, bounds = _table_of(value), _bounds_of(value)
    if bounds is not None:
        if bounds.numel() != num_partitions:
            raise ConfigError(
                f"{where} has {bounds.numel()} ranges for {num_partitions} partition(s)"
            )
        # int64: kernels of samplers search bounds of that type alone
        return Book(bounds=share_tensor(bounds.to(torch.int64).cpu()))
    if table is None:
        raise WrongTypeError(
            f"{where} must be a 1-D integer tensor or a range partition book, "
            f"got {type(value).__name__}"
        )
    # our own table, too: it may belong to another graph
    return make_book(_check_table(table, num_partitions, where), num_partitions)


def _bounds_of(value: Any) -> Tensor | None:
    bounds = value.bounds if isinstance(value, Book) else getattr(value, "partition_bounds", None)
    return bounds if isinstance(bounds, Tensor) else None


def _table_of(value: Any) -> Tensor | None:
    if isinstance(value, Book):
        return value.table
    # GLT's tables are a subclass of Tensor, and operations on them return that class
    return value.as_subclass(Tensor) if isinstance(value, Tensor) else None


def _check_table(table: Tensor, num_partitions: int, where: str) -> Tensor:
    # METIS and numpy may give owners as whole floats
    if table.is_floating_point() and torch.equal(table, table.trunc()) and table.isfinite().all():
        table = table.long()
    # a bool would pass as an integer, but it is a mask passed by mistake
    if table.dim() != 1 or table.is_floating_point() or table.dtype == torch.bool:
        raise ConfigError(
            f"{where} must be a 1-D integer tensor, got {tuple(table.shape)} {table.dtype}"
        )
    table = table.cpu()
    if table.numel():
        low, high = (int(limit) for limit in torch.aminmax(table))
        if low < 0 or high >= num_partitions:
            raise ConfigError(
                f"{where} names partition {low if low < 0 else high}, "
                f"but there are {num_partitions}: 0 to {num_partitions - 1}"
            )
    return table


def _count_owners(value: Any) -> int:
    """Return the partitions that a book mentions: its highest owner plus one."""
    bounds, table = _bounds_of(value), _table_of(value)
    if bounds is not None:
        return bounds.numel()
    # for a value that is no book, 1: `read_book` refuses it with the reason
    return int(table.max()) + 1 if table is not None and table.numel() else 1


def read_node_books(
    value: Any, num_nodes: dict[NodeType, int], num_partitions: int | None, *, heterogeneous: bool
) -> tuple[dict[NodeType, Book], int]:
    """Return the book of each node type and the number of partitions, from a user's argument.

    Args:
        value: A book, or for a heterogeneous graph a dict of them by node type.
        num_nodes: Nodes by type, which the books must cover.
        num_partitions: None: as many as the books name.
        heterogeneous: Whether ``value`` must be a dict.
    """
    if isinstance(value, Mapping) != heterogeneous:
        wanted = "a dict of books by node type" if heterogeneous else "one book, not a dict"
        raise WrongTypeError(f"partition_book of this graph must be {wanted}")
    # a homogeneous graph has one type, whose name the user never gave
    given = dict(value) if heterogeneous else {next(iter(num_nodes)): value}
    if set(given) != set(num_nodes):
        raise ConfigError(
            f"partition_book has node types {sorted(given)}, the graph has {sorted(num_nodes)}"
        )
    # over all types: a small one may have a lower highest owner than the others
    count = num_partitions or max(map(_count_owners, given.values()), default=1)
    books = {}
    for node_type, book in given.items():
        books[node_type] = read_book(book, count, f"partition_book of {node_type!r}")
        if books[node_type].num_ids != num_nodes[node_type]:
            raise ConfigError(
                f"partition_book of {node_type!r} covers {books[node_type].num_ids} nodes, "
                f"the graph has {num_nodes[node_type]}"
            )
    return books, count
