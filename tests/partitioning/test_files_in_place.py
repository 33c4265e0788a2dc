"""Versions that are read in place: which ones, and that a copy would give the same."""

from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.partitioning.tables import files_in_place, row_sources
from gigl_loader.partitioning.tables.row_sources import DeltaVersion, IcebergSnapshot
from tests.partitioning.versioned_tables import (
    EDGES,
    HOW,
    NODES,
    copy_versions,
    deletion_vector,
    given_tables,
    graph,
    rows_in,
    rows_in_files,
    write_delta,
    write_delta_log,
)

LONG = {"src": "long", "dst": "long"}
VECTORS = {"x": {"type": "array", "elementType": "float", "containsNull": True}}


def _ends(first: int, count: int = 4, kind: Any = pa.int64()) -> pa.Table:  # noqa: B008
    columns = [pa.array(range(first, first + count), kind) for _ in range(2)]
    return pa.table(columns, names=["src", "dst"])


def _vectors(kind: Any, width: int = 2) -> pa.Table:
    return pa.table({"x": pa.array([[1.0] * width, [2.0] * width], kind)})


def _with(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    return table.append_column(name, pa.array(values))


DELTA: dict[str, tuple[bool, list[pa.Table], dict[str, Any], dict[str, Any]]] = {
    "its own rows": (True, [_ends(9), _ends(0)], LONG, {}),
    "another column is partitioned by": (
        True,
        [_ends(0)],
        LONG | {"day": "string"},
        {"partition": "day"},
    ),
    "another column was removed, another added": (
        True,
        [_with(_ends(0), "old", [1, 2, 3, 4]), _ends(4)],
        LONG | {"new": "string"},
        {},
    ),
    "rows may be deleted, and none is": (
        True,
        [_ends(0), _ends(4)],
        LONG,
        {"features": ["deletionVectors"]},
    ),
    "another layout of texts": (
        True,
        [pa.table({"src": pa.array(["a"], pa.large_string())})],
        {"src": "string"},
        {},
    ),
    "another layout of lists": (True, [_vectors(pa.list_(pa.float32(), 2))], VECTORS, {}),
    "deleted rows": (
        False,
        [_ends(0), _ends(4)],
        LONG,
        {"features": ["deletionVectors"], "of_files": {1: deletion_vector([0, 3])}},
    ),
    "deleted rows, if any, of files of unknown length": (
        False,
        [_ends(0)],
        LONG,
        {"features": ["deletionVectors"], "of_files": {0: {"stats": None}}},
    ),
    "renamed columns": (
        False,
        [_ends(0).rename_columns(["c1", "c2"])],
        LONG,
        {
            "features": ["columnMapping"],
            "physical": ["c1", "c2"],
            "configuration": {"delta.columnMapping.mode": "name"},
        },
    ),
    "columns that have changed names with each other": (
        False,
        [_ends(0)],
        LONG,
        {
            "features": ["columnMapping"],
            "physical": ["dst", "src"],
            "configuration": {"delta.columnMapping.mode": "name"},
        },
    ),
    "a partition column, whose files have other values": (
        False,
        [_with(_ends(0), "day", ["mon"] * 4)],
        {"src": "long", "day": "string"},
        {"partition": "day"},
    ),
    "a file older than a column": (False, [_ends(0), _ends(4).select(["src"])], LONG, {}),
    "a file older than a wider type": (False, [_ends(0), _ends(4, kind=pa.int32())], LONG, {}),
    "all files older than a wider type": (False, [_ends(0, kind=pa.int32())], LONG, {}),
    "columns that differ in case": (False, [_with(_ends(0), "SRC", [7, 7, 7, 7])], LONG, {}),
    "a column with a name of the engine": (
        False,
        [_with(_ends(0), "file_row_number", [7, 7, 7, 7])],
        LONG,
        {},
    ),
    "lists of another layout in each file": (
        False,
        [_vectors(pa.list_(pa.float32())), _vectors(pa.list_(pa.float32(), 2))],
        VECTORS,
        {},
    ),
    "no rows": (False, [_ends(0, 0)], LONG, {}),
    "no files": (False, [], LONG, {}),
}


@pytest.mark.parametrize("what", DELTA)
def test_a_delta_version_is_read_in_place_where_its_files_have_its_rows(
    tmp_path: Path, what: str
) -> None:
    in_place, tables, types, more = DELTA[what]
    path, columns = write_delta_log(tmp_path / "t", tables, types, **more), list(types)[:2]
    source = DeltaVersion.of(path, None)
    files = source.parquet_files(columns)
    assert (files is not None) == in_place
    if files is not None:
        assert rows_in_files(files, columns) == rows_in(source, columns)


def test_many_small_files_and_files_elsewhere_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "0.parquet")
    pq.write_table(_ends(0), path)
    megabytes, read = 2**20, files_in_place.can_be_read_in_place
    for count, size, in_place in ((64, 1, True), (65, 1, False), (65, 4 * megabytes, True)):
        assert read([path] * count, [size] * count, _ends(0).schema) == in_place
    assert not read([f"file://{path}"], [1], _ends(0).schema), "pyarrow would read it"
    assert not read([str(tmp_path / "gone.parquet")], [1], _ends(0).schema)
    write_delta(tmp_path / "t", _ends(0))
    write_delta(tmp_path / "t", _ends(4))
    source = DeltaVersion.of(str(tmp_path / "t"), None)
    assert len(source.parquet_files(["src"]) or ()) == 2
    monkeypatch.setattr(files_in_place, "_FEW_FILES", 1)
    assert source.parquet_files(["src"]) is None


def test_unknown_features_and_too_many_rows_to_look_for_deleted_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = ["deletionVectors"]
    path = write_delta_log(tmp_path / "t", [_ends(0), _ends(4)], LONG, features=features)
    source = DeltaVersion.of(path, None)
    for name, value in (("_MOST_MASKED_ROWS", 7), ("_IN_PLACE_FEATURES", frozenset())):
        assert source.parquet_files(["src"]) is not None
        with monkeypatch.context() as patch:
            patch.setattr(row_sources, name, value)
            assert source.parquet_files(["src"]) is None


def test_an_iceberg_snapshot_is_read_in_place_where_its_files_have_its_rows(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.manifest import FileFormat
    from pyiceberg.types import LongType

    table = catalog.create_table("n.t", schema=_ends(0).schema)
    table.append(_ends(4))
    table.append(_ends(0))

    def files(*columns: str) -> list[str] | None:
        source = IcebergSnapshot.of("lake.n.t", None)
        found = source.parquet_files(list(columns))
        if found is not None:
            assert rows_in_files(found, list(columns)) == rows_in(source, list(columns))
        return found

    assert len(files("src", "dst") or ()) == 2

    # What pyiceberg reads, and does not write: deleted rows beside their file, and ORC.
    given = IcebergSnapshot._files

    def delete(task: Any) -> None:
        task.delete_files = {task.file}

    def write_orc(task: Any) -> None:
        path, size = task.file.file_path, task.file.file_size_in_bytes
        task.file = SimpleNamespace(
            file_path=path, file_size_in_bytes=size, file_format=FileFormat.ORC
        )

    def changed_by(source: IcebergSnapshot, change: Callable[[Any], None], table: Any) -> list[Any]:
        tasks = given(source, table)
        change(tasks[1])
        return tasks

    for change in (delete, write_orc):
        with monkeypatch.context() as patch:
            patch.setattr(IcebergSnapshot, "_files", partialmethod(changed_by, change))
            assert files("src") is None

    # A name that another column had: the old values are not its own.
    with table.update_schema() as update:
        update.delete_column("dst")
    with table.update_schema() as update:
        update.add_column("dst", LongType())
    assert files("dst") is None
    assert rows_in(IcebergSnapshot.of("lake.n.t", None), ["dst"]) == [(None,)] * 8
    assert len(files("src") or ()) == 2

    # Files that another writer has made, without the numbers of columns.
    other = catalog.create_table("n.other", schema=_ends(0).schema)
    path = Path(other.location().removeprefix("file://")) / "0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(_ends(0), path)
    other.add_files([f"file://{path}"])
    source = IcebergSnapshot.of("lake.n.other", None)
    assert source.parquet_files(["src"]) is None
    assert rows_in(source, ["src"]) == [(0,), (1,), (2,), (3,)]


# --- runs -----------------------------------------------------------------------------------------


def test_a_copy_gives_the_same_run(
    tmp_path: Path, catalog: Any, monkeypatch: pytest.MonkeyPatch, work_sizes: Callable[..., None]
) -> None:
    work_sizes(table_rows=7, file_rows=30, waiting_bytes=600)
    nodes, edges = graph()
    for start, count in ((30, 10), (0, 10), (10, 20)):  # the last file has a column more
        some = nodes.slice(start, count)
        some = _with(some, "added", [0] * count) if count == 20 else some
        deltalake.write_deltalake(tmp_path / "nodes", some, mode="append", schema_mode="merge")
    table = catalog.create_table("n.edges", schema=edges.schema)
    for start in range(0, 200, 50):
        table.append(edges.slice(start, 50))
    given = {
        "nodes": NodeTable(delta=tmp_path / "nodes", **NODES),
        "edges": EdgeTable(iceberg="lake.n.edges", **EDGES),
        **HOW,
        "method": "ldg",
        "edge_rows": True,
    }
    in_place = partition_tables(root=tmp_path / "in place", **given)
    copy_versions(monkeypatch)
    copied = partition_tables(root=tmp_path / "copied", **given)
    assert in_place.run == copied.run
    assert in_place.versions == copied.versions


def test_rows_of_a_file_in_place_are_named_by_the_file(tmp_path: Path) -> None:
    nodes, edges = graph()
    bad = edges.set_column(2, "w", pa.array([1.0] * 150 + [-1.0] + [1.0] * 49))
    path = write_delta(tmp_path / "edges", bad)
    with pytest.raises(ConfigError, match=rf"'w' of {path}/part-.*parquet .*: row 150 .*: -1\.0$"):
        partition_tables(
            NodeTable(nodes), EdgeTable(delta=path, weight="w"), root=tmp_path / "a", **HOW
        )


@pytest.mark.parametrize("when", ["during a run", "before it is continued"])
def test_files_that_a_vacuum_removes_are_named(
    tmp_path: Path, before_stage: Callable[..., None], when: str
) -> None:
    nodes, edges = graph()
    write_delta(tmp_path / "nodes", nodes)
    path = Path(write_delta(tmp_path / "edges", edges))

    def vacuum() -> None:
        deltalake.write_deltalake(str(path), edges.slice(0, 9), mode="overwrite")
        deltalake.DeltaTable(str(path)).vacuum(
            retention_hours=0, dry_run=False, enforce_retention_duration=False
        )

    def stop() -> None:
        raise UsageError("stopped")

    before_stage("map", vacuum if when == "during a run" else stop)
    given = given_tables(tmp_path)
    if when != "during a run":
        with pytest.raises(UsageError, match="stopped"):
            partition_tables(**given)
        vacuum()
    with pytest.raises(
        ConfigError,
        match=rf"^version 0 of the Delta table {path} no longer has .*vacuum.*: {path}/part-"
        r".*parquet was removed or changed; .*run again with a version that is kept",
    ):
        partition_tables(**given)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["edges", "nodes"]
    _, of_edges = partition_tables(**given).versions.values()
    assert of_edges["version"] == deltalake.DeltaTable(str(path)).version()
