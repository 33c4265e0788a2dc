"""Edges by partition, against a dict."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.id_index import Index, PartWriter, look_up_edges


def _index(folder: Path, name: str, ids: list[Any]) -> Index:
    (folder / name).mkdir()
    numbers = pa.array(range(len(ids)), pa.uint32())
    pq.write_table(pa.table({"id": ids, "node": numbers}), folder / name / "0.parquet")
    index = Index(folder / f"{name}.bin", len(ids), text=isinstance(ids[0], str))
    assert index.build(folder / name) == 0
    return index


@pytest.mark.parametrize("buffer_bytes", [0, 2**25])
def test_edges_are_where_a_dict_puts_them(tmp_path: Path, work_sizes, buffer_bytes: int) -> None:
    work_sizes(waiting_bytes=buffer_bytes, looked_up_rows=64)
    random = np.random.default_rng(1)
    users, items = [f"u{i}" for i in range(30)], list(range(-5, 15))
    edges = [
        ([*users, "nobody", None][a], [*items, 99][b], row)
        for row, (a, b) in enumerate(random.integers(0, (32, 21), (500, 2)).tolist())
    ]
    names = ("a", "b", "pos")
    columns = {name: [edge[i] for edge in edges] for i, name in enumerate(names)}
    pq.write_table(pa.table(columns), tmp_path / "edges.parquet")
    bounds = np.array([10, 10, 30])  # the second partition has no nodes
    indexes = _index(tmp_path, "user", users), _index(tmp_path, "item", items)
    job = ResumableJob(tmp_path / "scratch", {}, memory=10**9, threads=2, progress=False)
    query = f"SELECT a, b, pos FROM read_parquet('{tmp_path}/edges.parquet')"
    counts = look_up_edges(job, indexes, bounds, tmp_path / "out", query, extra_bytes=8)

    wanted: dict[int, list[tuple[int, int, int]]] = {}
    for user, item, row in edges:
        if user in users and item in items:
            number = users.index(user)
            edge = (number, items.index(item), row)
            wanted.setdefault(0 if number < 10 else 2, []).append(edge)
    assert counts == [len(wanted[0]), 0, len(wanted[2]), 500 - sum(map(len, wanted.values()))]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part=0", "part=2"]
    for k, expected in wanted.items():
        table = pq.ParquetFile(tmp_path / f"out/part={k}/0.parquet").read()
        assert table.schema.names == ["row", "neighbor", "pos"]
        assert sorted(zip(*table.to_pydict().values(), strict=True)) == sorted(expected)


def test_what_waits_is_written_but_not_after_an_error(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": [1, 2, 3]})
    with PartWriter(tmp_path / "good", 2) as writer:
        writer.add(batch, [1, 2, 1])
        assert not list((tmp_path / "good").iterdir()), "it waits"
    assert pq.ParquetFile(tmp_path / "good/part=1/0.parquet").read().to_pydict() == {"x": [1, 3]}
    assert writer.counts.tolist() == [0, 2, 1]
    with pytest.raises(KeyError):
        _fail(tmp_path / "bad", batch)
    assert not list((tmp_path / "bad").iterdir())


def _fail(folder: Path, batch: Any) -> None:
    with PartWriter(folder, 2) as writer:
        writer.add(batch, [0, 0, 0])
        raise KeyError
