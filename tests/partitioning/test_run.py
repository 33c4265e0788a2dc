"""A run that goes on does so with the tables that it began with."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError, ResourceError, UsageError
from tests.support.conditions import files_up_to

EDGES = {"src": [0, 1, 2], "dst": [1, 2, 3]}


def _given(folder: Path, table: pa.Table) -> dict[str, Any]:
    pq.write_table(table, folder / "nodes.parquet")
    np.save(folder / "x.npy", np.arange(4.0))
    return {
        "nodes": NodeTable(folder / "nodes.parquet", features=f"{folder}/x.npy"),
        "edges": EdgeTable(pa.table(EDGES)),
        "num_partitions": 2,
        "root": folder / "parts",
        "progress": False,
        "threads": 1,
    }


@pytest.mark.parametrize("changed", ["nodes.parquet", "x.npy"])
def test_files_that_have_changed_begin_anew(
    tmp_path: Path, run_all_but_the_end: Callable[..., None], changed: str
) -> None:
    given = _given(tmp_path, pa.table({"id": [0, 1, 2, 3]}))
    run_all_but_the_end(given)
    at = os.stat(tmp_path / changed)
    os.utime(tmp_path / changed, ns=(at.st_atime_ns, at.st_mtime_ns + 10**9))
    with pytest.raises(ConfigError, match="tables have changed since the run began"):
        partition_tables(**given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes.parquet", "x.npy"]
    assert sum(part.edges for part in partition_tables(**given).parts) == 3


def test_an_arrow_table_with_other_values_is_another_one(
    tmp_path: Path, run_all_but_the_end: Callable[..., None]
) -> None:
    given = _given(tmp_path, pa.table({"id": [0, 1, 2, 3]}))
    run_all_but_the_end(given)
    other = EdgeTable(pa.table(EDGES | {"dst": [1, 2, 1]}))  # as many bytes
    with pytest.raises(ConfigError, match=r"unfinished run of .* give overwrite=True"):
        partition_tables(**given | {"edges": other})
    same = EdgeTable(pa.table(EDGES))
    assert sum(part.edges for part in partition_tables(**given | {"edges": same}).parts) == 3


def test_a_run_that_goes_on_repeats_no_stage(
    tmp_path: Path, run_all_but_the_end: Callable[..., None]
) -> None:
    given = _given(tmp_path, pa.table({"id": [3, 1, 0, 2]})) | {"method": "ldg"}
    run_all_but_the_end(given)
    done = _noted(tmp_path)
    assert {"ids", "map-rows", "map", "sort"} <= {name.partition("/")[0] for name in done}
    run_all_but_the_end(given)
    assert _noted(tmp_path) == done
    whole = partition_tables(**given | {"root": tmp_path / "whole"})
    assert partition_tables(**given).run == whole.run


def _noted(folder: Path) -> dict[str, tuple[int, int]]:
    """Return which steps are noted as done, and which file does so since when."""
    (notes,) = folder.glob(".*/done")
    return {
        str(path.relative_to(notes)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in notes.rglob("*.json")
    }


def test_what_a_killed_run_with_other_settings_left_is_removed_where_that_is_asked_for(
    tmp_path: Path, run_all_but_the_end: Callable[..., None]
) -> None:
    given = _given(tmp_path, pa.table({"id": [0, 1, 2, 3]}))
    run_all_but_the_end(given)
    beside = {path.name for path in tmp_path.iterdir()}
    assert {".parts.building", ".parts.scratch"} <= beside
    report = partition_tables(**given | {"num_partitions": 3, "overwrite": True})
    assert len(report.parts) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"nodes.parquet", "x.npy", "parts"}


def test_a_run_that_was_killed_at_its_very_end_is_no_result_of_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: its partitions were returned for those that were asked for."""
    given = _given(tmp_path, pa.table({"id": [0, 1, 2, 3]}))
    remove = shutil.rmtree

    def killed(path: Path, **how: Any) -> None:
        if path.name == ".parts.scratch":
            raise KeyboardInterrupt
        remove(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            partition_tables(**given)
    with pytest.raises(ConfigError, match="overwrite=True"):
        partition_tables(**given | {"num_partitions": 3})
    assert len(partition_tables(**given | {"num_partitions": 3, "overwrite": True}).parts) == 3


@pytest.mark.parametrize("how", [{"method": "ldg"}, {"order": "degree"}, {"format": "glt"}])
def test_a_full_disk_is_told_and_the_run_goes_on_with_space(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """The limit of a file's size stands for the disk: the writer, Arrow, numpy, DuckDB meet it."""
    count = 3000
    ids = np.arange(count) * 7919 % count
    pq.write_table(pa.table({"id": ids, "x": np.float32(ids)}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": ids, "dst": np.roll(ids, 1)}), tmp_path / "edges.parquet")
    given: dict[str, Any] = {
        "nodes": NodeTable(tmp_path / "nodes.parquet", features="x"),
        "edges": EdgeTable(tmp_path / "edges.parquet"),
        "num_partitions": 1,
        "progress": False,
        "threads": 1,
        **how,
    }
    root = tmp_path / "parts"
    for limit in (0, 5_000, 11_000):
        with files_up_to(limit), pytest.raises((ResourceError, UsageError)) as caught:
            partition_tables(**given, root=root)
        assert re.search(r"call again( with free space there,)? to continue", str(caught.value))
    report = partition_tables(**given, root=root)
    assert report.run == partition_tables(**given, root=tmp_path / "whole").run
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["edges.parquet", "nodes.parquet", "parts", "whole"]


def test_a_run_that_was_killed_as_it_wrote_its_first_file_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: its own draft was taken for a file of somebody else."""
    given = _given(tmp_path, pa.table({"id": [0, 1, 2, 3]}))

    def killed(draft: Path, path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            partition_tables(**given)
    assert (tmp_path / ".parts.scratch/job.json.tmp").exists()
    assert sum(part.edges for part in partition_tables(**given).parts) == 3
