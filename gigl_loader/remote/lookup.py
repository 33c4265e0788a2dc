"""Rows and edges of a storage cluster by global id, asked from the servers that own them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from gigl_loader.dataset.adjacency import EdgeBlock, block_of
from gigl_loader.dataset.lookup import Kind, check_ids
from gigl_loader.dataset.quantised import widened
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    NodeType,
)
from gigl_loader.errors import ConfigError
from gigl_loader.remote.calls import TensorMessage
from gigl_loader.remote.client import current_cluster
from gigl_loader.remote.connection import result_of
from gigl_loader.remote.requests import EdgesRequest
from gigl_loader.sampler.questions import RowsAnswer, RowsRequest
from gigl_loader.sampler.reader import row_type
from gigl_loader.workers.wire import RowsQuestion

if TYPE_CHECKING:  # it imports this module
    from gigl_loader.remote.dataset import RemoteDistDataset

_MOST_IDS = 1 << 16
"""Ids in one question: an answer then has some hundred MB at most, and others get their turn."""
R = TypeVar("R")


class StoreLookup:
    """Asks storage servers for rows and edges; each process for itself, at any time.

    Args:
        dataset: The graph.
        timeout_s: How long an answer may take, in seconds.
        reconnect_s: How long a server without a twin may be away before that is an error. What was
            under way when a server was lost is asked again: of a twin at once.
    """

    def __init__(
        self, dataset: "RemoteDistDataset", timeout_s: float, reconnect_s: float = 0.0
    ) -> None:
        self._dataset, self._timeout_s, self._reconnect_s = dataset, timeout_s, reconnect_s
        self._books: dict[Any, tuple[Any, int | None]] = {}
        # Held while a book is fetched: others that want it wait, and do not fetch it as well. A
        # book may be as long as all ids.
        self._lock = threading.Lock()

    def node_type(self, given: NodeType | None, kind: Kind) -> NodeType:
        """Return the type that is meant: ``given``, or the only one."""
        known = self._dataset.fetch_node_types() or [DEFAULT_HOMOGENEOUS_NODE_TYPE]
        if given is None and len(known) > 1 and kind == "node_features":
            infos = self._dataset.fetch_node_feature_info()
            known = sorted(infos) if isinstance(infos, dict) else known
        return self._only(given, known)

    def edge_type(self, given: EdgeType | None) -> EdgeType:
        """Return the type that is meant: ``given``, or the only one with features."""
        infos = self._dataset.fetch_edge_feature_info()
        known = sorted(infos) if isinstance(infos, dict) else [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        return self._only(given, known)

    @staticmethod
    def _only(given: R | None, known: list[R]) -> R:
        if given is None and len(known) != 1:
            raise ConfigError(f"name the type of the ids: one of {known}")
        return known[0] if given is None else given

    # -- questions ------------------------------------------------------------------------------

    def rows(self, kind: Kind, name: NodeType | EdgeType, ids: Tensor) -> Tensor:
        """Return the rows of ``ids``, in their order; quantised features as float32.

        Args:
            kind: Which matrices.
            name: The type.
            ids: ``[n]`` int64, global; repeats allowed.

        Raises:
            ConfigError: There is no such matrix, or an id is out of range.
            PeerTimeoutError: A server did not answer in time.
            ServerDiedError: A server is gone.
        """
        answers, build = self._ask_rows(kind, name, ids)
        return build([self._result(answer, f"{kind} of {name!r}") for answer in answers])

    def rows_later(
        self, kind: Kind, name: NodeType | EdgeType, ids: Tensor
    ) -> "torch.futures.Future[Tensor]":
        """Ask as `rows` does, and return at once."""
        answers, build = self._ask_rows(kind, name, ids)
        found: torch.futures.Future[Tensor] = torch.futures.Future()
        # never 0 at first: there is one piece at least. Callbacks run in the threads of the calls.
        left, lock = [len(answers)], threading.Lock()

        def one_came(_: Any) -> None:
            with lock:
                left[0] -= 1
                if left[0]:
                    return
            try:
                # by the last that came, outside of the lock: nobody else gets here
                found.set_result(build([answer.result() for answer in answers]))
            except Exception as error:
                found.set_exception(error)  # type: ignore[arg-type]

        for answer in answers:
            answer.add_done_callback(one_came)
        return found

    def edges(
        self, edge_type: EdgeType, ids: Tensor, *, weights: bool = False, edge_ids: bool = False
    ) -> EdgeBlock:
        """Return all edges of ``ids``; errors as of `rows`.

        Args:
            edge_type: As the dataset names it; nodes have the edges that they are expanded by.
            ids: ``[n]`` int64, global.
            weights: Whether to return the edges' weights.
            edge_ids: Whether to return their ids.
        """
        name = row_type(edge_type, self._dataset.fetch_edge_dir())
        pieces = self._pieces("node", name, ids)
        answers = [
            self._ask(
                server, "get_edges",
                EdgesRequest(
                    edge_type=edge_type, ids=ids[at].numpy(), weights=weights, edge_ids=edge_ids
                ),
            )
            for server, at in pieces
        ]  # fmt: skip
        found = [self._result(answer, f"edges {edge_type}") for answer in answers]
        return _in_order(ids.numel(), [at for _, at in pieces], found)

    def _ask_rows(
        self, kind: Kind, name: NodeType | EdgeType, ids: Tensor
    ) -> "tuple[list[Future[Any]], Callable[[list[Any]], Tensor]]":
        pieces = self._pieces("edge" if kind == "edge_features" else "node", name, ids)
        answers = [
            self._ask(server, "get_rows", _question(kind, name, ids[at])) for server, at in pieces
        ]

        def build(parts: list[RowsAnswer]) -> Tensor:
            rows = [TensorMessage(part.dtype, part.values).result for part in parts]
            # width and type are those of the answer: the schema does not name them of labels
            out = rows[0].new_empty((ids.numel(), *rows[0].shape[1:]))
            for (_, at), some in zip(pieces, rows, strict=True):
                out[at] = some
            scales = parts[0].scales
            return widened(out, None if scales is None else torch.from_numpy(scales))

        return answers, build

    def _ask(self, server: int, name: str, request: Any) -> "Future[Any]":
        arguments = {"request": request}
        return current_cluster().ask_later(
            server, name, arguments, self._timeout_s, self._reconnect_s
        )

    def _result(self, answer: "Future[R]", what: str) -> R:
        # once as it was asked first, and once again
        limit_s = 2 * self._timeout_s + self._reconnect_s
        return result_of(answer, limit_s, what)

    # -- who is asked ---------------------------------------------------------------------------

    def _pieces(self, what: str, name: Any, ids: Tensor) -> list[tuple[int, Tensor]]:
        """Return (server, positions among ``ids``); one at least, so that an answer has a shape."""
        book, count = self._book(what, name)
        check_ids(ids, name, count)
        servers = current_cluster().holders(self._timeout_s, self._reconnect_s)
        parts = torch.zeros_like(ids) if book is None else book[ids].long()
        pieces = []
        for part in torch.unique(parts).tolist():
            # a pass over the ids for each partition: what is asked costs far more
            positions = (parts == part).nonzero().view(-1)
            pieces += [(servers[part], at) for at in positions.split(_MOST_IDS)]
        return pieces or [(servers[0], ids)]

    def _book(self, what: str, name: Any) -> tuple[Any, int | None]:
        with self._lock:
            if (what, name) not in self._books:
                self._books[what, name] = self._fetch_book(what, name)
            return self._books[what, name]

    def _fetch_book(self, what: str, name: Any) -> tuple[Any, int | None]:
        if what == "edge":
            book = self._dataset.fetch_edge_partition_book(name)
            bounds = getattr(book, "partition_bounds", None)
            if bounds is not None:
                return book, int(bounds[-1])
            # without a book one partition has all edges, and its server checks the ids
            return book, None if book is None else len(book)
        book = self._dataset.fetch_node_partition_book(name)
        return book, self._dataset.fetch_num_nodes().get(name)


def _question(kind: Kind, name: NodeType | EdgeType, ids: Tensor) -> RowsQuestion:
    return RowsQuestion.of(RowsRequest(kind, name, ids.numpy()), with_scales=True)


def _in_order(count: int, positions: list[Tensor], parts: list[dict[str, Tensor]]) -> EdgeBlock:
    """Put together what several servers answered."""
    counts = torch.zeros(count, dtype=torch.int64)
    for at, part in zip(positions, parts, strict=True):
        counts[at] = part["counts"]
    ends = counts.cumsum(0)
    total = int(ends[-1]) if count else 0
    columns = {}
    for name in ("indices", "weights", "edge_ids"):
        # not asked for, or not there on one server: a column with holes is of no use
        if any(name not in part for part in parts):
            continue
        columns[name] = parts[0][name].new_empty(total)
        for at, part in zip(positions, parts, strict=True):
            columns[name][_positions(ends[at], part["counts"])] = part[name]
    return block_of(columns.pop("indices"), counts, **columns)


def _positions(ends: Tensor, counts: Tensor) -> Tensor:
    """Return the positions ``ends - counts ... ends`` of each, one after the other."""
    before = counts.cumsum(0) - counts
    # Edge j of a node lies at its start + j in the result, and at `before` + j among the edges that
    # this server answered: their difference, repeated, plus a count of all.
    starts = torch.repeat_interleave(ends - counts - before, counts)
    return starts + torch.arange(starts.numel())
