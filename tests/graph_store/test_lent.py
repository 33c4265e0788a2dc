"""Which client reads which batch where it lies, and what becomes of the memory."""

import weakref
from collections.abc import Iterable
from typing import Any

from gigl_loader.batch.message import Attempt
from gigl_loader.graph_store.server.batch_sender import BatchSender
from gigl_loader.graph_store.wire.requests import FetchRequest, GiveBack
from gigl_loader.runtime.transport import Peer


class _Slot:
    """A batch's lease on a slot of a worker."""

    def __init__(self, name: str) -> None:
        self.name, self.poisoned = name, False

    def lend(self) -> str:
        return f"where {self.name} lies"

    def poison(self) -> None:
        self.poisoned = True


class _Message:
    def __init__(self, slot: _Slot) -> None:
        self.lease = slot


def _fetch(fetches_before: int | None, **how: Any) -> FetchRequest:
    return FetchRequest(producer_id=1, fetches_before=fetches_before, same_host=True, **how)


class _Lent:
    """Leases, and for each batch its slot and whether anything still holds it."""

    def __init__(self) -> None:
        no_server: Any = None
        self.leases = BatchSender(no_server)
        self.slots: dict[int, _Slot] = {}
        self.held: dict[int, weakref.ref[_Message]] = {}

    def lend(self, session: str, request: FetchRequest) -> int:
        slot = _Slot(f"batch {request.fetches_before}")
        message: Any = _Message(slot)
        number, region = self.leases.lend(session, request, message)
        where: Any = region
        assert where == f"where {slot.name} lies"
        assert number not in self.slots, "no number comes twice"
        self.slots[number], self.held[number] = slot, weakref.ref(message)
        return number

    def give_back(self, session: str, numbers: Iterable[int]) -> None:
        self.leases.give_back(GiveBack(tuple(numbers)), Peer("a client", "here", session))

    @property
    def out(self) -> list[int]:
        return [number for number, message in self.held.items() if message() is not None]

    @property
    def poisoned(self) -> list[int]:
        return [number for number, slot in self.slots.items() if slot.poisoned]


def test_what_is_given_back_is_free_and_nobody_gives_back_for_another() -> None:
    lent = _Lent()
    first, second = lent.lend("a", _fetch(0)), lent.lend("a", _fetch(1))
    other = lent.lend("b", _fetch(0))
    lent.give_back("b", (first, 999))
    lent.give_back("stranger", (first,))
    assert lent.out == [first, second, other]
    lent.give_back("a", (first,))
    lent.give_back("a", (first,))
    assert (lent.out, lent.poisoned) == ([second, other], [])


def test_answers_that_were_lost_are_never_written_over() -> None:
    lent = _Lent()
    kept = [lent.lend("a", _fetch(number)) for number in (0, 1)]
    lost = [lent.lend("a", _fetch(number)) for number in (2, 3)]
    elsewhere = [
        lent.lend("a", _fetch(2, attempt=Attempt(0, 1))),
        lent.lend("a", _fetch(2, consumer=1)),
        lent.lend("a", _fetch(None)),
        lent.lend("b", _fetch(2)),
    ]
    lent.leases.lose_from("a", _fetch(4))
    lent.leases.lose_from("a", _fetch(None))
    assert lent.poisoned == []
    lent.leases.lose_from("a", _fetch(2))
    assert (lent.poisoned, lent.out) == (lost, [*kept, *elsewhere])


def test_a_client_that_is_gone_may_read_on() -> None:
    lent = _Lent()
    gone, stays = [lent.lend("a", _fetch(i)) for i in range(3)], lent.lend("b", _fetch(0))
    lent.leases.lose("a")
    lent.leases.lose("a")
    assert (lent.poisoned, lent.out) == (gone, [stays])
    lent.give_back("a", gone)
    assert lent.out == [stays]


def test_batches_of_a_closed_loader_are_not_kept_for_its_client() -> None:
    """Each loader that was closed left its last batches in the server until the client left."""
    lent = _Lent()
    ended = [lent.lend(session, _fetch(0)) for session in ("a", "b")]
    other = FetchRequest(producer_id=2, fetches_before=0, same_host=True)
    stays = lent.lend("a", other)
    lent.leases.end_producer(1)
    assert (lent.poisoned, lent.out) == (ended, [stays])
    lent.give_back("a", [*ended, stays])
    assert lent.out == []


def test_a_batch_that_comes_when_its_client_has_left_is_not_kept() -> None:
    lent = _Lent()
    for session in ("c", "a", *map(str, range(9_999))):
        lent.leases.lose(session)
    late = lent.lend("a", _fetch(0))
    stays = lent.lend("d", _fetch(0))
    assert (lent.poisoned, lent.out) == ([late], [stays])
    forgotten = lent.lend("c", _fetch(0))
    assert lent.out == [stays, forgotten], "no more are remembered than is allowed"
