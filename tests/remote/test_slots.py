"""Which producer a create request gets: a table without threads, sockets or producers."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import UsageError
from gigl_loader.remote import slots as module
from gigl_loader.remote.compact import NOBODY, Runs
from gigl_loader.remote.slots import Slot, Slots


def _up(slot: Slot) -> Any:
    shared: Any = SimpleNamespace()
    slot.shared = shared
    return shared


def test_one_key_of_one_job_is_one_producer() -> None:
    slots = Slots(0)
    first, is_first = slots.take(1, "key", "a", NOBODY)
    assert is_first
    assert slots.take(1, "key", "b", NOBODY) == (first, False)
    others = [slots.take(*one, NOBODY) for one in ((2, "key", "c"), (1, "other", "d"))]
    alone = [slots.take(1, None, name, NOBODY) for name in ("e", "f", "", "")]
    found = [first, *(slot for slot, _ in (*others, *alone))]
    assert all(is_first for _, is_first in (*others, *alone)), (
        "a key is of its job; None is nobody's"
    )
    assert [slot.id for slot in found] == list(range(7))
    assert slots.asked == 8


def test_a_request_that_is_asked_again_gets_what_it_got() -> None:
    slots = Slots(0)
    slot, _ = slots.take(1, "key", "a", Runs.of([0, 2]))
    joined, is_first = slots.take(1, "key", "b", NOBODY)
    assert (joined, is_first, list(slot.servers)) == (slot, False, [0, 2])
    slots.forget(slot.id)
    for request in ("a", "b"):
        assert slots.take(1, "key", request, NOBODY) == (slot, False), "though it is over"
    later, is_first = slots.take(1, "key", "c", NOBODY)
    assert is_first
    assert later.id != slot.id, "the key is free again"
    assert slots.asked == 3, "the same request again does not count"


def test_requests_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REQUESTS", 3)
    slots = Slots(0)
    found = [slots.take(1, None, str(number), NOBODY)[0] for number in range(5)]
    for number in (2, 3, 4):
        assert slots.take(1, None, str(number), NOBODY) == (found[number], False)
    assert slots.take(1, None, "0", NOBODY)[1], "the oldest one is a request like any other"


def test_producers_are_found_while_they_are_up() -> None:
    slots = Slots(7)
    slot, _ = slots.take(None, None, "", NOBODY)
    with pytest.raises(UsageError, match="producer 0 of storage server 7 never existed"):
        slots.producer(slot.id)  # it is starting: nobody was told of it
    assert slots.starting() == [0]
    assert slots.started() == {}
    shared = _up(slot)
    assert slots.producer(slot.id) is shared
    assert slots.started() == {0: shared}
    assert slots.starting() == []
    assert slots.has(slot)
    assert not slots.is_over(0)
    assert slots.forget(0) is slot
    assert slots.forget(0) is None, "somebody else has done so"
    assert slots.is_over(0)
    assert not slots.has(slot)
    with pytest.raises(UsageError, match=r"producer 0 .* was destroyed: build a new loader"):
        slots.producer(0)


def test_a_closed_server_takes_no_request_and_names_what_is_up() -> None:
    slots = Slots(7)
    up, _ = slots.take(None, "up", "a", NOBODY)
    starting, _ = slots.take(None, "starting", "b", NOBODY)
    _up(up)
    assert slots.close() == [up.id]
    assert not slots.has(starting), "who starts it looks, and ends it"
    for request in ("a", "c"):
        with pytest.raises(UsageError, match="storage server 7 is shutting down"):
            slots.take(None, "up", request, NOBODY)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["x", "y", None]), st.booleans())))
def test_a_slot_is_filled_by_one(steps: list[tuple[int, str | None, bool]]) -> None:
    """Against a plain account: which key has which producer, whatever comes and ends."""
    slots, by_key, up = Slots(0), {}, set()
    for number, (job, key, ends) in enumerate(steps):
        slot, is_first = slots.take(job, key, str(number), NOBODY)
        expected = by_key.get((job, key)) if key is not None else None
        assert is_first == (expected is None)
        assert expected in (None, slot.id)
        up.add(slot.id)
        if key is not None:
            by_key[job, key] = slot.id
        if ends:
            slots.forget(slot.id)
            up.discard(slot.id)
            by_key = {one: number for one, number in by_key.items() if number != slot.id}
        assert set(slots.starting()) == up
