"""What a channel keeps of one server, and how it lets go of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.errors import PeerError, ServerDiedError
from gigl_loader.remote.supplier import Supplier


def _supplier(rank: int = 2) -> tuple[Supplier, list[Any]]:
    hung_up: list[Any] = []
    connection: Any = SimpleNamespace(hang_up=hung_up.append)
    return Supplier(rank, 5, connection), hung_up


def test_suppliers_are_told_apart_by_themselves() -> None:
    """Two of one server are not equal, and neither changes its place in a dict as it changes."""
    connection: Any = SimpleNamespace()
    one, other = Supplier(2, 5, connection), Supplier(2, 5, connection)
    batches = {one: [0], other: [1]}
    one.total = one.asked = 7
    assert batches[one] == [0]
    assert one != other
    assert one.asking is not other.asking
    assert one.fetches is not other.fetches
    assert one.released is not other.released
    assert one.positions is not other.positions
    assert one.ended, "it has no part in an epoch before one begins"


def test_what_was_asked_is_filed_before_the_thread_ends() -> None:
    one, hung_up = _supplier()
    supplier: Any = one
    supplier.caller, supplier.giver = callers = "caller", "giver"
    supplier.fetches.put(("reply", 1))
    supplier.hang_up()
    assert [supplier.fetches.get_nowait() for _ in range(2)] == [("reply", 1), None]
    assert hung_up == list(callers)


def test_a_server_that_was_never_asked_has_nothing_to_close() -> None:
    supplier, hung_up = _supplier()
    supplier.hang_up()
    assert hung_up == []


@pytest.mark.parametrize("error", [FileNotFoundError(2, "no such"), ProcessLookupError(3, "no")])
def test_memory_that_is_gone_is_that_of_a_dead_server(error: OSError) -> None:
    found = _supplier(4)[0].unreadable(error)
    assert type(found) is ServerDiedError, "which is survived where it has a twin"
    assert "storage server 4 ended before a batch of it was read" in str(found)


def test_memory_that_cannot_be_mapped_is_no_lost_server() -> None:
    found = _supplier(4)[0].unreadable(OSError(12, "Cannot allocate memory"))
    assert type(found) is PeerError
    assert "a batch of storage server 4 cannot be mapped" in str(found)
    assert "Cannot allocate memory" in str(found)
