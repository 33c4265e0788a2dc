"""What is sampled: the order of the seeds, the plan, and times that can be compared."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.batch.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    SEED_GROUP,
    SEED_TIME,
    BatchTicket,
)
from gigl_loader.dataset.partition.partition_view import PartitionView, Rows
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.edges import EDGE_KIND
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND, SUBGRAPH_KIND
from gigl_loader.sampler.options import (
    CustomSamplerOptions,
    ExpansionOptions,
    KHopNeighborSamplerOptions,
    SourceOptions,
)
from gigl_loader.sampler.plan import SeedInput
from gigl_loader.sampler.ppr.ppr_sampler import PPR_KIND
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.sampled_input import (
    SeedOrders,
    check_seed_times,
    epoch_order,
    kernels_of,
    make_plan,
    sampler_kind,
    sampling_view,
    seed_or_drawn,
)
from gigl_loader.sources.workers.supervisor import KERNELS
from gigl_loader.testing import TinyGraph, as_worker_gets
from tests.support.glt import NodeSamplerInput

SEEDS = torch.arange(100, 111)


def _config(**changes: Any) -> Any:
    how = {
        "batch_size": 4,
        "shuffle": False,
        "drop_last": False,
        "num_neighbors": [3, 2],
        "with_edge": False,
        "with_weight": False,
        "collect_features": True,
    }
    return SimpleNamespace(**{**how, **changes})


def _task(stream: int, epoch: int, batch: int) -> BatchTicket:
    return BatchTicket(stream, 1, epoch, batch, batch)


def test_the_shuffle_is_a_function_of_seed_and_epoch() -> None:
    orders = {(s, e): tuple(epoch_order(50, s, e).tolist()) for s in range(5) for e in range(5)}
    assert len(set(orders.values())) == 25
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    state = torch.random.get_rng_state()
    assert tuple(epoch_order(50, 2, 3).tolist()) == orders[2, 3]
    assert torch.equal(torch.random.get_rng_state(), state), "torch's generator is left alone"


@given(
    groups=st.lists(st.integers(0, 9), max_size=60),
    per_batch=st.integers(1, 12),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**40),
)
def test_groups_are_mixed_a_few_at_a_time(
    groups: list[int], per_batch: int, seed: int, epoch: int
) -> None:
    """The plain shuffle is the reference: a mix is what it has of the mix's groups."""
    numbers = sorted(set(groups))
    column = torch.tensor([numbers.index(group) for group in groups], dtype=torch.int64)
    plain = epoch_order(len(groups), seed, epoch).tolist()
    left = epoch_order(len(groups), seed, epoch, column, per_batch).tolist()
    assert sorted(left) == sorted(plain), "each seed once"
    unused = set(groups)
    while unused:
        # an earlier group's last seed may come after a later group's first: both are of one mix
        firsts = list(dict.fromkeys(groups[position] for position in left))
        mix = set(firsts[:per_batch])
        of_mix = [position for position in plain if groups[position] in mix]
        assert left[: len(of_mix)] == of_mix
        left, unused = left[len(of_mix) :], unused - mix
    assert not left


def test_an_epoch_has_other_mixes_and_a_seed_too() -> None:
    groups = torch.arange(60) // 3
    mixes = {
        tuple(sorted(groups[epoch_order(60, s, e, groups, 4)[:12]].unique().tolist()))
        for s in range(4)
        for e in range(4)
    }
    assert len(mixes) > 12
    assert all(len(mix) == 4 for mix in mixes)
    one_mix = epoch_order(60, 2, 3, groups, 20)
    assert torch.equal(one_mix, epoch_order(60, 2, 3)), "as shuffle=True"


def test_seeds_have_their_groups_in_one_column() -> None:
    groups = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1])
    config, options = _config(shuffle=True), SourceOptions(seed=5, groups_per_batch=2)
    orders = SeedOrders(SeedInput(SEEDS, {SEED_GROUP: groups}), config, 5, 2)
    order = orders.of(0, 3)
    assert order is not None
    assert torch.equal(order, epoch_order(11, 5, 3, groups, 2))
    plain = SeedOrders(SeedInput(SEEDS, {SEED_GROUP: groups}), config, 5).of(0, 3)
    assert plain is not None
    assert torch.equal(plain, epoch_order(11, 5, 3)), "a column alone does nothing"
    view, seeds = TinyGraph.random(5, 9).dataset().view(), NodeSamplerInput(SEEDS, None)
    for extra in ({}, {SEED_GROUP: groups[:4]}):
        seeds.extra = extra
        with pytest.raises(ConfigError, match=rf"groups of {len(extra) * 4} of its 11 seeds"):
            make_plan(view, seeds, config, options)
    seeds.extra = {SEED_GROUP: groups}
    make_plan(view, seeds, config, options)


def test_a_missing_seed_is_drawn_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    torch.manual_seed(1)
    first = seed_or_drawn(None)
    torch.manual_seed(1)
    assert seed_or_drawn(None) == first
    assert f"seed={first}" in caplog.text
    assert seed_or_drawn(5) == 5


def test_the_order_of_an_epoch_is_shared_once_and_none_where_seeds_come_as_given() -> None:
    assert SeedOrders(SeedInput(SEEDS), _config(), 5).of(0, 3) is None
    orders = SeedOrders(SeedInput(SEEDS), _config(shuffle=True), 5)
    order = orders.of(0, 3)
    assert order is not None
    assert torch.equal(order, epoch_order(11, 5, 3))
    assert order.is_shared()
    assert orders.of(7, 3) is order, "another consumer"
    other, again = orders.of(0, 4), orders.of(0, 3)
    assert other is not None
    assert again is not None
    assert not torch.equal(other, order)
    assert torch.equal(again, order)


@pytest.mark.parametrize(("drop_last", "number"), [(False, 3), (True, 2)])
def test_the_number_of_batches(drop_last: bool, number: int) -> None:
    assert SeedOrders(SeedInput(SEEDS), _config(drop_last=drop_last), 0).num_batches == number


def test_the_seeds_of_a_batch_are_named() -> None:
    orders = SeedOrders(SeedInput(SEEDS), _config(), 5)
    assert orders.seeds_of(_task(0, 0, 1)) == [104, 105, 106, 107]
    assert orders.seeds_of(_task(0, 9, 2)) == [108, 109, 110], "the last one is incomplete"
    shuffled = SeedOrders(SeedInput(SEEDS), _config(shuffle=True), 5)
    assert shuffled.seeds_of(_task(0, 2, 1)) == SEEDS[epoch_order(11, 5, 2)[4:8]].tolist()
    shuffled.at_once = torch.tensor([10, 0, 10, 3, 4, 5])
    at_once = _task(AT_ONCE_STREAM, AT_ONCE_EPOCH, 0)
    assert shuffled.seeds_of(at_once) == [110, 100, 110, 103, 104, 105], "of any size"


def test_a_plan_has_edge_types_in_one_order_on_all_ranks() -> None:
    view = TinyGraph.random(5, 9).dataset().view()
    others = {("b", "to", "a"): [3, 2], ("a", "to", "b"): [1, -1]}
    names = SimpleNamespace(input_type="b")
    for fanouts in (others, dict(reversed(others.items()))):
        plan = make_plan(view, names, _config(num_neighbors=fanouts), SourceOptions(seed=7))
        assert list(plan.fanouts.items()) == [
            (("a", "to", "b"), (1, -1)),
            (("b", "to", "a"), (3, 2)),
        ]
        assert (plan.input_type, plan.seed) == ("b", 7)
    alone = SimpleNamespace(input_type=None)
    plan = make_plan(view, alone, _config(with_edge=True), SourceOptions(seed=7, replace=True))
    assert plan.fanouts == {EDGE: (3, 2)}
    assert (plan.input_type, plan.with_edge, plan.replace) == (NODE, True, True)


def _timed(*dtypes: torch.dtype) -> PartitionView[Any]:
    """Return a view whose nodes have times of these types, as attributes of as many node types."""
    return SimpleNamespace(  # type: ignore[return-value]  # a stand-in
        node_attributes={
            (f"type{i}", "time"): Rows(torch.zeros(3, dtype=dtype))
            for i, dtype in enumerate(dtypes)
        },
        edge_attributes={},
    )


def _input(node_type: str | None, times: torch.Tensor | None = None) -> Any:
    extra = {} if times is None else {SEED_TIME: times}
    return SimpleNamespace(input_type=node_type, extra=extra)


def test_seeds_have_times_that_can_be_compared() -> None:
    ints, mixed = _timed(torch.int64), _timed(torch.int64, torch.float64)
    check_seed_times(ints, _input("any"), None)
    check_seed_times(ints, _input("type0"), "time")
    check_seed_times(ints, _input("any", torch.zeros(3, dtype=torch.int64)), "time")
    check_seed_times(mixed, _input("any", torch.zeros(3)), "time")
    with pytest.raises(ConfigError, match=r"'time' is no attribute.*nodes 'any'.*input_time"):
        check_seed_times(ints, _input("any"), "time")
    with pytest.raises(ConfigError, match=r"nodes \(the only type\)"):
        check_seed_times(ints, _input(None), "time")
    with pytest.raises(ConfigError, match=r"torch\.float32, those of 'time' integers"):
        check_seed_times(ints, _input("any", torch.zeros(3)), "time")


def test_weights_and_times_do_not_go_together() -> None:
    options = SourceOptions(seed=1, expansion=ExpansionOptions(time_attr="time"))
    seeds = _input("any", torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ConfigError, match="with_weight and time_attr"):
        make_plan(_timed(torch.int64), seeds, _config(with_weight=True), options)


def test_a_dataset_shows_its_view_by_time_where_that_is_asked_for() -> None:
    data = SimpleNamespace(view=lambda: "plain", view_by_time=lambda name: f"by {name}")
    views: list[Any] = [sampling_view(data, name) for name in (None, "year")]
    assert views == ["plain", "by year"]


def test_workers_load_the_kernels_that_they_need_alone() -> None:
    """Each costs seconds on a new machine."""
    names = SimpleNamespace(node=torch.arange(3), input_type=None)
    view = TinyGraph.random(10, 20).dataset().view()

    def needed(
        sampler: str | None = None,
        options: ExpansionOptions | None = None,
        peers: bool = False,
        caches: bool = False,
        **config: Any,
    ) -> list[str]:
        expansion = options or ExpansionOptions()
        plan = make_plan(view, names, _config(**config), SourceOptions(seed=7, expansion=expansion))
        kind = sampler_kind(None if sampler is None else CustomSamplerOptions(sampler))
        return kernels_of(plan, kind, has_peers=peers, caches=caches)

    assert needed() == needed(with_edge=True) == ["uniform", "merged"]
    assert needed(with_weight=True) == ["uniform", "merged", "weighted"]
    assert needed(peers=True) == ["uniform", "owners", "packed", "merged"]
    assert needed(peers=True, caches=True) == [*needed(peers=True)[:3], "cached", "merged"]
    assert needed(options=ExpansionOptions(disjoint=True)) == ["uniform", "trees"]
    by_time = ExpansionOptions(time_attr="node_time")
    assert needed(options=by_time) == ["uniform", "trees", "times"]
    labor = ExpansionOptions(sampling_method="labor")
    assert needed(options=labor) == ["uniform", "merged", "labor"]
    by_rank = "gigl_loader.sampler.ppr.ppr_sampler.ppr_sampler"
    assert needed(by_rank) == ["uniform", "merged", "ppr"]
    assert set(needed("mine.Sampler")) <= set(KERNELS)


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (NEIGHBOR_KIND, {}),
        (SUBGRAPH_KIND, {}),
        (EDGE_KIND, {"edge_type": EDGE}),
        (ANCHOR_KIND, {"supervision": [EDGE]}),
        (PPR_KIND, {"options": {}, "seed_types": [NODE]}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_path_that_came_from_a_client_is_the_same_sampler(
    kind: SamplerKind, keywords: dict[str, Any]
) -> None:
    received = sampler_kind(CustomSamplerOptions(kind.path, keywords))
    assert (type(received), received) == (type(kind), kind.with_keywords(keywords))
    view = TinyGraph.random(10, 20).dataset().view()
    plan = make_plan(view, SimpleNamespace(input_type=None), _config(), SourceOptions(seed=7))
    built = received.build(as_worker_gets(view), plan, None)
    assert callable(built.sample), "its path leads to it, and takes its keywords"


def test_a_users_path_is_a_kind_of_its_own() -> None:
    received = sampler_kind(CustomSamplerOptions("mine.edge_sampler", {"edge_type": EDGE}))
    assert received == SamplerKind("mine.edge_sampler", {"edge_type": EDGE})
    assert not received.can_pad, "only the last word of its path is that of ours"
    assert received.edge_type is None
    assert sampler_kind(None) == sampler_kind(KHopNeighborSamplerOptions([1])) == NEIGHBOR_KIND
