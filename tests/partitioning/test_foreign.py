"""Partitions and records of other libraries, row by row against the graph that those wrote."""

import dataclasses
import gzip
import importlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch_geometric.data import Data, HeteroData
from torch_geometric.distributed import Partitioner
from torch_geometric.loader.cluster import ClusterData

from gigl_loader import DistDataset, partition_graph
from gigl_loader.commands.partition import main
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.other_libraries import tfrecords
from gigl_loader.partitioning.other_libraries.tfrecords import read_examples
from gigl_loader.testing import TinyGraph
from tests.partitioning.foreign_cases import BUYS, Case, plain, typed
from tests.support.records import example as _example
from tests.support.records import floats as _floats
from tests.support.records import ints as _ints
from tests.support.records import record as _record
from tests.support.records import sized as _sized
from tests.support.records import varint as _varint

ARCHIVES = Path(__file__).with_name("foreign")
PLAIN: dict[Any, Any] = {
    "_N": DEFAULT_HOMOGENEOUS_NODE_TYPE,
    ("_N", "_E", "_N"): DEFAULT_HOMOGENEOUS_EDGE_TYPE,
}


def _extract(name: str, folder: Path) -> Path:
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def _run(library: str, path: Path, root: Path, *flags: str) -> int:
    return main(
        [
            "--from",
            library,
            str(path),
            "--root",
            str(root),
            "--memory",
            "400MB",
            "--threads",
            "1",
            "--quiet",
            *flags,
        ]
    )


def _parts(root: Path, count: int) -> list[DistDataset]:
    assert len(list(root.glob("part[0-9]*"))) == count
    return [DistDataset.load(root, k) for k in range(count)]


def _without_masks(case: Case) -> Case:
    for rows in case.nodes.values():
        rows.pop("train_mask", None)
        rows.pop("val_mask", None)
    return case


def _owned(dataset: DistDataset, node_type: str) -> torch.Tensor:
    ids = dataset.node_ids
    return ids[node_type] if isinstance(ids, dict) else ids


def _check_nodes(case: Case, parts: list[DistDataset], columns: dict[str, str]) -> None:
    """Check the rows of all nodes; ``columns``: the tensors of features, label and attributes."""
    for key, rows in case.nodes.items():
        node_type, seen = PLAIN.get(key, key), []
        for dataset in parts:
            owned = _owned(dataset, node_type)
            original = dataset.to_original(owned, node_type)
            seen += original.tolist()
            view = dataset.view()
            stored: dict[str, Any] = {
                "x": view.node_features.get(node_type),
                "y": view.node_labels.get(node_type),
            }
            stored |= {n: r for (t, n), r in view.node_attributes.items() if t == node_type}
            assert {n for n, r in stored.items() if r is not None} == {
                n for n, tensor in columns.items() if tensor in rows
            }
            for name, tensor in columns.items():
                if tensor in rows:
                    values = stored[name].values[stored[name].locate(owned)].numpy()
                    wanted = rows[tensor][original]
                    assert np.array_equal(values.reshape(wanted.shape), wanted), (key, name)
            for split in ("train", "val") if "train_mask" in rows else ():
                ids = dataset.split_node_ids(split)
                ids = ids[node_type] if isinstance(ids, dict) else ids
                assert torch.equal(ids, owned[rows[f"{split}_mask"][original]]), (key, split)
        assert sorted(seen) == list(range(len(rows["feat"])))


def _check_edges(
    case: Case, parts: list[DistDataset], edge_dir: Any, weight: str | None, features: str | None
) -> None:
    """Check ends, weight and features of all edges; each is where its expanded end is."""
    for key, rows in case.edges.items():
        edge_type, found = PLAIN.get(key, key), []
        for dataset in parts:
            view = dataset.view()
            adjacency = view.adjacency[edge_type]
            ends = edges_of(adjacency, edge_dir)
            end = 1 if edge_dir == "in" else 0
            owned = set(_owned(dataset, edge_type[2 * end]).tolist())
            assert set(ends[end].tolist()) <= owned
            original = [dataset.to_original(ends[i], edge_type[2 * i]) for i in (0, 1)]
            extra = []
            if weight is not None:
                assert adjacency.weights is not None
                extra.append(adjacency.weights[:, None])
            if features is not None:
                stored = view.edge_features[edge_type]
                ids = adjacency.edge_ids_at(torch.arange(ends.size(1)))
                extra.append(stored.values[stored.locate(ids)])
            more = torch.cat(extra, 1).tolist() if extra else [[]] * ends.size(1)
            found += [(int(a), int(b), *m) for a, b, m in zip(*original, more, strict=True)]
        chosen = [rows[n].reshape(rows["ends"].shape[1], -1) for n in (weight, features) if n]
        wanted = np.concatenate([rows["ends"].T, *chosen], axis=1).tolist()
        assert sorted(map(list, found)) == sorted(wanted), key


# --- DGL and GraphStorm ---------------------------------------------------------------------------

NAMES = {"x": "feat", "y": "label", "age": "age"}
EDGE_FLAGS = ("--edge-features", "feat", "--weight", "score")


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_partitions_of_graphstorm_keep_owners_and_ids(tmp_path: Path, edge_dir: str) -> None:
    source = _extract("dgl", tmp_path / "dgl") / "typed"
    root = tmp_path / "parts"
    assert _run("dgl", source, root, *EDGE_FLAGS, "--edge-dir", edge_dir) == 0
    parts = _parts(root, 2)
    _check_nodes(typed(), parts, NAMES)
    _check_edges(typed(), parts, edge_dir, "score", "feat")
    ranges = json.loads((source / "shop.json").read_text())["node_map"]
    originals = torch.load(source / "node_mapping.pt", weights_only=True)
    for node_type, (first, second) in ranges.items():
        sizes = [end - start for start, end in (first, second)]
        ids = torch.arange(sum(sizes)).split(sizes)
        for dataset, owned in zip(parts, ids, strict=True):
            assert torch.equal(_owned(dataset, node_type), owned), "DGL's own ids"
            names = dataset.to_original(owned, node_type)
            assert names.tolist() == originals[node_type][owned].tolist()
    assert not list(tmp_path.glob(".*")), "nothing is left beside the partitions"


@pytest.mark.parametrize(("name", "count"), [("compressed", 3), ("one", 1)])
def test_partitions_of_dgl_in_other_forms(tmp_path: Path, name: str, count: int) -> None:
    folder = _extract("dgl", tmp_path / "dgl") / name
    source = next(folder.glob("*.json"))  # the file itself, in place of its directory
    assert _run("dgl", source, tmp_path / "parts", *EDGE_FLAGS) == 0
    parts = _parts(tmp_path / "parts", count)
    _check_nodes(plain(), parts, NAMES)
    _check_edges(plain(), parts, "in", "score", "feat")


def test_a_method_partitions_them_again(tmp_path: Path, capsys) -> None:
    source = _extract("dgl", tmp_path / "dgl") / "typed"
    assert _run("dgl", source, tmp_path / "parts", "--num-partitions", "3") == 2
    assert "give --method to partition the graph again" in capsys.readouterr().err
    again = ("--num-partitions", "3", "--method", "random")
    assert _run("dgl", source, tmp_path / "parts", *again, "--features", "age", "feat") == 0
    parts = _parts(tmp_path / "parts", 3)
    case = typed()
    for rows in case.nodes.values():  # side by side, in the order of the option
        rows["feat"] = np.column_stack([rows.pop("age"), rows["feat"]]).astype(np.float32)
    _check_nodes(case, parts, NAMES)
    _check_edges(case, parts, "in", None, "feat")


def test_tensors_that_are_left_out_are_named(tmp_path: Path, caplog) -> None:
    source = _extract("dgl", tmp_path / "dgl") / "typed"
    assert _run("dgl", source, tmp_path / "parts") == 0
    assert "part0/graph.dgl, user:buys:item: score left out" in caplog.text


def test_a_run_goes_on_with_the_tables_of_one_that_was_killed(tmp_path: Path, monkeypatch) -> None:
    stages = importlib.import_module("gigl_loader.partitioning.stages.pipeline")
    source = _extract("dgl", tmp_path / "dgl") / "typed"
    root, folder = tmp_path / "parts", tmp_path / ".parts.tables"

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    original = stages.describe_part
    monkeypatch.setattr(stages, "describe_part", stop)
    with pytest.raises(KeyboardInterrupt):
        _run("dgl", source, root)
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    assert len(times) == 2 * 5
    done = {p: p.stat().st_mtime_ns for p in (tmp_path / ".parts.scratch/done").rglob("*.json")}

    def compare(*args: Any) -> Any:
        assert {path: path.stat().st_mtime_ns for path in times} == times
        assert {path: path.stat().st_mtime_ns for path in done} == done, "no step ran again"
        return original(*args)

    monkeypatch.setattr(stages, "describe_part", compare)
    assert _run("dgl", source, root) == 0
    _check_nodes(typed(), _parts(root, 2), NAMES)


@pytest.mark.parametrize("file", ["graph.dgl", "node_feat.dgl"])
def test_no_cut_or_changed_file_is_read_as_another(tmp_path: Path, file: str, capsys) -> None:
    source = _extract("dgl", tmp_path / "dgl") / "typed"
    path = source / "part1" / file
    content = path.read_bytes()
    start = 4096 if file == "graph.dgl" else 0
    for size in range(start + 9, len(content), 397):
        path.write_bytes(content[:size])
        assert _run("dgl", source, tmp_path / "parts") == 2, size
        assert f"part1/{file} is damaged: ValueError" in capsys.readouterr().err
    path.write_bytes(b"\0" * 8 + content[8:])
    assert _run("dgl", source, tmp_path / "parts") == 2
    assert "(0x0)" in capsys.readouterr().err
    path.unlink()
    assert _run("dgl", source, tmp_path / "parts") == 2
    assert f"part1/{file} cannot be read: No such file" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()


def _edit_config(source: Path, name: str, **values: Any) -> None:
    config = json.loads((source / name).read_text())
    (source / name).write_text(json.dumps(config | values))


def test_other_descriptions_of_dgl_are_refused(tmp_path: Path, capsys) -> None:
    source = _extract("dgl", tmp_path / "dgl") / "typed"
    out = tmp_path / "parts"

    def error(*flags: str) -> str:
        assert _run("dgl", source, out, *flags) == 2
        return capsys.readouterr().err

    assert "no tensors colour; it has age, feat, label, score" in error("--features", "colour")
    assert "feat is named for two uses" in error("--label", "feat")
    assert "does not take --nodes, --src" in error("--src", "a", "--nodes", "b")
    _edit_config(source, "shop.json", **{"part-1": {"part_graph_graphbolt": "a.pt"}})
    assert "write the partitions with use_graphbolt=False" in error()
    _edit_config(source, "shop.json", **{"part-1": {"node_feats": "../../../outside.dgl"}})
    assert "leads out of" in error()
    _edit_config(source, "shop.json", num_parts="many")
    assert "shop.json is damaged: ValueError" in error()
    (source / "shop.json").unlink()
    assert "with the key part-0; there are 0" in error()


# --- PyG ------------------------------------------------------------------------------------------


def _as_pyg(case: Case) -> Data | HeteroData:
    data: Any = HeteroData() if len(case.nodes) > 1 else Data()
    for key, rows in case.nodes.items():
        store = data[key] if len(case.nodes) > 1 else data
        store.x = torch.from_numpy(rows["feat"])
    for edge_type, rows in case.edges.items():
        store = data[edge_type] if len(case.nodes) > 1 else data
        store.edge_index = torch.from_numpy(rows["ends"])
        store.edge_attr = torch.from_numpy(rows["feat"])
    return data


def _cluster(count: int, num_parts: int) -> torch.Tensor:
    nodes = torch.arange(count)
    return (nodes * nodes + nodes // 5) % num_parts


@pytest.mark.parametrize("case", [typed(), plain()], ids=["typed", "plain"])
def test_partitions_of_pyg(tmp_path: Path, case: Case, monkeypatch) -> None:
    # METIS needs another package; it only says which part a node goes to.
    monkeypatch.setattr(
        ClusterData, "_metis", lambda self, _, num_nodes: _cluster(num_nodes, self.num_parts)
    )
    source = tmp_path / "pyg"
    Partitioner(_as_pyg(case), 3, str(source)).generate_partition()
    assert _run("pyg", source, tmp_path / "parts") == 0
    parts = _parts(tmp_path / "parts", 3)
    _check_nodes(_without_masks(case), parts, {"x": "feat"})
    _check_edges(case, parts, "in", None, "feat")
    owners, start = _cluster(sum(len(rows["feat"]) for rows in case.nodes.values()), 3), 0
    for key, rows in case.nodes.items():
        of_type = owners[start : start + len(rows["feat"])]
        start += len(of_type)
        for k, dataset in enumerate(parts):
            node_type = PLAIN.get(key, key)
            names = dataset.to_original(_owned(dataset, node_type), node_type)
            assert sorted(names.tolist()) == (of_type == k).nonzero().flatten().tolist()


def test_times_and_damage_of_pyg(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        ClusterData, "_metis", lambda self, _, num_nodes: _cluster(num_nodes, self.num_parts)
    )
    data = _as_pyg(plain())
    data.time = torch.arange(20) * 10
    source = tmp_path / "pyg"
    Partitioner(data, 2, str(source)).generate_partition()
    assert _run("pyg", source, tmp_path / "parts", "--time-attr", "time") == 0
    for dataset in _parts(tmp_path / "parts", 2):
        times = dataset.view().node_attributes[DEFAULT_HOMOGENEOUS_NODE_TYPE, "time"]
        owned = _owned(dataset, "")
        assert (
            times.values[times.locate(owned)].tolist() == (dataset.to_original(owned) * 10).tolist()
        )

    def error() -> str:
        assert _run("pyg", source, tmp_path / "again") == 2
        return capsys.readouterr().err

    edges = torch.load(source / "part_0/edge_feats.pt", weights_only=False)
    torch.save(
        dict(edges) | {"global_id": edges["global_id"].flip(0)}, source / "part_0/edge_feats.pt"
    )
    assert "features are in another order than edges" in error()
    torch.save({"edges": 1}, source / "part_0/graph.pt")
    assert "part_0 is damaged: KeyError: 'row'" in error()
    (source / "part_0/graph.pt").write_bytes(b"no pickle")
    assert "part_0/graph.pt is damaged" in error()
    torch.save(Path("a"), source / "part_0/graph.pt")  # would run code of another module
    assert "part_0/graph.pt is damaged" in error()
    torch.save(torch.zeros(20, dtype=torch.int64), source / "node_map.pt")
    (source / "META.json").unlink()
    assert "META.json cannot be read" in error()


# --- GiGL -----------------------------------------------------------------------------------------


def _task(folder: Path, *, snake: bool = False) -> Path:
    """Write GiGL's metadata of the records in ``folder``; return the file of the task."""
    case = typed()
    node_types, edge_types = list(case.nodes), list(case.edges)
    triples = [
        dict(zip(("srcNodeType", "relation", "dstNodeType"), t, strict=True)) for t in edge_types
    ]
    metadata = {
        "nodeTypes": node_types,
        "edgeTypes": triples,
        "condensedNodeTypeMap": dict(enumerate(node_types)),
        "condensedEdgeTypeMap": {str(i): triple for i, triple in enumerate(triples)},
    }
    nodes = {
        str(i): {
            "nodeIdKey": "node_id",
            "featureKeys": ["age", "last", "wide"],
            "featureDim": 4,
            "labelKeys": ["label"] if "label" in case.nodes[node_type] else [],
            "tfrecordUriPrefix": f"{folder}/nodes/{node_type}/",
        }
        for i, node_type in enumerate(node_types)
    }
    edges = {
        str(i): {
            "srcNodeIdKey": "src",
            "dstNodeIdKey": "dst",
            "mainEdgeInfo": {
                "featureKeys": ["score"],
                "tfrecordUriPrefix": f"{folder}/edges/{edge_type[1]}/data",
            },
        }
        for i, edge_type in enumerate(edge_types)
    }
    buys = edges[str(edge_types.index(BUYS))]
    for sign in ("positive", "negative"):
        place = f"{folder}/edges/{sign}"
        buys[f"{sign}EdgeInfo"] = {"tfrecordUriPrefix": place, "featureKeys": ["score"]}
    rows = {
        "condensedNodeTypeToPreprocessedMetadata": nodes,
        "condensedEdgeTypeToPreprocessedMetadata": edges,
    }
    shared = {"preprocessedMetadataUri": str(folder / "preprocessed.yaml")}
    task = {"graphMetadata": metadata, "sharedConfig": shared, "featureFlags": {}}
    for name, content in (("preprocessed", rows), ("task", task)):
        text = yaml.safe_dump(_snake(content) if snake else content)
        (folder / f"{name}.yaml").write_text(text)
    return folder / "task.yaml"


def _snake(content: Any) -> Any:
    """Return a message with its fields spelled as in the protocol buffer itself."""
    if isinstance(content, list):
        return [_snake(value) for value in content]
    if not isinstance(content, dict):
        return content
    return {
        re.sub("(?<=[a-z])[A-Z]", lambda x: "_" + x[0].lower(), str(name)): _snake(value)
        for name, value in content.items()
    }


@pytest.mark.parametrize("snake", [False, True])
def test_records_of_gigl(tmp_path: Path, snake: bool, caplog, capsys) -> None:
    task = _task(_extract("tensorflow", tmp_path / "gigl"), snake=snake)
    assert _run("gigl", task, tmp_path / "parts") == 2
    assert "has no partitions: give --num-partitions" in capsys.readouterr().err
    assert _run("gigl", task, tmp_path / "parts", "--num-partitions", "3") == 0
    parts = _parts(tmp_path / "parts", 3)
    case = _without_masks(typed())
    for rows in case.nodes.values():  # in the order of featureKeys
        feat = rows["feat"]
        rows["feat"] = np.column_stack([rows.pop("age"), feat[:, 2], feat[:, :2]])
    _check_nodes(case, parts, {"x": "feat", "y": "label"})
    for rows in case.edges.values():
        rows["score"] = rows["score"][:, None]
    _check_edges(case, parts, "in", None, "score")
    for label, step in (
        (message_passing_to_positive_label(BUYS), slice(None, None, 5)),
        (message_passing_to_negative_label(BUYS), slice(1, None, 7)),
    ):
        found = [
            (int(anchor), int(node))
            for part in parts
            for anchor, node in zip(
                part.to_original(part.label_edges[label][0], "user"),
                part.to_original(part.label_edges[label][1], "item"),
                strict=True,
            )
        ]
        assert sorted(found) == sorted(map(tuple, case.edges[BUYS]["ends"].T[step].tolist()))
    assert "positiveEdgeInfo: score left out" in caplog.text


def _read(content: bytes, *columns: str, name: str = "a.tfrecord") -> dict[str, list[Any]]:
    chunks = list(read_examples(io.BytesIO(content), name, columns))
    return {c: [row for chunk in chunks for row in chunk[c].tolist()] for c in columns}


def test_all_encodings_of_an_example() -> None:
    extremes = [-(2**63), -1, 0, 127, 128, 2**63 - 1]
    records = [
        _example(
            a=_ints(*extremes, packed=packed),
            b=_floats(0.5, -1e30, packed=packed),
            ab=_floats(9.0),
            c=_sized(1, _sized(1, b"text")),
        )
        for packed in (True, False)
    ]
    # Fields of a later version are skipped, whatever their type; a list in two pieces is one.
    unknown = b"\x18\x05" + b"\x21" + bytes(8) + b"\x2d" + bytes(4) + _sized(6, b"xyz")
    pieces = _sized(3, b"".join(_sized(1, _varint(value)) for value in extremes))
    records.append(unknown + _example(b=_floats(0.5, -1e30), a=pieces) + unknown)
    content = b"".join(map(_record, records))
    wanted = {"a": [extremes] * 3, "b": [[0.5, float(np.float32(-1e30))]] * 3}
    assert _read(content, "a", "b") == wanted
    assert _read(gzip.compress(content), "a", "b", name="a.tfrecord.gz") == wanted
    assert _read(b"", "a") == {"a": []}


def test_records_over_the_ends_of_chunks(monkeypatch) -> None:
    rows = [_example(a=_ints(*range(i, i + 3)), b=_floats(i / 3)) for i in range(50)]
    content = b"".join(map(_record, rows))
    for size in (1, 17, 64, 1000):
        monkeypatch.setattr(tfrecords, "_CHUNK_BYTES", size)
        assert _read(content, "b", "a")["a"] == [[i, i + 1, i + 2] for i in range(50)]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (_example(b=_ints(1)), "'a' has 0 values (nothing), the first record has 2 (integers)"),
        (_example(a=_ints(1)), "'a' has 1 values (integers), the first record has 2 (integers)"),
        (_example(a=_floats(1, 2)), "'a' has 2 values (floats), the first record has 2 (integers)"),
        (_example(a=b""), "'a' has 0 values (nothing)"),
        (_example(a=_sized(3, _sized(1, b"\x01\x80"))), "'a' has -1 values (integers)"),
        (_example(a=_sized(2, _sized(1, b"\x01\x80"))), "'a' has -1 values (floats)"),
        (_example(a=_ints(1, 2))[:-1], "is no tf.train.Example"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "is no tf.train.Example"),
        (b"\xff" * 20, "is no tf.train.Example"),
        (b"\x0b", "is no tf.train.Example"),
    ],
)
def test_an_example_that_is_none_is_named(record: bytes, message: str) -> None:
    content = _record(_example(a=_ints(3, 4))) + _record(record)
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        _read(content, "a")
    assert "a.tfrecord, record 1" in str(raised.value)
    with pytest.raises(ConfigError, match="record 0"):
        _read(_record(_example(a=_sized(1, _sized(1, b"text")))), "a")


def test_any_changed_or_missing_byte_is_noticed() -> None:
    content = b"".join(_record(_example(a=_ints(i))) for i in range(3))
    ends = [len(content) // 3 * i for i in range(4)]
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x10
        with pytest.raises(ConfigError, match="tfrecord is damaged"):
            _read(bytes(changed), "a")
        if position not in ends:
            with pytest.raises(ConfigError, match="it ends within record"):
                _read(content[:position], "a")
    with pytest.raises(ConfigError, match=r"a.tfrecord.gz is damaged after record 0"):
        _read(gzip.compress(content)[:-5], "a", name="a.tfrecord.gz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sharedConfig", "preprocessedMetadataUri", 3), "must be text, got 3"),
        (("sharedConfig", "preprocessedMetadataUri", "gone.yaml"), "gone.yaml cannot be read"),
        (("graphMetadata", "condensedNodeTypeMap", {"7": "user"}), "has no 7; it has 0, 1"),
        (("graphMetadata", "edgeTypes", "x"), None),
        (("graphMetadata", "condensedNodeTypeMap", {"0": "../../../user"}), "leads out of"),
        (("sharedConfig", None, []), "must have fields by name, got list"),
    ],
)
def test_metadata_of_gigl_that_are_wrong(tmp_path: Path, change, message, capsys) -> None:
    task = _task(_extract("tensorflow", tmp_path / "gigl"))
    content = yaml.safe_load(task.read_text())
    part, name, value = change
    if name is None:
        content[part] = value
    else:
        content[part][name] = value
    task.write_text(yaml.safe_dump(content))
    status = _run("gigl", task, tmp_path / "parts", "--num-partitions", "1")
    assert status == (0 if message is None else 2)  # lists are for tasks without numbers
    assert (message or "") in capsys.readouterr().err


def test_rows_of_gigl_that_are_wrong(tmp_path: Path, capsys) -> None:
    folder = _extract("tensorflow", tmp_path / "gigl")
    task = _task(folder)
    rows = yaml.safe_load((folder / "preprocessed.yaml").read_text())
    user = rows["condensedNodeTypeToPreprocessedMetadata"]["0"]

    def error(*flags: str) -> str:
        (folder / "preprocessed.yaml").write_text(yaml.safe_dump(rows))
        assert _run("gigl", task, tmp_path / "parts", "--num-partitions", "1", *flags) == 2
        return capsys.readouterr().err

    assert "leave out options of columns" in error("--features", "age")
    user["featureDim"] = 5
    assert "has 4 features" in error()
    user["featureKeys"] = ["name"]
    assert "feature 'name' has 1 values (text)" in error()
    user["nodeIdKey"] = "wide"
    del user["featureKeys"]
    assert "'wide' must hold one integer" in error()
    user["tfrecordUriPrefix"] = str(folder / "gone")
    assert "there is no file at" in error()


# --- graphlearn-torch -----------------------------------------------------------------------------


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_partitions_of_glt_become_mapped_ones(tmp_path: Path, heterogeneous: bool, capsys) -> None:
    data = TinyGraph.random(30, 90, heterogeneous=heterogeneous).to_pyg()
    options: Any = {"method": "random", "progress": False}
    partition_graph(data, 2, tmp_path / "glt", format="glt", **options)
    partition_graph(data, 2, tmp_path / "same", **options)
    flags = ["--from", "glt", str(tmp_path / "glt"), "--root", str(tmp_path / "parts")]
    assert main(flags) == 0
    for k in range(2):
        found, same = (  # what is read and how, but not who wrote it
            repr(dataclasses.replace(DistDataset.load(tmp_path / name, k).view(), identity=None))
            for name in ("parts", "same")
        )
        assert found == same
    assert main([*flags, "--num-partitions", "3", "--overwrite"]) == 2
    assert "leave --num-partitions and --method out" in capsys.readouterr().err
    assert main([*flags, "--order", "degree"]) == 2
    assert "--from glt does not take --order" in capsys.readouterr().err
