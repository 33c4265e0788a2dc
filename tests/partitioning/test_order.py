"""Rows by degree where memory holds a few of them only: passes, steps and buckets."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, partition_tables
from gigl_loader.dataset.format.mapped import Part
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages import degree_order
from gigl_loader.partitioning.stages.degree_order import EdgeFile, Positions, count_degrees
from gigl_loader.partitioning.stages.node_ids import Numbering
from gigl_loader.sampler.rows.row_exchange import located
from gigl_loader.testing import as_worker_gets

NODES = 1000


def _job(folder: Path, usable_bytes: int) -> ResumableJob:
    job = ResumableJob(folder, {}, memory=10**9, threads=1, progress=False)
    job.usable_bytes = usable_bytes
    return job


def _edge_files(folder: Path, neighbors: list[np.ndarray]) -> list[EdgeFile]:
    folder.mkdir()
    files = []
    for i, one in enumerate(neighbors):
        one.tofile(folder / f"{i}.bin")
        files.append(EdgeFile(folder / f"{i}.bin", one.dtype.name, one.size))
    return files


@pytest.mark.parametrize(
    ("usable_bytes", "passes", "edges_a_node"), [(10**9, 1, 8), (2 * 4 * 300, 4, 8), (1, 16, 0)]
)
def test_degrees_and_places(
    tmp_path: Path, usable_bytes: int, passes: int, edges_a_node: int, work_sizes
) -> None:
    work_sizes(numbers=64, edges_a_node=edges_a_node)
    random = np.random.default_rng(3)
    neighbors = [
        (NODES * random.random(count) ** 3).astype(dtype)
        for count, dtype in ((700, np.int32), (0, np.int32), (900, np.int64))
    ]
    job = _job(tmp_path / "scratch", usable_bytes)
    degrees = count_degrees(job, N, NODES, _edge_files(tmp_path / "edges", neighbors))
    assert len(degrees.paths) == passes
    wanted = Counter(np.concatenate(neighbors).tolist())
    counts = [wanted[i] for i in range(NODES)]
    assert np.concatenate([*degrees.chunks(0, NODES)]).tolist() == counts
    left = sorted(path for path in (tmp_path / "scratch/degrees").rglob("*") if path.is_file())
    assert left == sorted(degrees.paths), "a pass keeps its last step's file alone"

    ends = np.array([10, 10, 700, NODES])
    numbering = Numbering(np.empty(0, np.uint16), ends, [])
    parts = [Part(tmp_path / f"part{k}") for k in range(4)]
    positions = Positions(job, parts, N, numbering, degrees)
    for k, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        found = np.fromfile(positions.path(k), np.int32)
        order = sorted(range(first, end), key=lambda i: (-counts[i], i))
        assert [order[place] + 0 for place in found] == list(range(first, end))


def test_without_edges_the_order_is_that_of_ids(tmp_path: Path) -> None:
    job = _job(tmp_path / "scratch", 10**9)
    degrees = count_degrees(job, N, 5, [])
    assert np.concatenate([*degrees.chunks(0, 5)]).tolist() == [0] * 5
    none = count_degrees(job, "none", 0, [])
    assert list(none.chunks(0, 0)) == []


def _tables(folder: Path) -> dict[str, Any]:
    """Write nodes in three files, features of some width beside them, and a power law of edges."""
    random = np.random.default_rng(5)
    folder.mkdir()
    ids = random.permutation(10 * NODES)[:NODES]
    np.save(folder / "x.npy", random.random((NODES, 5)).astype(np.float16))
    columns = {"id": ids, "y": np.arange(NODES) % 7, "t": np.arange(NODES) - 3}
    nodes = pa.table(
        {
            **columns,
            "wide": pa.array(random.random((NODES, 3)).tolist(), pa.list_(pa.float64())),
            "s": [("train", "val", "test", None)[i % 4] for i in range(NODES)],
        }
    )
    for i, size in enumerate((400, 399, 201)):
        pq.write_table(
            nodes.slice(400 * min(i, 1) + 399 * (i == 2), size), folder / f"nodes{i}.parquet"
        )
    ends = (NODES * random.random((2, 6000)) ** 3).astype(np.int64)
    pq.write_table(pa.table({"src": ids[ends[0]], "dst": ids[ends[1]]}), folder / "edges.parquet")
    node_table = NodeTable(
        [folder / f"nodes{i}.parquet" for i in range(3)],
        features=str(folder / "x.npy"),
        label="y",
        time="t",
        attributes="wide",
        split="s",
    )
    return {"nodes": node_table, "edges": EdgeTable(folder / "edges.parquet")}


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_the_size_of_buckets_does_not_change_a_byte(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch, work_sizes
) -> None:
    given = _tables(tmp_path / "tables") | {
        "num_partitions": 3,
        "order": "degree",
        "progress": False,
        "method": method,
        "threads": 1,
        "time_attr": "time",
    }
    partition_tables(**given, root=tmp_path / "large")
    work_sizes(bucket_bytes=4000)  # 74 rows of 54 bytes
    with _placing(monkeypatch) as buckets:
        partition_tables(**given, root=tmp_path / "small")
    assert len(buckets) >= NODES // 74
    assert _files(tmp_path / "large") == _files(tmp_path / "small")
    # stopped when some buckets are written, and on with larger ones
    given["root"] = tmp_path / "more"
    with _placing(monkeypatch, stop_at=4), pytest.raises(OSError, match="on purpose"):
        partition_tables(**given)
    work_sizes(bucket_bytes=9000)
    partition_tables(**given)
    assert _files(tmp_path / "large") == _files(tmp_path / "more")

    rows = {id: i for i, id in enumerate(_ids(given["nodes"]))}
    x = np.load(tmp_path / "tables/x.npy")
    for k in range(3):
        dataset = DistDataset.load(tmp_path / "small", k, verify="now")
        owned: Any = dataset.node_ids
        train_ids: Any = dataset.train_node_ids
        at = [rows[name] for name in dataset.to_original(owned).tolist()]
        view = dataset.view()
        found = view.node_features[N].values[view.node_features[N].locate(owned)]
        assert np.array_equal(found.numpy(), x[at])
        arrays = as_worker_gets(view).node_features[N]  # as samplers and servers read them
        assert np.array_equal(arrays.values[located(arrays, owned.numpy())], x[at])
        labels = view.node_labels[N].values[view.node_labels[N].locate(owned)]
        assert labels.tolist() == [row % 7 for row in at]
        assert train_ids.tolist() == [
            i for i, row in zip(owned.tolist(), at, strict=True) if row % 4 == 0
        ]
        (times,) = [one for (_, name), one in view.edge_attributes.items() if "time" in name]
        neighbors = dataset.to_original(next(iter(view.adjacency.values())).indices.long())
        assert times.values.tolist() == [rows[name] - 3 for name in neighbors.tolist()]


@contextmanager
def _placing(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> Iterator[list[int]]:
    """Yield a list of the buckets whose rows are put in place; one of them may fail."""
    place, buckets = degree_order._write_bucket, list[int]()

    def noted(*args: Any) -> Any:
        buckets.append(args[1])
        if len(buckets) == stop_at:
            raise OSError("on purpose")
        return place(*args)

    with monkeypatch.context() as patch:
        patch.setattr(degree_order, "_write_bucket", noted)
        yield buckets


def _ids(nodes: NodeTable) -> list[int]:
    paths: Any = nodes.source
    return [i for path in paths for i in pq.read_table(path).column("id").to_pylist()]


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_bad_orders_are_refused_before_anything_starts(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "nodes": NodeTable("none"),
        "edges": EdgeTable("none"),
        "num_partitions": 1,
    }
    with pytest.raises(ConfigError, match='order must be "ids" or "degree", got \'hops\''):
        partition_tables(**given, root=tmp_path / "parts", order="hops")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match='order="degree" needs format="mapped"'):
        partition_tables(**given, root=tmp_path / "parts", order="degree", format="glt")
    assert list(tmp_path.iterdir()) == []
