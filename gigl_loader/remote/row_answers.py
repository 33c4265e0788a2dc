"""What a storage server answers for single rows, which compute processes keep or ask for."""

import dataclasses
import threading
from typing import Any

from gigl_loader.dataset.view import Book, PartitionView, Rows
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.memory.tensors import as_array
from gigl_loader.remote.requests import RowBook
from gigl_loader.sampler.questions import RowsAnswer, RowsRequest
from gigl_loader.sampler.reader import LocalReader

_KINDS = (
    "node_features", "node_labels", "edge_features", "node_attributes", "edge_attributes",
)  # fmt: skip


class _OfThread(threading.local):
    reader: LocalReader | None = None
    """Has scratch memory."""


class RowAnswers:
    """Answers for the rows of one partition, each connection in a thread of its own.

    Args:
        view: The partition.
    """

    def __init__(self, view: PartitionView[Any]) -> None:
        self._view = view
        self._of_thread = _OfThread()

    def matrix(self, request: RowsRequest) -> Rows[Any]:
        """Return the matrix that a question names.

        Raises:
            ConfigError: There is none.
        """
        # only of these names: the kind came over the network, and the view has other attributes
        known = getattr(self._view, request.kind) if request.kind in _KINDS else {}
        attribute = request.attribute
        rows: Rows[Any] | None = known.get(
            request.name if attribute is None else (request.name, attribute)
        )
        if rows is None:
            raise ConfigError(
                f"the graph has no {request.kind.replace('_', ' ')} of {request.name!r}"
            )
        return rows

    def rows(self, request: RowsRequest) -> RowsAnswer:
        """Return rows of a matrix, in scratch memory of this thread, which sends them next."""
        reader = self._of_thread.reader
        if reader is None:
            reader = self._of_thread.reader = LocalReader(_of_arrays(self._view))
        return reader.answer_rows(request)

    def books(self) -> list[RowBook]:
        """Return who owns the rows of each type that has any."""
        found = {}
        for kind in _KINDS:
            for name, rows in getattr(self._view, kind).items():
                group = kind.partition("_")[0]
                of_type = name[0] if kind.endswith("_attributes") else name
                books: Any = self._view.node_books if group == "node" else self._view.edge_books
                # one book for all matrices of a type: features and labels of a node are owned
                # together
                found[group, of_type] = _book(group, of_type, books.get(of_type), rows)
        return list(found.values())


def _book(group: str, name: Any, book: Book[Any] | None, rows: Rows[Any]) -> RowBook:
    if book is None:
        return RowBook(group, name, _num_ids(rows))
    bounds = None if book.bounds is None else as_array(book.bounds)
    table = None if book.table is None else as_array(book.table)
    return RowBook(group, name, book.num_ids, bounds, table)


def _num_ids(rows: Rows[Any]) -> int:
    """Return how many ids there are, where all of them are here."""
    if rows.index is not None:
        return rows.first + int(rows.index.shape[0])
    # ascending, as a binary search finds them
    if rows.ids is not None:
        return int(rows.ids[-1]) + 1 if len(rows.ids) else 0
    return rows.first + int(rows.values.shape[0])


def _of_arrays(view: PartitionView[Any]) -> PartitionView[Array]:
    """Return the view with arrays for rows; they lie where the tensors do."""
    changed: dict[str, Any] = {}
    for kind in _KINDS:
        # the kernels that gather take arrays; made once for each thread, not for each question
        changed[kind] = {
            name: dataclasses.replace(
                rows,
                **{
                    part: as_array(getattr(rows, part))
                    for part in ("values", "index", "ids")
                    if getattr(rows, part) is not None
                },
            )
            for name, rows in getattr(view, kind).items()
        }
    found: PartitionView[Array] = dataclasses.replace(view, **changed)
    return found
