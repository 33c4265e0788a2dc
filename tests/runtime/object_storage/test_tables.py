"""Tables in object storage: read with the credentials of roots, by the same library."""

import dataclasses
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from gigl_loader import DistDataset, partition_tables
from gigl_loader.errors import ConfigError, ObjectStorageError
from gigl_loader.partitioning.other_libraries.gigl_graphs import read_gigl
from gigl_loader.runtime.object_storage import object_folder
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from tests.partitioning.table_graphs import BUYS, KNOWS, Tables, check
from tests.runtime.object_storage.object_server import SECRET, Fault, failing

RECORDS = Path(__file__).parents[2] / "partitioning/foreign/tensorflow.tar.gz"
GRAPH = Tables(
    ["u1", "u2", "u3"],
    [7, -8],
    {BUYS: [("u1", 7), ("u3", -8), ("u1", 7)], KNOWS: [("u2", "u2")]},
    [("u2", 7)],
)


def _upload(folder: Path, url: str) -> None:
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    ObjectFolder(url).upload(folder, names, lambda _: None)


def _written(storage, tmp_path: Path) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return the tables of `GRAPH` in object storage."""
    nodes, edges = GRAPH.write(tmp_path / "tables", 2)
    _upload(tmp_path / "tables", storage.url)

    def remote(table: Any) -> Any:
        source = table.source.replace(str(tmp_path / "tables"), storage.url)
        return dataclasses.replace(table, source=source)

    return (
        {name: remote(table) for name, table in nodes.items()},
        {name: [remote(table) for table in several] for name, several in edges.items()},
    )


def _partition(nodes: Any, edges: Any, root: Any) -> None:
    options: dict[str, Any] = {"method": "random", "progress": False, "threads": 1}
    partition_tables(nodes, edges, 2, root, **options)


def test_tables_have_the_credentials_of_roots(storage, tmp_path, monkeypatch) -> None:
    for package in ("s3fs", "boto3", "botocore"):  # as on a machine that has none of them
        monkeypatch.setitem(sys.modules, package, None)
    nodes, edges = _written(storage, tmp_path)
    nodes["user"] = dataclasses.replace(nodes["user"], source=f"{nodes['user'].source}/*.parquet")
    root = f"{storage.url}-parts"
    _partition(nodes, edges, root)
    check(GRAPH, [DistDataset.load(root, k) for k in range(2)], "in")


def test_other_credentials_count_at_once(storage, tmp_path, monkeypatch) -> None:
    nodes, edges = _written(storage, tmp_path)
    monkeypatch.setattr(object_folder, "_RETRIES", 0)
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(ObjectStorageError, match=r"folder\d+/user: object storage failed"):
            _partition(nodes, edges, tmp_path / "parts")
    _partition(nodes, edges, tmp_path / "parts")
    check(GRAPH, [DistDataset.load(tmp_path / "parts", k) for k in range(2)], "in")


@pytest.mark.parametrize(
    ("key", "method"),
    [
        ("", "GET"),  # a list
        (".*/user/0.parquet", "GET"),
        (".*/item/0.csv", "HEAD"),  # by the engine
        (".*/buys/1.parquet", "GET"),  # by Arrow, then by the engine
    ],
)
def test_what_is_refused_is_named_without_its_secrets(
    storage, tmp_path, monkeypatch, key: str, method: str
) -> None:
    nodes, edges = _written(storage, tmp_path)
    monkeypatch.setattr(object_folder, "_RETRIES", 0)
    storage.proxy.faults = [Fault(failing(403, "AccessDenied"), key, method)]
    with pytest.raises(ObjectStorageError, match=r"object storage (failed|answered 403)") as caught:
        _partition(nodes, edges, tmp_path / "parts")
    assert storage.url in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://graphs/user.parquet?X-Amz-Signature=hidden", "more than a bucket and a folder"),
        ("s3://key:hidden@graphs/user", "more than a bucket and a folder"),
        ("{url}/nothing.parquet", "nothing.parquet cannot be read.*is missing"),
        ("{url}/nothing/*.parquet", "there is no Parquet or CSV file at"),
    ],
)
def test_urls_that_cannot_be_read(storage, tmp_path, source: str, message: str) -> None:
    nodes, edges = _written(storage, tmp_path)
    nodes["user"] = dataclasses.replace(nodes["user"], source=source.format(url=storage.url))
    with pytest.raises(ConfigError, match=message) as caught:
        _partition(nodes, edges, tmp_path / "parts")
    assert "hidden" not in str(caught.value)


def test_tables_without_obstore(storage, tmp_path, monkeypatch) -> None:
    nodes, edges = _written(storage, tmp_path)
    monkeypatch.setitem(sys.modules, "obstore.fsspec", None)
    monkeypatch.delitem(
        sys.modules, "gigl_loader.runtime.object_storage.stored_files", raising=False
    )
    with pytest.raises(ConfigError, match=r'pip install "gigl_loader\[objects\]"'):
        _partition(nodes, edges, tmp_path / "parts")


def _task_of_gigl(root: str, folder: Path) -> Path:
    """Write GiGL's task for some of the records at ``root``; return its file."""
    node_types = {0: "user", 1: "item"}
    buys = {"srcNodeType": "user", "relation": "buys", "dstNodeType": "item"}
    task = {
        "graphMetadata": {"condensedNodeTypeMap": node_types, "condensedEdgeTypeMap": {0: buys}},
        "sharedConfig": {"preprocessedMetadataUri": f"{root}/rows.yaml"},
    }
    records = f"{root}/edges/buys/data"
    rows = {
        "condensedNodeTypeToPreprocessedMetadata": {
            number: {"nodeIdKey": "node_id", "tfrecordUriPrefix": f"{root}/nodes/{name}/"}
            for number, name in node_types.items()
        },
        "condensedEdgeTypeToPreprocessedMetadata": {
            0: {
                **{"srcNodeIdKey": "src", "dstNodeIdKey": "dst"},
                "mainEdgeInfo": {"featureKeys": ["score"], "tfrecordUriPrefix": records},
            }
        },
    }
    for name, content in (("task", task), ("rows", rows)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder / "task.yaml"


def test_records_of_gigl_have_the_credentials_of_roots(storage, tmp_path) -> None:
    folder = tmp_path / "gigl"
    with tarfile.open(RECORDS) as archive:
        archive.extractall(folder, filter="data")
    read: list[list[list[Any]]] = []
    for root in (storage.url, str(folder)):
        task = _task_of_gigl(root, folder)
        if root == storage.url:
            _upload(folder, root)
        graph = read_gigl(task, tmp_path / f"tables{len(read)}", {})
        sources: list[Any] = [table.source for table in graph.nodes.values()]
        sources += [table.source for several in graph.edges.values() for table in several]
        read.append([[pq.read_table(file) for file in files] for files in sources])
    remote, local = read
    assert [[t.num_rows for t in files] for files in local] == [[10, 10], [6, 6], [14, 13, 13]]
    assert remote == local
