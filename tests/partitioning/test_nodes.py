"""Numbers of nodes, and rows at the position that these give them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages import id_index, node_ids
from gigl_loader.partitioning.stages.id_index import NO_NODE, Index
from gigl_loader.partitioning.stages.node_ids import (
    Numbering,
    Placer,
    arrow_type_of_numbers,
    fits,
    make_index,
)
from gigl_loader.partitioning.tables.table_files import Table
from tests.support.draws import examples


def _job(folder: Path) -> ResumableJob:
    return ResumableJob(folder / "scratch", {}, memory=10**9, threads=1, progress=False)


def _table(folder: Path, files: list[list[Any]], kind: Any = None) -> Table:
    """Write ids in several files, in a directory that is new."""
    where = folder / f"t{len(list(folder.iterdir()))}"
    where.mkdir()
    for i, ids in enumerate(files):
        pq.write_table(pa.table({"id": pa.array(ids, kind)}), where / f"{i}.parquet")
    return Table(_job(folder), "t", where, "nodes of 'n'")


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=3), st.integers(1, 5)
)
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


@pytest.mark.parametrize("ids", [["b", "é", "", "a\0c", "long" * 9], [5, -3, 2**63 - 1, 0, 7]])
def test_ids_are_written_there_and_back(tmp_path: Path, ids: list[Any]) -> None:
    (tmp_path / "nodes").mkdir()
    nodes = pa.table({"id": ids, "owner": [1, 0, 0, 1, 0]})
    for i, table in enumerate((nodes.slice(0, 2), nodes.slice(2))):
        pq.write_table(table, tmp_path / f"nodes/{i}.parquet")
    edges = EdgeTable(pa.table({"src": ids[:2], "dst": ids[3:]}))
    partition_tables(
        NodeTable(tmp_path / "nodes", partition="owner"),
        edges,
        3,
        tmp_path / "out",
        method="column",
        progress=False,
        threads=1,
    )
    in_order = [ids[i] for i in (1, 2, 4, 0, 3)]
    for k in range(3):
        dataset = DistDataset.load(tmp_path / "out", k, verify="now")
        assert dataset.to_original(np.arange(5)).tolist() == in_order
        assert dataset.from_original(in_order[::-1]).tolist() == [4, 3, 2, 1, 0]
    (path,) = (tmp_path / "out" / "ids").glob("*.parquet")
    assert pq.read_table(path).to_pydict() == {"id": in_order, "node": [0, 1, 2, 3, 4]}


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
    assert (vars(node_ids)["NO_NODE"], id_index.NO_NODE) == (NO_NODE, 2**32 - 1)


def test_numbers_have_four_bytes_where_these_are_enough() -> None:
    assert arrow_type_of_numbers(2**32 - 1) == pa.uint32()
    assert arrow_type_of_numbers(2**32) == pa.int64()
