"""Delta and Iceberg tables: what their own readers return, at the version that a run began with."""

import contextlib
import itertools
import json
import random
import re
import shutil
import sys
import urllib.parse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import torch

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DistDataset,
    EdgeTable,
    NodeTable,
    partition_tables,
)
from gigl_loader.commands.partition import main
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.partitioning.tables import files_in_place
from gigl_loader.partitioning.tables.row_sources import DeltaVersion, IcebergSnapshot, RowSource
from tests.partitioning.versioned_tables import (
    EDGES,
    HOW,
    NODES,
    arrays_in,
    copy_versions,
    deletion_vector,
    given_tables,
    graph,
    rows_in,
    rows_in_files,
    write_delta,
    write_delta_log,
)

SCHEMA = pa.schema([("src", pa.int64()), ("dst", pa.int64()), ("day", pa.string())])


def _some(rng: random.Random, count: int) -> pa.Table:
    columns = [[rng.randrange(40) for _ in range(count)] for _ in range(2)]
    days = [rng.choice(("mon", "tue")) for _ in range(count)]
    return pa.table([*columns, pa.array(days, pa.string())], schema=SCHEMA)


def _more(rows: pa.Table, kind: pa.DataType) -> pa.Table:
    return rows.append_column("more", rows["src"].cast(kind))


def _change(rng: random.Random) -> tuple[str, pa.Table, str]:
    """Return an operation, the rows for it, and a condition for it."""
    what = rng.choice(("append", "append", "delete", "overwrite"))
    condition = rng.choice((f"src < {rng.randrange(12)}", f"dst > {28 + rng.randrange(12)}"))
    return what, _some(rng, rng.randrange(1, 6)), condition


def _check_both_ways(
    source: RowSource,
    columns: list[str],
    wanted: list[tuple],
    ways: Counter[tuple[bool, str]],
    *,
    in_order: bool,
) -> None:
    """Check the rows of a source; in its files they are the same, in the same order."""
    read = rows_in(source, columns)
    if in_order:
        assert read == wanted
    assert sorted(read, key=repr) == sorted(wanted, key=repr)
    assert rows_in(source, columns) == read, "the same rows in the same order"
    files = source.parquet_files(columns)
    ways[files is not None, columns[0]] += 1
    if files is not None:
        assert rows_in_files(files, columns) == read


@pytest.mark.parametrize("changes", [80, pytest.param(300, marks=pytest.mark.wide)])
def test_a_delta_table_has_the_rows_that_its_own_reader_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    monkeypatch.setattr(files_in_place, "_FEW_FILES", 2 * changes)
    rng, path = random.Random(changes), str(tmp_path / "t")
    deltalake.write_deltalake(path, _some(rng, 5), partition_by=["day"])
    known: dict[int, dict[tuple[str, ...], list[tuple]]] = {}
    for step in range(1, changes + 1):
        what, rows, condition = _change(rng)
        if step > changes // 2:  # files from before have one column less
            rows = _more(rows, pa.int64())
        if what == "delete":
            deltalake.DeltaTable(path).delete(condition)
        elif what == "append":
            deltalake.write_deltalake(path, rows, mode="append", schema_mode="merge")
        else:
            predicate = f"day = '{rng.choice(('mon', 'tue'))}'"
            kept = rows.filter(pa.compute.equal(rows["day"], predicate[-4:-1]))
            deltalake.write_deltalake(
                path, kept, mode="overwrite", predicate=predicate, schema_mode="merge"
            )
        if step % (changes // 10) == 0:
            table = deltalake.DeltaTable(path)
            all_rows = table.to_pyarrow_dataset().to_table()
            known[table.version()] = {
                columns: [tuple(row.values()) for row in all_rows.select(columns).to_pylist()]
                for columns in (("src", "dst"), ("day", "src"), ("more", "src"))
                if set(columns) <= set(all_rows.column_names)
            }
    ways: Counter[tuple[bool, str]] = Counter()
    for version, by_columns in known.items():
        for columns, wanted in by_columns.items():
            source = DeltaVersion.of(path, version)
            _check_both_ways(source, list(columns), wanted, ways, in_order=False)
    assert ways[True, "src"] == len(known)
    assert ways[False, "day"] == len(known), "a partition column"
    # of 300, a version that is looked at has no file from before
    assert changes == 300 or ways[False, "more"]
    assert ways[True, "more"]
    assert DeltaVersion.of(path, None).version == deltalake.DeltaTable(path).version()


@pytest.mark.parametrize("changes", [24, pytest.param(200, marks=pytest.mark.wide)])
def test_an_iceberg_table_has_the_rows_that_its_own_reader_has(
    catalog: Any, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    from pyiceberg.types import IntegerType, LongType

    monkeypatch.setattr(files_in_place, "_FEW_FILES", 2 * changes)
    rng, column_lists = random.Random(changes), (("day", "dst", "src"), ("more", "src"))
    table = catalog.create_table("n.t", schema=SCHEMA)
    assert rows_in(IcebergSnapshot.of("lake.n.t", None), list(column_lists[0])) == []
    assert IcebergSnapshot.of("lake.n.t", None).parquet_files(["src"]) is None
    known: dict[int, dict[tuple[str, ...], list[tuple]]] = {}
    for step in range(1, changes + 1):
        what, rows, condition = _change(rng)
        if step in (changes // 4, changes // 2):  # files from before lack it, or have it as int32
            with table.update_schema() as update:
                if step == changes // 4:
                    update.add_column("more", IntegerType())
                else:
                    update.update_column("more", LongType())
        if step >= changes // 4:
            rows = _more(rows, pa.int32() if step < changes // 2 else pa.int64())
        with contextlib.suppress(Warning):  # of a condition that no row meets
            if what == "delete":
                table.delete(condition)
            elif what == "append":
                table.append(rows)
            else:
                table.overwrite(rows, overwrite_filter=condition)
        if step % (changes // 8) == 0 and table.current_snapshot() is not None:
            snapshot = table.current_snapshot()
            names = table.schemas()[snapshot.schema_id].column_names
            known[snapshot.snapshot_id] = {
                columns: [
                    tuple(row[name] for name in columns)
                    for row in table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=columns)
                    .to_arrow()
                    .to_pylist()
                ]
                for columns in column_lists
                if set(columns) <= set(names)
            }
    with table.update_schema() as update:
        update.rename_column("dst", "target")
    ways: Counter[tuple[bool, str]] = Counter()
    for snapshot_id, by_columns in known.items():
        for columns, wanted in by_columns.items():
            source = IcebergSnapshot.of("lake.n.t", snapshot_id)
            _check_both_ways(source, list(columns), wanted, ways, in_order=True)
    assert ways[True, "day"] == len(known)
    assert ways[False, "more"]
    # of 200, a file from before is in each snapshot that is looked at
    assert changes == 200 or ways[True, "more"]
    newest, renamed_to = IcebergSnapshot.of("lake.n.t", None), ["day", "target", "src"]
    renamed = rows_in(newest, renamed_to)
    wanted = known[table.current_snapshot().snapshot_id]["day", "dst", "src"]
    assert renamed == wanted, "renaming a column makes no snapshot"
    assert newest.parquet_files(renamed_to) is None


@pytest.mark.parametrize("how", ["in place", "copied"])
def test_edges_of_an_iceberg_table_lead_back_to_the_rows_of_its_own_reader(
    catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "copied":
        copy_versions(monkeypatch)
    nodes, edges = graph()
    table = catalog.create_table("n.edges", schema=edges.schema)
    for start in range(0, 200, 20):  # ten files, whose names say nothing of their order
        table.append(edges.slice(start, 20))
    partition_tables(
        NodeTable(nodes),
        EdgeTable(iceberg="lake.n.edges", weight="w"),
        root=tmp_path / "parts",
        edge_rows=True,
        **HOW,
    )
    its_rows = table.scan().to_arrow()
    for index in range(2):
        dataset = DistDataset.load(tmp_path / "parts", index)
        adjacency: Any = dataset.view().adjacency[DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel()))
        rows = dataset.to_table_rows(ids)
        assert its_rows["w"].take(pa.array(rows)).to_pylist() == adjacency.weights.tolist()


def test_a_catalogue_that_plans_scans_itself_gives_the_same_order(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import DataScan

    _, edges = graph()
    table = catalog.create_table("n.t", schema=edges.schema)
    for start in range(0, 200, 20):
        table.append(edges.slice(start, 20))
    source = IcebergSnapshot.of("lake.n.t", None)
    wanted = rows_in(source, ["w"])
    assert wanted == [(w,) for w in table.scan().to_arrow()["w"].to_pylist()]
    given, turns = DataScan.plan_files, itertools.count()

    def planned(scan: Any) -> list[Any]:
        tasks = list(given(scan))
        return tasks[::-1] if next(turns) % 2 else tasks[3:] + tasks[:3]

    monkeypatch.setattr(SqlCatalog, "supports_server_side_planning", lambda catalog: True)
    monkeypatch.setattr(DataScan, "_plan_files_server_side", DataScan._plan_files_local)
    monkeypatch.setattr(DataScan, "plan_files", planned)
    for _ in range(2):
        assert rows_in(source, ["w"]) == wanted
        assert rows_in_files(source.parquet_files(["w"]) or [], ["w"]) == wanted


def test_deleted_rows_and_renamed_columns_are_what_the_log_says(tmp_path: Path) -> None:
    """Spark writes such tables; `to_pyarrow_dataset` refuses them."""
    files = pa.table({"c1": list(range(8)), "c2": list("abcdefgh")})
    path = write_delta_log(
        tmp_path / "t",
        [files],
        {"src": "long", "da y": "string"},
        physical=["c1", "c2"],
        features=["deletionVectors", "columnMapping"],
        configuration={
            "delta.columnMapping.mode": "name",
            "delta.enableDeletionVectors": "true",
            "delta.columnMapping.maxColumnId": "2",
        },
        of_files={0: deletion_vector([1, 4, 6, 7])},
    )
    read = rows_in(DeltaVersion.of(path, None), ["da y", "src"])
    assert sorted(read) == [("a", 0), ("c", 2), ("d", 3), ("f", 5)]


# --- runs -----------------------------------------------------------------------------------------


def test_tables_with_versions_give_the_partitions_of_their_rows(
    tmp_path: Path, catalog: Any, work_sizes: Callable[..., None]
) -> None:
    work_sizes(table_rows=7, file_rows=30, waiting_bytes=600)  # several files and row groups
    nodes, edges = graph()
    write_delta(tmp_path / "nodes", nodes)
    table = catalog.create_table("n.edges", schema=edges.schema)
    table.append(edges)
    table.delete("w >= 25")
    report = partition_tables(
        NodeTable(delta=tmp_path / "nodes", **NODES),
        EdgeTable(iceberg="lake.n.edges", **EDGES),
        root=tmp_path / "a",
        **HOW,
    )
    partition_tables(
        NodeTable(nodes, **NODES),
        EdgeTable(edges.slice(0, 100), **EDGES),
        root=tmp_path / "b",
        **HOW,
    )
    assert arrays_in(tmp_path / "a") == arrays_in(tmp_path / "b")
    manifest = json.loads((tmp_path / "a/gigl_loader.json").read_text())
    snapshot = table.current_snapshot().snapshot_id
    of_nodes, of_edges = manifest["versions"].values()
    assert (of_nodes["delta"], of_nodes["version"]) == (str(tmp_path / "nodes"), 0)
    assert of_edges == {
        "iceberg": "lake.n.edges",
        "snapshot": snapshot,
        "schema": 0,
        "id": str(table.metadata.table_uuid),
    }
    assert report.versions == manifest["versions"]
    assert f"nodes of (the only type): delta {tmp_path}/nodes, version 0" in str(report)


def test_a_row_is_named_by_its_place_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work_sizes: Callable[..., None]
) -> None:
    work_sizes(table_rows=7, file_rows=30, waiting_bytes=600)
    copy_versions(monkeypatch)
    nodes, edges = graph()
    bad = edges.set_column(2, "w", pa.array([1.0] * 150 + [-1.0] + [1.0] * 49))
    path = write_delta(tmp_path / "edges", bad)
    with pytest.raises(ConfigError, match=rf"'w' of version 0 of .*{path} .*: row 150: -1\.0$"):
        partition_tables(
            NodeTable(nodes), EdgeTable(delta=path, weight="w"), root=tmp_path / "a", **HOW
        )


def test_a_run_goes_on_with_the_versions_that_it_began_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_all_but_the_end: Callable[..., None],
    before_stage: Callable[..., None],
) -> None:
    copy_versions(monkeypatch)
    nodes, edges = graph()
    write_delta(tmp_path / "nodes", nodes)
    write_delta(tmp_path / "edges", edges.slice(0, 100))
    given = given_tables(tmp_path)

    def stop() -> None:
        raise UsageError("stopped")

    before_stage("import", stop)  # versions are chosen, and no row is read
    with pytest.raises(UsageError, match="stopped"):
        partition_tables(**given)
    write_delta(tmp_path / "edges", edges.slice(100))
    run_all_but_the_end(given)
    shutil.rmtree(tmp_path / "edges")  # all of it has been read
    report = partition_tables(**given)
    assert [version["version"] for version in report.versions.values()] == [0, 0]
    write_delta(tmp_path / "edges", edges.slice(0, 100))
    assert sum(part.edges for part in report.parts) == 100
    partition_tables(**given | {"root": tmp_path / "again"})
    assert arrays_in(tmp_path / "again") == arrays_in(tmp_path / "parts")


@pytest.mark.parametrize("gone", ["replaced", "removed"])
def test_a_version_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_stage: Callable[..., None], gone: str
) -> None:
    copy_versions(monkeypatch)
    nodes, edges = graph()
    write_delta(tmp_path / "nodes", nodes)
    path = Path(write_delta(tmp_path / "edges", edges))
    given = given_tables(tmp_path)

    def change() -> None:
        if gone == "replaced":
            shutil.rmtree(path)
            write_delta(path, edges)
        else:
            (path / f"_delta_log/{0:020}.json").unlink()

    before_stage("import", change)
    what = "another table has its place" if gone == "replaced" else "version 0 of the Delta table"
    with pytest.raises(ConfigError, match=rf"{what}.*{'' if gone == 'replaced' else path}"):
        partition_tables(**given)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["edges", "nodes"]


def test_files_that_are_removed_meanwhile_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before_stage: Callable[..., None]
) -> None:
    copy_versions(monkeypatch)
    nodes, edges = graph()
    write_delta(tmp_path / "nodes", nodes)
    path = Path(write_delta(tmp_path / "edges", edges))

    def remove() -> None:
        for file in path.glob("*.parquet"):
            file.unlink()

    before_stage("import", remove)
    with pytest.raises(UsageError, match=rf"version 0 of .*{path} cannot be read: .*call again"):
        partition_tables(**given_tables(tmp_path))


def test_the_same_versions_are_there_already(tmp_path: Path, capsys) -> None:
    nodes, edges = graph()
    write_delta(tmp_path / "nodes", nodes)
    write_delta(tmp_path / "edges", edges)
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
    write_delta(tmp_path / "edges", edges.slice(0, 50))
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
        ({"delta": "{folder}/t", "version": "3"}, "got '3'; the newest version is 0$"),
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
    write_delta(tmp_path / "t", table)
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
    # None refuses an import, whether an earlier test has imported the package or not
    for name in {package, *(one for one in sys.modules if one.partition(".")[0] == package)}:
        monkeypatch.setitem(sys.modules, name, None)
    rows: dict[str, Any] = {extra: "a.b.c"}
    with pytest.raises(ConfigError, match=rf'need {package}: .*"gigl_loader\[{extra}\]"'):
        partition_tables(
            NodeTable(pa.table({"id": [0]})), EdgeTable(**rows), root=tmp_path / "parts", **HOW
        )


def test_a_folder_of_such_a_table_names_the_key(tmp_path: Path, catalog: Any) -> None:
    table = _some(random.Random(0), 3)
    delta = write_delta(tmp_path / "t", table)
    iceberg = catalog.create_table("n.t", schema=SCHEMA)
    iceberg.append(table)
    folder = urllib.parse.urlparse(iceberg.location()).path
    for path, key in ((delta, "delta="), (folder, "iceberg=")):
        with pytest.raises(ConfigError, match=rf"table, .*: .*Give .* as {key}"):
            partition_tables(
                NodeTable(pa.table({"id": [0]})), EdgeTable(path), root=tmp_path / "parts", **HOW
            )


@pytest.mark.parametrize(
    "name", ["../own/x.parquet", "{folder}/own/x.parquet", "file://{folder}/own/x.parquet", "link"]
)
def test_a_log_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """Its rows would be those of the table: the reader of Delta tables follows the name."""
    nodes, _ = graph()
    write_delta(tmp_path / "t", nodes)
    (own,) = (tmp_path / "t").glob("*.parquet")
    (tmp_path / "own").mkdir()
    shutil.copy(own, tmp_path / "own" / "x.parquet")
    (tmp_path / "t" / "link").symlink_to(tmp_path / "own" / "x.parquet")
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace(own.name, name.format(folder=tmp_path)))
    version = DeltaVersion.of(str(tmp_path / "t"), None)
    for read in (version.parquet_files, lambda columns: rows_in(version, columns)):
        with pytest.raises(ConfigError, match=r"not in its folder|leads out of"):
            read(["id"])


@pytest.mark.parametrize("version", ["1", "newest", 9, -1, 0.5, True])
def test_a_version_that_cannot_be_is_refused_with_the_newest(tmp_path: Path, version: Any) -> None:
    nodes, _ = graph()
    for part in (nodes.slice(0, 20), nodes.slice(20)):
        write_delta(tmp_path / "nodes", part)
    wrong = repr(version) if version != 9 else "version 9 .*"
    with pytest.raises(ConfigError, match=rf"{tmp_path}/nodes .*; the newest version is 1$") as no:
        DeltaVersion.of(str(tmp_path / "nodes"), version)
    assert re.search(wrong, str(no.value))
