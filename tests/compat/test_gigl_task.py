"""Datasets of GiGL's task configurations, against the rows written and GiGL's formulas."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from gigl_loader import ConfigError, DistDataset, build_dataset_from_task_config_uri
from gigl_loader.commands.partition import main
from gigl_loader.compat.gigl_task import build_storage_dataset
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.loader.deployment.job_ranks import DistributedContext
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


def _of_rank(task: Path, rank: int, count: int, **how: Any) -> DistDataset:
    context = DistributedContext("127.0.0.1", rank, count)
    return build_dataset_from_task_config_uri(task, context, **how)


@pytest.mark.parametrize("count", [1, 3])
def test_nodes_keep_their_ids_and_are_split_as_gigl_splits_them(tmp_path: Path, count: int) -> None:
    arguments = {"trainerArgs": {"num_val": "0.2", "num_test": "0.3", "log_every": "5"}}
    task = pages(tmp_path, trainerConfig=arguments)
    found: list[list[int]] = [[], [], []]
    seen: list[int] = []
    for rank in range(count):
        dataset = _of_rank(task, rank, count, is_inference=False)
        assert dataset.edge_dir == "in"
        ids = dataset.node_ids
        assert isinstance(ids, torch.Tensor)
        seen += ids.tolist()
        rows = dataset.view().node_features[DEFAULT_HOMOGENEOUS_NODE_TYPE].values
        assert rows.equal(torch.stack([ids.float(), ids.float() / 2], 1))
        splits = (dataset.train_node_ids, dataset.val_node_ids, dataset.test_node_ids)
        for split, own in zip(found, splits, strict=True):
            assert isinstance(own, torch.Tensor)
            assert set(own.tolist()) <= set(ids.tolist())
            split += own.tolist()
    assert seen == list(range(NUM_PAGES))
    assert found == _splits(seen, 0.2, 0.3)
    assert all(found)


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


def test_partitions_are_those_of_the_command(tmp_path: Path) -> None:
    task, root = shops(tmp_path), tmp_path / "parts"
    flags = ["--num-partitions", "2", "--quiet", "--edge-dir", "in"]
    assert main(["--from", "gigl", str(task), "--root", str(root), *flags]) == 0
    for rank in range(2):
        ours, theirs = _of_rank(task, rank, 2).view(), DistDataset.load(root, rank).view()
        assert ours.num_nodes == theirs.num_nodes
        for edge_type, edges in theirs.adjacency.items():
            assert ours.adjacency[edge_type].indptr.equal(edges.indptr)
            assert ours.adjacency[edge_type].indices.equal(edges.indices)


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


class Halves:
    """A splitter of one's own."""

    def __init__(self, *, of_labels: bool) -> None:
        self.should_convert_labels_to_edges = of_labels
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
    ((edge_type, edges),) = of_labels.given.items()
    ends = [edge_type.src_node_type, edge_type.dst_node_type]
    anchors = edges[1 if edge_dir == "in" else 0]
    assert ends == (["shop", "buyer"] if edge_dir == "in" else ["buyer", "shop"])
    assert sorted(set(anchors.tolist())) == sorted(set(LIKES[0].tolist()))
    with pytest.raises(ConfigError, match="drawing edges as labels"):
        build_storage_dataset(task, edge_dir, ssl_positive_label_percentage=0.1)
