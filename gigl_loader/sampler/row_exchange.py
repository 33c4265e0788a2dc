"""Rows by global id, whoever has them: split by owner, asked of the peers, put in their places.

::

    ids --> split_by_owner() --> here: part_of() ------------------------> gather_rows() --> out
                             --> AskedRows: peers.rows(owner, ids) --> parts() --^

Rows are gathered once where they are, into what is sent, and placed once where they are read.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.view import Book, Rows
from gigl_loader.errors import ProtocolError
from gigl_loader.memory import read_ahead
from gigl_loader.memory.segments import Array
from gigl_loader.sampler import compiled as kernels
from gigl_loader.sampler.questions import PendingAnswer, RowPeers, RowsAnswer, RowsRequest

_NO_PLACES = np.empty(0, np.int64)
Part = tuple[Array, Array, Array | None]
"""Rows for `gather_rows`: (matrix, which rows of it, the positions that they go to; None: to all
positions, in order)."""
RowsName = NodeType | EdgeType | tuple[NodeType | EdgeType, str]
"""Key of a matrix, its type; key of an attribute, type and name."""

Split = dict[int, Array]
"""By who has the rows, a partition or a server, the positions of its ids: int64, ascending."""


def split_by_owner(book: Book[Array], ids: Array, num_partitions: int) -> Split:
    """Return the positions of ``ids`` (``[n]`` int64) by the partition that owns them.

    Raises:
        ProtocolError: An id is of nobody.
    """
    # neighbours that another machine told may be any numbers: of ids past the end, ranges say an
    # owner past the last one, for whom the kernel would count beyond ``sizes``
    if ids.size and not 0 <= ids.min() <= ids.max() < book.num_ids:
        raise ProtocolError(
            f"ids {ids.min()} to {ids.max()} were asked for, where there are {book.num_ids}"
        )
    order, sizes = np.empty(ids.size, np.int64), np.empty(num_partitions, np.int64)
    kernels.group_by_owner(book.owner(ids), order, sizes)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return {p: part for p, part in enumerate(parts) if part.size}


class AskedRows:
    """Rows of one matrix, of which each owner was asked for its own.

    All are asked before any is waited for, so that what several owners answer comes at one time.

    Args:
        peers: Who is asked; None: nobody, there are no pieces.
        kind: Which matrices.
        name: Of the matrix.
        pieces: Owners and their ids.
        out: Memory for the rows, which peers put there: those of the first owner first.
    """

    def __init__(
        self, peers: RowPeers | None, kind: str, name: RowsName,
        pieces: Iterable[tuple[int, Array]], out: Array,
    ) -> None:  # fmt: skip
        self.rows, start = out, 0
        self._answers: list[PendingAnswer[RowsAnswer]] = []
        for owner, ids in pieces:
            assert peers is not None, "what is not on this machine has peers to ask"
            part = out[start : start + ids.size]
            self._answers.append(peers.rows(owner, rows_request(kind, name, ids), part))
            start += ids.size

    @property
    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        return all(answer.has_come for answer in self._answers)

    def wait(self) -> Array:
        """Return the rows of all owners, of peers that put them into the memory given for them."""
        for answer in self._answers:
            answer.wait()
        return self.rows

    def parts(self, positions: Iterable[Array]) -> list[Part]:
        """Wait for all; return the rows of each owner, which go to its ``positions``."""
        # Parts of ``rows``, but of peers that read their answers where they were received.
        answers = [answer.wait().values for answer in self._answers]
        return [(rows, np.arange(at.size), at) for rows, at in zip(answers, positions, strict=True)]


def rows_request(kind: str, name: RowsName, ids: Array) -> RowsRequest:
    """Return the question for rows of the matrix ``kind`` of ``name``."""
    if kind.endswith("_attributes"):
        graph_type, attribute = cast("tuple[NodeType | EdgeType, str]", name)
        return RowsRequest(kind, graph_type, ids, attribute)
    return RowsRequest(kind, cast("NodeType | EdgeType", name), ids)


def located(rows: Rows[Array], ids: Array) -> Array:
    """Return the row of each of ``ids`` (``[n]`` int64), asking for pages of the index first.

    Raises:
        ProtocolError: The index has no place for one.
    """
    if rows.index is not None:
        at, end = rows.looked_up(ids), rows.index.size
        # -1 would be found, at the end of the index, and be the row of another id
        if at.size and not 0 <= at.min() <= at.max() < end:
            raise ProtocolError(
                f"rows of ids {ids.min()} to {ids.max()} were asked for, where there are only "
                f"{rows.first} to {rows.first + end - 1}"
            )
        read_ahead.want(rows.index, at)
    found: Array = rows.locate(ids)
    return found


def part_of(rows: Rows[Array], ids: Array, at: Array | None = None) -> Part:
    """Return the rows of ``ids``, or of those at the positions ``at``, which they go to."""
    return rows.values, located(rows, ids if at is None else ids.take(at)), at


def gather_rows(parts: Sequence[Part], out: Array) -> None:
    """Write rows of matrices to ``out``.

    Args:
        parts: All matrices are contiguous and of one type and width; together they fill ``out``.
        out: ``[num_rows, ...]``, contiguous.

    Raises:
        ProtocolError: A matrix does not have such rows.
    """
    if out.size == 0:
        return
    row_bytes = out[0].nbytes
    addresses = np.empty(out.shape[0], np.int64)
    # The widest word that divides rows and all addresses: words have to be aligned.
    word_bytes = math.gcd(row_bytes, out.ctypes.data, 8)
    for values, rows, positions in parts:
        _check_alike(values, out)
        start = values.ctypes.data
        word_bytes = math.gcd(word_bytes, start)
        to = _NO_PLACES if positions is None else positions
        rows = np.ascontiguousarray(rows)
        wrong = kernels.row_addresses(rows, row_bytes, start, values.shape[0], to, addresses)
        if wrong >= 0:
            raise ProtocolError(
                f"row {rows[wrong]} of a matrix with {values.shape[0]} rows was asked for"
            )
        read_ahead.want(values, rows)
    # There is no word of 2 bytes: such rows are copied by bytes, and there is one kernel less.
    word = kernels.WORDS.get(word_bytes, np.int8)
    kernels.copy_rows(addresses, out.reshape(out.shape[0], -1).view(word))


def _check_alike(values: Array, like: Array) -> None:
    """Make sure that rows can be read by address."""
    # Addresses are all that the kernel gets: a stride or another width would read beside the rows.
    alike = values.dtype == like.dtype and values.shape[1:] == like.shape[1:]
    if not alike or not values.flags.c_contiguous:
        raise ProtocolError(
            f"rows of a {values.dtype} matrix {values.shape} were given for {like.dtype} "
            f"{like.shape}"
        )
