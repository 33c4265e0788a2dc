"""Files of tables: which ones, in which order, and their columns as numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.tables.engine_sql import quoted, quoted_name, to_read
from gigl_loader.partitioning.tables.table_files import (
    Table,
    TableFile,
    id_kind,
    ids_in,
    in_type,
    matrix_in,
    number_type,
    stamp,
    stored_type,
    time_type,
    width_of,
)


def _job(folder: Path) -> ResumableJob:
    return ResumableJob(folder / "scratch", {}, memory=10**9, threads=1, progress=False)


def _table(folder: Path, columns: dict[str, Any]) -> Table:
    return Table(_job(folder), "t", pa.table(columns), "nodes")


def test_files_are_in_order_and_rows_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "t/sub").mkdir(parents=True)
    for name, ids in (("b", [2, 3, 4]), ("a", [0]), ("sub/c", [1])):
        pq.write_table(pa.table({"id": ids}), tmp_path / f"t/{name}.parquet", row_group_size=2)
    (tmp_path / "t/_SUCCESS").touch()
    job = _job(tmp_path)
    table = Table(job, "dir", tmp_path / "t", "nodes")
    names = [file.path.removeprefix(f"{tmp_path}/t/") for file in table.files]
    assert names == ["a.parquet", "b.parquet", "sub/c.parquet"]
    assert [file.first_row for file in table.files] == [0, 1, 4]
    assert table.num_rows == 5
    paths = [tmp_path / "t/b.parquet", str(tmp_path / "t/a.parquet")]
    assert [file.num_rows for file in Table(job, "list", paths, "nodes").files] == [3, 1]
    assert Table(job, "glob", f"{tmp_path}/t/*.parquet", "nodes").num_rows == 4
    with pytest.raises(ConfigError, match="no Parquet or CSV file at"):
        Table(job, "none", tmp_path / "scratch", "nodes")
    with pytest.raises(ConfigError, match="a list of sources has paths only, got int"):
        Table(job, "int", [3], "nodes")


def test_files_of_a_table_have_the_same_columns(tmp_path: Path) -> None:
    one = pa.table({"id": [1], "x": [0.5]})
    pq.write_table(one.replace_schema_metadata({"pandas": "{}"}), tmp_path / "0.parquet")
    pq.write_table(one, tmp_path / "1.parquet")
    assert Table(_job(tmp_path), "t", [tmp_path / "0.parquet", tmp_path / "1.parquet"], "nodes")
    pq.write_table(pa.table({"id": [1], "x": [1]}), tmp_path / "2.parquet")
    with pytest.raises(ConfigError, match=r"2\.parquet has other columns than .*0\.parquet \(x\)"):
        Table(_job(tmp_path), "t", [tmp_path / "0.parquet", tmp_path / "2.parquet"], "nodes")


def test_a_row_is_named_with_its_group(tmp_path: Path) -> None:
    file = TableFile("p", "p", 100, (2, 0, 3), 5)
    assert [file.describe_row(row) for row in (0, 1, 2, 4)] == [
        f"row {row} (row group {group})" for row, group in ((0, 0), (1, 0), (2, 2), (4, 2))
    ]
    assert TableFile("p", "p", 0, (), 5).describe_row(3) == "row 3"
    with pytest.raises(ConfigError, match=r"is odd: row 0: 'a'; row 1: 'b'; .*; and 2 more$"):
        _table(tmp_path, {"id": [1]}).refuse(file_of(7), "id", range(7), "is odd", "abcdefg")


def file_of(rows: int) -> TableFile:
    return TableFile("p", "p", 0, (), rows)


def test_a_file_of_many_row_groups_is_not_kept_in_memory(tmp_path: Path) -> None:
    groups, nbytes = 32, 2**20
    values = np.random.default_rng(0).random((groups, nbytes // 8))
    schema = pa.schema({"x": pa.float64()})
    with pq.ParquetWriter(tmp_path / "t.parquet", schema, use_dictionary=False) as writer:
        for group in values:
            writer.write_table(pa.table({"x": group}))
    table = Table(_job(tmp_path), "t", tmp_path / "t.parquet", "nodes")
    before, most, row = pa.total_allocated_bytes(), 0, 0
    for first, batch in table.batches(table.files[0], ["x"]):
        assert (first, batch.column(0)[0].as_py()) == (row, values.reshape(-1)[row])
        row += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert row == values.size
    assert most < groups * nbytes / 2, "pyarrow would buffer the columns of the whole file"


def test_csv_becomes_parquet_in_the_order_of_its_rows(tmp_path: Path) -> None:
    lines = [f"{i},n{i}" for i in range(5000)]
    (tmp_path / "t.csv").write_text("\n".join(["k,id", *lines]) + "\n")
    table = Table(_job(tmp_path), "t", tmp_path / "t.csv", "nodes")
    (file,) = table.files
    assert (file.name, file.group_rows) == (str(tmp_path / "t.csv"), ())
    found = pa.Table.from_batches([batch for _, batch in table.batches(file, ["k", "id"])])
    assert found.column("k").to_pylist() == list(range(5000))


def test_a_path_is_no_pattern(tmp_path: Path) -> None:
    """`a*` is a file, and not the pattern that `ab` meets as well."""
    job = _job(tmp_path)
    for number, name in enumerate(("a*", "ab", "a[b]", "a?", "it's")):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": [number]}), tmp_path / name / "0.parquet")
        with job.engine() as engine:
            for source in (
                to_read(tmp_path / name / "0.parquet"),
                to_read(tmp_path / name, "/*.parquet"),
            ):
                assert engine.sql(f"SELECT x FROM read_parquet({source})").fetchall() == [(number,)]
    assert to_read("s3://bucket/a*") == "'s3://bucket/a*'"
    assert (quoted("it's"), quoted_name('a"b')) == ("'it''s'", '"a""b"')


def test_a_file_that_changed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("ab")
    before = stamp(str(path))
    path.write_text("abc")
    assert stamp(str(path)) != before
    assert stamp("s3://bucket/x") == []


@given(st.integers(0, 6), st.integers(1, 4), st.booleans(), st.integers(0, 3))
def test_lists_of_a_slice_are_its_rows(rows: int, width: int, fixed: bool, skip: int) -> None:
    wanted = np.arange((rows + skip) * width, dtype=np.float32).reshape(-1, width)
    kind = pa.list_(pa.float32(), width) if fixed else pa.list_(pa.float32())
    batch = pa.record_batch({"x": pa.array(wanted.tolist(), kind)}).slice(skip)
    found = matrix_in(None, file_of(0), ["x"], 0, batch, width)  # type: ignore[arg-type]  # not needed here
    assert found.tolist() == wanted[skip:].tolist()


def test_columns_become_one_matrix(tmp_path: Path) -> None:
    columns = {"a": [True, False], "b": [1, 2], "t": pa.array([5, 6], pa.timestamp("us"))}
    batch = pa.record_batch({name: pa.array(one) for name, one in columns.items()})
    table = _table(tmp_path, columns)
    assert matrix_in(table, file_of(2), ["a", "b", "t"], 0, batch, 3).tolist() == [
        [1, 1, 5],
        [0, 2, 6],
    ]
    nulls = pa.record_batch({"b": pa.array([1, None])})
    with pytest.raises(ConfigError, match="'b' of p has nulls, give -1: row 11"):
        matrix_in(table, file_of(20), ["b"], 10, nulls, 1, hint=", give -1")


@pytest.mark.parametrize(
    ("values", "dtype", "rows"),
    [
        ([1.0, 7e4, np.inf], np.float16, [1]),
        ([1.0, 1e300, -1e300], np.float32, [1, 2]),
        (np.array([1, 2**63, 2**64 - 1], np.uint64), np.int64, [1, 2]),
        ([2**60], np.float16, [0]),
    ],
)
def test_numbers_that_a_type_has_not_are_refused(tmp_path, values, dtype, rows) -> None:
    given = np.asarray(values).reshape(-1, 1)
    where = "; ".join(f"row {100 + row}: " for row in rows[:1])
    with pytest.raises(ConfigError, match=rf"'x' of p has numbers too large for \S+: {where}"):
        in_type(_table(tmp_path, {"x": [1]}), file_of(0), ["x"], 100, given, np.dtype(dtype))
    kept = np.delete(given, rows, axis=0)
    found = in_type(None, file_of(0), ["x"], 0, kept, np.dtype(dtype))  # type: ignore[arg-type]  # not needed here
    assert found.dtype == dtype
    assert found.tolist() == kept.tolist()


def test_types_of_columns(tmp_path: Path) -> None:
    table = _table(
        tmp_path,
        {
            "i": pa.array([1], pa.int8()),
            "u": pa.array([1], pa.uint32()),
            "s": ["a"],
            "d": pa.array(["a"]).dictionary_encode(),
            "f": pa.array([0.5], pa.float32()),
            "l": pa.array([[1.0, 2.0]]),
            "when": pa.array([1], pa.timestamp("ms")),
            "day": pa.array([1], pa.date32()),
        },
    )
    assert [id_kind(table, name) for name in "iusd"] == ["int", "int", "text", "text"]
    assert number_type(table, ["i", "f"], "features") == np.float32
    assert number_type(table, ["l"], "features") == np.float64
    assert (width_of(table, ["l"]), width_of(table, ["i", "f"])) == (2, 2)
    assert time_type(table, "when") == time_type(table, "i") == np.int64
    kept = {name: stored_type(np.dtype(name)).name for name in ("uint8", "bool", "int16", "uint16")}
    assert kept == {"uint8": "uint8", "bool": "bool", "int16": "int16", "uint16": "int64"}
    for call, text in (
        (lambda: id_kind(table, "f"), "'f' holds float; ids must be"),
        (lambda: time_type(table, "day"), r"'day' holds date32\[day\]; times must be"),
        (lambda: number_type(table, ["s"], "labels"), "'s' holds string; labels must be numbers"),
        (lambda: number_type(table, ["i", "l"], "features"), "one column of lists, or several"),
        (lambda: table.type_of("z"), "no column 'z'; it has i, u, s"),
    ):
        with pytest.raises(ConfigError, match=text):
            call()


def test_ids_are_int64_or_text(tmp_path: Path) -> None:
    table = _table(tmp_path, {"u": pa.array([1], pa.uint64()), "s": ["a"]})
    found = ids_in(table, file_of(0), "s", 0, pa.array(["b", "a"]).dictionary_encode())
    assert (found.type, found.to_pylist()) == (pa.string(), ["b", "a"])
    assert ids_in(table, file_of(0), "u", 0, pa.array([7], pa.uint64())).type == pa.int64()
    with pytest.raises(ConfigError, match=r"'u' of p: .*9223372036854775808"):
        ids_in(table, file_of(0), "u", 0, pa.array([2**63], pa.uint64()))
    with pytest.raises(ConfigError, match="has nulls: row 6"):
        ids_in(table, file_of(0), "s", 5, pa.array(["a", None]))
