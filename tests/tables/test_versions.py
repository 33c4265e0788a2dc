"""Delta and Iceberg tables: what their own readers return, at the version that a run began with."""

import base64
import contextlib
import json
import random
import shutil
import struct
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.commands.partitioning import main
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.tables.row_sources import DeltaVersion, IcebergSnapshot, RowSource

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

SCHEMA = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("day", pa.string())])


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return an Iceberg catalogue in a file, which the environment describes as ``lake``."""
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "lake").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/lake")
    # It reads the environment when it is imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    opened: Any = pyiceberg.catalog.load_catalog("lake")
    opened.create_namespace("n")
    yield opened
    opened.close()


def _rows(source: RowSource, columns: list[str]) -> list[tuple]:
    with source.open(columns) as (schema, batches):
        table = pa.Table.from_batches(list(batches), schema)
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def _some(rng: random.Random, count: int) -> pa.Table:
    columns = [[rng.randrange(40) for _ in range(count)] for _ in range(2)]
    days = [rng.choice(("mon", "tue")) for _ in range(count)]
    return pa.table([*columns, pa.array(days, pa.string())], schema=SCHEMA)


def _change(rng: random.Random) -> tuple[str, pa.Table, str]:
    """Return an operation, the rows for it, and a condition for it."""
    what = rng.choice(("append", "append", "delete", "overwrite"))
    condition = rng.choice((f"src < {rng.randrange(12)}", f"dst > {28 + rng.randrange(12)}"))
    return what, _some(rng, rng.randrange(1, 6)), condition


@pytest.mark.parametrize("changes", [80, pytest.param(600, marks=pytest.mark.wide)])
def test_a_delta_table_has_the_rows_that_its_own_reader_has(tmp_path: Path, changes: int) -> None:
    rng, path, columns = random.Random(changes), str(tmp_path / "t"), SCHEMA.names
    deltalake.write_deltalake(path, _some(rng, 5), partition_by=["day"])
    known = {}
    for step in range(1, changes + 1):
        what, rows, condition = _change(rng)
        if what == "delete":
            deltalake.DeltaTable(path).delete(condition)
        elif what == "append":
            deltalake.write_deltalake(path, rows, mode="append")
        else:
            predicate = f"day = '{rng.choice(('mon', 'tue'))}'"
            kept = rows.filter(pa.compute.equal(rows["day"], predicate[-4:-1]))
            deltalake.write_deltalake(path, kept, mode="overwrite", predicate=predicate)
        if step % 8 == 0:
            table = deltalake.DeltaTable(path)
            wanted = table.to_pyarrow_dataset().to_table().select(columns).to_pylist()
            known[table.version()] = sorted(tuple(row.values()) for row in wanted)
    for version, wanted in known.items():
        source = DeltaVersion.of(path, version)
        read = _rows(source, columns)
        assert sorted(read) == wanted
        assert _rows(source, columns) == read, "the same rows in the same order"
    assert DeltaVersion.of(path, None).version == deltalake.DeltaTable(path).version()


@pytest.mark.parametrize("changes", [32, pytest.param(400, marks=pytest.mark.wide)])
def test_an_iceberg_table_has_the_rows_that_its_own_reader_has(catalog: Any, changes: int) -> None:
    rng, columns = random.Random(changes), ["day", "dst", "src"]
    table = catalog.create_table("n.t", schema=SCHEMA)
    assert _rows(IcebergSnapshot.of("lake.n.t", None), columns) == []
    known = {}
    for step in range(1, changes + 1):
        what, rows, condition = _change(rng)
        with contextlib.suppress(Warning):  # of a condition that no row meets
            if what == "delete":
                table.delete(condition)
            elif what == "append":
                table.append(rows)
            else:
                table.overwrite(rows, overwrite_filter=condition)
        if step % 8 == 0 and table.current_snapshot() is not None:
            scan = table.scan(selected_fields=tuple(columns))
            wanted = scan.to_arrow().select(columns).to_pylist()
            snapshot = table.current_snapshot().snapshot_id
            known[snapshot] = sorted(tuple(row.values()) for row in wanted)
    with table.update_schema() as update:
        update.rename_column("dst", "target")
    for snapshot, wanted in known.items():
        source = IcebergSnapshot.of("lake.n.t", snapshot)
        read = _rows(source, columns)
        assert sorted(read) == wanted
        assert _rows(source, columns) == read
    newest = IcebergSnapshot.of("lake.n.t", None)
    renamed = _rows(newest, ["day", "target", "src"])
    assert sorted(renamed) == wanted, "renaming a column makes no snapshot"


def _inline(deleted: list[int]) -> str:
    """Return a deletion vector in the log: a 64-bit Roaring bitmap of fewer than 65,536 rows."""
    offset = 16
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, offset)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    data += b"".join(struct.pack("<H", row) for row in deleted)
    assert len(data) % 4 == 0
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    return base64.b85encode(data).decode().translate(str.maketrans(b85, z85))


def test_deleted_rows_and_renamed_columns_are_what_the_log_says(tmp_path: Path) -> None:
    """Spark writes such tables; `to_pyarrow_dataset` refuses them."""
    folder = tmp_path / "t"
    (folder / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"c1": list(range(8)), "c2": list("abcdefgh")}), folder / "0.parquet")
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {
            "delta.columnMapping.id": i + 1, "delta.columnMapping.physicalName": f"c{i + 1}"}}
        for i, (name, kind) in enumerate((("src", "long"), ("da y", "string")))
    ]  # fmt: skip
    size = (folder / "0.parquet").stat().st_size
    features = ["deletionVectors", "columnMapping"]
    deleted = _inline([1, 4, 6, 7])
    log: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features,
                      "writerFeatures": features}},
        {"metaData": {"id": "3a", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps({"type": "struct", "fields": fields}),
                      "partitionColumns": [], "createdTime": 1, "configuration": {
                          "delta.columnMapping.mode": "name",
                          "delta.enableDeletionVectors": "true",
                          "delta.columnMapping.maxColumnId": "2"}}},
        {"add": {"path": "0.parquet", "size": size, "partitionValues": {}, "dataChange": True,
                 "modificationTime": 1, "stats": json.dumps({"numRecords": 8}),
                 "deletionVector": {"storageType": "i", "pathOrInlineDv": deleted,
                                    "sizeInBytes": 40, "cardinality": 4}}},
    ]  # fmt: skip
    lines = "\n".join(map(json.dumps, log))
    (folder / f"_delta_log/{0:020}.json").write_text(lines)
    read = _rows(DeltaVersion.of(str(folder), None), ["da y", "src"])
    assert sorted(read) == [("a", 0), ("c", 2), ("d", 3), ("f", 5)]


# --- runs -----------------------------------------------------------------------------------------


def _write(path: Path, table: pa.Table, mode: Any = "append") -> str:
    deltalake.write_deltalake(path, table, mode=mode)
    return str(path)


def _files(root: Path) -> dict[str, bytes]:
    """Return the arrays of all partitions."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.bin")}


def _graph() -> tuple[pa.Table, pa.Table]:
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


def test_tables_with_versions_give_the_partitions_of_their_rows(
    tmp_path: Path, catalog: Any, work_sizes: Callable[..., None]
) -> None:
    work_sizes(table_rows=7, file_rows=30, waiting_bytes=600)  # several files and row groups
    nodes, edges = _graph()
    _write(tmp_path / "nodes", nodes)
    table = catalog.create_table("n.edges", schema=edges.schema)
    table.append(edges)
    table.delete("w >= 25")
    report = partition_tables(
        NodeTable(delta=tmp_path / "nodes", **NODES), EdgeTable(iceberg="lake.n.edges", **EDGES),
        root=tmp_path / "a", **HOW,
    )  # fmt: skip
    partition_tables(
        NodeTable(nodes, **NODES), EdgeTable(edges.slice(0, 100), **EDGES),
        root=tmp_path / "b", **HOW,
    )  # fmt: skip
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    manifest = json.loads((tmp_path / "a/gigl_loader.json").read_text())
    snapshot = table.current_snapshot().snapshot_id
    of_nodes, of_edges = manifest["versions"].values()
    assert (of_nodes["delta"], of_nodes["version"]) == (str(tmp_path / "nodes"), 0)
    assert of_edges == {"iceberg": "lake.n.edges", "snapshot": snapshot, "schema": 0,
                        "id": str(table.metadata.table_uuid)}  # fmt: skip
    assert report.versions == manifest["versions"]
    assert f"nodes of (the only type): delta {tmp_path}/nodes, version 0" in str(report)


def test_a_row_is_named_by_its_place_in_the_table(
    tmp_path: Path, work_sizes: Callable[..., None]
) -> None:
    work_sizes(table_rows=7, file_rows=30, waiting_bytes=600)
    nodes, edges = _graph()
    bad = edges.set_column(2, "w", pa.array([1.0] * 150 + [-1.0] + [1.0] * 49))
    path = _write(tmp_path / "edges", bad)
    with pytest.raises(ConfigError, match=rf"'w' of version 0 of .*{path} .*: row 150: -1\.0$"):
        partition_tables(
            NodeTable(nodes), EdgeTable(delta=path, weight="w"), root=tmp_path / "a", **HOW
        )


def _given(folder: Path, **edges: Any) -> dict[str, Any]:
    tables = {"nodes": NodeTable(delta=folder / "nodes", **NODES),
              "edges": EdgeTable(delta=folder / "edges", **EDGES, **edges)}  # fmt: skip
    return {**tables, "root": folder / "parts", **HOW}


def test_a_run_goes_on_with_the_versions_that_it_began_with(
    tmp_path: Path,
    run_all_but_the_end: Callable[..., None],
    before_stage: Callable[..., None],
) -> None:
    nodes, edges = _graph()
    _write(tmp_path / "nodes", nodes)
    _write(tmp_path / "edges", edges.slice(0, 100))
    given = _given(tmp_path)

    def stop() -> None:
        raise UsageError("stopped")

    before_stage("import", stop)  # versions are chosen, and no row is read
    with pytest.raises(UsageError, match="stopped"):
        partition_tables(**given)
    _write(tmp_path / "edges", edges.slice(100))
    run_all_but_the_end(given)
    shutil.rmtree(tmp_path / "edges")  # all of it has been read
    report = partition_tables(**given)
    assert [version["version"] for version in report.versions.values()] == [0, 0]
    _write(tmp_path / "edges", edges.slice(0, 100))
    assert sum(part.edges for part in report.parts) == 100
    partition_tables(**given | {"root": tmp_path / "again"})
    assert _files(tmp_path / "again") == _files(tmp_path / "parts")


@pytest.mark.parametrize("gone", ["replaced", "removed"])
def test_a_version_that_is_gone_is_named(
    tmp_path: Path, before_stage: Callable[..., None], gone: str
) -> None:
    nodes, edges = _graph()
    _write(tmp_path / "nodes", nodes)
    path = Path(_write(tmp_path / "edges", edges))
    given = _given(tmp_path)

    def change() -> None:
        if gone == "replaced":
            shutil.rmtree(path)
            _write(path, edges)
        else:
            (path / f"_delta_log/{0:020}.json").unlink()

    before_stage("import", change)
    what = "another table has its place" if gone == "replaced" else "version 0 of the Delta table"
    with pytest.raises(ConfigError, match=rf"{what}.*{'' if gone == 'replaced' else path}"):
        partition_tables(**given)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["edges", "nodes"]


def test_files_that_are_removed_meanwhile_are_told(
    tmp_path: Path, before_stage: Callable[..., None]
) -> None:
    nodes, edges = _graph()
    _write(tmp_path / "nodes", nodes)
    path = Path(_write(tmp_path / "edges", edges))

    def remove() -> None:
        for file in path.glob("*.parquet"):
            file.unlink()

    before_stage("import", remove)
    with pytest.raises(UsageError, match=rf"version 0 of .*{path} cannot be read: .*call again"):
        partition_tables(**_given(tmp_path))


def test_the_same_versions_are_there_already(tmp_path: Path, capsys) -> None:
    nodes, edges = _graph()
    _write(tmp_path / "nodes", nodes)
    _write(tmp_path / "edges", edges)
    (tmp_path / "graph.yaml").write_text(
        f"nodes: {{delta: {tmp_path}/nodes, features: x}}\n"
        f"edges: {{delta: {tmp_path}/edges, weight: w}}\n"
    )
    flags = [str(tmp_path / "graph.yaml"), "--root", str(tmp_path / "parts"), "--quiet"]
    flags += ["--threads", "1", "--num-partitions", "2"]
    assert main(flags) == 0
    assert "already" not in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*")}
    for more in ([], ["--overwrite"], ["--memory", "1GB"]):
        assert main([*flags, *more]) == 0
        assert "already there" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*")} == before
    text = (tmp_path / "graph.yaml").read_text()
    (tmp_path / "graph.yaml").write_text(text.replace("weight", "version: 0, weight"))
    assert main(flags) == 0, "the newest by its number"
    # Others are refused as ever, and replaced where that is asked for.
    assert main([*flags, "--seed", "1"]) == 2
    _write(tmp_path / "edges", edges.slice(0, 50))
    assert main(flags) == 0, "it names the older version"
    (tmp_path / "graph.yaml").write_text(text)
    assert main(flags) == 2
    assert "holds partitions" in capsys.readouterr().err
    assert main([*flags, "--overwrite"]) == 0
    assert "version 1" in capsys.readouterr().out
    (adjacency,) = DistDataset.load(tmp_path / "parts", 0).view().adjacency.values()
    assert adjacency.indices.numel() > 0


# --- the wrong thing first ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "give one of source, delta and iceberg, got none"),
        ({"source": "a", "delta": "b"}, "got source and delta"),
        ({"source": "a.parquet", "version": 3}, "files have no version"),
        ({"iceberg": "a.b.c", "version": 3}, "an Iceberg table has snapshot="),
        ({"delta": "a", "snapshot": 3}, r"snapshot= is of an Iceberg table, and delta is given"),
        ({"delta": "{folder}/t", "version": "3"}, "version 3 of the Delta table .*/t cannot be"),
        ({"iceberg": "edges"}, "the Iceberg table '' of the catalogue 'edges' cannot be read"),
        ({"delta": "{folder}/none"}, "the newest version of the Delta table .*/none cannot be"),
        ({"delta": "{folder}/t", "version": 7}, "^version 7 of the Delta table .*/t cannot be"),
        ({"delta": "{folder}/t", "dst": "target"}, "'target'; it has src, dst, day"),
        ({"iceberg": "no.n.t"}, "'n.t' of the catalogue 'no' cannot .*PYICEBERG_CATALOG__NO__URI"),
        ({"iceberg": "lake.n.no"}, "'n.no' of the catalogue 'lake' cannot be read"),
        ({"iceberg": "lake.n.t", "snapshot": 7}, "lake.n.t has no snapshot 7"),
        ({"iceberg": "lake.n.t", "src": "from"}, "has no column 'from'; it has src, dst, day"),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, catalog: Any, rows: dict[str, Any], message: str
) -> None:
    table = _some(random.Random(0), 3)
    _write(tmp_path / "t", table)
    catalog.create_table("n.t", schema=SCHEMA).append(table)
    rows = {
        name: value.format(folder=tmp_path) if isinstance(value, str) else value
        for name, value in rows.items()
    }
    with pytest.raises(ConfigError, match=message):
        partition_tables(
            NodeTable(pa.table({"id": [0]})), EdgeTable(**rows), root=tmp_path / "parts", **HOW
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "t"]


@pytest.mark.parametrize(("extra", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str, package: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    rows: dict[str, Any] = {extra: "a.b.c"}
    with pytest.raises(ConfigError, match=rf'need {package}: .*"gigl_loader\[{extra}\]"'):
        partition_tables(
            NodeTable(pa.table({"id": [0]})), EdgeTable(**rows), root=tmp_path / "parts", **HOW
        )


def test_a_folder_of_such_a_table_names_the_key(tmp_path: Path, catalog: Any) -> None:
    table = _some(random.Random(0), 3)
    delta = _write(tmp_path / "t", table)
    iceberg = catalog.create_table("n.t", schema=SCHEMA)
    iceberg.append(table)
    folder = urllib.parse.urlparse(iceberg.location()).path
    for path, key in ((delta, "delta="), (folder, "iceberg=")):
        with pytest.raises(ConfigError, match=rf"table, .*: .*Give .* as {key}"):
            partition_tables(
                NodeTable(pa.table({"id": [0]})), EdgeTable(path), root=tmp_path / "parts", **HOW
            )
