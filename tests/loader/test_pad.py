"""``pad=``: batches of one shape, which hold the bits of the batches without it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    CustomSamplerOptions,
    DistABLPLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
    padding_sizes,
)
from gigl_loader.testing import TinyGraph, batch_digest, check_batch, run_cluster, run_ranks
from tests.loader import digest_cases, pad_jobs
from tests.loader.digest_cases import CASES
from tests.loader.pad_cases import check_dead, one_shape, real, seeds_of, shapes

pytestmark = [pytest.mark.usefixtures("group")]

KNOWN = json.loads(Path(__file__).with_name("digests.json").read_text())
NOT_BOUNDED = {"nodes, bidirectional", "nodes, ppr", "nodes, ppr tokens", "subgraphs"}
NOT_BOUNDED |= {"typed subgraphs"}
NOT_BOUNDED |= {name for name in CASES if "adaptive" in name}
PADDED = [name for name in CASES if name not in NOT_BOUNDED and "all neighbours" not in name]
LARGE, TYPED = TinyGraph.random(400, 3000), TinyGraph.random(300, 2500, heterogeneous=True)


def _made(name: str, pad: Any = True, **how: Any) -> BaseDistLoader:
    case = CASES[name]
    dataset = case.partition(0, 1)
    dataset.max_labels_per_anchor_node = 1 if case.kind is DistABLPLoader else None
    return case.make(dataset, case.seeds(), **{"num_workers": 0, "pad": pad, **how})


@pytest.mark.parametrize("name", PADDED)
def test_every_kind_of_batch_has_one_shape_and_the_bits_of_known(name: str) -> None:
    digests = {}
    with _made(name) as loader:
        for epoch in range(digest_cases.EPOCHS):
            batches = one_shape(loader)
            for number, batch in enumerate(batches):
                check_dead(batch)
                digests[epoch, number] = batch_digest(real(batch))
            assert len(batches) == len(loader)
    assert digest_cases.digest_of(digests) == KNOWN[name]


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", ["typed nodes, out", "links, binary", "anchors"])
def test_workers_sample_for_it(name: str) -> None:
    with _made(name) as alone, _made(name, num_workers=2) as loader:
        assert [batch_digest(one) for one in loader] == [batch_digest(one) for one in alone]


@pytest.mark.multiprocess
@pytest.mark.parametrize("exchange", ["workers", "collective"])
def test_on_two_ranks(exchange: str, tmp_path: Path) -> None:
    names, ranks = ["nodes", "typed nodes", "links, triplet", "anchors"], tmp_path / "ranks"
    ranks.mkdir()
    how = {"exchange": exchange}
    run_ranks(pad_jobs.of_a_rank, tmp_path, names, how, world_size=2, tmp_path=ranks)
    for name in names:
        assert digest_cases.read(tmp_path, name) == KNOWN[name], name


@pytest.mark.multiprocess
def test_from_a_graph_store(tmp_path: Path) -> None:
    names, notes = ["nodes", "links, binary", "anchors"], tmp_path / "notes"
    notes.mkdir()
    run_cluster(
        pad_jobs.of_a_client, tmp_path, names, dataset=digest_cases.plain_partition, tmp_path=notes
    )
    for name in names:
        assert digest_cases.read(tmp_path, name) == KNOWN[name], name


@pytest.mark.multiprocess
def test_edges_of_the_graph_bound_batches_alike_on_ranks_and_from_servers(tmp_path: Path) -> None:
    """Fan-outs beyond the graph: 400 edges, of 60 nodes with up to 50 neighbours each."""
    for name in ("ranks", "notes"):
        (tmp_path / name).mkdir()
    run_ranks(
        pad_jobs.huge_of_a_rank, tmp_path, world_size=2, tmp_path=tmp_path / "ranks", timeout=300
    )
    run_cluster(
        pad_jobs.huge_of_a_client,
        tmp_path,
        dataset=pad_jobs.small_partition,
        tmp_path=tmp_path / "notes",
    )
    alone = pad_jobs.huge_shapes(pad_jobs.SMALL.dataset(), torch.arange(60))
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert len(found) == 4
    assert found == [alone] * 4
    assert alone == {"merged": [62 + 2, 400 + 2 * 50], "trees": [3 * 401 + 2, 3 * 400]}


def _nodes(pad: Any = True, **how: Any) -> DistNeighborLoader:
    given = {"batch_size": 16, "seed": 3, "num_workers": 0, "shuffle": True, **how}
    return DistNeighborLoader(LARGE.dataset(), [4, 4], torch.arange(70), pad=pad, **given)


def test_the_last_batch_has_fewer_seeds_and_the_same_shape() -> None:
    with _nodes() as loader:
        *_, last = one_shape(loader)
        assert last.batch_size == last.input_id.numel() == last.batch.numel() == 70 % 16
        assert last.seed_mask[: last.batch_size].all()
        assert not last.seed_mask[last.batch_size :].any()
        assert last.pad_node_mask.dtype == last.pad_edge_mask.dtype == torch.bool
        assert not last.e_id[~last.pad_edge_mask].any()
        one = loader.collate([5])
        assert shapes(one) == shapes(last)
        assert one.batch.tolist() == [5]
        with pytest.raises(ConfigError, match="a batch of 400 seeds has no place in PadShape"):
            loader.collate(list(range(70)) * 5 + list(range(50)))


def test_sizes_are_measured_and_the_rest_is_split() -> None:
    with _nodes(False) as loader:
        whole = list(loader)
        sizes = padding_sizes(whole, share=0.6)
    assert sizes["nodes"] % 8 == sizes["edges"] % 8 == 0
    with _nodes(sizes) as loader:
        parts = one_shape(loader)
        assert parts[0].num_nodes == sizes["nodes"]
        assert parts[0].num_edges == sizes["edges"]
    large = [
        one for one in whole if one.num_nodes + 2 > sizes["nodes"] or one.num_edges > sizes["edges"]
    ]
    assert 0 < len(large) <= 0.4 * len(whole)
    assert len(parts) >= len(whole) + len(large)
    assert seeds_of(parts) == seeds_of(whole)
    for part in parts:
        check_dead(part)
        check_batch(real(part), LARGE, seeds=part.batch, num_neighbors=[4, 4])
    # Those that fit are the very ones.
    digests = {batch_digest(real(part)) for part in parts}
    assert {batch_digest(one) for one in whole if one not in large} <= digests


def test_measured_sizes_of_types_and_of_padded_batches() -> None:
    how: dict[str, Any] = {"batch_size": 12, "seed": 1, "num_workers": 0}
    seeds = ("user", torch.arange(100))
    with DistNeighborLoader(TYPED.dataset(), [3, 3], seeds, **how) as loader:
        whole = list(loader)
        sizes = padding_sizes(whole, share=0.7)
    assert set(sizes["nodes"]) == set(TYPED.num_nodes)
    assert set(sizes["edges"]) == set(TYPED.edges)
    with DistNeighborLoader(TYPED.dataset(), [3, 3], seeds, pad=True, **how) as loader:
        assert padding_sizes(loader, share=0.7) == sizes
    with DistNeighborLoader(TYPED.dataset(), [3, 3], seeds, pad=sizes, **how) as loader:
        parts = one_shape(loader)
    assert len(parts) > len(whole)
    assert seeds_of(parts) == seeds_of(whole)
    for part in parts:
        check_batch(
            real(part), TYPED, seeds=part["user"].batch, num_neighbors=[3, 3], input_type="user"
        )
    with pytest.raises(ConfigError, match="needs batches"):
        padding_sizes([])
    with pytest.raises(ConfigError, match="share must be in"):
        padding_sizes(whole, share=0)


def test_a_larger_batch_may_have_the_shape_of_the_bound() -> None:
    with _nodes(False) as loader:
        whole = list(loader)
        sizes = padding_sizes(whole, share=0.6)
    with _nodes({**sizes, "larger": "bound"}) as loader, _nodes(True) as bounded:
        found, bound = list(loader), next(iter(bounded))
        assert len(found) == len(loader) == len(whole)
    assert [batch_digest(real(one)) for one in found] == [batch_digest(one) for one in whole]
    kinds = {one.num_nodes for one in found}
    assert kinds == {sizes["nodes"], bound.num_nodes}


def test_how_many_batches_there_are_is_not_known_where_some_are_split() -> None:
    with _nodes({"nodes": 120, "edges": 160}) as loader:
        with pytest.raises(TypeError, match='"larger": "bound"'):
            len(loader)
        with pytest.raises(TypeError):
            len(iter(loader))  # type: ignore[arg-type]  # wrong on purpose
        assert "batches=5" in repr(loader)
        assert len(list(loader)) > 5
    with _nodes({"nodes": 10**4, "edges": 10**4}) as loader:  # more than any batch can have
        assert len(loader) == 5


@pytest.mark.parametrize("in_order", [True, False])
def test_a_state_within_a_split_batch_goes_on_with_its_next_part(in_order: bool) -> None:
    pad = {"nodes": 120, "edges": 160}
    with _nodes(pad, in_order=in_order) as loader:
        whole = [batch_digest(one) for one in loader]
        states = []
        loader.set_epoch(0)
        for _ in loader:
            states.append(loader.state_dict())
        stats = loader.stats()
        assert (stats["batches"], stats["seeds"]) == (10, 140)
    assert any("parts" in state for state in states)
    assert any("parts" not in state for state in states)
    for taken, state in enumerate(states, 1):
        with _nodes(pad, in_order=in_order) as resumed:
            resumed.load_state_dict(state)
            assert [batch_digest(one) for one in resumed] == whole[taken:]


def test_a_state_within_a_split_batch_is_of_its_sizes() -> None:
    pad = {"nodes": 120, "edges": 160}
    with _nodes(pad) as loader:
        for _ in loader:
            state = loader.state_dict()
            if "parts" in state:
                break
        batches = iter(loader)
        between = loader.state_dict()
        del batches
    for other in ({"nodes": 128, "edges": 160}, True, False):
        with _nodes(other) as loader:
            with pytest.raises(ConfigError, match="within a batch that is split: give pad="):
                loader.load_state_dict(state)
            loader.load_state_dict(between)


def test_a_batch_that_cannot_be_made_comes_again() -> None:
    pad, fails = {"nodes": 120, "edges": 160}, [False]

    def transform(batch: Any) -> Any:
        if fails[0]:
            raise RuntimeError("of the user's")
        return batch

    with _nodes(pad) as loader:
        whole = [batch_digest(one) for one in loader]
    with _nodes(pad, transform=transform) as loader:
        batches = iter(loader)
        found = [batch_digest(next(batches))]
        assert "parts" in loader.state_dict()
        fails[0] = True
        with pytest.raises(RuntimeError, match="of the user's"):
            next(batches)
        fails[0] = False
        found += [batch_digest(one) for one in batches]
    assert found == whole


SMALL: dict[str, dict[str, Any]] = {
    "nodes, disjoint": {"nodes": 60, "edges": 58},
    "nodes, by time": {"nodes": 24, "edges": 22},
    "nodes, all neighbours": {"nodes": 98, "edges": 100},
    "nodes": {"nodes": 40, "edges": 41},
    "links": {"nodes": 50, "edges": 44},
    "links, binary": {"nodes": 98, "edges": 82},
    "links, triplet": {"nodes": 70, "edges": 64},
    "links, by time": {"nodes": 90, "edges": 88},
    "anchors": {"nodes": 66, "edges": 62},
}


@pytest.mark.parametrize("name", SMALL)
def test_parts_of_all_kinds_hold_each_seed_once_with_what_is_told_of_it(name: str) -> None:
    with _made(name, False) as loader:
        whole = list(loader)
    with _made(name, SMALL[name]) as loader:
        parts = one_shape(loader)
    assert len(parts) > len(whole), "otherwise nothing was split"
    assert seeds_of(parts) == seeds_of(whole)
    for field in ("edge_label_index", "src_index", "dst_pos_index", "dst_neg_index"):
        if field in whole[0]:
            assert sorted(_told(parts, field)) == sorted(_told(whole, field))
    if name == "links, binary":
        assert _negatives(parts) == _negatives(whole), "each goes with its seed edge"
    if "seed_time" in whole[0]:
        times = [torch.cat([one.seed_time for one in batches]) for batches in (parts, whole)]
        assert torch.equal(*times)
    if "y_positive" in whole[0]:
        assert _labels(parts) == _labels(whole)
    if "disjoint" in name or "time" in name:
        for part in map(real, parts):
            seeds = part.input_id.numel()
            assert set(part.batch.tolist()) == set(range(seeds))
            assert (part.batch[part.edge_index[0]] == part.batch[part.edge_index[1]]).all()


def _told(batches: list[Any], field: str) -> list[Any]:
    """Return the global ids that local ones mean."""
    ids = []
    for batch in batches:
        found = batch.n_id[batch[field]]
        ids += found.t().tolist() if field == "edge_label_index" else found.tolist()
    return ids


def _negatives(batches: list[Any]) -> dict[int, list[int]]:
    """Return the negative of each seed edge, of which there is one."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        edges = batch.input_id.tolist()
        negatives = batch.n_id[batch.edge_label_index[:, len(edges) :]].t().tolist()
        found.update(zip(edges, negatives, strict=True))
    return found


def _labels(batches: list[Any]) -> list[Any]:
    return [
        (int(batch.n_id[anchor]), batch.n_id[labels].tolist())
        for batch in batches
        for anchor, labels in batch.y_positive.items()
    ]


def test_dead_nodes_of_trees_are_in_a_tree_of_their_own() -> None:
    with _made("nodes, disjoint") as loader:
        batch = next(iter(loader))
    assert (batch.batch[~batch.pad_node_mask] == 8).all()
    assert batch.batch[batch.pad_node_mask].max() < 8


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ({"nodes": 100}, {}, 'pad must be True, False or {"nodes"'),
    ("yes", {}, "pad must be True"),
    ({"nodes": 100, "edges": 100, "hops": 2}, {}, "pad must be True"),
    ({"nodes": True, "edges": 100}, {}, r'pad\["nodes"\] must be an integer'),
    ({"nodes": 100, "edges": -1}, {}, r'pad\["edges"\] must be an integer'),
    ({"nodes": 100, "edges": 100, "larger": "cut"}, {}, 'must be "split" or "bound"'),
    ({"nodes": {"user": 9}, "edges": 90}, {}, "by type, but the graph is homogeneous"),
    ({"nodes": 18, "edges": 90}, {}, "single seed.*cannot be split: give at least 24"),
    ({"nodes": 90, "edges": 15}, {}, "single seed.*cannot be split: give at least 20"),
    (True, {"num_neighbors": [4, -1]}, "pad has no bound.*-1 takes all.*padding_sizes"),
    ({"nodes": 90, "edges": 90, "larger": "bound"}, {"num_neighbors": [-1]}, "pad has no bound"),
    (True, {"subgraph_type": "induced"}, 'subgraph_type="induced"'),
    (True, {"sampler_options": PPRSamplerOptions()}, "PPRSamplerOptions"),
    (True, {"sampler_options": CustomSamplerOptions("a.B")}, "CustomSamplerOptions"),
    (True, {"transform_sampler_output": lambda output: output}, "transform_sampler_output"),
]


@pytest.mark.parametrize(("pad", "how", "match"), REFUSED)
def test_what_cannot_be_padded_is_refused_before_anything_starts(
    pad: Any, how: dict[str, Any], match: str
) -> None:
    given = {"num_neighbors": [4, 3], "batch_size": 16, "num_workers": 0, **how}
    with pytest.raises(ConfigError, match=match):
        DistNeighborLoader(LARGE.dataset(), input_nodes=torch.arange(70), pad=pad, **given)


def test_types_and_kinds_that_are_refused() -> None:
    typed = TYPED.dataset()
    for pad, match in (
        ({"nodes": 90, "edges": 90}, "must name exactly the types of a batch"),
        ({"nodes": {"user": 90, "shop": 90}, "edges": {}}, r'"nodes".*\[\'item\', \'user\'\]'),
        ({"nodes": {"user": 90, "item": 90}, "edges": {}}, r'"edges".*rev_buys'),
    ):
        with pytest.raises(ConfigError, match=match):
            DistNeighborLoader(typed, [3], ("user", torch.arange(9)), num_workers=0, pad=pad)
    with pytest.raises(ConfigError, match="pad does not go with the sampler 'subgraph_sampler'"):
        DistSubGraphLoader(
            LARGE.dataset(),
            torch.arange(9),
            [3],
            subgraph_type="directional",
            num_workers=0,
            pad=True,
        )
    case = CASES["anchors"]
    with pytest.raises(ConfigError, match=r"pad has no bound: anchors.*max_labels_per_anchor_node"):
        case.make(case.partition(0, 1), case.seeds(), num_workers=0, pad=True)


def test_a_seed_that_has_no_place_is_an_error_and_nothing_is_lost() -> None:
    """Fan-outs of -1 bound nothing, so it is found out by the batch."""
    pad = {"nodes": 100, "edges": 20}
    with (
        _nodes(pad, num_neighbors=[-1, -1])
        if False
        else DistNeighborLoader(
            LARGE.dataset(), [-1, -1], torch.arange(4), batch_size=2, num_workers=0, pad=pad
        ) as loader
    ):
        with pytest.raises(ConfigError, match="no place for the neighbourhood of a single seed"):
            next(iter(loader))
        assert loader.state_dict()["yielded"] == 0
