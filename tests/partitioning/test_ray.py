"""Joins and sorts as tasks of Ray."""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning import resumable
from gigl_loader.runtime.sizes import parse_size

pytestmark = pytest.mark.multiprocess

ROWS = 40


def _tables(folder: Path) -> tuple[NodeTable, EdgeTable]:
    ids = [f"n{(i * 7) % ROWS}" for i in range(ROWS)]
    nodes = pa.table({"id": ids, "x": [[float(i)] for i in range(ROWS)]})
    edges = pa.table(
        {
            "src": [ids[i % ROWS] for i in range(200)],
            "dst": [ids[i * i % ROWS] for i in range(200)],
            "w": [i / 8 for i in range(200)],
        }
    )
    folder.mkdir()
    pq.write_table(nodes, folder / "nodes.parquet")
    (folder / "edges").mkdir()
    for i in range(4):
        pq.write_table(edges.slice(50 * i, 50), folder / "edges" / f"{i}.parquet")
    node_table = NodeTable(folder / "nodes.parquet", features="x")
    return node_table, EdgeTable(folder / "edges", weight="w")


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.longest
def test_two_nodes_of_ray_write_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    # no worker for each CPU before there is work: tasks need workers of another environment
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
    _two_nodes_write_the_same_bytes(ray, tmp_path)


def _two_nodes_write_the_same_bytes(ray: Any, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    nodes, edges = _tables(tmp_path / "tables")
    how: dict[str, Any] = {
        "num_partitions": 3,
        "progress": False,
        "drop_dangling": True,
        "memory": "500MB",
    }
    handled = signal.getsignal(signal.SIGTERM)  # Ray takes it when this process joins
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "wait": False},
    )
    try:
        cluster.add_node(num_cpus=1, wait=False)
        cluster.wait_for_nodes(timeout=200)  # its own limit of 30 s is too short for a busy machine
        ray.init(address=cluster.address, log_to_driver=False)
        # with ldg, edges are joined twice; by degree, rows are placed by tasks
        for method, order in (("random", "degree"), ("ldg", "ids")):
            here, there = tmp_path / f"here-{method}", tmp_path / f"there-{method}"
            how |= {"method": method, "order": order}
            partition_tables(nodes, edges, root=here, threads=1, **how)
            partition_tables(nodes, edges, root=there, engine="ray", **how)
            assert _files(here) == _files(there)
        with pytest.raises(ConfigError, match=r"no node of the Ray cluster has 64 CPUs and 0\.5 "):
            partition_tables(nodes, edges, root=tmp_path / "large", engine="ray", threads=64, **how)
        with pytest.raises(
            ConfigError, match="memory must be bytes above 0"
        ):  # a task's error is ours
            list(resumable.run_tasks(ray, [partial(parse_size, "many", "memory")], 10**8, 1))
        _others_have_ended_after_an_error(ray, tmp_path / "writer")
        _one_id_is_null(tmp_path / "tables")
        with pytest.raises(ConfigError, match=r"has nulls.*row 3 "):
            partition_tables(nodes, edges, root=tmp_path / "null", engine="ray", **how)
    finally:
        ray.shutdown()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handled)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def _others_have_ended_after_an_error(ray: Any, path: Path) -> None:
    """What they write into is removed next."""
    write = (
        f"import time\nfile = open({str(path)!r}, 'x')\ntry:\n"
        "  while True: print('more', file=file, flush=True), time.sleep(0.01)\n"
        "finally:\n  print('over', file=file, flush=True)\n"
    )
    fail = (
        f"import os\nwhile not (os.path.exists({str(path)!r}) and os.path.getsize({str(path)!r})):"
        " pass\nraise KeyError('on purpose')"
    )
    steps: list[Any] = [partial(exec, source, {}) for source in (write, fail)]
    with pytest.raises(KeyError, match="on purpose"):
        list(resumable.run_tasks(ray, steps, 10**8, 1))
    assert path.read_text().endswith("over\n")


def _one_id_is_null(folder: Path) -> None:
    table = pq.read_table(folder / "edges" / "0.parquet")
    src = table.column("src").to_pylist()
    src[3] = None
    column = table.schema.get_field_index("src")
    pq.write_table(table.set_column(column, "src", [src]), folder / "edges" / "0.parquet")


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, edges = _tables(tmp_path / "tables")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"gigl_loader\[ray\]"):
        partition_tables(nodes, edges, 2, tmp_path / "parts", engine="ray", progress=False)
    engine: Any = "spark"
    with pytest.raises(ConfigError, match="engine must be"):
        partition_tables(nodes, edges, 2, tmp_path / "parts", engine=engine, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tables"]
