"""Questions for single rows: who is asked for which, and where the answers land."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import PeerError, PeerTimeoutError, ProtocolError, ServerDiedError
from gigl_loader.graph_store.client.row_requests import RowRequests
from gigl_loader.graph_store.wire.requests import RowBook
from gigl_loader.runtime.transport.codec import IncomingArray
from gigl_loader.sampler.plan import RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts

TABLE = np.array([2, 0, 1, 1, 2, 0, 2, 2, 1, 0], np.int64)
BOUNDS = np.array([3, 3, 10], np.int64)
BOOKS = [
    RowBook("node", "user", 10, table=TABLE),
    RowBook("node", "item", 10, bounds=BOUNDS),
    RowBook("edge", ("a", "to", "b"), 10),
]
HOLDERS = [4, 0, 2]
"""The servers of partitions 0, 1 and 2."""


def _ask(questions: RowRequests, *asked: tuple[int, np.ndarray]) -> list[Any]:
    """Ask for rows of users; what is answered last stands where it came to lie."""
    found = []
    for server, ids in asked:
        out = np.zeros((ids.size, 2), np.float32)
        found.append(questions.rows(server, RowsRequest("node_features", "user", ids), out))
    return found


class _Reply:
    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer

    def wait(self, timeout_s: float) -> None:
        self._answer()


class _Link:
    """One server: a row says its id, and which server it came from."""

    def __init__(self, rank: int, cluster: "_Cluster") -> None:
        self.rank, self._cluster = rank, cluster
        self.error: Exception | None = None
        self.dialled: list[object] = []
        self.hung_up: list[object] = []

    def dial(self) -> "_Link":
        self.dialled.append(self)
        return self

    def hang_up(self, caller: object) -> None:
        self.hung_up.append(caller)

    def note_failure(self, error: Exception) -> Exception:
        return ServerDiedError(f"server {self.rank}: {error}")

    def ask(self, method: str, request: Any, answer: Any, *, into: Any, timeout_s: float) -> _Reply:
        assert method == "get_rows"
        question = request.request.map(PackedInts.unpack)
        self._cluster.asked.append((self.rank, question.kind, question.name, question.ids.tolist()))
        if self.rank in self._cluster.refuses:
            raise PeerError("no connection")

        def receive() -> None:
            assert self._cluster.go_on.wait(60)
            if self.rank in self._cluster.silent:
                raise PeerError("it is gone")
            (out,) = into([IncomingArray(np.dtype(np.float32), (question.ids.size, 2))])
            out[:, 0], out[:, 1] = question.ids, self.rank

        return _Reply(receive)


class _Cluster:
    def __init__(self) -> None:
        self.connections = [_Link(rank, self) for rank in range(5)]
        self.num_servers = 5
        self.asked: list[tuple[int, str, Any, list[int]]] = []
        self.stand_ins: dict[int, int] = {}
        self.num_looks = 0
        self.refuses: set[int] = set()
        self.silent: set[int] = set()
        self.num_meetings = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def holders(self, timeout_s: float) -> list[int]:
        self.num_meetings += 1
        return HOLDERS

    def ask_each(self, name: str, requests: Any, timeout_s: float, reconnect_s: float) -> Any:
        assert (name, requests) == ("get_row_books", {0: {}})
        return {0: BOOKS}

    @property
    def lost(self) -> list[int]:
        self.num_looks += 1
        return list(self.stand_ins)

    def stand_in(self, server: int, lost: list[int]) -> int:
        return self.stand_ins[server] if server in lost else server

    def connection(self, server: int) -> _Link:
        return self.connections[server]


@contextmanager
def _questions(cluster: Any, timeout_s: float = 60.0) -> Iterator[RowRequests]:
    one = RowRequests(cluster, timeout_s)
    try:
        one.meet()
        yield one
    finally:
        cluster.go_on.set()
        one.close()
        one._threads.shutdown(wait=True)


@given(st.lists(st.integers(0, 9), max_size=30), st.sampled_from(["user", "item"]))
def test_each_id_is_its_owners_and_positions_ascend(ids: list[int], name: str) -> None:
    owners = TABLE if name == "user" else np.searchsorted(BOUNDS, np.arange(10), "right")
    with _questions(_Cluster()) as questions:
        found = questions.by_owner(("node", name), np.array(ids, np.int64))
    expected: dict[int, list[int]] = {}
    for partition in range(3):
        if positions := [position for position, one in enumerate(ids) if owners[one] == partition]:
            expected[HOLDERS[partition]] = positions
    assert {server: positions.tolist() for server, positions in found.items()} == expected
    assert list(found) == list(expected), "by partition: cuts count along this order"


def test_rows_that_all_have_are_asked_of_one() -> None:
    with _questions(_Cluster()) as questions:
        owner = ("edge", ("a", "to", "b"))
        found = questions.by_owner(owner, np.array([3, 3, 0]))
        assert {server: positions.tolist() for server, positions in found.items()} == {4: [0, 1, 2]}
        assert questions.by_owner(owner, np.empty(0, np.int64)) == {}
        assert questions.num_ids(owner) == 10
        with pytest.raises(ProtocolError, match=r"rows of 'shop' were announced, and no server"):
            questions.num_ids(("node", "shop"))


def test_servers_are_met_once() -> None:
    cluster = _Cluster()
    with _questions(cluster) as questions:
        questions.meet()
    assert cluster.num_meetings == 1


def test_answers_land_in_the_order_of_the_question() -> None:
    cluster = _Cluster()
    cluster.go_on.clear()
    with _questions(cluster) as questions:
        coming = _ask(questions, (4, np.array([9, 1])), (2, np.array([0])), (0, TABLE[:0]))
        assert [one[0] for one in cluster.asked] == [4, 2, 0], "all are asked before one answers"
        assert not any(one.has_come for one in coming)
        cluster.go_on.set()
        assert [one.wait().values.tolist() for one in coming] == [[[9, 4], [1, 4]], [[0, 2]], []]
        assert all(one.has_come for one in coming)
    assert cluster.asked[0] == (4, "node_features", "user", [9, 1])


def test_a_replica_is_asked_for_a_lost_server_and_connections_are_kept() -> None:
    cluster = _Cluster()
    with _questions(cluster) as questions:
        for _ in range(2):
            _ask(questions, (4, TABLE))[0].wait()
        cluster.stand_ins[4] = 3
        questions.begin_batch()
        (coming,) = _ask(questions, (4, np.array([5])))
        assert coming.wait().values.tolist() == [[5, 3]]
        former = cluster.connections[3]
        cluster.connections[3] = _Link(3, cluster)  # it was started again
        _ask(questions, (4, TABLE))[0].wait()
        assert [
            len(one.dialled) for one in (cluster.connections[4], former, cluster.connections[3])
        ] == [1] * 3
        questions.hang_up()
        assert cluster.connections[4].hung_up == cluster.connections[4].dialled
        _ask(questions, (4, TABLE))[0].wait()
        assert len(cluster.connections[3].dialled) == 2, "the next question connects again"
    assert cluster.connections[3].hung_up == cluster.connections[3].dialled


def test_lost_servers_are_looked_for_once_a_batch_and_where_one_is_lost_since() -> None:
    cluster = _Cluster()
    with _questions(cluster) as questions:
        for _ in range(3):
            questions.begin_batch()
            _ask(questions, *[(server, TABLE) for server in (0, 2, 4)] * 2)
        assert cluster.num_looks == 3, "of 18 requests"
        cluster.connections[4].error, cluster.stand_ins[4] = PeerError("it is gone"), 3
        asked = [one.wait() for one in _ask(questions, (4, TABLE), (4, TABLE))]
        assert [answer.values[0, 1] for answer in asked] == [3, 3]
        assert cluster.num_looks == 4


def test_who_does_not_answer_is_named() -> None:
    cluster = _Cluster()
    with _questions(cluster) as questions:
        cluster.refuses = {2}
        with pytest.raises(ServerDiedError, match="server 2: no connection"):
            _ask(questions, (4, TABLE), (2, TABLE))
        cluster.silent = {0}
        there, lost = _ask(questions, (4, TABLE), (0, TABLE))
        assert there.wait().values[:, 0].tolist() == TABLE.tolist()
        with pytest.raises(ServerDiedError, match="server 0: it is gone"):
            lost.wait()


def test_a_wait_has_a_deadline() -> None:
    cluster = _Cluster()
    cluster.go_on.clear()
    with (
        _questions(cluster, timeout_s=0.05) as questions,
        pytest.raises(PeerTimeoutError, match="requested rows did not come in time"),
    ):
        _ask(questions, (4, TABLE))[0].wait()
