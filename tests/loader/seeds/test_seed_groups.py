"""``shuffle="groups"``: the groups that seeds are in, and batches of few groups."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
)
from gigl_loader.batch.message import SEED_GROUP
from gigl_loader.dataset.schema import COMMUNITY
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import WrongTypeError
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.loader.seeds.seed_groups import GroupSource
from tests.support.glt import NodeSamplerInput

pytestmark = pytest.mark.usefixtures("group")

NODES, SIZE = 60, 6
YEARS = torch.arange(NODES) * 7 % 15
"""15 groups of 4 nodes."""


def graph(**attributes: Tensor) -> Data:
    """Return a ring, whose edge ``i`` begins at node ``i``."""
    ring = torch.arange(NODES)
    return Data(
        edge_index=torch.stack([ring, (ring + 1) % NODES]),
        num_nodes=NODES,
        **{"year": YEARS, **attributes},
    )


def loader(dataset: DistDataset, **how: Any) -> DistNeighborLoader:
    common = {
        "shuffle": "groups",
        "batch_size": SIZE,
        "groups_per_batch": 3,
        "seed": 4,
        "num_workers": 0,
    }
    return DistNeighborLoader(dataset, [2], torch.arange(NODES), **{**common, **how})


def order(batches: Any) -> list[int]:
    return [seed for batch in batches for seed in batch.input_id.tolist()]


def check_mixes(seeds: list[int], groups: Tensor, per_batch: int) -> None:
    """Check for groups of one size that each mix has the seeds of so many of them."""
    assert sorted(seeds) == list(range(len(groups)))
    size = per_batch * len(groups) // groups.unique().numel()
    for start in range(0, len(seeds), size):
        assert groups[seeds[start : start + size]].unique().numel() <= per_batch


LOADERS: dict[str, Callable[..., BaseDistLoader]] = {
    "nodes": lambda data, how: DistNeighborLoader(data, [2], torch.arange(NODES), **how),
    "ppr": lambda data, how: DistNeighborLoader(
        data, [1], torch.arange(NODES), sampler_options=PPRSamplerOptions(max_ppr_nodes=3), **how
    ),
    "subgraphs": lambda data, how: DistSubGraphLoader(data, torch.arange(NODES), [2], **how),
    "links": lambda data, how: DistLinkNeighborLoader(
        data, [2], graph().edge_index, neg_sampling="binary", **how
    ),
    "anchors": lambda data, how: DistABLPLoader(data, [2], torch.arange(NODES), **how),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_of_every_loader_are_of_few_groups(kind: str) -> None:
    data = DistDataset.from_pyg(graph(), supervision=graph().edge_index)
    how = {
        "shuffle": "groups",
        "seed_groups": "year",
        "groups_per_batch": 3,
        "batch_size": SIZE,
        "seed": 4,
        "num_workers": 0,
    }
    with LOADERS[kind](data, how) as made:
        first, second = order(made), order(made)
    check_mixes(first, YEARS, 3)
    check_mixes(second, YEARS, 3)
    assert first != second
    with loader(DistDataset.from_pyg(graph()), seed_groups=YEARS) as same:
        assert order(same) == first, "one order, whatever is sampled and wherever groups are from"


def test_seed_edges_are_in_the_groups_of_their_sources() -> None:
    edges = torch.stack([torch.arange(NODES).flip(0), torch.zeros(NODES, dtype=torch.int64)])
    with DistLinkNeighborLoader(
        DistDataset.from_pyg(graph()),
        [2],
        edges,
        shuffle="groups",
        seed_groups="year",
        groups_per_batch=3,
        batch_size=SIZE,
        num_workers=0,
    ) as made:
        check_mixes(order(made), YEARS.flip(0), 3)


@pytest.mark.parametrize(
    "given", [YEARS.tolist(), YEARS.numpy(), YEARS.int() * 1000 - 5, {NODE: YEARS}]
)
def test_groups_are_given_in_any_form(given: Any) -> None:
    data = DistDataset.from_pyg(graph())
    with loader(data, seed_groups=given) as made, loader(data, seed_groups="year") as named:
        assert order(made) == order(named)


def test_groups_by_type() -> None:
    typed = HeteroData()
    typed["user"].num_nodes, typed["item"].num_nodes = NODES, 5
    typed["user"].year = YEARS
    typed["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [2, 3]])
    data, seeds = DistDataset.from_pyg(typed), ("user", torch.arange(NODES))
    how: dict[str, Any] = {"shuffle": "groups", "groups_per_batch": 3, "num_workers": 0}
    with DistNeighborLoader(data, [2], seeds, seed_groups={"user": "year"}, **how) as made:
        check_mixes([int(batch["user"].input_id) for batch in made], YEARS, 3)
    for wrong in ({"item": "year"}, {"user": "year", "shop": "year"}, {}):
        with pytest.raises(ConfigError, match=r"by node type.*'user'.*\['item', 'user'\]"):
            DistNeighborLoader(data, [2], seeds, seed_groups=wrong, **how)
    with pytest.raises(ConfigError, match=r"seed_groups\['user'\]='age' is no attribute.*'year'"):
        DistNeighborLoader(data, [2], seeds, seed_groups={"user": "age"}, **how)


def column(dataset: DistDataset, seeds: Tensor, given: Any = None, per_batch: int = 1) -> list[int]:
    """Return the column that seeds of a dataset get."""
    source = GroupSource.of(given, None, dataset.schema, dataset.view().num_nodes)
    sampler_input = NodeSamplerInput(seeds, None)
    source.add_to([sampler_input], dataset, per_batch)
    groups: list[int] = sampler_input.extra[SEED_GROUP].tolist()
    return groups


def with_communities(dataset: DistDataset, attribute: str) -> DistDataset:
    """Return a dataset with an attribute of another name as its communities."""
    view, made = dataset.view(), DistDataset(dataset.partition_idx, dataset.num_partitions)
    rows = view.node_attributes[NODE, attribute]
    made._fill(replace(view, node_attributes={**view.node_attributes, (NODE, COMMUNITY): rows}), {})
    return made


def test_without_groups_given_they_are_parts_and_communities(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts, community = torch.arange(NODES) % 2, torch.arange(NODES) // 20
    where: dict[str, Any] = {"partition_book": parts, "partition_idx": 1}
    alone = DistDataset.from_pyg(graph(), **where)
    seeds = torch.tensor([41, 1, 20, 0, 43])
    assert column(alone, seeds) == [1, 1, 0, 0, 1], "parts alone"
    assert not caplog.records
    whole = with_communities(DistDataset.from_pyg(graph(c=community)), "c")
    assert column(whole, seeds) == [2, 0, 1, 0, 2]
    assert column(whole, seeds[:0]) == []


def test_too_few_groups_are_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    data = DistDataset.from_pyg(graph())
    with (
        loader(data, groups_per_batch=16) as made,
        loader(data, shuffle=True, groups_per_batch=16) as plain,
    ):
        assert order(made) == order(plain)
    (line,) = [record.getMessage() for record in caplog.records if "groups" in record.getMessage()]
    assert "what shuffle=True does, since the seeds are in 1 groups" in line


WRONG = [
    ({"shuffle": "group"}, "shuffle must be True, False or \"groups\", got 'group'"),
    ({"shuffle": 1}, "shuffle must be True, False or"),
    ({"shuffle": True, "seed_groups": YEARS}, 'shuffle=True: give shuffle="groups"'),
    ({"shuffle": False, "groups_per_batch": 3}, 'shuffle=False: give shuffle="groups"'),
    ({"groups_per_batch": 0}, "groups_per_batch must be an integer > 0, got 0"),
    ({"groups_per_batch": True}, "groups_per_batch must be an integer > 0"),
    ({"seed_groups": "age"}, "'age' is no attribute of nodes"),
    ({"seed_groups": "weight"}, "'weight' must have integers, the ids of groups, got"),
    ({"seed_groups": "pair"}, "'pair' must have one group for each of 60 nodes"),
    ({"seed_groups": YEARS[:7]}, "seed_groups must have one group for each of 60 nodes"),
    ({"seed_groups": YEARS > 3}, "must have integers, the ids of groups, got torch.bool"),
    ({"seed_groups": [[1], [2, 3]]}, "seed_groups cannot be read as ids of groups"),
    ({"seed_groups": {"user": YEARS}}, "by node type"),
]


@pytest.mark.parametrize(("how", "match"), WRONG, ids=[text[:30] for _, text in WRONG])
def test_what_cannot_be_groups_is_refused(how: dict[str, Any], match: str) -> None:
    data = DistDataset.from_pyg(
        graph(weight=torch.rand(NODES), pair=torch.zeros(NODES, 2, dtype=torch.int64))
    )
    with pytest.raises(ConfigError, match=re.escape(match)):
        loader(data, **{"groups_per_batch": 16 if "shuffle" in how else 3, **how})


def test_a_number_is_no_groups() -> None:
    with pytest.raises(WrongTypeError, match="name a node attribute or be the group of each node"):
        loader(DistDataset.from_pyg(graph()), seed_groups=3)


def test_an_epoch_goes_on_from_a_state_and_only_in_the_same_groups() -> None:
    data = DistDataset.from_pyg(graph())
    with loader(data, seed_groups="year") as made:
        made.set_epoch(3)
        batches = iter(made)
        begun = order(next(batches) for _ in range(4))
        state, rest = made.state_dict(), order(batches)
    assert (state["groups_per_batch"], state["draw_version"]) == (3, 4)
    with loader(data, seed_groups=YEARS) as again:
        again.load_state_dict(state)
        assert order(again) == rest
    check_mixes(begun + rest, YEARS, 3)
    others: dict[str, dict[str, Any]] = {
        "groups_per_batch: 3 -> 2": {"seed_groups": "year", "groups_per_batch": 2},
        "seeds_digest": {"seed_groups": YEARS // 2},
        "draw_version: 4 -> 1": {"shuffle": True, "groups_per_batch": 16},
    }
    for text, how in others.items():
        with loader(data, **how) as other, pytest.raises(ConfigError, match=text):
            other.load_state_dict(state)
    with loader(data, shuffle=True, groups_per_batch=16) as plain:
        assert "groups_per_batch" not in plain.state_dict(), "as it was before there were groups"


def test_options_say_what_is_told_to_others() -> None:
    grouped = LoaderOptions(num_neighbors=[2], shuffle="groups", groups_per_batch=5, seed=1)
    assert grouped.source_options().groups_per_batch == 5
    assert LoaderOptions(num_neighbors=[2], shuffle=True).source_options().groups_per_batch is None
