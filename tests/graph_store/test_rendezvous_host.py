"""Storage servers agree at the first of them: the table alone, and servers around one table."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import PeerError, PeerTimeoutError, ProtocolError, UsageError
from gigl_loader.graph_store.server import rendezvous_host
from gigl_loader.graph_store.server.rendezvous_host import (
    Gather,
    Gathered,
    Leave,
    Publish,
    RendezvousTable,
    ServerRendezvous,
)
from gigl_loader.graph_store.wire.requests import Runs

SERVERS = Runs.of([1, 4, 5])
"""Server 0 is lost: ranks are positions among these."""


def _publish(rank: int, value: bytes, key: str = "key", name: str = "a") -> Publish:
    return Publish(name, rank, key, value, SERVERS)


def _gather(*ranks: int, key: str = "key", name: str = "a") -> Gather:
    return Gather(name, key, Runs.of(ranks), SERVERS)


def _leave(rank: int, failure: str | None = None, name: str = "a") -> Leave:
    return Leave(name, rank, SERVERS, failure)


# --- the table ------------------------------------------------------------------------------------


@given(st.permutations([("publish", r) for r in range(3)] + [("gather", r) for r in range(3)]))
def test_all_get_the_same_in_whatever_order_they_come(steps: list[tuple[str, int]]) -> None:
    table, answers, published = RendezvousTable(8), [], set()
    for step, rank in steps:
        if step == "publish":
            table.publish(_publish(rank, b"%d" % rank))
            published.add(rank)
        else:
            answers.append(table.gather(_gather(0, 1, 2)))
        assert all(one.done() == (len(published) == 3) for one in answers)
    assert {one.result(0) for one in answers} == {Gathered((b"0", b"1", b"2"))}


def test_keys_and_names_do_not_mix_and_some_can_be_gathered() -> None:
    table = RendezvousTable(8)
    table.publish(_publish(2, b"two"))
    table.publish(_publish(0, b"other", key="other"))
    table.publish(_publish(0, b"b", name="b"))
    assert table.gather(_gather(2)).result(0) == Gathered((b"two",))
    waits = table.gather(_gather(0, 2))
    assert not waits.done()
    assert table.missing(_gather(0, 1, 2)) == [1, 4], "by server, not by position"
    assert table.missing(_gather(0, name="c")) == [1]
    table.publish(_publish(0, b"zero"))
    assert waits.result(0) == Gathered((b"zero", b"two"))


def test_what_is_asked_again_changes_nothing() -> None:
    """A connection was lost: the question of before may wait still, cancelled or not."""
    table = RendezvousTable(8)
    former, cancelled = table.gather(_gather(0)), table.gather(_gather(0))
    cancelled.cancel()
    again = table.gather(_gather(0))
    for _ in range(2):
        table.publish(_publish(0, b"value"))
    assert former.result(0) == again.result(0) == Gathered((b"value",))


def test_the_first_failure_ends_the_waits_of_all_and_what_is_there_is_still_told() -> None:
    table = RendezvousTable(8)
    table.publish(_publish(0, b"early"))
    waits, others = table.gather(_gather(0, 1)), table.gather(_gather(1, name="b"))
    table.leave(_leave(2, "no memory"))
    table.leave(_leave(1, "because of the other one"))
    failed = Gathered(failure="storage server 5 failed: no memory")
    assert waits.result(0) == failed
    assert table.gather(_gather(1)).result(0) == failed, "who comes later hears of it, too"
    assert table.gather(_gather(0)).result(0) == Gathered((b"early",)), "of an earlier step"
    assert not others.done()


def test_a_lost_server_ends_the_waits_where_it_takes_part() -> None:
    table = RendezvousTable(8)
    with_it = table.gather(_gather(1))
    without = table.gather(Gather("b", "key", Runs.of([1]), Runs.of([1, 5])))
    table.fail_all("storage server 4 is gone", 4)
    assert with_it.result(0) == Gathered(failure="storage server 4 is gone")
    assert not without.done()
    table.fail_all("this server ends")
    assert without.result(0) == Gathered(failure="this server ends")
    assert table.gather(_gather(1)).result(0).failure == "storage server 4 is gone", "the first one"


def test_the_last_to_leave_clears_the_table() -> None:
    table = RendezvousTable(8)
    table.publish(_publish(0, b"value"))
    for rank in (0, 1, 1):  # one leaves again after a lost connection
        table.leave(_leave(rank))
    assert table.gather(_gather(0)).done(), "two of three have left"
    table.leave(_leave(2))
    assert not table.gather(_gather(0)).done()


# --- servers around it ----------------------------------------------------------------------------


class _Reply:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def wait(self, timeout_s: float) -> Any:
        if not isinstance(self._answer, Future):
            return self._answer
        try:
            return self._answer.result(timeout_s)
        except TimeoutError as error:
            raise PeerTimeoutError("no answer in time") from error


class _Caller:
    """Asks a table as `gigl_loader.runtime.transport.Caller` asks that of another machine."""

    def __init__(self, table: RendezvousTable) -> None:
        self._table, self.closed, self.incarnation = table, False, 1

    def ask(self, method: str, request: Any, answer: Any) -> _Reply:
        assert not self.closed
        return _Reply(getattr(self._table, method)(request))

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "_Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Meeting:
    """The servers of `SERVERS`, the first of which hosts."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.table = RendezvousTable(8)
        self.callers: list[Any] = []
        self.ranks = [self._rank(server, timeout_s) for server in SERVERS]

    def _rank(self, server: int, timeout_s: float) -> ServerRendezvous:
        how: dict[str, Any] = {"table": self.table} if server == 1 else {"dial": self._dial}
        return ServerRendezvous("a", server, SERVERS, timeout_s, **how)

    def _dial(self, incarnation: int) -> Any:
        self.callers.append(_Caller(self.table))
        return self.callers[-1]


@pytest.fixture
def at_once() -> Iterator[Callable[..., list[Any]]]:
    with ThreadPoolExecutor(3) as pool:

        def call(*functions: Callable[[], Any]) -> list[Any]:
            return [one.exception() or one.result() for one in [*map(pool.submit, functions)]]

        yield call


def test_servers_gather_what_all_publish(at_once) -> None:
    meeting = _Meeting()
    ranks = meeting.ranks
    assert [(one.rank, one.world_size) for one in ranks] == [(0, 3), (1, 3), (2, 3)]

    def meet(rank: int) -> list[bytes]:
        return ranks[rank].agree("key", b"%d" % rank, bytes)

    assert at_once(*(lambda rank=rank: meet(rank) for rank in range(3))) == [[b"0", b"1", b"2"]] * 3
    ranks[2].publish("own", b"2")
    assert [one.wait_for("own", 2) for one in ranks] == [b"2"] * 3
    for one in ranks:
        one.close()
        one.close()
    assert meeting.table.missing(_gather(0)) == [1], "nothing is left"
    assert all(one.closed for one in meeting.callers)
    assert len(meeting.callers) == 2 * 2, "each says goodbye once, on a connection that is free"


@pytest.mark.parametrize("rank", [0, 2])
def test_who_is_missing_is_named(rank: int) -> None:
    """On the host, those alone; the others do not know who has come."""
    meeting = _Meeting(timeout_s=0.05)
    meeting.ranks[1].publish("key", b"")
    missing = r"\[1, 5\]" if rank == 0 else r"\[1, 4, 5\]"
    words = rf"waited 0\.05 s for 'key' of storage servers {missing}"
    with pytest.raises(PeerTimeoutError, match=words):
        meeting.ranks[rank].gather("key", range(3))


def test_who_is_missing_is_said_to_all(at_once) -> None:
    ranks = _Meeting(timeout_s=0.05).ranks

    def agree(rank: int) -> list[bytes]:
        try:
            return ranks[rank].agree("key", b"", bytes)
        except PeerTimeoutError as error:
            ranks[rank].fail(str(error))
            raise

    for error in at_once(lambda: agree(0), lambda: agree(2)):
        assert isinstance(error, PeerError)
        assert "for 'key' of storage servers [4]" in str(error)


def test_a_failure_of_one_is_raised_by_all(at_once) -> None:
    ranks = _Meeting().ranks
    begun = threading.Barrier(3)

    def gather(rank: int) -> list[bytes]:
        begun.wait(60)
        return ranks[rank].agree("key", b"", bytes)

    def fail() -> None:
        begun.wait(60)
        ranks[1].fail("no memory")

    found = at_once(lambda: gather(0), fail, lambda: gather(2))
    for server, error in ((1, found[0]), (5, found[2])):
        assert type(error) is PeerError
        words = f"storage server 4 failed: no memory (while server {server} waited for 'key"
        assert str(error).startswith(words)


def test_a_closed_one_asks_no_more() -> None:
    for one in _Meeting().ranks:
        one.close()
        for call in (lambda one=one: one.publish("key", b""), lambda one=one: one.wait_for("key")):
            with pytest.raises(UsageError, match=r"the rendezvous a of server \d is closed"):
                call()


def test_a_host_that_is_gone_keeps_nobody_from_leaving() -> None:
    class Gone(_Caller):
        def ask(self, *_: object) -> Any:
            raise PeerError("the host is gone")

    dial: Any = lambda _: Gone(RendezvousTable(8))  # noqa: E731
    one = ServerRendezvous("a", 4, SERVERS, 60.0, dial=dial)
    with pytest.raises(PeerError, match="the host is gone"):
        one.publish("key", b"")
    one.fail("words that nobody hears")
    one.close()


def test_values_of_one_server_are_bounded_and_go_with_it(constants: Any) -> None:
    constants(rendezvous_host, _MOST_BYTES=10, _MOST_MEETINGS=2)
    table = RendezvousTable(8)
    table.publish(_publish(0, b"12345"))
    table.publish(_publish(0, b"12345"))
    table.publish(_publish(0, b"12345", key="other"))
    table.publish(_publish(1, b"123456789"))
    with pytest.raises(ProtocolError, match=r"server 1 may keep 10 bytes .* came with 1 "):
        table.publish(_publish(0, b"1", name="b"))
    table.publish(_publish(1, b"1", name="b"))
    with pytest.raises(ProtocolError, match="2 rendezvous are under way"):
        table.publish(_publish(1, b"", name="c"))
    for rank in (1, 2):
        table.leave(_leave(rank))
    table.fail_all("server 1 is lost", 1)
    assert [*table._by_name] == ["b"], "the others had left"
    table.publish(_publish(0, b"1234567890", name="b"))
