"""Tables and descriptions of others that are damaged, or were made to do harm."""

import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.commands.partition import read_tables
from gigl_loader.errors import ConfigError
from tests.support.scripts import run_python

_ROWS = 1000


def _write(folder: Path) -> None:
    ends = np.random.default_rng(0).integers(_ROWS, size=(2, 3 * _ROWS))
    ids = pa.table({"id": np.random.default_rng(1).permutation(_ROWS)})
    pq.write_table(ids, folder / "nodes.parquet", compression="snappy")
    pairs = pa.table({"src": ends[0], "dst": ends[1]})
    pq.write_table(pairs, folder / "edges.parquet", compression="snappy")


def _partition(folder: Path, features: str | None = None) -> None:
    nodes = NodeTable(str(folder / "nodes.parquet"), id="id", features=features)
    edges = EdgeTable(str(folder / "edges.parquet"), src="src", dst="dst")
    how = {"progress": False}
    partition_tables({"a": nodes}, {("a", "to", "a"): edges}, 1, folder / "parts", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nodes.parquet", "edges.parquet"])
def test_pages_that_cannot_be_read_name_the_table(tmp_path: Path, name: str) -> None:
    _write(tmp_path)
    _partition(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[40:600] = b"\xff" * 560
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}.* is damaged|a table, which may be damaged"):
        partition_tables(
            {"a": NodeTable(str(tmp_path / "nodes.parquet"), id="id")},
            {("a", "to", "a"): EdgeTable(str(tmp_path / "edges.parquet"), src="src", dst="dst")},
            1,
            tmp_path / "others",
            progress=False,
        )


_DAMAGED = """
import random, sys
from pathlib import Path
from tests.partitioning.test_damaged_tables import ConfigError, _partition, _write

for seed in range(40):
    lot, folder = random.Random(seed), Path(str(seed))
    folder.mkdir()
    _write(folder)
    path = folder / lot.choice(["nodes.parquet", "edges.parquet"])
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little")
    start = lot.choice([0, len(content) - 8 - footer])  # anywhere, or in what describes the rest
    for _ in range(lot.choice([1, 3, 20])):
        content[lot.randrange(start, len(content))] = lot.randrange(256)
    path.write_bytes(content)
    try:
        _partition(folder)
    except ConfigError:
        print("refused")
"""


def test_changed_bytes_of_a_table_end_no_process(tmp_path: Path) -> None:
    """Nor are they an error that nobody has named."""
    ended = run_python("-c", _DAMAGED, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert 10 < ended.stdout.count("refused") <= 40


_SWOLLEN = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from gigl_loader import EdgeTable, NodeTable, partition_tables

text = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 10**6]))
pq.write_table(pa.table({"id": np.arange(20_000), "text": text}), "nodes.parquet")
pq.write_table(pa.table({"src": [0], "dst": [0]}), "edges.parquet")
resource.setrlimit(resource.RLIMIT_AS, (5 << 30, 5 << 30))
nodes = NodeTable("nodes.parquet", id="id", split="text")
try:
    partition_tables(nodes, EdgeTable("edges.parquet", src="src", dst="dst"), 1, "parts")
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def test_a_table_that_is_larger_than_its_file_ends_by_the_limit_of_memory(tmp_path: Path) -> None:
    """160 kB of Parquet are 20 GB of text; the page says to set a limit for tables of others."""
    ended = run_python("-c", _SWOLLEN, folder=tmp_path)
    assert re.search(r"ResourceError: .*writing \S*parts .*too little memory", ended.stderr)


@pytest.mark.parametrize("shape", ["(" * 5000, "(-1000, 3)", "(1000, 1000000000000)"])
def test_features_whose_head_is_no_shape_are_refused(tmp_path: Path, shape: str) -> None:
    _write(tmp_path)
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
    (tmp_path / "x.npy").write_bytes(start + bytes(12_000))
    with pytest.raises(ConfigError, match=r"x\.npy"):
        _partition(tmp_path, str(tmp_path / "x.npy"))


_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "nodes: " + "9" * 100_000,
        f"{_LAUGHS}nodes: *i\nedges: *i\n",
        "nodes: !!python/object/apply:pathlib.Path.touch ['touched']\n",
    ],
    ids=["deep", "number", "laughs", "tag"],
)
def test_a_description_that_does_harm_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"tables\.yaml"):
        read_tables(tmp_path / "tables.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["tables.yaml"]
