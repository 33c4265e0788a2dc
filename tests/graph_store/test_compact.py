"""Sequences in little room against lists of the same values, and on their way."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.graph_store.server.shared_producer import Clients
from gigl_loader.graph_store.wire.membership import News
from gigl_loader.graph_store.wire.requests import Addresses, ByServer, Runs
from gigl_loader.runtime.transport.codec import decode, encode, read_header

some_numbers = st.sets(st.integers(0, 60)).map(sorted)


@given(some_numbers, st.integers(-5, 65))
def test_runs_are_read_like_a_list(numbers: list[int], any_one: int) -> None:
    runs = Runs.of(numbers)
    assert (list(runs), len(runs), bool(runs)) == (numbers, len(numbers), bool(numbers))
    assert [runs[position] for position in range(len(numbers))] == numbers
    assert [runs[position] for position in range(-len(numbers), 0)] == numbers
    assert runs[1:] == numbers[1:]
    assert [runs.index(number) for number in numbers] == list(range(len(numbers)))
    assert (any_one in runs) == (any_one in numbers)
    assert runs.before(any_one) == sum(number < any_one for number in numbers)
    assert Runs.of(runs) == Runs.of(tuple(numbers)) == runs
    assert str(runs) == str(numbers)
    for position in (len(numbers), -len(numbers) - 1):
        with pytest.raises(IndexError):
            runs[position]
    if any_one not in numbers:
        with pytest.raises(ValueError, match=f"{any_one} is not among"):
            runs.index(any_one)


@pytest.mark.parametrize(
    ("numbers", "num_ranges"),
    [(range(4096), 1), (range(3, 4096, 8), 1), ([*range(40), *range(41, 4096)], 2), ([], 0)],
)
def test_ranks_of_a_job_or_of_a_position_on_their_machines_are_one_range(
    numbers, num_ranges
) -> None:
    runs = Runs.of(numbers)
    assert list(runs) == list(numbers)
    assert len(runs.ranges) == num_ranges


def test_clients_are_known_by_job_and_rank() -> None:
    clients = Clients(7, Runs.of([2, 3, 5]))
    assert list(clients) == [(7, 2), (7, 3), (7, 5)]
    assert [clients.index(one) for one in clients] == [0, 1, 2]
    for other in ((7, 4), (8, 2), (7, 2, 0), "this process"):
        assert other not in clients


@given(st.lists(st.tuples(st.sampled_from(["", "10.0.0.1", "::1", "gpu0"]), st.integers(0, 65535))))
def test_addresses_are_read_like_a_list(addresses: list[tuple[str, int]]) -> None:
    found = Addresses.of(addresses)
    assert (list(found), len(found)) == (addresses, len(addresses))
    assert found[1:] == addresses[1:]
    with pytest.raises(IndexError):
        found[len(addresses)]


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 3)))
def test_numbers_by_server_are_read_like_a_dict(numbers: dict[int, int]) -> None:
    found = ByServer.of(numbers)
    assert dict(found) == numbers
    assert (list(found), len(found)) == (sorted(numbers), len(numbers))
    assert ByServer.of(found) == found
    with pytest.raises(KeyError):
        found[41]


def test_they_travel_and_take_little_room() -> None:
    addresses = [(f"10.1.0.{server}", 20_000 + server) for server in range(256)]
    numbers = tuple(range(2**60, 2**60 + 256))
    news = News(addresses=Addresses.of(addresses), incarnations=numbers)
    header, arrays = encode(news)
    assert decode(read_header(header)[1], arrays, News) == news
    assert list(news.addresses) == addresses
    assert sys.getsizeof(news.addresses.text) < 5_000
