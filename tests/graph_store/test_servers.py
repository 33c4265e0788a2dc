"""Which storage servers server 0 expects back, gives up, and tells others of."""

import pytest

from gigl_loader.dataset.identity import check_position
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server.server_book import ServerBook
from gigl_loader.graph_store.wire.membership import Join, Role


def _book(num_servers: int = 4, num_partitions: int = 2) -> ServerBook:
    return ServerBook(num_servers, num_partitions, ("zero", 1), 10)


def _join(rank: int, incarnation: int = 11) -> Join:
    return Join(
        role=Role.SERVER,
        rank=rank,
        num_servers=4,
        address=(f"host {rank}", rank + 1),
        incarnation=incarnation,
    )


def test_a_server_with_a_replica_is_not_given_up() -> None:
    book = _book()
    book.note_loss(3, "three left", until=5.0)
    assert book.why_given_up([1, 2], now=100.0) is None, "server 1 has its partition"
    assert book.why_given_up([2], now=100.0) == "three left"
    book.note_loss(1, "one left", until=105.0)
    assert book.why_given_up([2], now=104.9) is None, "the last of the partition counts"
    assert book.why_given_up([2], now=105.0) == "one left"
    book.note_arrival(_join(3))
    assert book.why_given_up([2, 3], now=200.0) is None
    book.note_loss(2, "two left", until=5.0)
    assert book.why_given_up([3], now=200.0) is None, "server 0 is here, its replica"
    assert book.away == {1: "one left", 2: "two left"}


def test_without_replicas_each_server_counts() -> None:
    book = _book(num_servers=3, num_partitions=3)
    book.note_loss(1, "one left", until=5.0)
    book.note_loss(2, "two left", until=4.0)
    assert book.why_given_up([], now=3.9) is None
    assert book.why_given_up([], now=4.0) == "two left"


def test_where_servers_are_is_told_once_every_partition_has_one() -> None:
    book = _book()
    book.note_arrival(_join(2))
    assert book.addresses([2]) is None, "nobody has partition 1"
    book.note_arrival(_join(3, incarnation=12))
    unknown = ("", 0)
    addresses = (("zero", 1), unknown, ("host 2", 3), ("host 3", 4))
    assert book.addresses([2, 3]) == (addresses, (10, 0, 11, 12))
    book.note_loss(2, "two left", until=1.0)
    assert book.addresses([3]) == (addresses, (10, 0, 11, 12)), "it was there, and may be again"


def test_a_job_begins_without_a_server_that_was_lost_but_not_without_one_that_loads() -> None:
    book = _book()
    for rank in (1, 2, 3):
        assert not book.may_jobs_begin(range(1, rank)), "the others were never here"
        book.note_arrival(_join(rank))
    assert book.may_jobs_begin([1, 2, 3])
    book.note_loss(3, "three left", until=1.0)
    assert book.may_jobs_begin([1, 2])
    book.note_loss(1, "one left", until=1.0)
    assert not book.may_jobs_begin([2]), "nobody has partition 1"


def test_a_server_with_the_partition_of_another_is_refused() -> None:
    for rank in range(5):
        check_position(2, rank % 2, rank, 5)
    check_position(2, 1, 0, 2)  # one server per partition: clients need not tell replicas
    with pytest.raises(ConfigError, match="has partition 1, but must have partition 0"):
        check_position(2, 1, 2, 4)
