"""Numbers of nodes, and rows at the position that these give them."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.mapped import Part, array_path
from gigl_loader.dataset.original_ids import PARQUET
from gigl_loader.errors import ConfigError
from gigl_loader.tables import _index, _nodes
from gigl_loader.tables._index import NO_NODE, Index
from gigl_loader.tables._job import Job
from gigl_loader.tables._nodes import (
    Numbering,
    PartFiles,
    Placer,
    check_unique,
    finish_ids,
    fits,
    make_index,
    note_array,
    number_arrow,
    part_files,
    write_dictionary,
)
from gigl_loader.tables._source import Table
from gigl_loader.tables.spec import NodeTable


def _job(folder: Path) -> Job:
    return Job(folder / "scratch", {}, memory=10**9, threads=1, progress=False)


def _table(folder: Path, files: list[list[Any]], kind: Any = None) -> Table:
    """Write ids in several files, in a directory that is new."""
    where = folder / f"t{len(list(folder.iterdir()))}"
    where.mkdir()
    for i, ids in enumerate(files):
        pq.write_table(pa.table({"id": pa.array(ids, kind)}), where / f"{i}.parquet")
    return Table(_job(folder), "t", where, "nodes of 'n'")


@settings(max_examples=25, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=3),
       st.integers(1, 5))  # fmt: skip
def test_numbers_count_by_partition_and_then_by_row(
    tmp_path: Path, owners: list[list[int]], step: int
) -> None:
    table = _table(tmp_path, owners, pa.int64())
    every = [one for file in owners for one in file]
    numbering = Numbering.of(table, np.array(every, np.uint16), 4)
    order = sorted(range(len(every)), key=lambda row: (every[row], row))
    wanted = {row: number for number, row in enumerate(order)}
    assert numbering.ends.tolist() == [sum(one <= k for one in every) for k in range(4)]
    assert numbering.starts.tolist() == [sum(one < k for one in every) for k in range(4)]
    assert numbering.num_nodes == len(every)
    for file in reversed(table.files):  # in any order
        placer = Placer(numbering, table, file)
        for row in range(0, file.num_rows, step):
            count = min(step, file.num_rows - row)
            numbers, pieces = placer.next(row, count)
            first = file.first_row + row
            assert numbers.tolist() == [wanted[first + i] for i in range(count)]
            seen: dict[int, int] = {}
            for partition, begin, positions in pieces:
                at = numbering.starts[partition] + begin
                seen |= {int(position): int(at) + i for i, position in enumerate(positions)}
            assert seen == dict(enumerate(numbers.tolist()))


def test_files_of_parts_are_written_in_any_position(tmp_path: Path) -> None:
    with part_files(tmp_path, "x", 2) as files:
        files.write(1, 8, np.array([[3, 4]], np.int32))
        files.write(1, 0, np.array([1, 2], np.int32))
    with part_files(tmp_path, "x", 2) as files:  # a step that is run again
        files.write(1, 4, np.array([2], np.int32))
    assert np.fromfile(array_path(tmp_path / "part1", "x"), np.int32).tolist() == [1, 2, 3, 4]
    assert array_path(tmp_path / "part0", "x").stat().st_size == 0


def test_more_partitions_than_files_that_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        held = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 200, hard))
        PartFiles([tmp_path / str(k) for k in range(300)]).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(tmp_path.iterdir())) == 300


@pytest.mark.parametrize("ids", [["b", "é", "", "a\0c", "long" * 9], [5, -3, 2**63 - 1, 0, 7]])
def test_ids_are_written_there_and_back(tmp_path: Path, ids: list[Any]) -> None:
    table, job, shared = _table(tmp_path, [ids[:2], ids[2:]]), _job(tmp_path), Part()
    owners = np.array([1, 0, 0, 1, 0], np.uint16)
    numbering, text = Numbering.of(table, owners, 3), isinstance(ids[0], str)
    in_order = [ids[i] for i in (1, 2, 4, 0, 3)]
    out = tmp_path / "out"
    out.mkdir()
    folder = write_dictionary(job, table, NodeTable("t"), "n", numbering, "number", out)
    pairs = pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])
    assert pairs.column("id").to_pylist() == ids
    assert [in_order[k] for k in pairs.column("node").to_pylist()] == ids
    finish_ids(job, shared, "n", numbering, out, text=text)
    back = pq.read_table(out / PARQUET.format(node_type="n")).to_pydict()
    assert back == {"id": in_order, "node": [0, 1, 2, 3, 4]}
    kinds = ("ends", "text") if text else ("values",)
    assert set(shared.arrays) == {f"ids/n/part{k}.{kind}" for k in range(3) for kind in kinds}
    for name, spec in shared.arrays.items():
        assert array_path(out, name).stat().st_size == spec.nbytes, name


def test_ids_that_are_there_twice_are_named(tmp_path: Path) -> None:
    table, job = _table(tmp_path, [[1, 2, 3], [2, 9, 1]]), _job(tmp_path)
    numbering = Numbering.of(table, np.zeros(6, np.uint16), 1)
    folder = write_dictionary(job, table, NodeTable("t"), "n", numbering, "number", None)
    with pytest.raises(ConfigError, match=r"'id' has 2 id\(s\) more than once: 1 in .*0\.parquet, "
                       r"row 0 .*; 1 in .*1\.parquet, row 2 .*; 2 in"):  # fmt: skip
        check_unique(job, table, "id", "n", folder)
    assert make_index(job, "n", folder, 6, text=False) is None, "the join tells them apart"


def test_an_index_leaves_as_much_memory_as_it_takes(tmp_path: Path, monkeypatch: Any) -> None:
    job = _job(tmp_path)
    one, other = (Index(tmp_path / name, 1000, text=False) for name in "ab")
    job.usable_bytes = 2 * one.nbytes
    assert fits(job, {one})
    assert not fits(job, {one, other})
    job.usable_bytes -= 1
    assert not fits(job, {one})
    assert make_index(job, "n", tmp_path / "none", 1000, text=False) is None
    job.usable_bytes = 10**15
    assert make_index(job, "n", tmp_path / "none", NO_NODE, text=False) is None, "no number is free"
    assert (vars(_nodes)["NO_NODE"], _index.NO_NODE) == (NO_NODE, 2**32 - 1)


def test_numbers_have_four_bytes_where_these_are_enough() -> None:
    assert number_arrow(2**32 - 1) == pa.uint32()
    assert number_arrow(2**32) == pa.int64()


def test_an_array_without_bytes_has_a_file(tmp_path: Path) -> None:
    part = Part()
    note_array(part, tmp_path, "a/b", "float16", (0, 3))
    assert array_path(tmp_path, "a/b").read_bytes() == b""
    assert (part.arrays["a/b"].dtype, part.arrays["a/b"].shape) == ("float16", (0, 3))
