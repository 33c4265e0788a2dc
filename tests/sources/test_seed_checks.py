"""Seeds that ranks have in common: seen where they are, never where they are not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import ConfigError
from gigl_loader.batch.message import INPUT_ID, SEED_GROUP
from gigl_loader.sources.seed_checks import SeedSummary, check_each_once, check_same_seeds
from tests.support.draws import examples

IDS = st.lists(st.integers(0, 40), max_size=12)


def _told(ids: list[int] | torch.Tensor, world_size: int = 2, **extra: torch.Tensor) -> SeedSummary:
    seeds = torch.as_tensor(ids, dtype=torch.int64)
    return SeedSummary.of(seeds, extra, world_size, digest=str(seeds.tolist()).encode())


@given(st.lists(IDS, min_size=1, max_size=5), st.data())
def test_few_seeds_in_common_are_seen_exactly(inputs: list[list[int]], data: st.DataObject) -> None:
    """Whatever the order and the repeats within a rank; ranks of one group share theirs."""
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(inputs), max_size=len(inputs)))
    first = {group: ids for ids, group in reversed(list(zip(inputs, groups, strict=True)))}
    owners = [seed for ids in first.values() for seed in set(ids)]
    everyone = [_told(ids) for ids in inputs]
    if len(owners) == len(set(owners)):
        check_each_once(everyone, groups)
    else:
        with pytest.raises(ConfigError, match=r"would come twice in an epoch.*shard=.world"):
            check_each_once(everyone, groups)


@settings(max_examples=examples(20))
@given(st.integers(5_000, 9_000), st.integers(2, 64), st.integers(0, 2**40))
def test_many_seeds(size: int, ranks: int, start: int) -> None:
    """Too many to be told whole: the same ones in another order, a tenth in common, none."""
    ids = torch.arange(start, start + size)
    mixed = ids[torch.randperm(size)]
    everyone = [_told(ids + rank * size, ranks) for rank in range(ranks - 1)]
    assert all(len(one.some) < 8 * size for one in everyone)
    check_each_once([*everyone, _told(ids + ranks * size, ranks)], range(ranks))
    with pytest.raises(ConfigError, match=f"the same {size} seeds, in another order"):
        check_each_once([*everyone, _told(mixed, ranks)], range(ranks))
    if ranks <= 8:
        partly = torch.cat([mixed[: size // 10], ids[size // 10 :] + ranks * size])
        with pytest.raises(ConfigError, match="seeds in common, such as"):
            check_each_once([*everyone, _told(partly, ranks)], range(ranks))


def test_what_a_seed_is() -> None:
    """An edge is its ends, a node at two times is two seeds; positions, groups, labels do not."""
    ids = torch.arange(5)
    edges = [_told(ids, targets=ids + shift) for shift in (0, 1)]
    check_each_once(edges, range(2))
    with pytest.raises(ConfigError, match=r"such as \(0, 0\), \(1, 1\), \(2, 2\)"):
        check_each_once([edges[0], _told(ids[:3], targets=ids[:3])], range(2))
    times = [_told(ids, t=ids + shift) for shift in (0.0, 0.5)]
    check_each_once(times, range(2))
    for extra in ({INPUT_ID: ids + 7}, {SEED_GROUP: ids + 7}, {"labels": torch.ones(5, 3)}):
        with pytest.raises(ConfigError, match="the same 5 seeds"):
            check_each_once([_told(ids), _told(ids, 2, **extra)], range(2))


def test_loaders_built_in_another_order() -> None:
    """Their seeds are disjoint each time; it shows when what one rank had comes on another."""
    train, val = _told(list(range(100))), _told(list(range(100, 140)))
    check_each_once([train, val], range(2))

    def later(told: SeedSummary, before: SeedSummary) -> SeedSummary:
        return SeedSummary(told.digest, told.count, 1, told.some, {3: before.digest})

    with pytest.raises(ConfigError, match=r"ranks [01] and [01] build .* in another order"):
        check_each_once([later(val, train), later(train, val)], range(2))
    # the same on both, as all that is built in one order is
    check_each_once([later(val, train), later(val, train)], [0, 0])
    # seeds of one's own, loader by loader; and an earlier loader that was shut down
    other = _told(list(range(200, 230)))
    check_each_once([later(val, train), later(other, _told([300]))], range(2))
    check_each_once([val, train], range(2))


def test_one_input_for_the_world() -> None:
    check_same_seeds([SeedSummary(digest=b"a")] * 3)
    with pytest.raises(ConfigError, match=r"other seeds than rank 0's came on ranks \[1, 2\]"):
        check_same_seeds([SeedSummary(digest=one) for one in (b"a", b"b", b"c")])
