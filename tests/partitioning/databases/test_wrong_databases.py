"""Wrong databases: one named error each, before anything is written; or the right graph."""

import decimal
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import ConfigError, DistDataset, WrongTypeError
from tests.partitioning.databases.folders import (
    KEYS,
    TWO,
    edges_of,
    frame_of,
    shop,
    stamps,
    two_tables,
    write_folder,
)

F2P = ("child", "f2p_to", "parent")


def _opened(source: Any, root: Path, keys: Any = None, **options: Any) -> DistDataset:
    return DistDataset.from_database(source, root=root, keys=keys, progress=False, **options)


def _two(child: Any, parent: Any = None) -> Callable[[Path], tuple[Any, Any]]:
    return lambda _: (two_tables(child, parent), TWO)


def _folder(change: Callable[[Path], object], **manifest: Any) -> Callable[[Path], tuple[Any, Any]]:
    def make(folder: Path) -> tuple[Any, Any]:
        source = write_folder(folder / "shop", shop(40), **manifest)
        change(source)
        return source, None

    return make


def _nothing(folder: Path) -> None:
    pass


def _cut_in_half(folder: Path) -> None:
    path = folder / "db" / "orders.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _damage_pages(folder: Path) -> None:
    path = folder / "db" / "orders.parquet"
    data = bytearray(path.read_bytes())
    data[8:400] = b"\xff" * 392
    path.write_bytes(data)


def _keys(**changes: Any) -> Callable[[Path], tuple[Any, Any]]:
    return lambda _: (shop(40), {t: {**k, **changes.get(t, {})} for t, k in KEYS.items()})


def _csv(folder: Path) -> tuple[Any, Any]:
    (folder / "child.csv").write_text('to,name\n0,a\n1,"b\n2,c\n')
    return {"parent": pa.table({"id": [0, 1, 2]}), "child": folder / "child.csv"}, TWO


def _duckdb(*statements: str) -> Callable[[Path], tuple[Any, Any]]:
    def make(folder: Path) -> tuple[Any, Any]:
        with duckdb.connect(str(folder / "shop.duckdb")) as connection:
            for statement in statements:
                connection.execute(statement)
        return folder / "shop.duckdb", None

    return make


def _sqlite(*statements: str) -> Callable[[Path], tuple[Any, Any]]:
    def make(folder: Path) -> tuple[Any, Any]:
        with sqlite3.connect(folder / "shop.sqlite") as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()
        return folder / "shop.sqlite", None

    return make


def _plain_file(folder: Path) -> tuple[Any, Any]:
    (folder / "shop.db").write_text("no database")
    return folder / "shop.db", None


def _frame_of_mixed(_: Path) -> tuple[Any, Any]:
    mixed = pd.DataFrame({"to": [0, 1], "odd": [1, "x"]})
    return {**two_tables({"to": [0]}), "child": mixed}, TWO


_ABC = pa.table({"id": ["a", "b", "c"]})

REFUSED: dict[str, tuple[Callable[[Path], tuple[Any, Any]], str]] = {
    # the folder
    "no manifest": (_folder(lambda f: (f / "manifest.yaml").unlink()), "manifest.yaml cannot"),
    "manifest without tables": (
        _folder(lambda f: (f / "manifest.yaml").write_text("name: shop")),
        "must have the key tables",
    ),
    "manifest that is no YAML": (
        _folder(lambda f: (f / "manifest.yaml").write_text("a: [")),
        "is not valid YAML",
    ),
    "a table without its file": (
        _folder(lambda f: (f / "db" / "orders.parquet").unlink()),
        "'orders': there is no file",
    ),
    "a Parquet file cut in half": (_folder(_cut_in_half), "'orders': .*is no Parquet"),
    "a Parquet file with damaged pages": (_folder(_damage_pages), "table"),
    "a timestamp that is none": (_folder(_nothing, val_timestamp="soon"), "val_timestamp.*'soon'"),
    "a table name that leaves the folder": (
        _folder(_nothing, tables={"../x": {"pkey": None}}),
        "'../x' cannot be the name of a file",
    ),
    "an unknown entry of a table": (
        _folder(_nothing, tables={"orders": {"primary_key": "id"}}),
        "keys of table 'orders'.*primary_key",
    ),
    "keys beside a manifest": (lambda f: (_folder(_nothing)(f)[0], KEYS), "yaml has those"),
    # keys
    "no key at all": (lambda _: (two_tables({"to": [0]}), None), "no table has a foreign key"),
    "a composite key": (_keys(orders={"pkey": ["customer", "article"]}), "of several columns"),
    "keys of an unknown table": (
        lambda _: (shop(40), {**KEYS, "shops": {"pkey": "id"}}),
        "keys name tables .'shops'.",
    ),
    "an unknown column": (_keys(orders={"time_col": "when"}), "'orders' has no column 'when'"),
    "a key to an unknown table": (
        _keys(orders={"fkeys": {"customer": "people"}}),
        "'customer' refers to table 'people', which does not exist",
    ),
    "a key to a table without one": (
        _keys(customers={"pkey": None}),
        "refers to table 'customers', which has no primary key",
    ),
    "a key that dangles": (
        _two({"to": [0, 1, 7, 9]}),
        "'child': foreign key 'to' has 2 row.s. .*in no row of table 'parent', such as 7, 9",
    ),
    "key -1": (_two({"to": [0, -1]}), "foreign key 'to' has 1 row.*such as -1"),
    "key 0.5": (_two({"to": [0.0, 0.5]}), "foreign key 'to' has 1 row.*such as 0.5"),
    "a float that may be another key": (
        _two({"to": [float(2**53), None]}, {"id": [2**53, 2**53 + 1]}),
        "foreign key 'to' has 1 row.*such as 9007199254740992.0",
    ),
    "key 2^63": (
        _two({"to": pa.array([0, 2**63], pa.uint64())}),
        "foreign key 'to' has 1 row.*such as 9223372036854775808",
    ),
    "text that refers to integers": (_two({"to": ["0", "1"]}), "is VARCHAR, and the primary key"),
    "integers that refer to text": (_two({"to": [0, 1]}, _ABC), "is BIGINT, and the primary key"),
    "a primary key with nulls": (
        _two({"to": [0]}, {"id": [0, None, 2]}),
        "'parent': primary key 'id' is null in 1 of 3 rows",
    ),
    "a primary key that is NaN": (
        _two({"to": [0]}, {"id": [0.0, float("nan"), 2.0]}),
        "'parent': primary key 'id' is null in 1 of 3 rows",
    ),
    "a primary key twice": (
        _two({"to": [0]}, {"id": [0, 1, 1, 4, 4, 4]}),
        "'parent': primary key 'id' has 3 key.s. more than once, such as 1, 4",
    ),
    # names
    "a table with a slash": (
        lambda _: ({"a/b": pa.table({"id": [0]}), **two_tables({"to": [0]})}, TWO),
        "'a/b' cannot be the name",
    ),
    "two tables of one name": (
        lambda _: ({"Parent": pa.table({"id": [0]}), **two_tables({"to": [0]})}, TWO),
        "'Parent', 'parent' have one name",
    ),
    "two columns of one name": (_two({"to": [0], "x": [1], "X": [2]}), "'x', 'X' have one name"),
    "a column whose name is a number": (
        lambda _: ({**two_tables({"to": [0]}), "child": pd.DataFrame({"to": [0], 5: [1]})}, TWO),
        "names of columns must be text, got .5.",
    ),
    # values
    "a column of mixed objects": (_frame_of_mixed, "'child' must be .*odd"),
    "a table that is none": (
        lambda _: ({**two_tables({"to": [0]}), "child": 5}, TWO),
        "'child' must be an Arrow table",
    ),
    "a CSV with a stray quote": (_csv, "'child' cannot be read"),
    "times that are no times": (
        lambda _: (two_tables({"at": ["2020-01-01", "soon"]}),
                   {**TWO, "child": {**TWO["child"], "time_col": "at"}}),
        "time column 'at' has 1 text.s. that are no times, such as 'soon'",
    ),
    "times that are lists": (
        lambda _: (two_tables({"at": [[1], [2]]}),
                   {**TWO, "child": {**TWO["child"], "time_col": "at"}}),
        "time column 'at' is BIGINT\\[\\]",
    ),
    "times that years of 16 bits do not hold": (
        _two({"at": pa.array([0, -(2**62)], pa.timestamp("us"))}),
        "'at' .TIMESTAMP. has times after the year 32,707, or before",
    ),
    "a cell of 300 values": (_two({"many": [[1.0] * 300, [1.0]]}), "'many'.* a cell of 300 values"),
    # files
    "a file that is no database": (_plain_file, "neither a file of DuckDB nor of SQLite"),
    "a file that is not there": (lambda f: (f / "none.db", None), "none.db cannot be read"),
    "two schemas with one name": (
        _duckdb("CREATE TABLE t (a INT)", "CREATE SCHEMA s", "CREATE TABLE s.t (a INT)"),
        "'t', 't' have one name",
    ),
    "a composite foreign key": (
        _duckdb(
            "CREATE TABLE p (a INT, b INT, PRIMARY KEY (a, b))",
            "CREATE TABLE c (a INT, b INT, FOREIGN KEY (a, b) REFERENCES p (a, b))",
        ),
        "'c' refers to 'p' by a, b: a key of several columns",
    ),
    "keys to two columns of a table": (
        _duckdb(
            "CREATE TABLE p (a INT PRIMARY KEY, b INT UNIQUE)",
            "CREATE TABLE c (b INT REFERENCES p (b))",
        ),
        "'c' refers to 'p' by its column 'b', and rows there are named by 'a'",
    ),
    "SQLite with other values than declared": (
        _sqlite(
            "CREATE TABLE p (id INTEGER PRIMARY KEY)",
            "CREATE TABLE c (p_id INTEGER REFERENCES p, n INTEGER)",
            "INSERT INTO c VALUES (NULL, 'many')",
        ),
        "'c': column 'n' is declared 'INTEGER' and has other values",
    ),
    "SQLite that is damaged": (
        lambda f: ((f / "x.sqlite").write_bytes(b"SQLite format 3\0" + b"\1" * 5000)
                   and f / "x.sqlite", None),
        "x.sqlite cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_database_is_refused_by_name(name: str, tmp_path: Path) -> None:
    make, message = REFUSED[name]
    source, keys = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError) as caught:
        _opened(source, tmp_path / "root", keys)
    assert re.search(message, str(caught.value)), str(caught.value)
    left = set(tmp_path.rglob("*")) - set(before) - {tmp_path / ".root.database.lock"}
    assert left == set()


def test_there_are_thirty() -> None:
    assert len(REFUSED) >= 30


def test_a_locked_file_is_refused(tmp_path: Path) -> None:
    source, _ = _duckdb("CREATE TABLE p (id INT PRIMARY KEY)")(tmp_path)
    hold = f"import duckdb, sys; c = duckdb.connect({str(source)!r}); print(1, flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ConfigError, match="another process writes to it"):
            _opened(source, tmp_path / "root")
        assert holder.stdin is not None
        holder.stdin.write(b"\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dangling": "ignore"}, 'dangling must be "error" or "drop"'),
        ({"upto": "soon"}, "upto must be a time"),
        ({"stats_upto": [1]}, "stats_upto must be a time"),
        ({"kinds": {"shops": {"x": None}}}, "name ..'shops', 'x'.., which are no columns"),
        ({"kinds": {"child": {"none": None}}}, "name ..'child', 'none'.., which are no columns"),
        ({"kinds": {"child": {"to": None}}}, "name ..'child', 'to'.., which are no columns, or"),
        ({"kinds": {"child": {"x": "colour"}}}, "cannot be 'colour' .kinds: numerical"),
        ({"kinds": {"child": {"x": "embedding"}}}, "'x' .BIGINT. cannot be 'embedding'"),
        ({"kinds": {"child": 5}}, "kinds must be a dict by table, of dicts by column, got .*5"),
        ({"kinds": ["child"]}, "kinds must be a dict by table, of dicts by column, got .'child'."),
        ({"embed": "glove"}, "embed must be a function of a list of texts, got 'glove'"),
        ({"num_partitions": 0}, "num_partitions"),
        ({"memory": "1MB"}, "memory must be at least"),
    ],
)
def test_a_wrong_argument_is_refused(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        _opened(two_tables({"x": [1, 2]}), tmp_path / "root", TWO, **options)


def test_a_wrong_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongTypeError, match="a folder, a file or a dict of tables, got int"):
        _opened(5, tmp_path / "root")


# --- right ----------------------------------------------------------------------------------------

_PAIRS = [(0, 0), (1, 1), (2, 2)]

RIGHT: dict[str, tuple[Any, Any]] = {
    "nulls and NaN have no edge": ({"to": [0.0, 1.0, 2.0, None, float("nan")]}, None),
    "integers as floats": ({"to": [0.0, 1.0, 2.0]}, None),
    "integers of other widths": ({"to": pa.array([0, 1, 2], pa.int8())}, None),
    "decimals": ({"to": pa.array(map(decimal.Decimal, "012"), pa.decimal128(5, 2))}, None),
    "text": ({"to": ["a", "b", "c", None]}, {"id": ["a", "b", "c"]}),
    "unicode": ({"to": ["żółw", "", "日本"]}, {"id": ["żółw", "", "日本"]}),
    "dates": ({"to": pa.array([1, 2, 3], pa.date32())}, {"id": pa.array([1, 2, 3], pa.date32())}),
    "2^63 and more": (
        {"to": pa.array([5, 2**63, 2**64 - 1], pa.uint64())},
        {"id": pa.array([5, 2**63, 2**64 - 1], pa.uint64())},
    ),
    "halves": ({"to": [0.5, 1.5, -2.0]}, {"id": [0.5, 1.5, -2.0]}),
    "not 0 to n - 1": ({"to": [700, -3, 12]}, {"id": [700, -3, 12]}),
    "floats of more than 2^53": ({"to": [2e17, 1.0, -2e20]}, {"id": [2e17, 1.0, -2e20]}),
    "bytes": ({"to": [b"\0\1", b"x", b""]}, {"id": [b"\0\1", b"x", b""]}),
    "dictionaries": (
        {"to": pa.array(["x", "y", "z"]).dictionary_encode()},
        {"id": ["x", "y", "z"]},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_keys_of_any_type(name: str, tmp_path: Path) -> None:
    dataset = _opened(two_tables(*RIGHT[name]), tmp_path / "root", TWO)
    assert edges_of(dataset, F2P) == _PAIRS
    assert edges_of(dataset, ("parent", "rev_f2p_to", "child")) == _PAIRS


def test_the_keys_of_a_table_come_back(tmp_path: Path) -> None:
    dataset = _opened(two_tables({"to": ["b", "a"]}, {"id": ["a", "b", "c"]}), tmp_path / "r", TWO)
    ids = dataset.view().num_nodes["parent"]
    assert dataset.to_original(np.arange(ids), "parent").tolist() == ["a", "b", "c"]


def test_dangling_keys_are_dropped_if_asked(tmp_path: Path) -> None:
    source = two_tables({"to": [0.0, 1.0, 2.0, 7.0, 0.5, None]})
    dataset = _opened(source, tmp_path / "root", TWO, dangling="drop")
    assert edges_of(dataset, F2P) == _PAIRS


def test_a_key_to_its_own_table_and_a_circle(tmp_path: Path) -> None:
    tables = {
        "a": pa.table({"id": [0, 1], "up": [None, 0], "b": [1, 0]}),
        "b": pa.table({"id": [0, 1], "a": [0, 0]}),
    }
    keys = {
        "a": {"pkey": "id", "fkeys": {"up": "a", "b": "b"}},
        "b": {"pkey": "id", "fkeys": {"a": "a"}},
    }
    dataset = _opened(tables, tmp_path / "root", keys)
    assert edges_of(dataset, ("a", "f2p_up", "a")) == [(1, 0)]
    assert edges_of(dataset, ("a", "f2p_b", "b")) == [(0, 1), (1, 0)]
    assert edges_of(dataset, ("b", "f2p_a", "a")) == [(0, 0), (1, 0)]


def test_names_that_queries_use_themselves(tmp_path: Path) -> None:
    rows = {"id": [0, 1, 2], "i": [9, 8, 7], "name": [["b"], ["a"], []]}
    tables = {
        "categories": pa.table(rows),
        "there": pa.table({"k": [0, 1, 2], "i": range(9, 6, -1), "name": ["x", "y", "x"]}),
    }
    keys = {"categories": {"pkey": "id"}, "there": {"fkeys": {"k": "categories"}}}
    kinds = {"there": {"name": "categorical", "i": "categorical"}}
    dataset = _opened(tables, tmp_path / "root", keys, kinds=kinds)
    assert edges_of(dataset, ("there", "f2p_k", "categories")) == _PAIRS
    counts = {
        table: {name: next(iter(of.values()))[0] for name, of in columns.items() if name == "name"}
        for table, columns in dataset.col_stats.items()
    }
    # ties by first appearance, which is no column
    assert counts == {"categories": {"name": ["b", "a"]}, "there": {"name": ["x", "y"]}}


def test_an_empty_table(tmp_path: Path) -> None:
    child = pa.table({"to": pa.array([], pa.int64()), "x": pa.array([], pa.float64())})
    dataset = _opened({**two_tables({"to": [0]}), "child": child}, tmp_path / "root", TWO)
    assert edges_of(dataset, F2P) == []
    assert dataset.view().num_nodes == {"parent": 3, "child": 0}
    assert frame_of(dataset, "child").num_rows == 0


def test_a_time_column_with_a_space_and_quotes(tmp_path: Path) -> None:
    name = "the time'\" of"
    tables = two_tables({name: stamps([5, 7], "us")})
    keys = {**TWO, "child": {**TWO["child"], "time_col": name}}
    dataset = _opened(tables, tmp_path / "root", keys, upto=5)
    assert dataset.view().node_attributes["child", "time"].values.tolist() == [5]
    assert frame_of(dataset, "child").col_names_dict.popitem()[1] == [name]


def test_a_file_of_duckdb(tmp_path: Path) -> None:
    source, _ = _duckdb(
        "CREATE TABLE customers (id VARCHAR PRIMARY KEY, age INT, rank ENUM ('x', 'y'))",
        'CREATE TABLE orders (no INT, customer VARCHAR REFERENCES customers, "at" TIMESTAMP)',
        "INSERT INTO customers VALUES ('b', 30, 'y'), ('a', NULL, NULL)",
        "INSERT INTO orders VALUES (9, 'a', '2020-01-02'), (8, NULL, '2020-01-01'), (7, 'b', NULL)",
    )(tmp_path)
    dataset = _opened(source, tmp_path / "root", {"orders": {"time_col": "at"}})
    assert edges_of(dataset, ("orders", "f2p_customer", "customers")) == [(0, 1), (2, 0)]
    times = dataset.view().node_attributes["orders", "time"].values.tolist()
    assert times == [1_577_923_200, 1_577_836_800, -9_223_372_037]
    frame = frame_of(dataset, "customers")
    assert frame.feat_dict[_stype("categorical")].tolist() == [[0], [-1]]


def test_keys_in_other_letters_and_more_of_them(tmp_path: Path) -> None:
    statements = (
        "CREATE TABLE users (ID INTEGER PRIMARY KEY, x REAL)",
        "CREATE TABLE posts (u INTEGER REFERENCES Users (id), q INTEGER)",
        "INSERT INTO users VALUES (1, 2.0)",
        "INSERT INTO posts VALUES (1, 1)",
    )
    for make in (_duckdb, _sqlite):
        source, _ = make(*statements)(tmp_path)
        keys = {"posts": {"fkeys": {"q": "users"}}}
        dataset = _opened(source, tmp_path / make.__name__, keys)
        for column in ("u", "q"):  # keys= adds to those that are declared
            assert edges_of(dataset, ("posts", f"f2p_{column}", "users")) == [(0, 0)]


def test_a_file_of_sqlite(tmp_path: Path) -> None:
    source, _ = _sqlite(
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, vip BOOLEAN)",
        "CREATE TABLE orders (customer INTEGER REFERENCES customers (id), at DATETIME, cost REAL)",
        "INSERT INTO customers VALUES (7, 'x', 1), (5, 'y', NULL)",
        "INSERT INTO orders VALUES (5, '2020-01-02 00:00:01', 1.5), (NULL, '2020-01-01', 2)",
    )(tmp_path)
    dataset = _opened(source, tmp_path / "root", {"orders": {"time_col": "at"}})
    # SQLite keeps rows in the order of their integer key
    assert edges_of(dataset, ("orders", "f2p_customer", "customers")) == [(0, 0)]
    times = dataset.view().node_attributes["orders", "time"].values.tolist()
    assert times == [1_577_923_201, 1_577_836_800]
    assert frame_of(dataset, "orders").col_names_dict.keys() == {
        *map(_stype, ("timestamp", "numerical"))
    }


def _stype(kind: str) -> Any:
    from torch_frame import stype

    return stype(kind)


def test_a_parquet_and_a_csv_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [4, 5]}), tmp_path / "parent.parquet")
    (tmp_path / "child.csv").write_text('to,name\n5,"a ""b"""\n4,c\n')
    source = {"parent": tmp_path / "parent.parquet", "child": str(tmp_path / "child.csv")}
    assert edges_of(_opened(source, tmp_path / "root", TWO), F2P) == [(0, 1), (1, 0)]
