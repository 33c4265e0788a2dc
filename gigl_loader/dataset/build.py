"""Tensor work behind datasets: adjacency in canonical order, books, row indexes, shared memory."""

from collections.abc import Iterable

import torch
from torch import Tensor

from gigl_loader.dataset.view import Adjacency, Book, Rows
from gigl_loader.memory.tensors import empty_shared, share_tensor

# What int64 holds: a larger key of (row, column) would wrap around, and sort elsewhere.
_KEY_LIMIT = 2**63 - 1


def compress(
    rows: Tensor,
    cols: Tensor,
    *,
    num_rows: int,
    num_cols: int,
    edge_ids: Tensor | None = None,
    weights: Tensor | None = None,
    key_limit: int = _KEY_LIMIT,
) -> Adjacency:
    """Group edges by row, neighbours ascending by (neighbour id, edge id), in shared memory.

    Beyond input and output it needs 24 bytes per edge: one sort key, its sorted copy and the order.

    Args:
        rows: ``[num_edges]`` int64, the node that is expanded, in ``[0, num_rows)``.
        cols: ``[num_edges]`` int64, its neighbour, in ``[0, num_cols)``.
        num_rows: Rows of the result.
        num_cols: Neighbour ids there can be.
        edge_ids: ``[num_edges]`` int64; None: the position in the input.
        weights: ``[num_edges]``, kept as float32.
        key_limit: Largest sort key; above it two sorts are run instead of one. For tests.
    """
    # written in place where workers read it: cumsum and copy would hold it twice
    indptr = empty_shared((num_rows + 1,), torch.int64)
    indptr[0] = 0
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
    # ties between parallel edges are broken by edge id: ids ascend first, then sorts are stable
    first = _order_by_id(edge_ids)
    if first is not None:
        rows, cols = rows[first], cols[first]
    order, indices = _order_by_row(rows, cols, max(num_cols, 1), num_rows, key_limit)
    if first is not None:
        order = first[order]
    kept = None if weights is None else share_tensor(weights.to(torch.float32)[order])
    # without ids an edge's id is its position in the input, which is what `order` holds
    ids = order if edge_ids is None else edge_ids[order]
    return Adjacency(indptr, share_tensor(indices), share_tensor(ids), kept)


def _order_by_id(edge_ids: Tensor | None) -> Tensor | None:
    """Return the order that makes ``edge_ids`` ascend; None where they ascend already."""
    # the usual case (positions, and what partitioning cuts in order) costs one comparison an edge
    if edge_ids is None or edge_ids.numel() < 2 or bool((edge_ids[1:] >= edge_ids[:-1]).all()):
        return None
    return torch.argsort(edge_ids, stable=True)


def _order_by_row(
    rows: Tensor, cols: Tensor, num_cols: int, num_rows: int, key_limit: int
) -> tuple[Tensor, Tensor]:
    """Return the stable order by (row, column), and the columns in it."""
    # one sort of one key, from which the columns are read again: gathered by `order`, they would
    # take a pass of random reads more. (`remainder_` and `+=`: in place, 8 bytes an edge less.)
    if num_rows * num_cols <= key_limit:
        key = rows * num_cols
        key += cols
        key, order = torch.sort(key, stable=True)
        return order, key.remainder_(num_cols)
    # the less significant of the two first, as in a radix sort: the second sort keeps its order
    order = torch.argsort(cols, stable=True)
    order = order[torch.argsort(rows[order], stable=True)]
    return order, cols[order]


def is_canonical(adjacency: Adjacency) -> bool:
    """Return whether neighbours ascend by (id, edge id) within every row."""
    indices, ids = adjacency.indices, adjacency.edge_ids
    if indices.numel() < 2:
        return True
    good = indices[1:] > indices[:-1]
    same = indices[1:] == indices[:-1]
    good |= same if ids is None else same & (ids[1:] >= ids[:-1])
    # where a row ends and another begins, anything may follow. Rows without edges at either end
    # have no edge before, or after, their start.
    starts = adjacency.indptr[1:-1]
    starts = starts[(starts > 0) & (starts < indices.numel())]
    good[starts - 1] = True
    return bool(good.all())


def expand_rows(indptr: Tensor) -> Tensor:
    """Return ``[num_edges]`` int64, the row of each edge: the inverse of an index pointer."""
    return torch.repeat_interleave(torch.arange(indptr.numel() - 1), indptr[1:] - indptr[:-1])


def canonical(adjacency: Adjacency, num_cols: int) -> Adjacency:
    """Return a copy of ``adjacency`` in canonical order."""
    return compress(
        expand_rows(adjacency.indptr),
        adjacency.indices,
        num_rows=adjacency.indptr.numel() - 1,
        num_cols=num_cols,
        edge_ids=adjacency.edge_ids,
        weights=adjacency.weights,
    )


def make_rows(values: Tensor, ids: Tensor | None, num_ids: int, like: Iterable[Rows] = ()) -> Rows:
    """Return the rows of one matrix in shared memory, found by global id.

    Args:
        values: ``[num_rows, ...]``.
        ids: ``[num_rows]`` int64, each once, below ``num_ids``; None: row ``i`` belongs to id
            ``i``, and all ids are here.
        num_ids: Ids there are over all partitions.
        like: Matrices of the same ids, as a rule: the index of one that fits is shared.
    """
    # an index of 8 bytes an id would say what the position says already
    if ids is not None and ids.numel() == num_ids and torch.equal(ids, torch.arange(num_ids)):
        ids = None
    if ids is None:
        return Rows(share_tensor(values.contiguous()), None, True)
    positions = torch.arange(ids.numel())
    # features, labels and attributes of a type have the same ids as a rule: one index for all
    index = next((rows.index for rows in like if _finds(rows, ids, positions, num_ids)), None)
    if index is None:
        index = empty_shared((num_ids,), torch.int64)
        # samplers and `_check_rows` know ids without a row by it
        index.fill_(-1)
        index[ids] = positions
    return Rows(share_tensor(values.contiguous()), index, ids.numel() == num_ids)


def _finds(rows: Rows, ids: Tensor, positions: Tensor, num_ids: int) -> bool:
    """Return whether the index of ``rows`` finds ``ids`` at ``positions``, and nothing else."""
    if rows.index is None or rows.index.numel() != num_ids or len(rows.values) != ids.numel():
        return False
    # the same length, and each of `ids` at its place: there is no room for any other id
    return torch.equal(rows.index[ids], positions)


def ids_of(rows: Rows) -> Tensor | None:
    """Return the ids of a matrix's rows, in their order; None: they are 0, 1, 2..."""
    if rows.index is not None:
        # the inverse of an index: its places in the order of the rows that they tell
        found = (rows.index >= 0).nonzero().view(-1)
        return found[torch.argsort(rows.index[found])] + rows.first
    if rows.ids is not None:
        return rows.ids
    return None if rows.whole else torch.arange(rows.values.size(0)) + rows.first


def make_book(table: Tensor, num_partitions: int) -> Book:
    """Return the book of an owner table; as bounds where owners ascend, else as a small table."""
    # bounds take no memory, and an owner is found without a miss of the cache for each id
    if table.numel() < 2 or bool((table[1:] >= table[:-1]).all()):
        counts = torch.bincount(table.long(), minlength=num_partitions)
        return Book(bounds=share_tensor(torch.cumsum(counts, 0)))
    # the owner of each node and edge of the whole graph is held by every partition, so that a byte
    # more is a byte for each of these, everywhere
    dtype = torch.uint8 if num_partitions <= 256 else torch.int32
    # a copy: `share_tensor` keeps what is in shared memory already, and the user may write to that
    return Book(table=share_tensor(table.to(dtype, copy=True)))


def contiguous_book(num_ids: int, num_partitions: int) -> Book:
    """Return the book that cuts ``num_ids`` ids into equal runs, the first ones longer by one."""
    size, longer = divmod(num_ids, num_partitions)
    counts = torch.full((num_partitions,), size, dtype=torch.int64)
    counts[:longer] += 1
    return Book(bounds=share_tensor(torch.cumsum(counts, 0)))


def book_table(book: Book) -> Tensor:
    """Return ``[num_ids]`` int64, the owner of each id."""
    if book.table is not None:
        return book.table.long()
    assert book.bounds is not None
    counts = torch.diff(book.bounds, prepend=book.bounds.new_zeros(1))
    return torch.repeat_interleave(torch.arange(counts.numel()), counts)


def owned_ids(book: Book, partition_idx: int) -> Tensor:
    """Return the ids that a partition owns, ascending, ``[num_owned]`` int64."""
    if book.bounds is None:
        assert book.table is not None
        return (book.table == partition_idx).nonzero().view(-1)
    start = int(book.bounds[partition_idx - 1]) if partition_idx else 0
    return torch.arange(start, int(book.bounds[partition_idx]))
