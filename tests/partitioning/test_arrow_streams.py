"""Arrow batches of other libraries and of functions as tables."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages import pipeline
from gigl_loader.partitioning.tables.row_sources import ArrowStream
from gigl_loader.partitioning.tables.table_files import Table

NODES = pa.table(
    {
        "id": [f"n{i}" for i in range(30)],
        "x": [float(i) for i in range(30)],
        "v": pa.array([[i, i] for i in range(30)], pa.list_(pa.int32())),
    }
)
EDGES = pa.table(
    {
        "src": [f"n{i * 7 % 30}" for i in range(90)],
        "dst": [f"n{i % 30}" for i in range(90)],
        "w": [i / 4 for i in range(90)],
    }
)
HOW: dict[str, Any] = {"num_partitions": 2, "progress": False, "threads": 1, "method": "random"}


def _reader(table: pa.Table, rows: int = 11) -> Any:
    batches = (batch for batch in table.to_batches(max_chunksize=rows))
    return pa.RecordBatchReader.from_batches(table.schema, batches)


class Exporter:
    """What another library has: nothing but the interface of Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def _views(table: pa.Table) -> pa.Table:
    """Return the same texts in the layout that Polars and DataFusion export."""
    fields = [
        field.with_type(pa.string_view()) if pa.types.is_string(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.bin")}


def test_any_source_of_batches_gives_the_same_partitions(
    tmp_path: Path, work_sizes: Callable[..., None]
) -> None:
    nodes, edges = NODES, EDGES  # the engine finds them by these names
    with duckdb.connect() as connection:
        other = connection.cursor()  # a connection has one open result
        sources: dict[str, tuple[Any, Any]] = {
            "tables": (nodes, edges),
            "functions": (lambda: _reader(nodes), lambda: _reader(edges)),
            "relations": (connection.sql("FROM nodes"), other.sql("FROM edges")),
            "exporters": (Exporter(_views(nodes)), Exporter(_views(edges))),
            "pandas": (nodes.to_pandas(), lambda: edges.to_pandas()),
        }
        files = {}
        for name, (of_nodes, of_edges) in sources.items():
            if name != "tables":
                work_sizes(table_rows=4, file_rows=20, waiting_bytes=200)
            features: dict[str, Any] = {"features": "v"} if name != "pandas" else {}
            partition_tables(
                NodeTable(of_nodes, label="x", **features),
                EdgeTable(of_edges, weight="w"),
                root=tmp_path / name,
                **HOW,
            )
            files[name] = _files(tmp_path / name)
    for name, found in files.items():
        wanted = files["tables"]
        if name == "pandas":  # it has no lists of one type
            wanted = {path: data for path, data in wanted.items() if "node_features" not in path}
        assert found == wanted, name


def test_columns_that_are_not_named_are_not_kept(tmp_path: Path) -> None:
    job = ResumableJob(tmp_path / "job", {}, memory=10**9, threads=1, progress=False)
    table = Table(job, "t", ArrowStream(NODES, "nodes"), "nodes", ["x"])
    assert table.schema.names == ["x"]
    empty = Table(job, "e", ArrowStream(NODES.slice(0, 0), "nodes"), "nodes")
    assert (empty.num_rows, empty.schema.names) == (0, ["id", "x", "v"])


def _used_up() -> Callable[[], Any]:
    """Return a function whose readers share what can be read once."""
    batches = iter(EDGES.to_batches(max_chunksize=11))
    return lambda: pa.RecordBatchReader.from_batches(EDGES.schema, batches)


def _one_reader() -> Callable[[], Any]:
    reader = _reader(EDGES, 1000)
    return lambda: reader


def _generator() -> Iterator[Any]:
    yield from EDGES.to_batches()


def _fails() -> Any:
    raise OSError("no route to the warehouse")


def _fails_later() -> Any:
    def batches() -> Iterator[Any]:
        yield EDGES.to_batches()[0]
        raise OSError("the warehouse is closed")

    return pa.RecordBatchReader.from_batches(EDGES.schema, batches())


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (_generator(), ConfigError, "source is a generator, which can be read once only: give a "),
        (_reader(EDGES), ConfigError, "source is a RecordBatchReader, which can be read once"),
        (_used_up(), ConfigError, "edges of .* cannot be read again: .* began with other rows"),
        (_one_reader(), ConfigError, "cannot be read again: .* or had none; give a function"),
        (lambda: [1], ConfigError, "must return a pyarrow.RecordBatchReader .*, got list"),
        (7, ConfigError, "source must be a path, a list of paths, Arrow batches .*, got int"),
        (lambda: EDGES.select(["src", "w"]), ConfigError, "no column 'dst'; it has src, w$"),
        (_fails, UsageError, "Arrow source of edges .* cannot be read: no route to the warehouse"),
        (_fails_later, UsageError, "cannot be read: .*the warehouse is closed; call again"),
    ],
)
def test_what_cannot_be_read_again_is_told(
    tmp_path: Path, source: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        partition_tables(NodeTable(NODES), EdgeTable(source), root=tmp_path / "parts", **HOW)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({".parts.scratch"} if kind is UsageError else set())


def test_a_killed_run_continues_if_its_batches_have_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def edges() -> Any:
        reads.append(len(reads))
        return _reader(EDGES)

    def full(*args: Any, **more: Any) -> str:
        raise UsageError("the disk is full")

    def given(version: str | None, **more: Any) -> dict[str, Any]:
        tables = {"nodes": NodeTable(NODES), "edges": EdgeTable(edges, version=version)}
        return {**tables, "root": tmp_path / "parts", **HOW, **more}

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "seal", full)
        for version in (None, "monday"):
            with pytest.raises(UsageError, match="full"):
                partition_tables(**given(version, overwrite=True))
            message = "without version= are others" if version is None else "full"
            with pytest.raises((ConfigError, UsageError), match=message):
                partition_tables(**given(version))
        with pytest.raises(ConfigError, match="unfinished run of other tables"):
            partition_tables(**given("tuesday"))
    count = len(reads)
    report = partition_tables(**given("monday"))
    assert len(reads) == count, "its rows are in the scratch directory"
    assert list(report.versions.values()) == [{"arrow": "monday"}]


def test_batches_with_versions_are_there_already(tmp_path: Path) -> None:
    def given(version: Any) -> dict[str, Any]:
        tables = {"nodes": NodeTable(NODES, version=1), "edges": EdgeTable(EDGES, version=version)}
        return {**tables, "root": tmp_path / "parts", **HOW}

    first = partition_tables(**given("a"))
    again = partition_tables(**given("a"))
    assert (again.run, again.seconds) == (first.run, 0.0)
    with pytest.raises(ConfigError, match="holds partitions"):
        partition_tables(**given("b"))


def test_the_extra_is_not_needed_for_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("deltalake", "pyiceberg"):
        monkeypatch.setitem(sys.modules, package, None)
    partition_tables(NodeTable(lambda: NODES), EdgeTable(EDGES), root=tmp_path / "parts", **HOW)
