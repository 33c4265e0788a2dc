import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.identity import Share, shares_of
from gigl_loader.errors import ConfigError

SERVERS = [torch.arange(4), torch.arange(8, 12), torch.arange(20, 24)]


def _handed_out(num_servers: int, rank: int, world_size: int) -> dict[int, list[int]]:
    shares = shares_of(num_servers, rank, world_size)
    return {server: share.cut(SERVERS[server]).tolist() for server, share in shares.items()}


@pytest.mark.parametrize(
    ("num_servers", "world_size", "expected"),
    [  # the examples that GiGL documents, and one with more ranks than servers
        (2, 2, [{0: [0, 1, 2, 3]}, {1: [8, 9, 10, 11]}]),
        (3, 2, [{0: [0, 1, 2, 3], 1: [8, 9]}, {1: [10, 11], 2: [20, 21, 22, 23]}]),
        (2, 1, [{0: [0, 1, 2, 3], 1: [8, 9, 10, 11]}]),
        (2, 4, [{0: [0, 1]}, {0: [2, 3]}, {1: [8, 9]}, {1: [10, 11]}]),
        (1, 3, [{0: [0]}, {0: [1]}, {0: [2, 3]}]),
    ],
)
def test_whole_servers_are_handed_out_contiguously(num_servers, world_size, expected) -> None:
    found = [_handed_out(num_servers, rank, world_size) for rank in range(world_size)]
    assert found == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 9))
def test_each_id_goes_to_one_rank_and_in_order(sizes: list[int], world_size: int) -> None:
    ids = [torch.arange(size) for size in sizes]
    parts: list[list[int]] = [[] for _ in sizes]
    for rank in range(world_size):
        shares = shares_of(len(sizes), rank, world_size)
        assert list(shares) == list(range(min(shares), max(shares) + 1)), "neighbouring servers"
        for server, share in shares.items():
            parts[server] += share.cut(ids[server]).tolist()
        if len(sizes) % world_size == 0:
            assert all(share == Share(0, world_size, world_size) for share in shares.values())
    assert parts == [one.tolist() for one in ids]


def test_nobody_asked_for_a_share() -> None:
    assert shares_of(2, None, None) == {0: Share(0, 1, 1), 1: Share(0, 1, 1)}


@pytest.mark.parametrize(
    ("rank", "world_size", "match"),
    [(0, None, "together"), (None, 2, "together"), (2, 2, r"\[0, 2\)"), (-1, 2, r"\[0, 2\)")],
)
def test_a_rank_that_there_is_not(rank, world_size, match) -> None:
    with pytest.raises(ConfigError, match=match):
        shares_of(2, rank, world_size)
