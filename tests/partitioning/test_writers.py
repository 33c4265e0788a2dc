"""Two runs of `partition_tables` at once, and tables that change under one: real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, UsageError, partition_tables
from gigl_loader.errors import ConfigError
from tests.support.scripts import ForkedPython

WRITER = """
import json, os, signal, sys
from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.partitioning.stages import pipeline
given = json.loads(sys.argv[1])
seal = pipeline.seal
def wait(*args, **more):
    print("half", flush=True)
    sys.stdin.readline()
    return seal(*args, **more)
pipeline.seal = wait
partition_tables(
    NodeTable(given["nodes"]), EdgeTable(given["edges"]), 2, given["root"], progress=False,
    memory="400MB", threads=1, scratch=given.get("scratch"),
)
"""


def _tables(folder: Path, count: int = 20) -> dict[str, str]:
    folder.mkdir()
    pq.write_table(pa.table({"id": list(range(count))}), folder / "nodes.parquet")
    ends = {"src": list(range(count)), "dst": [i * 7 % count for i in range(count)]}
    pq.write_table(pa.table(ends), folder / "edges.parquet")
    return {"nodes": str(folder / "nodes.parquet"), "edges": str(folder / "edges.parquet")}


def _partition(given: dict[str, str], **options: Any) -> None:
    options = {"scratch": given.get("scratch"), "memory": "400MB", "threads": 1, **options}
    partition_tables(
        NodeTable(given["nodes"]),
        EdgeTable(given["edges"]),
        2,
        given["root"],
        progress=False,
        **options,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("scratch", [False, True], ids=["beside", "scratch"])
def test_of_two_runs_at_once_the_second_is_refused_and_the_first_one_ends(
    tmp_path: Path, scratch: bool
) -> None:
    given = _tables(tmp_path / "tables") | {"root": str(tmp_path / "graph")}
    if scratch:  # two roots, and one scratch directory
        given["scratch"] = str(tmp_path / "scratch")
    with ForkedPython(
        [sys.executable, "-c", WRITER, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "half\n"
            mine = given | ({"root": str(tmp_path / "other")} if scratch else {})
            with pytest.raises(UsageError, match=rf"being written by process {other.pid} on"):
                _partition(mine)
            other.communicate("go on\n")
        finally:
            other.kill()
    assert other.returncode == 0
    DistDataset.load(given["root"], 1, verify="now")
    with pytest.raises(ConfigError, match="holds partitions"):
        _partition(given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "tables"]


@pytest.mark.multiprocess
def test_a_killed_run_does_not_keep_the_next_one_out(tmp_path: Path) -> None:
    given = _tables(tmp_path / "tables") | {"root": str(tmp_path / "graph")}
    with ForkedPython(
        [sys.executable, "-c", WRITER, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "half\n"
        finally:
            other.kill()
    assert (tmp_path / ".graph.lock").exists()
    _partition(given)
    DistDataset.load(given["root"], 0, verify="now")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "tables"]


@pytest.mark.parametrize("stage", ["owners", "sort", "ids"])
def test_a_table_that_changes_within_a_run_is_named(
    tmp_path: Path, before_stage: Callable[..., None], stage: str
) -> None:
    given = _tables(tmp_path / "tables") | {"root": str(tmp_path / "graph")}
    # as large as before: only the time tells
    before_stage(stage, lambda: os.utime(given["edges"], ns=(1, 1)))
    with pytest.raises(ConfigError, match=r"changed since the run began: .*/edges\.parquet;"):
        _partition(given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tables"], "nothing half is left"
    _partition(given)


def test_a_table_that_is_replaced_by_something_unreadable_is_named(
    tmp_path: Path, before_stage: Callable[..., None]
) -> None:
    given = _tables(tmp_path / "tables") | {"root": str(tmp_path / "graph")}
    before_stage("map", lambda: Path(given["edges"]).write_bytes(b"no parquet"))
    with pytest.raises(ConfigError, match=r"changed since the run began: .*/edges\.parquet;"):
        _partition(given)
