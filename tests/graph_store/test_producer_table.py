"""Which producer a create request gets: a table without threads, sockets or producers."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError, SamplingError, UsageError
from gigl_loader.graph_store.server.producer_table import ProducerEntry, ProducerTable
from gigl_loader.graph_store.wire.requests import NOBODY, Runs
from gigl_loader.runtime.transport.failures import describe, rebuild


def _up(entry: ProducerEntry) -> Any:
    shared: Any = SimpleNamespace()
    entry.shared = shared
    return shared


def test_one_key_of_one_job_is_one_producer() -> None:
    entries = ProducerTable(0)
    first, is_first = entries.take(1, "key", "a", NOBODY)
    assert is_first
    assert entries.take(1, "key", "b", NOBODY) == (first, False)
    others = [entries.take(*one, NOBODY) for one in ((2, "key", "c"), (1, "other", "d"))]
    alone = [entries.take(1, None, name, NOBODY) for name in ("e", "f", "", "")]
    found = [first, *(entry for entry, _ in (*others, *alone))]
    assert all(is_first for _, is_first in (*others, *alone)), (
        "a key is of its job; None is nobody's"
    )
    assert len({entry.id for entry in found}) == 7
    assert entries.asked == 8


def test_a_request_that_is_asked_again_gets_what_it_got() -> None:
    entries = ProducerTable(0)
    entry, _ = entries.take(1, "key", "a", Runs.of([0, 2]))
    joined, is_first = entries.take(1, "key", "b", NOBODY)
    assert (joined, is_first, list(entry.servers)) == (entry, False, [0, 2])
    entries.forget(entry.id)
    for request in ("a", "b"):
        assert entries.take(1, "key", request, NOBODY) == (entry, False), "though it is over"
    later, is_first = entries.take(1, "key", "c", NOBODY)
    assert is_first
    assert later.id != entry.id, "the key is free again"
    assert entries.asked == 3, "the same request again does not count"


def test_a_number_is_the_same_on_all_servers_and_never_of_two_producers() -> None:
    """So that what was meant for a server before this one means nothing to this one."""
    tables = [ProducerTable(rank) for rank in range(2)]
    ids = [[table.take(1, None, name, NOBODY)[0].id for name in ("a", "b")] for table in tables]
    assert ids[0] == ids[1]
    unnamed = {table.take(1, None, "", NOBODY)[0].id for table in tables}
    assert len({*ids[0], *unnamed}) == 4
    first = tables[0]
    again, is_first = first.take(2, None, "a", NOBODY)
    assert is_first
    assert again.id not in ids[0], "a request of another job is another one"


def test_requests_are_remembered_up_to_a_number() -> None:
    entries, most = ProducerTable(0), 4096
    found = [entries.take(1, None, str(number), NOBODY)[0] for number in range(most + 2)]
    for number in range(2, most + 2):
        assert entries.take(1, None, str(number), NOBODY) == (found[number], False)
    assert entries.take(1, None, "0", NOBODY)[1], "the oldest one is a request like any other"


def test_what_a_client_says_again_and_again_fills_no_memory() -> None:
    """Seen: 650 MB of texts of requests that failed, and each request of one key for ever."""
    entries = ProducerTable(0)
    entries.take(1, "key", "first", NOBODY)
    tracemalloc.start()
    try:
        for number in range(1000):
            entry, _ = entries.take(1, None, f"{number}", NOBODY)
            error = ConfigError(f"{number} is no seed: {'x' * 50_000}")
            entry.error = rebuild(describe(error), "server 0")
            entries.forget(entry.id)
        of_errors, _ = tracemalloc.get_traced_memory()
        for number in range(20_000):
            entries.take(1, "key", f"{number:0200}", NOBODY)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert of_errors < 3_000_000, "it was 50 MB"
    assert kept < 4_000_000, "it was 6 MB, and grew with each request"


def test_a_request_that_failed_fails_again_in_one_line() -> None:
    entries = ProducerTable(0)
    entry, _ = entries.take(1, None, "a", NOBODY)
    entry.error = SamplingError("worker 1", "no\nrows" + "s" * 1000, "Traceback")
    entries.forget(entry.id)
    again, is_first = entries.take(1, None, "a", NOBODY)
    assert not is_first
    assert isinstance(again.error, SamplingError)
    assert again.error.where == "worker 1"
    assert again.error.cause == r"no\nrows" + "s" * 493 + "..."
    assert len(entry.error.cause) > 1000, "those that wait for it meanwhile get all of it"


def test_producers_are_found_while_they_are_up() -> None:
    entries = ProducerTable(7)
    entry, _ = entries.take(None, None, "", NOBODY)
    with pytest.raises(UsageError, match="of storage server 7 never existed"):
        entries.producer(entry.id)  # it is starting: nobody was told of it
    assert entries.starting() == [entry.id]
    assert entries.started() == {}
    shared = _up(entry)
    assert entries.producer(entry.id) is shared
    assert entries.started() == {entry.id: shared}
    assert entries.starting() == []
    assert entries.has(entry)
    assert not entries.is_over(entry.id)
    assert entries.forget(entry.id) is entry
    assert entries.forget(entry.id) is None, "somebody else has done so"
    assert entries.is_over(entry.id)
    assert not entries.has(entry)
    with pytest.raises(UsageError, match=r"producer .* was destroyed: build a new loader"):
        entries.producer(entry.id)


def test_a_closed_server_takes_no_request_and_names_what_is_up() -> None:
    entries = ProducerTable(7)
    up, _ = entries.take(None, "up", "a", NOBODY)
    starting, _ = entries.take(None, "starting", "b", NOBODY)
    _up(up)
    assert entries.close() == [up.id]
    assert not entries.has(starting), "who starts it looks, and ends it"
    for request in ("a", "c"):
        with pytest.raises(UsageError, match="storage server 7 is shutting down"):
            entries.take(None, "up", request, NOBODY)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["x", "y", None]), st.booleans())))
def test_a_slot_is_filled_by_one(steps: list[tuple[int, str | None, bool]]) -> None:
    """Against a plain account: which key has which producer, whatever comes and ends."""
    entries = ProducerTable(0)
    by_key: dict[Any, Any] = {}
    up: set[Any] = set()
    for number, (job, key, ends) in enumerate(steps):
        entry, is_first = entries.take(job, key, str(number), NOBODY)
        expected = by_key.get((job, key)) if key is not None else None
        assert is_first == (expected is None)
        assert expected in (None, entry.id)
        up.add(entry.id)
        if key is not None:
            by_key[job, key] = entry.id
        if ends:
            entries.forget(entry.id)
            up.discard(entry.id)
            by_key = {one: number for one, number in by_key.items() if number != entry.id}
        assert set(entries.starting()) == up
