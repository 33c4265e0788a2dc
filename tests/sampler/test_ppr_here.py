"""Seeds one after the other, beside all of them turn by turn: the same bits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.sampler.options import PPRSamplerOptions
from gigl_loader.sampler.plan import Draw
from gigl_loader.sampler.ppr import ppr_here
from gigl_loader.sampler.ppr.ppr_here import PushHere
from gigl_loader.sampler.ppr.ppr_push import ForwardPush, Neighbourhood, PushMemory
from gigl_loader.sampler.ppr.ppr_sampler import top_nodes
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.testing import TinyGraph, as_worker_gets
from tests.support.draws import examples

U, ITEM = "user", "item"
BUYS, KNOWS, LIKED = (U, "buys", ITEM), (U, "knows", U), (ITEM, "liked by", U)
TYPES = [ITEM, U]
FEW = st.integers(0, 9)
PAIRS = st.lists(st.tuples(FEW, FEW), max_size=60)


def view_of(edges: dict[Any, list[tuple[int, int]]], counts: dict[str, int]) -> Any:
    return as_worker_gets(TinyGraph(counts, edges).dataset().view())


def both(view: Any, walked: list[Any], seeds: list[int], options: PPRSamplerOptions) -> Any:
    """Return the top nodes of users by each way, by type."""
    reader = GraphReader(view, None)
    ends = {name: reader.ends(name) for name in view.adjacency}
    most = options.num_neighbors_per_hop
    draws = {name: Draw(name, most, 7 + key) for key, name in enumerate(ends)}
    given_seeds = np.array(seeds, np.int64)
    around = Neighbourhood(reader, ends, TYPES)
    around.reset(draws)
    scores = ForwardPush(around, walked, options.alpha, options.eps, None, PushMemory()).run(
        U, given_seeds
    )
    how: dict[str, Any] = {"topup": options.enable_residual_topup}
    slow = {name: top_nodes(scores, around, name, options.max_ppr_nodes, **how) for name in TYPES}
    here = PushHere(view, ends, TYPES, options)
    return slow, here, [draws[name] for name in walked], given_seeds


def assert_same(slow: Any, fast: Any) -> None:
    assert slow.keys() == fast.keys()
    for name, top in slow.items():
        for column, values in vars(top).items():
            found = getattr(fast[name], column)
            assert (found.dtype, found.tobytes()) == (values.dtype, values.tobytes()), column


@settings(deadline=None, max_examples=examples(100))
@given(
    st.fixed_dictionaries({BUYS: PAIRS, KNOWS: PAIRS, LIKED: PAIRS}),
    st.lists(st.sampled_from([BUYS, KNOWS, LIKED]), min_size=1, unique=True),
    st.lists(FEW, max_size=4),
    st.floats(0.05, 0.95),
    st.floats(-6, -0.5),
    st.sampled_from([1, 3, 50]),
    st.integers(1, 12),
    st.booleans(),
)
def test_turns_of_one_seed_after_the_other_give_the_same_bits(
    edges, walked, seeds, alpha, log_eps, longest, most, topup
) -> None:
    options = PPRSamplerOptions(
        alpha=alpha,
        eps=10**log_eps,
        max_ppr_nodes=most,
        num_neighbors_per_hop=longest,
        enable_residual_topup=topup,
    )
    slow, here, draws, given_seeds = both(view_of(edges, {U: 10, ITEM: 10}), walked, seeds, options)
    for _ in range(2):  # what is left in memory changes nothing
        assert_same(slow, here.tops(draws, U, given_seeds))


def test_a_hub_makes_room_and_marks_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """More slots than there is room for at first, and a table larger than that of a small seed."""
    monkeypatch.setattr(ppr_here, "_MANY_MARKS", 12)
    count = 3 * ppr_here._FEW_SLOTS
    spokes = [(0, other) for other in range(count)]
    edges = {BUYS: spokes, LIKED: [(b, a) for a, b in spokes]}
    options = PPRSamplerOptions(alpha=0.3, eps=1e-6, num_neighbors_per_hop=10**6, max_ppr_nodes=40)
    seeds = [0, 3, 0, 5]
    slow, here, draws, given_seeds = both(
        view_of(edges, {U: 10, ITEM: count}), [LIKED, BUYS], seeds, options
    )
    for _ in range(5):
        assert_same(slow, here.tops(draws, U, given_seeds))
    assert slow[ITEM].ids.size == 2 * 40


def test_the_fewest_steps_count_also_when_they_come_late() -> None:
    """1 has many edges, so it is due in the fourth turn only: 4 is met over 2 and 3 before."""
    neighbors = {0: [1, 2], 2: [1, 3], 3: [1, 4], 1: [4, *range(5, 34)]}
    edges = {KNOWS: [(other, node) for node, others in neighbors.items() for other in others]}
    options = PPRSamplerOptions(alpha=0.3, eps=0.0167)
    slow, here, draws, given_seeds = both(view_of(edges, {U: 40, ITEM: 1}), [KNOWS], [0], options)
    top = here.tops(draws, U, given_seeds)
    assert_same(slow, top)
    assert top[U].values[top[U].ids == 4, 1].tolist() == [1 / 3]
