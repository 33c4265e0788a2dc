"""Asking storage servers for single rows: which server owns them, and the answers under way."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np

from gigl_loader.dataset.view import Book
from gigl_loader.errors import GiglLoaderError, PeerTimeoutError, ProtocolError
from gigl_loader.memory.segments import Array
from gigl_loader.remote.connection import ServerConnection
from gigl_loader.remote.requests import RowBook
from gigl_loader.remote.service import CALLS
from gigl_loader.remote.storage_cluster import Cluster
from gigl_loader.rowcache.tables import Owner
from gigl_loader.sampler.packing import RowsQuestion
from gigl_loader.sampler.plan import RowsAnswer, RowsRequest
from gigl_loader.sampler.row_exchange import Split, split_by_owner
from gigl_loader.transport import Caller, into_array


class ComingRows:
    """Rows that one server was asked for.

    Args:
        rows: ``[n, ...]``, where they come to lie.
        future: Ends when they are there.
        timeout_s: How long `wait` waits.
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
            PeerTimeoutError: They did not come in time.
            ServerDiedError: A storage server is gone.
        """
        try:
            self._future.result(self._timeout_s)
        except FutureTimeoutError as error:
            raise PeerTimeoutError(
                "rows that were asked for did not come in time: a storage server is stopped, or "
                "the network is slow; look at the servers' logs, or raise `timeout`"
            ) from error
        return RowsAnswer(self._rows)


class RowQuestions:
    """Asks the servers for rows, each over a connection of its own.

    Who asks does not wait: a thread for each server receives what comes.

    Args:
        cluster: The storage servers.
        timeout_s: Longest wait for an answer, and for what servers say of themselves.
    """

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._callers: dict[int, tuple[ServerConnection, Caller]] = {}
        # one for each server, started when it is first asked; more would read the same connection
        # in turn
        self._threads = ThreadPoolExecutor(max(1, cluster.num_servers), "rows")
        self._server_of: list[int] = []
        """By partition."""
        self._books: dict[Owner, RowBook] = {}

    def meet(self) -> None:
        """Ask, once, which rows there are and who has them.

        Raises:
            PeerError: A server is gone, or did not answer in time.
        """
        # they say who owns what, which a restarted server does not change: it has the same
        # partition
        if self._books:
            return
        self._server_of = self._cluster.holders(self._timeout_s)
        books = self._cluster.ask_each("get_row_books", {0: {}}, self._timeout_s, 0.0)[0]
        self._books = {(book.group, book.name): book for book in books}

    def num_ids(self, owner: Owner) -> int:
        """Return how many rows there are over all servers."""
        return self._book(owner).num_ids

    def _book(self, owner: Owner) -> RowBook:
        if owner not in self._books:
            raise ProtocolError(f"rows of {owner[1]!r} were announced, and no server has any")
        return self._books[owner]

    def by_owner(self, owner: Owner, ids: Array) -> Split:
        """Return by server the positions in ``ids`` that it has, ascending."""
        book = self._book(owner)
        # nobody owns rows that are whole everywhere: one server has as good ones as any
        if book.table is None and book.bounds is None:
            return {self._server_of[0]: np.arange(ids.size)} if ids.size else {}
        split = split_by_owner(Book(book.table, book.bounds), ids, len(self._server_of))
        return {self._server_of[partition]: positions for partition, positions in split.items()}

    def rows(self, server: int, request: RowsRequest, out: Array) -> ComingRows:
        """Ask a server for rows, which come to lie in ``out``."""
        # by its twin, if it is lost: a row is the same on both
        connection = self._cluster.connection(self._cluster.stand_in(server))
        try:
            call = CALLS["get_rows"]
            # asked in this thread and in order, so that all servers work while the answers are
            # waited for
            reply = self._caller(connection).ask(
                call.name, call.ask({"request": RowsQuestion.of(request)}), call.response,
                into=into_array(out), timeout_s=self._timeout_s,
            )  # fmt: skip
        except GiglLoaderError as error:
            raise connection.named(error) from error

        def receive() -> None:
            try:
                reply.wait(self._timeout_s)
            except GiglLoaderError as error:
                raise connection.named(error) from error

        return ComingRows(out, self._threads.submit(receive), self._timeout_s)

    def _caller(self, connection: ServerConnection) -> Caller:
        # by rank, and compared: after a restart there is another connection, and the callers of the
        # former one were closed with it
        known = self._callers.get(connection.rank)
        if known is not None and known[0] is connection:
            return known[1]
        self._callers[connection.rank] = (
            connection,
            connection.dial(),
        )  # the first one, or the server is a new one
        return self._callers[connection.rank][1]

    def hang_up(self) -> None:
        """End what is under way; the next question connects again."""
        # first, so that no question that comes meanwhile gets one that is being closed
        callers, self._callers = self._callers, {}
        for connection, caller in callers.values():
            with contextlib.suppress(GiglLoaderError):
                connection.hang_up(caller)

    def close(self) -> None:
        """End the threads. Idempotent."""
        self.hang_up()
        # not waited for: each ends as its connection does
        self._threads.shutdown(wait=False, cancel_futures=True)
