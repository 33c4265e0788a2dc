"""Rows and edges of a storage cluster by global id, requested from the servers that own them."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.lookup import Kind, RowsOf, check_ids, type_of_ids, widened
from gigl_loader.dataset.partition.adjacency import EdgeBlock, block_of
from gigl_loader.dataset.partition.partition_view import Book, Owner
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    NodeType,
    row_type,
)
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
)
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.client.connection import ServerConnection
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.wire.calls import TensorMessage
from gigl_loader.graph_store.wire.requests import RowBook
from gigl_loader.graph_store.wire.signatures import CALLS
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.memory.tensors import as_array
from gigl_loader.runtime.threads import new_thread
from gigl_loader.runtime.transport import Caller, into_array
from gigl_loader.sampler.plan import RowsAnswer, RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.sampler.rows.row_exchange import Split, gather_rows, split_by_owner

_MOST_IDS = 1 << 16
"""Most ids in one request: a response then has some hundred MB, and other callers get a turn."""


class StoreFacts(Protocol):
    """What a look-up has to know of the graph; `RemoteDistDataset` fetches it once."""

    def fetch_node_types(self) -> list[NodeType] | None:
        """Return all node types; None for a homogeneous graph."""

    def fetch_num_nodes(self) -> dict[NodeType, int]:
        """Return how many nodes of each type there are."""

    def fetch_edge_dir(self) -> EdgeDir:
        """Return the direction in which nodes are expanded."""

    def fetch_node_feature_info(self) -> Any:
        """Return width and dtype of the node features."""

    def fetch_edge_feature_info(self) -> Any:
        """Return width and dtype of the edge features."""

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> Any:
        """Return the owner of each node of a type."""

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> Any:
        """Return the owner of each edge of a type."""


class StoreLookup:
    """Requests rows and edges from storage servers; any process may do so at any time.

    Args:
        dataset: The graph.
        timeout_s: How long a response may take, in seconds.
        reconnect_s: How long a server without a replica may be away without an error. Pending
            requests of a lost server are repeated: to a replica at once.
    """

    def __init__(self, dataset: StoreFacts, timeout_s: float, reconnect_s: float = 0.0) -> None:
        self._dataset, self._timeout_s, self._reconnect_s = dataset, timeout_s, reconnect_s
        self._books: dict[Any, tuple[Book[Array] | None, int | None]] = {}
        # Held while a book is fetched, so that others wait and do not fetch it as well: it may be
        # as long as all ids.
        self._lock = threading.Lock()

    def type_of(self, kind: Kind, given: Any) -> Any:
        """Return the meant type: ``given``, or the only one with such rows."""
        if given is not None:
            return given
        infos: Any = None
        known: list[Any] = self._dataset.fetch_node_types() or [DEFAULT_HOMOGENEOUS_NODE_TYPE]
        if kind == "edge_features":
            infos = self._dataset.fetch_edge_feature_info()
            known = [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        elif kind == "node_features" and len(known) > 1:
            infos = self._dataset.fetch_node_feature_info()
        known = sorted(infos) if isinstance(infos, dict) else known
        if len(known) != 1:
            raise ConfigError(f"name the type of the ids: one of {known}")
        return known[0]

    # -- requests ------------------------------------------------------------------------------

    def rows(self, kind: Kind, name: RowsOf, ids: Tensor) -> Tensor:
        """Return the rows of ``ids``, in their order; quantised features as float32.

        Args:
            kind: Kind of the rows.
            name: The type, or of an attribute the node type and its name.
            ids: ``[n]`` int64, global; repeats allowed.

        Raises:
            ConfigError: There is no such matrix, or an id is out of range.
            PeerTimeoutError: A server did not respond in time.
            ServerDiedError: A server is gone.
        """
        return self._fetch_of(kind, name, ids)()

    def rows_later(self, kind: Kind, name: RowsOf, ids: Tensor) -> "torch.futures.Future[Tensor]":
        """Request rows as `rows` does, but return a future at once."""
        found: torch.futures.Future[Tensor] = torch.futures.Future()
        fetch = self._fetch_of(kind, name, ids)

        def answer() -> None:
            try:
                found.set_result(fetch())
            except Exception as error:
                found.set_exception(error)  # type: ignore[arg-type]  # it takes any exception

        what = f"{kind} of {name!r}"

        def died(error: BaseException) -> None:
            # a future of torch takes no SystemExit
            found.set_exception(PeerError(f"{what}: {error!r}"))  # type: ignore[arg-type]  # it takes any exception

        new_thread(target=answer, name=what, on_death=died).start()
        return found

    def edges(
        self, edge_type: EdgeType, ids: Tensor, *, weights: bool = False, edge_ids: bool = False
    ) -> EdgeBlock:
        """Return all edges of ``ids``; errors as of `rows`.

        Args:
            edge_type: The dataset's edge type; nodes have the edges by which they are expanded.
            ids: ``[n]`` int64, global.
            weights: Whether to return the edges' weights.
            edge_ids: Whether to return their ids.
        """
        name = row_type(edge_type, self._dataset.fetch_edge_dir())
        pieces, asked = self._pieces("node", name, ids), ids.numpy()
        told = np.zeros(ids.numel(), np.int64)  # edges of each node that have come
        how = {"edge_type": edge_type, "weights": weights, "edge_ids": edge_ids}
        positions: list[Tensor] = []
        parts: list[dict[str, Tensor]] = []
        while pieces:
            requests = [
                {"ids": asked[at], "start": int(told[at[:1]].sum()), **how} for _, at in pieces
            ]
            answers = self._ask("get_edges", pieces, requests)
            rest = []
            for (server, at), part in zip(pieces, answers, strict=True):
                if _is_cut(server, at.size, part):  # the others are asked for next
                    part["counts"].fill_(part["indices"].numel())
                    told[at[0]] += part["indices"].numel()
                    count = 0
                else:
                    count = part["counts"].numel()
                positions.append(torch.from_numpy(at[: part["counts"].numel()]))
                parts.append(part)
                if count < at.size:  # an answer is limited
                    rest.append((server, at[count:]))
            pieces = rest
        return merged_edges(ids.numel(), positions, parts)

    def _fetch_of(self, kind: Kind, name: RowsOf, ids: Tensor) -> Callable[[], Tensor]:
        """Return a function that fetches the rows of ``ids``, which are read before it returns."""
        count = ids.numel()
        what = "edge" if kind == "edge_features" else "node"
        pieces = self._pieces(what, type_of_ids(kind, name), ids)
        asked = (RowsRequest.of(kind, name, PackedInts.of(ids.numpy()[at])) for _, at in pieces)
        requests = [{"request": replace(rows, with_scales=True)} for rows in asked]

        def fetch() -> Tensor:
            answers: list[RowsAnswer] = self._ask("get_rows", pieces, requests)
            # width and type are the response's, as the schema does not have them for labels
            rows = answers[0].values
            if len(answers) > 1:
                rows = np.empty((count, *rows.shape[1:]), rows.dtype)
                each = zip(answers, pieces, strict=True)
                gather_rows([(one.values, np.arange(at.size), at) for one, (_, at) in each], rows)
            scales = answers[0].scales
            tensor = TensorMessage(answers[0].dtype, rows).result
            return widened(tensor, None if scales is None else torch.from_numpy(scales))

        return fetch

    def _ask(
        self, name: str, pieces: list[tuple[int, Array]], requests: list[dict[str, Any]]
    ) -> list[Any]:
        """Send the requests of all pieces at once; return the responses."""
        each = [(server, one) for (server, _), one in zip(pieces, requests, strict=True)]
        return current_cluster().ask_all(name, each, self._timeout_s, self._reconnect_s)

    # -- owners ---------------------------------------------------------------------------------

    def _pieces(self, what: str, name: Any, ids: Tensor) -> list[tuple[int, Array]]:
        """Return (server, positions in ``ids``); at least one, so that a response has a shape."""
        book, count = self._book(what, name)
        check_ids(ids, name, count)
        servers = current_cluster().holders(self._timeout_s, self._reconnect_s)
        split = {0: np.arange(ids.numel())}
        if book is not None and ids.numel():
            split = split_by_owner(book, ids.numpy(), len(servers))
        return [
            (servers[partition], some)
            for partition, at in split.items()
            for some in np.split(at, range(_MOST_IDS, at.size, _MOST_IDS))
        ]

    def _book(self, what: str, name: Any) -> tuple[Book[Array] | None, int | None]:
        with self._lock:
            if (what, name) not in self._books:
                self._books[what, name] = self._fetch_book(what, name)
            return self._books[what, name]

    def _fetch_book(self, what: str, name: Any) -> tuple[Book[Array] | None, int | None]:
        """Return the owners of the nodes or edges of a type, and their number."""
        if what == "edge":
            # without a book one partition has all edges, and its server checks the ids
            book = _as_book(self._dataset.fetch_edge_partition_book(name))
            return book, None if book is None else book.num_ids
        book = _as_book(self._dataset.fetch_node_partition_book(name))
        return book, self._dataset.fetch_num_nodes().get(name)


def _as_book(found: Any) -> Book[Array] | None:
    if found is None:
        return None
    bounds = getattr(found, "partition_bounds", None)
    return Book(as_array(found)) if bounds is None else Book(None, np.asarray(bounds))


def _is_cut(server: int, num_nodes: int, part: dict[str, Tensor]) -> bool:
    """Return whether a response has only some edges, which are of one node.

    Raises:
        ProtocolError: It does not fit together, or has no edge of a node that has some.
    """
    told = part.get("counts", torch.empty(0, 0, dtype=torch.int64, device="cpu"))
    counts: list[int] = told.flatten().tolist()
    columns = [column.shape for name, column in part.items() if name != "counts"]
    (come,) = columns[0] if columns and len(columns[0]) == 1 else (-1,)
    is_cut = 0 <= come < sum(counts)  # Python's sum does not wrap
    if num_nodes and (not counts or (is_cut and not come)):
        raise ProtocolError(f"storage server {server} answered for none of {num_nodes} nodes")
    is_of_nodes = told.dim() == 1 and len(counts) <= (1 if is_cut else num_nodes)
    is_of_edges = all(shape == (come,) for shape in columns) and (is_cut or come == sum(counts))
    if not is_of_nodes or not is_of_edges or min(counts, default=0) < 0:
        raise ProtocolError(
            f"storage server {server} answered with {come} edges of {len(counts)} out of "
            f"{num_nodes} nodes, which do not fit together"
        )
    return is_cut


def merged_edges(count: int, positions: list[Tensor], parts: list[dict[str, Tensor]]) -> EdgeBlock:
    """Put together the responses of several servers, those of one node in their order."""
    counts = torch.zeros(count, dtype=torch.int64, device="cpu")
    for at, part in zip(positions, parts, strict=True):
        counts[at] += part["counts"]
    total = int(counts.sum())
    columns = {}
    for name in ("indices", "weights", "edge_ids"):
        # not requested, or missing on one server: a column with holes is useless
        if any(name not in part for part in parts):
            continue
        columns[name] = parts[0][name].new_empty(total)
        ends = counts.cumsum(0) - counts
        for at, part in zip(positions, parts, strict=True):
            ends[at] += part["counts"]
            columns[name][_positions(ends[at], part["counts"])] = part[name]
    return block_of(columns.pop("indices"), counts, **columns)


def _positions(ends: Tensor, counts: Tensor) -> Tensor:
    """Return the positions ``ends - counts ... ends`` of each, one after the other."""
    before = counts.cumsum(0) - counts
    # Edge j of a node lies at its start + j in the result, and at `before` + j among the edges that
    # this server returned: their difference, repeated, plus a count of all.
    starts = torch.repeat_interleave(ends - counts - before, counts)
    return starts + torch.arange(starts.numel(), device="cpu")


# --- rows of batches under way --------------------------------------------------------------------


class PendingRows:
    """Rows requested from one server.

    Args:
        rows: ``[n, ...]`` array that receives them.
        future: Done when they have come.
        timeout_s: Longest wait in `wait`, in seconds.
    """

    def __init__(self, rows: Array, future: "Future[None]", timeout_s: float) -> None:
        self._rows, self._future, self._timeout_s = rows, future, timeout_s

    @property
    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        return self._future.done()

    def wait(self) -> RowsAnswer:
        """Return the rows.

        Raises:
            PeerTimeoutError: The rows did not come in time.
            ServerDiedError: A storage server is gone.
        """
        try:
            self._future.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise PeerTimeoutError(
                "requested rows did not come in time: a storage server is stopped, or "
                "the network is slow; look at the servers' logs, or raise `timeout`"
            ) from error
        return RowsAnswer(self._rows)


class RowRequests:
    """Requests rows from the servers, over a separate connection to each.

    The caller does not wait: a thread for each server receives its responses.

    Args:
        cluster: The storage servers.
        timeout_s: Longest wait for a response, and for servers' descriptions.
    """

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._callers: dict[int, tuple[ServerConnection, Caller]] = {}
        # one thread for each server, started at its first request; more would read one connection
        # in turn
        self._threads = ThreadPoolExecutor(max(1, cluster.num_servers), "rows")
        self._server_of: list[int] = []
        """Callers by partition."""
        self._books: dict[Owner, RowBook] = {}
        self._lost: list[int] = []
        """Servers that were lost when the last batch was begun."""

    def meet(self) -> None:
        """Request, once, which rows exist and their owners.

        Raises:
            PeerError: A server is gone, or did not respond in time.
        """
        # owners stay the same when a server restarts, as it has the same
        # partition
        if self._books:
            return
        self._server_of = self._cluster.holders(self._timeout_s)
        books = self._cluster.ask_each("get_row_books", {0: {}}, self._timeout_s, 0.0)[0]
        self._books = {(book.group, book.name): book for book in books}

    def num_ids(self, owner: Owner) -> int:
        """Return the number of rows on all servers."""
        return self._book(owner).num_ids

    def _book(self, owner: Owner) -> RowBook:
        if owner not in self._books:
            raise ProtocolError(f"rows of {owner[1]!r} were announced, and no server has any")
        return self._books[owner]

    def by_owner(self, owner: Owner, ids: Array) -> Split:
        """Return the positions in ``ids`` that each server has, ascending."""
        book = self._book(owner)
        # rows that are whole everywhere have no owner: any server can send them
        if book.table is None and book.bounds is None:
            return {self._server_of[0]: np.arange(ids.size)} if ids.size else {}
        split = split_by_owner(Book(book.table, book.bounds), ids, len(self._server_of))
        return {self._server_of[partition]: positions for partition, positions in split.items()}

    def begin_batch(self) -> None:
        """Note which servers are lost; replicas get their share of a batch's requests."""
        # not for each request: it looks at all servers, and a batch has a request for each matrix
        # and server
        self._lost = self._cluster.lost

    def rows(self, server: int, request: RowsRequest, out: Array) -> PendingRows:
        """Request rows from a server, to be received into ``out``."""
        connection = self._connection(server)
        try:
            call = CALLS["get_rows"]
            # sent in this thread and in order, so that all servers work while it waits for the
            # responses
            reply = self._caller(connection).ask(
                call.name,
                call.ask({"request": request.map(PackedInts.of)}),
                call.response,
                into=into_array(out),
                timeout_s=self._timeout_s,
            )
        except GiglLoaderError as error:
            raise connection.note_failure(error) from error

        def receive() -> None:
            try:
                reply.wait(self._timeout_s)
            except GiglLoaderError as error:
                raise connection.note_failure(error) from error

        return PendingRows(out, self._threads.submit(receive), self._timeout_s)

    def _connection(self, server: int) -> ServerConnection:
        """Return the connection to a server; if it is lost, to a replica, which has its rows."""
        connection = self._cluster.connection(self._cluster.stand_in(server, self._lost))
        if connection.error is None:
            return connection
        self.begin_batch()  # it was lost after that
        return self._cluster.connection(self._cluster.stand_in(server, self._lost))

    def _caller(self, connection: ServerConnection) -> Caller:
        # by rank, and compared: after a restart there is another connection, and the callers of the
        # former one were closed with it
        known = self._callers.get(connection.rank)
        if known is not None and known[0] is connection:
            return known[1]
        self._callers[connection.rank] = (
            connection,
            connection.dial(),
        )  # the first one, or one for a restarted server
        return self._callers[connection.rank][1]

    def hang_up(self) -> None:
        """End pending requests; the next request connects again."""
        # first, so that no request meanwhile gets a connection that is being closed
        callers, self._callers = self._callers, {}
        for connection, caller in callers.values():
            with contextlib.suppress(GiglLoaderError):
                connection.hang_up(caller)

    def close(self) -> None:
        """End the threads. Idempotent."""
        self.hang_up()
        # no wait, as each thread ends with its connection
        self._threads.shutdown(wait=False, cancel_futures=True)
