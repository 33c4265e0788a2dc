"""Small tables with versions, and what is read from them."""

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import EdgeTable, NodeTable
from gigl_loader.partitioning.tables import row_sources
from gigl_loader.partitioning.tables.row_sources import RowSource


def rows_in(source: RowSource, columns: list[str]) -> list[tuple]:
    with source.open(columns) as (schema, batches):
        table = pa.Table.from_batches(list(batches), schema)
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def rows_in_files(paths: list[str], columns: list[str]) -> list[tuple]:
    tables = [pq.ParquetFile(path).read(columns) for path in paths]
    return [tuple(row[name] for name in columns) for table in tables for row in table.to_pylist()]


def copy_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let later runs copy the rows of all versions."""
    monkeypatch.setattr(row_sources, "can_be_read_in_place", lambda *given: False)


def write_delta(path: Path, table: pa.Table, mode: Any = "append") -> str:
    deltalake.write_deltalake(path, table, mode=mode)
    return str(path)


def arrays_in(root: Path) -> dict[str, bytes]:
    """Return the arrays of all partitions."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.bin")}


def graph() -> tuple[pa.Table, pa.Table]:
    ids = [f"n{i}" for i in range(40)]
    splits = [("train", "val", None)[i % 3] for i in range(40)]
    x = pa.array([[float(i), 1.0] for i in range(40)], pa.list_(pa.float32()))
    nodes = pa.table({"id": ids, "x": x, "y": list(range(40)), "s": splits, "unused": ids})
    ends = [[ids[i * k % 40] for i in range(200)] for k in (1, 7)]
    weights = [i / 4 for i in range(200)]
    times = pa.array(range(200), pa.timestamp("us", "UTC"))
    return nodes, pa.table({"src": ends[0], "dst": ends[1], "w": weights, "t": times})


NODES: dict[str, Any] = {"features": "x", "label": "y", "split": "s"}
EDGES: dict[str, Any] = {"weight": "w", "time": "t"}
HOW: dict[str, Any] = {"num_partitions": 2, "progress": False, "threads": 1, "method": "random"}


def given_tables(folder: Path, **edges: Any) -> dict[str, Any]:
    tables = {
        "nodes": NodeTable(delta=folder / "nodes", **NODES),
        "edges": EdgeTable(delta=folder / "edges", **EDGES, **edges),
    }
    return {**tables, "root": folder / "parts", **HOW}


# --- Delta's log, as other writers have it --------------------------------------------------------


def deletion_vector(deleted: list[int]) -> dict[str, Any]:
    """Return a deletion vector in the log: a 64-bit Roaring bitmap of fewer than 65,536 rows."""
    offset = 16
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, offset)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    data += b"".join(struct.pack("<H", row) for row in deleted)
    assert len(data) % 4 == 0
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    inline = base64.b85encode(data).decode().translate(str.maketrans(b85, z85))
    return {
        "deletionVector": {
            "storageType": "i",
            "pathOrInlineDv": inline,
            "sizeInBytes": len(data),
            "cardinality": len(deleted),
        }
    }


def write_delta_log(
    folder: Path,
    tables: Sequence[pa.Table],
    types: Mapping[str, Any],
    *,
    features: Sequence[str] = (),
    partition: str | None = None,
    physical: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    of_files: Mapping[int, dict[str, Any]] | None = None,
) -> str:
    """Write files, and a log of one version that says what they are.

    Args:
        folder: The folder of the table.
        tables: The contents of the files.
        types: The columns of the table, and their types in Delta's words.
        features: Those that a reader must know.
        partition: A partition column, whose value is ``tue``.
        physical: The names that its columns have in the files, if these are others.
        configuration: The properties of the table.
        of_files: By number of a file, more that the log says of it.
    """
    (folder / "_delta_log").mkdir(parents=True)
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": i + 1,
                "delta.columnMapping.physicalName": physical[i],
            }
            if physical
            else {},
        }
        for i, (name, kind) in enumerate(types.items())
    ]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        known = list(features)
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": known,
            "writerFeatures": known,
        }
    log: list[dict[str, Any]] = [
        {"protocol": protocol},
        {
            "metaData": {
                "id": "3a",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [] if partition is None else [partition],
                "createdTime": 1,
                "configuration": dict(configuration or {}),
            }
        },
    ]
    for i, table in enumerate(tables):
        path = folder / f"{i}.parquet"
        pq.write_table(table, path)
        add = {
            "path": path.name,
            "size": path.stat().st_size,
            "dataChange": True,
            "partitionValues": {} if partition is None else {partition: "tue"},
            "modificationTime": 1,
            "stats": json.dumps({"numRecords": len(table)}),
        }
        log.append({"add": add | (of_files or {}).get(i, {})})
    (folder / f"_delta_log/{0:020}.json").write_text("\n".join(map(json.dumps, log)))
    return str(folder)
