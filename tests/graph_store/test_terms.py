"""What rank 0 makes of what all ranks offer, on ranks whose keys are drawn."""

from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.graph_store.client.producers import (
    Outcome,
    Proposal,
    agree_on_terms,
    merge_outcomes,
)
from gigl_loader.graph_store.wire.requests import ByServer
from gigl_loader.runtime.transport.failures import Failure, describe
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.seed_checks import SeedSummary


def _offers(keys: list[int], shared: dict[str, str] | None = None) -> list[Proposal]:
    return [
        Proposal(
            f"key {key}",
            f"input {rank // 4}",
            SourceOptions(seed=rank),
            shared or {},
            SeedSummary(),
        )
        for rank, key in enumerate(keys)
    ]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_each_rank_finds_those_of_its_key_and_leaders_their_turn(keys: list[int]) -> None:
    terms = agree_on_terms(_offers(keys))
    assert terms.error is None
    assert terms.first.seed == 0
    leaders = [rank for rank, key in enumerate(keys) if keys.index(key) == rank]
    for rank, key in enumerate(keys):
        mine = terms.of(rank, f"key {key}", SourceOptions(seed=rank))
        ranks = [other for other, its in enumerate(keys) if its == key]
        assert list(mine.ranks) == ranks
        assert mine.options.seed == ranks[0]
        assert mine.differ == [one for one in ranks if one // 4 != ranks[0] // 4]
    assert [terms.position_of(leader) for leader in leaders] == list(range(len(leaders)))


def test_what_has_to_be_the_same_is_said_by_name() -> None:
    offers = [*_offers([0, 0], {"seed": "1"}), *_offers([0], {"seed": "2"})]
    terms = agree_on_terms(offers)
    assert terms.error is not None
    assert "a loader takes the same seed on all ranks" in terms.error


def test_ids_of_leaders_and_the_first_failure_are_told() -> None:
    failure: Failure = describe(ValueError("no"))
    outcomes = [Outcome(ByServer.of({0: 5}), None), Outcome(None, None), Outcome(None, failure)]
    found = merge_outcomes({0, 2}, outcomes)
    assert (found.producers, found.failed, found.failure) == ({0: ByServer.of({0: 5})}, 2, failure)
    assert merge_outcomes({0}, outcomes[:2]).failed is None
