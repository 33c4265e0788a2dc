"""Datasets of GiGL's task configurations, against the rows written and GiGL's formulas."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from gigl_loader import (
    ConfigError,
    DistDataset,
    DistNeighborLoader,
    build_dataset,
    build_dataset_from_task_config_uri,
)
from gigl_loader.commands.partition import main
from gigl_loader.compat.gigl_task import build_storage_dataset
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.errors import PeerError
from gigl_loader.partitioning.other_libraries import gigl_graphs, tfrecords
from gigl_loader.partitioning.other_libraries.gigl_graphs import RECORDS
from gigl_loader.runtime.ranks.collectives import gather_from_ranks
from gigl_loader.testing import batch_digest, run_ranks
from tests.support import records

NUM_PAGES, NUM_BUYERS, NUM_SHOPS = 50, 30, 20
DRAW = np.random.default_rng(3)
CITES = DRAW.integers(NUM_PAGES, size=(2, 200))
VISITS = np.stack([DRAW.integers(NUM_BUYERS, size=90), DRAW.integers(NUM_SHOPS, size=90)])
LIKES = np.stack([np.arange(0, NUM_BUYERS, 2).repeat(2), DRAW.integers(NUM_SHOPS, size=30)])


def _write_edges(folder: Path, ends: Any) -> dict[str, str]:
    rows = [{"s": int(src), "t": int(dst)} for src, dst in ends.T]
    for number, some in enumerate((rows[:50], rows[50:])):
        if some:
            records.write(folder / f"e-{number:05}-of-00002.tfrecord", some)
    return {"tfrecordUriPrefix": f"{folder}/"}


def _write_nodes(folder: Path, count: int) -> dict[str, Any]:
    # In any order: GiGL's preprocessor does not sort them.
    ids = np.random.default_rng(1).permutation(count)
    rows = [{"nid": int(i), "f": [float(i), float(i) / 2], "c": int(i) % 3} for i in ids]
    for number, some in enumerate((rows[: count // 3], rows[count // 3 :])):
        records.write(folder / f"n-{number:05}-of-00002.tfrecord", some)
    (folder / "notes.txt").write_text("no records")
    return {
        "nodeIdKey": "nid",
        "featureKeys": ["f"],
        "labelKeys": ["c"],
        "tfrecordUriPrefix": f"{folder}/",
    }


def _write_task(root: Path, task: dict[str, Any], preprocessed: dict[str, Any]) -> Path:
    (root / "pre.yaml").write_text(yaml.safe_dump(preprocessed))
    task["sharedConfig"] = {"preprocessedMetadataUri": str(root / "pre.yaml")}
    (root / "task.yaml").write_text(yaml.safe_dump(task))
    return root / "task.yaml"


def pages(root: Path, **task: Any) -> Path:
    """Write a homogeneous task; return its file."""
    triple = {"srcNodeType": "page", "relation": "cites", "dstNodeType": "page"}
    preprocessed = {
        "condensedNodeTypeToPreprocessedMetadata": {"0": _write_nodes(root / "n", NUM_PAGES)},
        "condensedEdgeTypeToPreprocessedMetadata": {
            "0": {
                "srcNodeIdKey": "s",
                "dstNodeIdKey": "t",
                "mainEdgeInfo": _write_edges(root / "e", CITES),
            }
        },
    }
    metadata = {"condensedNodeTypeMap": {"0": "page"}, "condensedEdgeTypeMap": {"0": triple}}
    node_task = {"nodeBasedTaskMetadata": {"supervisionNodeTypes": ["page"]}}
    return _write_task(
        root, {"graphMetadata": metadata, "taskMetadata": node_task, **task}, preprocessed
    )


def shops(root: Path, **task: Any) -> Path:
    """Write a typed task with labels of anchors; return its file."""
    triple = {"srcNodeType": "buyer", "relation": "visits", "dstNodeType": "shop"}
    preprocessed = {
        "condensedNodeTypeToPreprocessedMetadata": {
            "0": _write_nodes(root / "b", NUM_BUYERS),
            "1": _write_nodes(root / "s", NUM_SHOPS),
        },
        "condensedEdgeTypeToPreprocessedMetadata": {
            "0": {
                "srcNodeIdKey": "s",
                "dstNodeIdKey": "t",
                "mainEdgeInfo": _write_edges(root / "v", VISITS),
                "positiveEdgeInfo": _write_edges(root / "p", LIKES),
            }
        },
    }
    metadata = {
        "condensedNodeTypeMap": {"0": "buyer", "1": "shop"},
        "condensedEdgeTypeMap": {"0": triple},
    }
    anchors = {"nodeAnchorBasedLinkPredictionTaskMetadata": {"supervisionEdgeTypes": [triple]}}
    return _write_task(
        root, {"graphMetadata": metadata, "taskMetadata": anchors, **task}, preprocessed
    )


def _hash(node: int) -> int:
    """GiGL's hash of an id, in Python's integers."""
    x, mask = node + 1, 2**64 - 1
    for _ in range(2):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            signed = x - 2**64 if x >= 2**63 else x
            x = ((x ^ (signed >> shift & mask)) * factor) & mask
    return x


def _splits(ids: list[int], val: float, test: float) -> list[list[int]]:
    """GiGL's splits of the ids of all ranks."""
    hashes = np.array([_hash(i) for i in ids], dtype=np.int64)
    share = (hashes - hashes.min()).astype(np.float32) / np.float32(hashes.max())
    is_test = share >= 1 - test
    is_val = (share >= 1 - test - val) & ~is_test
    return [
        [i for i, one in zip(ids, mask, strict=True) if one]
        for mask in (~is_test & ~is_val, is_val, is_test)
    ]


def test_the_hash_is_gigls() -> None:
    assert [_hash(0), _hash(1)] == [1622107259858988186, 3834912982681189024]


def _nodes_and_splits(rank: int, count: int, task: Path, folder: Path) -> None:
    dataset = build_dataset_from_task_config_uri(task, is_inference=False)
    assert (dataset.edge_dir, dataset.partition_idx) == ("in", rank)
    ids = dataset.node_ids
    assert isinstance(ids, torch.Tensor)
    rows = dataset.view().node_features[DEFAULT_HOMOGENEOUS_NODE_TYPE].values
    assert rows.equal(torch.stack([ids.float(), ids.float() / 2], 1))
    splits = [dataset.train_node_ids, dataset.val_node_ids, dataset.test_node_ids]
    assert dataset.num_partitions == count
    (folder / f"{rank}.json").write_text(json.dumps([one.tolist() for one in [ids, *splits]]))


@pytest.mark.multiprocess
def test_nodes_keep_their_ids_and_are_split_as_gigl_splits_them(tmp_path: Path) -> None:
    arguments = {"trainerArgs": {"num_val": "0.2", "num_test": "0.3", "log_every": "5"}}
    task = pages(tmp_path, trainerConfig=arguments)
    _nodes_and_splits(0, 1, task, tmp_path)
    alone = json.loads((tmp_path / "0.json").read_text())
    (tmp_path / "ranks").mkdir()
    run_ranks(_nodes_and_splits, task, tmp_path, world_size=3, tmp_path=tmp_path / "ranks")
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [[i for part in parts for i in part[k]] for k in range(4)] == alone
    assert alone == [list(range(NUM_PAGES)), *_splits(list(range(NUM_PAGES)), 0.2, 0.3)]
    assert all(alone)


def test_inference_has_no_splits_and_the_dataset_pickles(tmp_path: Path) -> None:
    arguments = {
        "inferencerArgs": {"sample_edge_direction": "out", "max_labels_per_anchor_node": "4"}
    }
    dataset = build_dataset_from_task_config_uri(pages(tmp_path, inferencerConfig=arguments))
    assert dataset.known_split("train") is None
    assert (dataset.edge_dir, dataset.max_labels_per_anchor_node) == ("out", 4)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.num_edges == dataset.num_edges == CITES.shape[1]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_anchors_are_split_and_labels_are_edges(tmp_path: Path, edge_dir: str) -> None:
    arguments = {"trainerArgs": {"sample_edge_direction": edge_dir, "num_val": "0.3"}}
    dataset = build_dataset_from_task_config_uri(
        shops(tmp_path, trainerConfig=arguments), is_inference=False
    )
    anchors = sorted(set(LIKES[0].tolist()))
    splits = (dataset.train_node_ids, dataset.val_node_ids, dataset.test_node_ids)
    assert [list(split) for split in splits if split is not None] == [["buyer"]] * 3
    found = [split["buyer"].tolist() for split in splits if split is not None]
    assert found == _splits(anchors, 0.3, 0.1)
    label = dataset.label_edges["buyer", "visits_gigl_positive", "shop"]
    assert sorted(map(tuple, label.t().tolist())) == sorted(map(tuple, LIKES.T.tolist()))


def _same_partition(rank: int, count: int, task: Path, root: Path) -> None:
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        examples = tfrecords.read_examples

        def noted(file: Any, name: str, *how: Any) -> Any:
            read.append(name)
            return examples(file, name, *how)

        patch.setattr(gigl_graphs, "read_examples", noted)
        dataset = build_dataset_from_task_config_uri(task, _tfrecord_uri_pattern=RECORDS)
    assert len(read) == len(set(read))
    everyone = gather_from_ranks(read, count, list[str])
    files = sorted(name for names in everyone for name in names)
    assert files == sorted(map(str, task.parent.glob("*/*.tfrecord")))  # each by one rank
    ours, theirs = dataset.view(), DistDataset.load(root, rank).view()
    assert ours.num_nodes == theirs.num_nodes
    assert ours.num_classes == theirs.num_classes
    for kind in ("node_features", "node_labels", "edge_features"):
        assert list(getattr(ours, kind)) == list(getattr(theirs, kind))
        for key, rows in getattr(theirs, kind).items():
            assert getattr(ours, kind)[key].values.equal(rows.values)
            assert getattr(ours, kind)[key].values.dtype == rows.values.dtype
    assert ours.is_heterogeneous == theirs.is_heterogeneous
    assert list(ours.adjacency) == list(theirs.adjacency)
    for edge_type, edges in theirs.adjacency.items():
        own = ours.adjacency[edge_type]
        first, last = edges.first_row, edges.first_row + len(edges.indptr)
        assert own.indptr[first:last].equal(edges.indptr)  # in memory, all nodes have a row
        assert own.indices.equal(edges.indices)
        positions = torch.arange(len(own.indices))
        if edges.has_edge_ids:
            assert own.edge_ids_at(positions).equal(edges.edge_ids_at(positions))
        for name in ("node_books", "edge_books"):
            for key, book in getattr(theirs, name).items():
                ids = torch.arange(getattr(ours, name)[key].num_ids)
                assert book.owner(ids).equal(getattr(ours, name)[key].owner(ids))
    loaded = DistDataset.load(root, rank)
    seeds: Any = dataset.node_ids
    seeds = ("buyer", seeds["buyer"]) if dataset.is_typed else seeds
    digests: list[list[str]] = []
    for one in (dataset, loaded):
        assert one.num_classes == loaded.num_classes
        with DistNeighborLoader(one, [3, 2], seeds, batch_size=4, seed=1, num_workers=1) as loader:
            digests.append([batch_digest(batch) for batch in loader])
    assert digests[0] == digests[1]


@pytest.mark.multiprocess
@pytest.mark.parametrize("write", [shops, pages])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_partitions_are_those_of_the_command(tmp_path: Path, write: Any, edge_dir: str) -> None:
    arguments = {"inferencerArgs": {"sample_edge_direction": edge_dir}}
    task, root = write(tmp_path, inferencerConfig=arguments), tmp_path / "parts"
    flags = ["--num-partitions", "3", "--quiet", "--edge-dir", edge_dir]
    assert main(["--from", "gigl", str(task), "--root", str(root), *flags]) == 0
    (tmp_path / "ranks").mkdir()
    run_ranks(_same_partition, task, root, world_size=3, tmp_path=tmp_path / "ranks")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ssl_positive_label_percentage": "0.1"}, "ssl_positive_label_percentage=0.1: drawing"),
        ({"should_use_range_partitioning": "False"}, "should_use_range_partitioning=False"),
        ({"sample_edge_direction": "up"}, "sample_edge_direction must be 'in' or 'out'"),
        ({"num_val": "${now:%d}"}, "num_val must be text without"),
        ({"num_val": 0.5}, "num_val must be text"),
        ({"num_val": "0.9", "num_test": "0.9"}, "must be shares below 1"),
    ],
    ids=["ssl", "random", "direction", "resolver", "number", "shares"],
)
def test_an_argument_without_an_equal_is_named(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    task = pages(tmp_path, trainerConfig={"trainerArgs": arguments})
    with pytest.raises(ConfigError, match=words):
        build_dataset_from_task_config_uri(task, is_inference=False)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("linkBasedTaskMetadata", "linkBasedTaskMetadata: node and anchor tasks alone"),
        ("nodeAnchorBasedLinkPredictionTaskMetadata", "no positive labels"),
    ],
)
def test_a_kind_of_task_that_cannot_be_split_is_named(
    tmp_path: Path, kind: str, words: str
) -> None:
    task = pages(tmp_path, taskMetadata={kind: {}})
    with pytest.raises(ConfigError, match=words):
        build_dataset_from_task_config_uri(task, is_inference=False)


def test_files_are_chosen_by_the_pattern(tmp_path: Path) -> None:
    task = pages(tmp_path)
    (tmp_path / "n" / "below").mkdir()
    records.write(tmp_path / "n" / "below" / "n-00000-of-00001.tfrecord", [{"nid": 99}])
    records.write(tmp_path / "n" / "other.tfrecord", [{"nid": 99}])
    assert build_dataset_from_task_config_uri(task).num_nodes == NUM_PAGES
    with pytest.raises(ConfigError, match=r"no file at .* matches 'x'; there are below, n-00000"):
        build_dataset_from_task_config_uri(task, _tfrecord_uri_pattern="x")


def test_ids_that_do_not_count_from_0_are_refused(tmp_path: Path) -> None:
    task = pages(tmp_path)
    rows = [{"nid": i * 2, "f": [0.0, 0.0], "c": 0} for i in range(NUM_PAGES)]
    records.write(tmp_path / "n" / "n-00000-of-00002.tfrecord", rows)
    (tmp_path / "n" / "n-00001-of-00002.tfrecord").unlink()
    for name in ("e-00000", "e-00001"):
        records.write(tmp_path / "e" / f"{name}-of-00002.tfrecord", [{"s": 0, "t": 2}])
    with pytest.raises(ConfigError, match="do not count from 0"):
        build_dataset_from_task_config_uri(task)


def _told_of(rank: int, count: int, task: Path, words: str) -> None:
    with pytest.raises((ConfigError, PeerError), match=words):
        build_dataset_from_task_config_uri(task)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("n/n-00002", {"nid": 3, "f": [0.0, 0.0], "c": 0}, "of 'page': an id is there twice"),
        ("n/n-00002", {"nid": 999, "f": [0.0, 0.0], "c": 0}, r"do not count from 0.*\[999\]"),
        ("n/n-00002", {"nid": 50, "f": [0.0], "c": 0}, "widths of columns differ between files"),
        ("e/e-00002", {"s": 999, "t": 1}, r"that are no nodes of 'page': \[999\]"),
        ("e/e-00002", {"s": "x", "t": 1}, "record 0: feature 's' has 1 values .text."),
    ],
    ids=["twice", "far", "width", "dangling", "text"],
)
def test_all_ranks_are_told_of_a_record_of_one(
    tmp_path: Path, name: str, row: dict[str, Any], words: str
) -> None:
    task = pages(tmp_path)
    row = {key: one.encode() if isinstance(one, str) else one for key, one in row.items()}
    records.write(tmp_path / f"{name}-of-00003.tfrecord", [row])
    (tmp_path / "ranks").mkdir()
    run_ranks(_told_of, task, words, world_size=2, tmp_path=tmp_path / "ranks")


class Halves:
    """A splitter of one's own."""

    def __init__(self, *, of_labels: bool) -> None:
        if of_labels:
            self.should_convert_labels_to_edges = False  # GiGL's: it has one, whatever it says
        self.given: Any = None

    def __call__(self, *, node_ids: Any = None, edge_index: Any = None) -> Any:
        self.given = node_ids if edge_index is None else edge_index
        if edge_index is None:
            return {name: (ids[::2], ids[1::2], ids[:0]) for name, ids in node_ids.items()}
        anchors = torch.tensor([0, 2, 4])
        return {"buyer": (anchors, anchors[:0], anchors[:0])}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_storage_server_takes_a_splitter(tmp_path: Path, edge_dir: Any) -> None:
    task = shops(tmp_path)
    of_nodes, of_labels = Halves(of_labels=False), Halves(of_labels=True)
    dataset = build_storage_dataset(task, edge_dir, splitter=of_nodes)
    assert dataset.train_node_ids["shop"].tolist() == list(range(0, NUM_SHOPS, 2))
    dataset = build_storage_dataset(task, edge_dir, splitter=of_labels)
    assert dataset.train_node_ids["buyer"].tolist() == [0, 2, 4]
    (label_type, edge_type) = sorted(of_labels.given, key=lambda name: "gigl" not in name.relation)
    main = sorted(map(tuple, of_labels.given[edge_type].t().tolist()))
    assert (tuple(edge_type), main) == (("buyer", "visits", "shop"), sorted(map(tuple, VISITS.T)))
    edge_type, edges = label_type, of_labels.given[label_type]
    ends = [edge_type.src_node_type, edge_type.dst_node_type]
    anchors = edges[1 if edge_dir == "in" else 0]
    assert ends == (["shop", "buyer"] if edge_dir == "in" else ["buyer", "shop"])
    assert sorted(set(anchors.tolist())) == sorted(set(LIKES[0].tolist()))
    with pytest.raises(ConfigError, match="drawing edges as labels"):
        build_storage_dataset(task, edge_dir, ssl_positive_label_percentage=0.1)


def _info(folder: Path, key: Any, features: list[str], dim: int, **more: Any) -> Any:
    """GiGL's ``SerializedTFRecordInfo``."""
    fields = {
        "tfrecord_uri_prefix": SimpleNamespace(uri=f"{folder}/"),  # a Uri of GiGL's
        "feature_keys": features,
        "feature_spec": {},
        "feature_dim": dim,
        "entity_key": key,
        "packed_feature_key": None,
        "packed_feature_dim": 0,
        "label_keys": [],
        "tfrecord_uri_pattern": RECORDS,
    }
    return SimpleNamespace(**{**fields, **more})


def _serialized(root: Path, *, typed: bool) -> Any:
    """GiGL's ``SerializedGraphMetadata``."""
    _write_nodes(root / "n", NUM_PAGES)
    rows = [
        {"s": int(s), "t": int(t), "w": k / 10, "f": [float(s), float(t)]}
        for k, (s, t) in enumerate(CITES.T)
    ]
    records.write(root / "e" / "e-00000-of-00001.tfrecord", rows)
    nodes: Any = _info(root / "n", "nid", ["f"], 2, label_keys=["c"])
    edges: Any = _info(root / "e", ("s", "t"), ["w", "f"], 3)
    if typed:
        nodes, edges = {"page": nodes}, {("page", "cites", "page"): edges}
    return SimpleNamespace(
        node_entity_info=nodes,
        edge_entity_info=edges,
        positive_label_entity_info=None,
        negative_label_entity_info=None,
    )


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("weight", [None, "w"])
def test_a_dataset_of_serialized_metadata(tmp_path: Path, typed: bool, weight: Any) -> None:
    serialized = _serialized(tmp_path, typed=typed)
    key: Any = ("page", "cites", "page") if typed else DEFAULT_HOMOGENEOUS_EDGE_TYPE
    weights = {key: weight} if typed and weight else weight
    dataset = build_dataset(
        serialized,
        "out",
        splitter=Halves(of_labels=False) if typed else None,
        weight_edge_feat_name=weights,
    )
    assert (dataset.edge_dir, dataset.is_typed, dataset.num_classes) == (
        "out",
        typed,
        {"page": 3} if typed else 3,
    )
    if typed:
        assert dataset.train_node_ids["page"].tolist() == list(range(0, NUM_PAGES, 2))
    adjacency = dataset.view().adjacency[key]
    src = torch.arange(NUM_PAGES).repeat_interleave(adjacency.indptr.diff())
    ends = torch.stack([src, adjacency.indices.long()])
    order = np.lexsort((CITES[1], CITES[0]))
    assert ends.equal(torch.from_numpy(CITES[:, order]))
    rows = dataset.view().edge_features[key].values
    assert rows[:, -2:].equal(ends.t().float())
    expected = torch.from_numpy(order / 10).float()
    found = rows[:, 0] if weight is None else adjacency.weights
    assert found is not None
    assert found.equal(expected)
    assert rows.shape[1] == (3 if weight is None else 2)


class DistPartitioner:
    """GiGL's name."""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"partitioner_class": DistPartitioner}, "partitions are ranges of ids here"),
        ({"weight_edge_feat_name": "x"}, "has no feature 'x' for weights"),
        ({"weight_edge_feat_name": "f"}, "'f' must hold one number, a weight"),
        ({"_dataset_building_port": 1}, "_dataset_building_port has no use"),
        ({"_ssl_positive_label_percentage": 0.1}, "drawing edges as labels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_serialized_metadata_cannot_have_is_named(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    serialized = _serialized(tmp_path, typed=False)
    with pytest.raises(ConfigError, match=words):
        build_dataset(serialized, "in", **given)
    serialized.node_entity_info.packed_feature_key = "p"
    with pytest.raises(ConfigError, match="'p' is a packed feature"):
        build_dataset(serialized, "in")
