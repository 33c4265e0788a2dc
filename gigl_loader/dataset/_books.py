"""Partition books as users give them: tensors, GLT's range books, ours."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.build import make_book
from gigl_loader.dataset.schema import NodeType
from gigl_loader.dataset.view import Book
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.memory.tensors import share_tensor


def read_book(value: Any, num_partitions: int, where: str) -> Book:
    """Return a user's partition book as ours.

    Args:
        value: ``[num_ids]`` integer tensor, or anything with ``partition_bounds`` (GLT's
            ``RangePartitionBook``), or a `Book`.
        num_partitions: Owners must be below it.
        where: What to call it in errors.

    Raises:
        ConfigError: It is of another kind, or names a partition that does not exist.
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
    # a table of ours, too: it may be of another graph than the one it is given for
    return make_book(_check_table(table, num_partitions, where), num_partitions)


def _bounds_of(value: Any) -> Tensor | None:
    found = value.bounds if isinstance(value, Book) else getattr(value, "partition_bounds", None)
    return found if isinstance(found, Tensor) else None


def _table_of(value: Any) -> Tensor | None:
    if isinstance(value, Book):
        return value.table
    # GLT's tables are a subclass of Tensor, whose operations would give more of that class
    return value.as_subclass(Tensor) if isinstance(value, Tensor) else None


def _check_table(table: Tensor, num_partitions: int, where: str) -> Tensor:
    # by METIS and numpy, owners may come as floats that are whole
    if table.is_floating_point() and torch.equal(table, table.trunc()) and table.isfinite().all():
        table = table.long()
    # a bool would pass as an integer, and it is a mask that somebody took for a book
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


def count_partitions(value: Any) -> int:
    """Return the partitions that a book mentions: its highest owner plus one."""
    bounds, table = _bounds_of(value), _table_of(value)
    if bounds is not None:
        return bounds.numel()
    # of what is no book at all, 1: `read_book` refuses it, and says why
    return int(table.max()) + 1 if table is not None and table.numel() else 1


def read_node_books(
    value: Any, num_nodes: dict[NodeType, int], num_partitions: int | None, *, heterogeneous: bool
) -> tuple[dict[NodeType, Book], int]:
    """Return the book of each node type and the number of partitions, from a user's argument.

    Args:
        value: A book, or for a heterogeneous graph a dict of them by node type.
        num_nodes: Nodes by type, which the books must cover.
        num_partitions: None: as many as the books mention.
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
    # over all types: one may be so small that its highest owner is below the others'
    count = num_partitions or max(map(count_partitions, given.values()), default=1)
    books = {}
    for node_type, book in given.items():
        books[node_type] = read_book(book, count, f"partition_book of {node_type!r}")
        if books[node_type].num_ids != num_nodes[node_type]:
            raise ConfigError(
                f"partition_book of {node_type!r} covers {books[node_type].num_ids} nodes, "
                f"the graph has {num_nodes[node_type]}"
            )
    return books, count
