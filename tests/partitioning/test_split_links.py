from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import random_link_split

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.schema import EdgeDir, message_passing_to_positive_label
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.partition_graph import partition_graph
from gigl_loader.partitioning.split_links import (
    link_draws,
    split_links,
    split_partitions,
    split_supervision_type,
)
from tests.dataset.dataset_reference import (
    BUYS,
    KNOWS,
    REV_BUYS,
    E,
    Graph,
    N,
    as_index,
    by_type,
    graphs,
)
from tests.support.draws import examples


def _pairs(edge_index):
    return sorted(map(tuple, edge_index.t().tolist()))


def _shop(num_edges: int = 2000, users: int = 60, items: int = 40) -> HeteroData:
    generator = torch.Generator().manual_seed(1)
    index = torch.stack(
        [
            torch.randint(users, (num_edges,), generator=generator),
            torch.randint(items, (num_edges,), generator=generator),
        ]
    )
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(users)[:, None], torch.arange(items)[:, None]
    data[BUYS].edge_index, data[REV_BUYS].edge_index = index, index.flip(0)
    data[BUYS].edge_attr = torch.arange(num_edges)[:, None]
    data[BUYS].edge_weight = torch.arange(num_edges).float()
    data[KNOWS].edge_index = torch.randint(users, (2, 50), generator=generator)
    return data


def test_splits_are_disjoint_complete_and_of_the_size_asked_for() -> None:
    data = _shop()
    splits = split_links(data, BUYS, num_val=0.1, num_test=0.2, seed=5)
    parts = [splits.train.links, splits.val.links, splits.test.links]
    assert _pairs(torch.cat(parts, 1)) == _pairs(data[BUYS].edge_index)
    train, val, test = (set(_pairs(part)) for part in parts)
    assert train.isdisjoint(val | test)
    assert val.isdisjoint(test)
    for part, fraction in zip(parts, (0.7, 0.1, 0.2), strict=True):
        assert abs(part.size(1) / 2000 - fraction) < 0.05
    assert splits.data["user"].val_mask.nonzero().view(-1).tolist() == splits.val.anchors.tolist()


def test_held_out_links_pass_no_messages_in_any_direction() -> None:
    data = _shop()
    splits = split_links(data, BUYS)
    held_out = set(_pairs(splits.val.links)) | set(_pairs(splits.test.links))
    assert not held_out & set(_pairs(splits.data[BUYS].edge_index))
    assert not held_out & set(_pairs(splits.data[REV_BUYS].edge_index.flip(0)))
    assert _pairs(splits.data[BUYS].edge_index) == _pairs(splits.train.links)
    assert _pairs(splits.data[REV_BUYS].edge_index.flip(0)) == _pairs(splits.train.links)
    assert splits.data[KNOWS].edge_index is data[KNOWS].edge_index
    assert data[BUYS].edge_index.size(1) == 2000
    assert "val_mask" not in data["user"]
    # the attributes of the edges that stay went with them
    kept = splits.data[BUYS].edge_attr.view(-1)
    assert torch.equal(data[BUYS].edge_index[:, kept], splits.data[BUYS].edge_index)
    assert splits.data[BUYS].edge_weight.tolist() == kept.float().tolist()


def test_both_directions_between_nodes_of_one_type_are_one_link() -> None:
    index = torch.randint(30, (2, 400), generator=torch.Generator().manual_seed(2))
    data = Data(x=torch.ones(30, 1), edge_index=torch.cat([index, index.flip(0)], 1))
    splits = split_links(data)
    held_out = set(_pairs(splits.val.links)) | set(_pairs(splits.test.links))
    assert held_out == {(dst, src) for src, dst in held_out}
    assert not held_out & set(_pairs(splits.data.edge_index))
    assert splits.train.edge_type == E


def test_a_directed_type_with_a_reverse_type_of_its_own() -> None:
    cites, cited = ("paper", "cites", "paper"), ("paper", "rev_cites", "paper")
    data = HeteroData()
    data["paper"].num_nodes = 30
    data[cites].edge_index = torch.randint(30, (2, 300), generator=torch.Generator().manual_seed(3))
    data[cited].edge_index = data[cites].edge_index.flip(0)
    splits = split_links(data, cites)
    assert _pairs(splits.data[cited].edge_index.flip(0)) == _pairs(splits.train.links)
    kept = split_links(data, cites, rev_edge_types=None).data[cited]
    assert kept.edge_index.size(1) == 300
    assert split_links(data, cites, rev_edge_types=cited).val.links.equal(splits.val.links)


def test_a_part_of_the_training_links_can_supervise_only() -> None:
    data = _shop()
    splits = split_links(data, BUYS, disjoint_train_ratio=0.3)
    passing, supervising = set(_pairs(splits.data[BUYS].edge_index)), _pairs(splits.train.links)
    assert not passing & set(supervising)
    assert 0.15 < len(supervising) / 2000 < 0.27
    assert splits.test.links.equal(split_links(data, BUYS).test.links)


def _by_pair(data: HeteroData, splits: Any, *, disjoint: bool) -> tuple[torch.Tensor, list[int]]:
    """Return the edges in PyG's order of splits, and how many are in each of its four parts."""
    supervising, val, test = (
        set(_pairs(part.links)) for part in (splits.train, splits.val, splits.test)
    )
    # Training links that pass messages alone come after those that supervise.
    code = [
        2 if pair in val else 3 if pair in test else 0 if disjoint and pair in supervising else 1
        for pair in map(tuple, data[BUYS].edge_index.t().tolist())
    ]
    return torch.tensor(code).sort(stable=True).indices, [code.count(part) for part in range(4)]


@pytest.mark.parametrize("ratio", [0.0, 0.3])
@pytest.mark.parametrize("reverse", [REV_BUYS, None])
def test_what_is_in_which_split_means_what_it_means_in_pyg(
    monkeypatch: pytest.MonkeyPatch, ratio: float, reverse: Any
) -> None:
    data = _shop()
    how: dict[str, Any] = {"disjoint_train_ratio": ratio, "rev_edge_types": reverse}
    ours = split_links(data, BUYS, num_val=0.1, num_test=0.2, seed=7, **how)
    order, (supervise, _, val, test) = _by_pair(data, ours, disjoint=ratio > 0)
    # PyG draws a permutation and cuts it; here it is given the one that our draws make.
    monkeypatch.setattr(torch, "randperm", lambda *_, **__: order)
    no_negatives = torch.empty((2, 0), dtype=torch.long)
    monkeypatch.setattr(random_link_split, "negative_sampling", lambda *_, **__: no_negatives)
    theirs = random_link_split.RandomLinkSplit(
        num_val=val,
        num_test=test,
        disjoint_train_ratio=supervise,
        edge_types=[BUYS],
        rev_edge_types=[reverse],
        neg_sampling_ratio=0.0,
        add_negative_train_samples=False,
    )(data)
    for split, found in zip((ours.train, ours.val, ours.test), theirs, strict=True):
        assert _pairs(split.links) == _pairs(found[BUYS].edge_label_index)
    for kept in (BUYS, REV_BUYS, KNOWS):
        assert _pairs(ours.data[kept].edge_index) == _pairs(theirs[0][kept].edge_index), kept
    attributes = (one[BUYS].edge_attr.view(-1).sort().values for one in (ours.data, theirs[0]))
    assert torch.equal(*attributes)


def test_reverse_types_may_be_a_list() -> None:
    data = _shop()
    none: list[Any] = [None]
    one = split_links(data, BUYS, rev_edge_types=REV_BUYS)
    listed = split_links(data, BUYS, rev_edge_types=[REV_BUYS, REV_BUYS])
    assert _pairs(listed.data[REV_BUYS].edge_index) == _pairs(one.data[REV_BUYS].edge_index)
    assert split_links(data, BUYS, rev_edge_types=none).data[REV_BUYS].edge_index.size(1) == 2000


def test_what_prints_is_one_line_without_tensors() -> None:
    splits = split_links(_shop(), BUYS)
    counts = [one.links.size(1) for one in (splits.train, splits.val, splits.test)]
    assert repr(splits) == "LinkSplits({}, train={}, val={}, test={})".format(BUYS, *counts)
    assert repr(splits.val) == f"LinkSplit({('user', 'buys_val', 'item')}, links={counts[1]})"
    index = torch.randint(30, (2, 400), generator=torch.Generator().manual_seed(2))
    plain = split_links(Data(x=torch.ones(30, 1), edge_index=index))
    assert repr(plain.test) == f"LinkSplit(links={plain.test.links.size(1)})"
    assert repr(plain).startswith("LinkSplits(train=")


@given(graphs(), st.integers(0, 2**40), st.data())
def test_a_share_of_the_edges_has_the_same_splits(graph: Graph, seed: int, draw) -> None:
    edge_type = BUYS if graph.heterogeneous else E
    whole = graph.to_pyg()
    keep = [draw.draw(st.booleans()) for _ in graph.edges[edge_type]]
    share = graph.to_pyg()
    store = share[edge_type] if graph.heterogeneous else share
    mask = torch.tensor(keep, dtype=torch.bool)
    store.edge_index = store.edge_index[:, mask]
    store.edge_attr, store.edge_weight = store.edge_attr[mask], store.edge_weight[mask]
    options: dict[str, Any] = {"num_val": 0.3, "num_test": 0.3, "seed": seed}
    of_all, of_share = (split_links(data, edge_type, **options) for data in (whole, share))
    for name in ("train", "val", "test"):
        found = set(_pairs(getattr(of_share, name).links))
        assert found <= set(_pairs(getattr(of_all, name).links))


def test_draws_depend_on_the_seed_and_both_ends() -> None:
    ids = torch.arange(1000)
    zeros = torch.zeros_like(ids)
    draws = [link_draws(ids, zeros, 0), link_draws(zeros, ids, 0), link_draws(ids, zeros, 1)]
    for draw in draws:
        assert draw.min() >= 0
        assert draw.max() < 1
        assert abs(draw.mean() - 0.5) < 0.05
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    known = link_draws(torch.tensor([0, 3]), torch.tensor([0, 5]), 0)
    assert known.tolist() == link_draws(torch.tensor([0, 3]), torch.tensor([0, 5]), 0).tolist()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_one_dataset_serves_all_splits(edge_dir: EdgeDir) -> None:
    splits = split_links(_shop(200), BUYS)
    dataset = DistDataset.from_pyg(splits.data, edge_dir=edge_dir, supervision=splits.supervision)
    for name in ("train", "val", "test"):
        split = getattr(splits, name)
        assert split.edge_type == split_supervision_type(BUYS, name)
        assert _pairs(dataset.positive_label_edges(split.edge_type)) == _pairs(split.links)
        assert by_type(dataset.split_node_ids(name))["user"].tolist() == split.anchors.tolist()


def test_a_labeled_homogeneous_dataset_stays_one() -> None:
    splits = split_links(Data(x=torch.ones(9, 1), edge_index=torch.randint(9, (2, 60))))
    dataset = DistDataset.from_pyg(splits.data, supervision=splits.supervision)
    assert dataset.schema.is_homogeneous_with_labeled_edge_type


# --- directories ----------------------------------------------------------------------------------


def _edges_of(datasets, edge_type, edge_dir):
    found = []
    for dataset in datasets:
        adjacency = dataset.view().adjacency[edge_type]
        found.append(edges_of(adjacency, edge_dir))
    return _pairs(torch.cat(found, 1))


@pytest.mark.filterwarnings("ignore:num_partitions=.* is more than the:gigl_loader.GraphWarning")
@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    graphs(),
    st.integers(1, 3),
    st.sampled_from(["in", "out"]),
    st.booleans(),
    st.sampled_from(["mapped", "glt"]),
)
def test_a_directory_has_the_same_splits_as_the_graph(
    tmp_path: Path,
    graph: Graph,
    count: int,
    edge_dir: EdgeDir,
    disjoint: bool,
    format: Literal["mapped", "glt"],
) -> None:
    edge_type = BUYS if graph.heterogeneous else E
    options: dict[str, Any] = {
        "num_val": 0.3,
        "num_test": 0.3,
        "disjoint_train_ratio": 0.5 * disjoint,
        "seed": 11,
    }
    splits = split_links(graph.to_pyg(), edge_type, **options)
    partition_graph(
        graph.to_pyg(),
        count,
        tmp_path / "whole",
        method="random",
        edge_dir=edge_dir,
        progress=False,
        format=format,
        overwrite=True,
    )
    split_partitions(
        tmp_path / "whole",
        tmp_path / "split",
        edge_type if graph.heterogeneous else None,
        **options,
        overwrite=True,
    )
    datasets = [DistDataset.load(tmp_path / "split", index) for index in range(count)]
    for kept in graph.edges:
        store = splits.data[kept] if graph.heterogeneous else splits.data
        assert _edges_of(datasets, kept, edge_dir) == _pairs(store.edge_index)
    node_type = edge_type[0]
    for split in (splits.train, splits.val, splits.test):
        found: list[Any] = [dataset.positive_label_edges(split.edge_type) for dataset in datasets]
        assert _pairs(torch.cat(found, 1)) == _pairs(split.links)
        for dataset, links in zip(datasets, found, strict=True):
            assert set(links[0].tolist()) <= set(by_type(dataset.node_ids)[node_type].tolist())
    anchors = [by_type(dataset.val_node_ids)[node_type] for dataset in datasets]
    assert sorted(torch.cat(anchors).tolist()) == splits.val.anchors.tolist()
    for dataset in datasets:  # edge ids, and with them features and weights, are the old ones
        adjacency = dataset.view().adjacency[edge_type]
        rows = dataset.view().edge_features[edge_type]
        ids: Any = adjacency.edge_ids
        assert adjacency.weights is not None
        assert rows.values[rows.locate(ids)][:, 0].tolist() == ids.tolist()
        assert adjacency.weights.tolist() == (ids / 4).tolist()


@pytest.mark.glt
def test_a_directory_that_glt_wrote_can_be_split(tmp_path: Path) -> None:
    from graphlearn_torch.partition import RandomPartitioner, load_partition

    torch.manual_seed(0)
    data = _shop(100)
    RandomPartitioner(
        str(tmp_path / "glt"),
        2,
        {"user": 60, "item": 40},
        {BUYS: data[BUYS].edge_index, REV_BUYS: data[REV_BUYS].edge_index},
        edge_assign_strategy="by_src",
    ).partition()
    split_partitions(tmp_path / "glt", tmp_path / "split", BUYS, seed=2)
    datasets = [DistDataset.load(tmp_path / "split", index) for index in range(2)]
    splits = split_links(data, BUYS, seed=2)
    assert datasets[0].edge_dir == "out"
    assert _edges_of(datasets, BUYS, "out") == _pairs(splits.train.links)
    assert _edges_of(datasets, REV_BUYS, "out") == _pairs(splits.train.links.flip(0))
    assert load_partition(str(tmp_path / "split"), 0)[0] == 2
    with pytest.raises(ConfigError, match="holds partitions"):
        split_partitions(tmp_path / "glt", tmp_path / "split", BUYS)
    with pytest.raises(ConfigError, match=r"label edges of .* already"):
        split_partitions(tmp_path / "split", tmp_path / "again", BUYS)
    with pytest.raises(ConfigError, match="another directory"):
        split_partitions(tmp_path / "glt", tmp_path / "glt", BUYS)
    with pytest.raises(ConfigError, match="edge_type is needed"):
        split_partitions(tmp_path / "glt", tmp_path / "again")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_type": None}, "edge_type is needed"),
        ({"edge_type": ("user", "sells", "item")}, "no edges of type"),
        ({"edge_type": message_passing_to_positive_label(BUYS)}, "no edges of type"),
        ({"edge_type": "buys"}, "tuple"),
        ({"num_val": 100}, "counts cannot be promised"),
        ({"num_val": -0.1}, r"in \[0, 1\)"),
        ({"num_test": "0.1"}, "must be a fraction"),
        ({"num_val": 0.5, "num_test": 0.5}, "nothing to train on"),
        ({"seed": 0.5}, "seed must be an int"),
        ({"rev_edge_types": KNOWS}, "from 'item' to 'user'"),
        ({"rev_edge_types": ("item", "sold_to", "user")}, "from 'item' to 'user'"),
    ],
)
def test_split_links_refuses(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        split_links(_shop(20), **({"edge_type": BUYS} | options))


def test_node_types_without_features_and_unknown_splits() -> None:
    data = Data(edge_index=as_index([(0, 1), (3, 2)]))
    assert split_links(data, num_test=0.0, num_val=0).data.num_nodes == 4
    assert DistDataset.from_pyg(data).view().num_nodes == {N: 4}
    with pytest.raises(ConfigError, match="split must be"):
        split_supervision_type(BUYS, "valid")  # type: ignore[arg-type]  # wrong on purpose


def test_a_directory_that_is_split_keeps_features_in_fewer_bytes_and_the_order_of_rows(
    tmp_path: Path,
) -> None:
    ids = torch.arange(9)
    data = Data(x=torch.randn(9, 3), edge_index=torch.stack([ids.clamp(max=3), ids]), age=ids)
    options: dict[str, Any] = {"feature_dtype": "int8", "order": "degree", "progress": False}
    partition_graph(data, 2, tmp_path / "a", **options)
    data.x = None  # nothing but an attribute says in which order rows are
    partition_graph(data, 2, tmp_path / "c", order="degree", progress=False)
    split_partitions(tmp_path / "a", tmp_path / "b", num_val=0.2)
    split_partitions(tmp_path / "c", tmp_path / "d", num_val=0.2)
    for index in range(2):
        old, new = (DistDataset.load(tmp_path / root, index).view() for root in "ab")
        before, after = old.node_features[N], new.node_features[N]
        assert after.scales is not None
        assert before.scales is not None
        assert torch.equal(after.scales, before.scales)
        assert torch.equal(after.values, before.values)
        bare = [DistDataset.load(tmp_path / root, index).view() for root in "cd"]
        ages = [view.node_attributes[N, "age"].values.tolist() for view in bare]
        assert ages == [[[3, 0, 1, 2, 4], [5, 6, 7, 8]][index]] * 2


@pytest.mark.parametrize("method", ["contiguous", "random"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_what_no_link_is_part_of_is_the_same_bytes(
    tmp_path: Path, edge_dir: EdgeDir, method: str
) -> None:
    data = _shop()
    data["user"].age, data["item"].y = torch.arange(60), torch.arange(40) % 3
    options: dict[str, Any] = {"method": method, "edge_dir": edge_dir, "progress": False}
    partition_graph(data, 3, tmp_path / "a", **options)
    split_partitions(tmp_path / "a", tmp_path / "b", BUYS)
    before, after = (
        {
            str(path.relative_to(tmp_path / root)): path.read_bytes()
            for path in (tmp_path / root).rglob("*.bin")
        }
        for root in "ab"
    )
    changed = {name for name in before if after.get(name) != before[name]}
    touched = {"__".join(edge_type) for edge_type in (BUYS, REV_BUYS)}
    assert {name.split("/")[1] for name in changed} == {"edges"}
    assert {name.split("/")[2] for name in changed} == touched
    added = {name.split("/", 1)[1] for name in after.keys() - before.keys()}
    assert {name.split("/")[0] for name in added} == {"edges", "splits"}
    # nothing of another format lies beside it, or is left behind
    assert {path.suffix for path in (tmp_path / "b").rglob("*") if path.is_file()} <= {
        ".bin",
        ".json",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.filterwarnings("ignore:batches will not carry")
def test_attributes_of_edges_are_cut_whatever_they_are_held_in() -> None:
    ids = torch.arange(20)
    data = Data(edge_index=torch.stack([ids % 7, ids % 5]), num_nodes=7)
    data.edge_time, data.edge_name = ids.numpy(), [str(i) for i in range(20)]
    data.edge_attr, data.pair_index = ids.unsqueeze(1), torch.stack([ids, -ids])
    data.kind, data.score = "a graph", ids[:7]
    found = split_links(data).data
    kept = found.edge_attr.view(-1)
    assert 0 < len(kept) < 20
    assert torch.equal(found.edge_index, data.edge_index[:, kept])
    assert found.edge_time.tolist() == kept.tolist()
    assert found.edge_name == [str(i) for i in kept.tolist()]
    assert torch.equal(found.pair_index, torch.stack([kept, -kept]))
    assert (found.kind, found.score.tolist()) == ("a graph", list(range(7)))
    assert len(data.edge_time) == len(data.edge_name) == 20, "the caller's stay"
