"""Quantised features of GiGL's records, against an encoder in plain Python."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gigl_loader import ConfigError, DistDataset, build_dataset_from_task_config_uri
from gigl_loader.commands.partition import main
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGES
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE
from tests.support import records

NUM_NODES = 40
IDS = {"n": ["nid"], "e": ["s", "t"]}
FEATURES = ["q0", "raw", "q1", "q2", "other", "q3", "q4"]
"""``raw`` has columns 1 and 2, ``other`` column 5."""
COLUMNS = [4, 0, 7, 3, 6]
"""Of the quantised ones, in the order of their codes."""
STATES: dict[int, dict[str, Any]] = {
    1: {"singleBitState": {"negMean": -0.3, "posMean": 1.7}},
    2: {"multiBitState": {"clipMin": -1.1, "clipMax": 2.3, "bits": 2}},
    4: {"multiBitState": {"clipMax": 0.7, "bits": 4}},  # clipMin is 0, which files leave out
    8: {"multiBitState": {"clipMin": -7.3, "clipMax": -0.1, "bits": 8}},
}


def _rounded(value: float) -> float:
    """Return the nearest float32."""
    (out,) = struct.unpack("<f", struct.pack("<f", value))
    return float(out)


def _value(bits: int, code: int) -> float:
    (state,) = STATES[bits].values()
    if bits == 1:
        return _rounded(state["posMean"] if code else state["negMean"])
    low, high = _rounded(state.get("clipMin", 0.0)), _rounded(state["clipMax"])
    share = _rounded(code / (2**bits - 1))
    return _rounded(_rounded(share * _rounded(high - low)) + low)


def _packed(bits: int, codes: list[int]) -> bytes:
    """Return codes one after another in bits, the rest of the last byte 0."""
    digits = "".join(format(code, f"0{bits}b") for code in codes)
    digits += "0" * (-len(digits) % 8)
    return bytes(int(digits[i : i + 8], 2) for i in range(0, len(digits), 8))


def _codes(bits: int, number: int) -> list[int]:
    return [(number * 7 + 3 * j) % 2**bits for j in range(len(COLUMNS))]


def _record(bits: int, number: int) -> dict[str, Any]:
    raw = [float(number), number / 2]
    return {"packed": _packed(bits, _codes(bits, number)), "raw": raw, "other": -float(number)}


def _row(bits: int, number: int) -> list[float]:
    row = [0.0, float(number), number / 2, 0.0, 0.0, -float(number), 0.0, 0.0]
    for column, code in zip(COLUMNS, _codes(bits, number), strict=True):
        row[column] = _value(bits, code)
    return row


def _ends(ids: list[str], number: int) -> dict[str, int]:
    return {key: (number + k) % NUM_NODES for k, key in enumerate(ids)}


def _task(root: Path, bits: int, **changed: Any) -> Path:
    """Write a task with quantised features of nodes and edges; edge ``i`` is (i, i + 1)."""
    for name, ids in IDS.items():
        rows = [_ends(ids, i) | _record(bits, i) for i in range(NUM_NODES)]
        records.write(root / name / "r-00000-of-00002.tfrecord", rows[:15])
        records.write(root / name / "r-00001-of-00002.tfrecord", rows[15:])
    quantised = {
        "packedFeatureKey": "packed",
        "quantizedFeatureIndices": COLUMNS,
        **STATES[bits],
        **changed,
    }
    info = {"featureKeys": FEATURES, "featureDim": 8, "quantizedFeatureMetadata": quantised}
    preprocessed = {
        "condensedNodeTypeToPreprocessedMetadata": {
            "0": {"nodeIdKey": "nid", "tfrecordUriPrefix": f"{root}/n/", **info}
        },
        "condensedEdgeTypeToPreprocessedMetadata": {
            "0": {
                "srcNodeIdKey": "s",
                "dstNodeIdKey": "t",
                "mainEdgeInfo": {"tfrecordUriPrefix": f"{root}/e/", **info},
            }
        },
    }
    (root / "pre.yaml").write_text(yaml.safe_dump(preprocessed))
    triple = {"srcNodeType": "page", "relation": "cites", "dstNodeType": "page"}
    task = {
        "graphMetadata": {
            "condensedNodeTypeMap": {"0": "page"},
            "condensedEdgeTypeMap": {"0": triple},
        },
        "sharedConfig": {"preprocessedMetadataUri": f"{root}/pre.yaml"},
    }
    (root / "task.yaml").write_text(yaml.safe_dump(task))
    return root / "task.yaml"


def _check(dataset: DistDataset, bits: int) -> None:
    view = dataset.view()
    rows = view.node_features[DEFAULT_HOMOGENEOUS_NODE_TYPE].values
    assert rows.dtype == torch.float32
    assert rows.tolist() == [_row(bits, number) for number in range(NUM_NODES)]
    adjacency, stored = view.adjacency[EDGES], view.edge_features[EDGES]
    ids = adjacency.edge_ids_at(torch.arange(NUM_NODES))
    values = stored.values[stored.locate(ids)].tolist()
    sources = edges_of(adjacency, dataset.edge_dir)[0].tolist()
    assert sorted(sources) == list(range(NUM_NODES))
    assert values == [_row(bits, number) for number in sources]


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_quantised_features_are_rows_of_floats(tmp_path: Path, bits: int) -> None:
    task, root = _task(tmp_path, bits), tmp_path / "parts"
    _check(build_dataset_from_task_config_uri(task), bits)
    flags = ["--num-partitions", "1", "--quiet", "--edge-dir", "in"]
    assert main(["--from", "gigl", str(task), "--root", str(root), *flags]) == 0
    _check(DistDataset.load(root, 0), bits)


def test_numbers_that_are_quantised_and_there_are_not_read(tmp_path: Path) -> None:
    task = _task(tmp_path, 4)
    for folder, ids in IDS.items():
        rows = [_ends(ids, i) | _record(4, i) | {"q1": 99.0} for i in range(NUM_NODES)]
        records.write(tmp_path / folder / "r-00000-of-00002.tfrecord", rows[:15])
        records.write(tmp_path / folder / "r-00001-of-00002.tfrecord", rows[15:])
    _check(build_dataset_from_task_config_uri(task), 4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"quantizedFeatureIndices": [0, 1, 3, 4, 6]}, "'raw' has 2 columns, of which .* name 1"),
        ({"quantizedFeatureIndices": [0, 3, 4, 7]}, "'q3' is not there, and .* its column 6"),
        ({"quantizedFeatureIndices": [0, 3, 4, 6, 7, 9]}, "has 8 features, .* name column 9"),
        ({"quantizedFeatureIndices": [0, 0]}, "must name columns, each once"),
        ({"quantizedFeatureIndices": []}, "must name columns, each once"),
        ({"singleBitState": None}, "must have a singleBitState or a multiBitState"),
        ({"multiBitState": {"bits": 2}}, "must have a singleBitState or a multiBitState"),
        ({"singleBitState": {"negMean": "low"}}, "negMean must be a number, got 'low'"),
        ({"singleBitState": None, "multiBitState": {"bits": 3}}, "bits must be 2, 4 or 8, got 3"),
        ({"singleBitState": None, "multiBitState": {"bits": 4}}, "1 bytes, but .* 4 bits have 3"),
        ({"packedFeatureKey": "raw"}, r"'raw' has 8 values \(floats\)"),
        ({"packedFeatureKey": "gone"}, r"'gone' has 0 values \(nothing\)"),
    ],
)
def test_metadata_that_do_not_fit_are_named(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build_dataset_from_task_config_uri(_task(tmp_path, 1, **changed))


def test_two_texts_in_place_of_one_are_named(tmp_path: Path) -> None:
    task = _task(tmp_path, 8)
    text = records.texts(b"ab", b"cde")
    row = records.record(records.example(nid=records.ints(0), packed=text))
    (tmp_path / "n" / "r-00000-of-00002.tfrecord").write_bytes(row)
    with pytest.raises(ConfigError, match=r"record 0: feature 'packed' has -1 values \(text\)"):
        build_dataset_from_task_config_uri(task)


def test_rows_with_other_bytes_are_named(tmp_path: Path) -> None:
    task = _task(tmp_path, 8)
    rows = [{"nid": i} | _record(8, i) for i in range(NUM_NODES)]
    rows[3]["packed"] += b"x"
    records.write(tmp_path / "n" / "r-00000-of-00002.tfrecord", rows)
    with pytest.raises(ConfigError, match=r"record 3: feature 'packed' has 6 values \(text\)"):
        build_dataset_from_task_config_uri(task)
