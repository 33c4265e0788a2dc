import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.directory import RowOrder
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.schema import EdgeDir, EdgeType
from gigl_loader.errors import UsageError
from gigl_loader.partitioning.partition_graph import partition_graph
from gigl_loader.partitioning.partition_tables import partition_tables
from gigl_loader.partitioning.split_links import split_partitions
from gigl_loader.partitioning.tables.spec import EdgeTable, Method, NodeTable
from tests.dataset.dataset_reference import E, Graph, N, by_type, homogeneous
from tests.partitioning.table_graphs import Tables, check, tables
from tests.support.draws import examples

INTS = pa.list_(pa.int64(), 2)


@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    tables(),
    st.integers(1, 3),
    st.sampled_from(["contiguous", "random", "ldg", "metis"]),
    st.sampled_from(["in", "out"]),
    st.integers(1, 3),
    st.sampled_from(["ids", "degree"]),
)
def test_partitions_unite_to_the_tables(
    tmp_path: Path,
    graph: Tables,
    count: int,
    method: Method,
    edge_dir: EdgeDir,
    files: int,
    order: RowOrder,
) -> None:
    shutil.rmtree(tmp_path / "tables", ignore_errors=True)
    nodes, edges = graph.write(tmp_path / "tables", files)
    partition_tables(
        nodes,
        edges,
        count,
        tmp_path / "parts",
        method=method,
        edge_dir=edge_dir,
        seed=5,
        progress=False,
        overwrite=True,
        threads=1,
        order=order,
    )
    for mmap in (False, True):
        loaded = [
            DistDataset.load(tmp_path / "parts", k, mmap=mmap, verify="now") for k in range(count)
        ]
        check(graph, loaded, edge_dir, order)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "tables"]


def _time_of(node: int) -> int:
    return 7 * node % 5


def _as_tables(graph: Graph, folder: Path) -> dict:
    """Write a homogeneous graph as tables whose ids are those of the graph."""
    count, pairs = graph.num_nodes[N], graph.edges[E]
    ids = list(range(count))
    nodes = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "t": pa.array([_time_of(i) for i in ids], pa.int64()),
            "y": pa.array([[i, 100 + i] for i in ids], INTS),
            "x": pa.array([[i, -i, 7] for i in ids], pa.list_(pa.float32(), 3)),
            "s": pa.array([("train", "val", "test")[i % 3] for i in ids], pa.string()),
        }
    )
    folder.mkdir(exist_ok=True)
    pq.write_table(nodes, folder / "nodes.parquet")
    edges = []
    positives, negatives = graph.labels.get(E, (None, None))
    for name, ends in (("edges", pairs), ("positive", positives), ("negative", negatives)):
        if ends is None:
            continue
        columns = {
            end: pa.array([pair[k] for pair in ends], pa.int64())
            for k, end in enumerate(("src", "dst"))
        }
        columns["w"] = pa.array([i / 4 for i in range(len(ends))], pa.float32())
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        how: dict[str, Any] = {"weight": "w"} if name == "edges" else {"supervision": name}
        edges.append(EdgeTable(folder / f"{name}.parquet", **how))
    return {
        "nodes": NodeTable(folder / "nodes.parquet", features="x", label="y", split="s", time="t"),
        "edges": edges,
    }


@pytest.mark.filterwarnings("ignore:num_partitions=")  # a part without nodes
@settings(
    max_examples=examples(8),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    homogeneous(),
    st.integers(1, 3),
    st.sampled_from(["in", "out"]),
    st.sampled_from(["ids", "degree"]),
)
@example(Graph({N: 1}, {E: []}, {}, False), 2, "in", "degree")  # a part without nodes
def test_tables_and_the_same_graph_in_memory_give_the_same_partitions(
    tmp_path: Path, graph: Graph, count: int, edge_dir: EdgeDir, order: Any
) -> None:
    tables = _as_tables(graph, tmp_path / "tables")
    partition_tables(
        **tables,
        num_partitions=count,
        root=tmp_path / "a",
        edge_dir=edge_dir,
        progress=False,
        overwrite=True,
        threads=1,
        time_attr="time",
        order=order,
    )
    data = graph.to_pyg()
    data.time = torch.tensor([_time_of(i) for i in range(graph.num_nodes[N])], dtype=torch.int64)
    partition_graph(
        data,
        count,
        tmp_path / "b",
        edge_dir=edge_dir,
        progress=False,
        supervision=graph.supervision(),
        overwrite=True,
        time_attr="time",
        order=order,
    )
    for k in range(count):
        if order == "degree":
            ours, theirs = (_row_files(tmp_path / name / f"part{k}") for name in ("a", "b"))
            assert ours == {name: theirs[name] for name in ours}  # those have masks, too
            assert f"lookup/{N}.bin" in ours
        ours, theirs = (DistDataset.load(tmp_path / name, k) for name in ("a", "b"))
        assert ours.num_classes == theirs.num_classes
        owned = by_type(ours.node_ids)[N]
        assert owned.tolist() == by_type(theirs.node_ids)[N].tolist()
        assert set(ours.view().adjacency) == set(theirs.view().adjacency)
        for edge_type, found in ours.view().adjacency.items():
            wanted = theirs.view().adjacency[edge_type]
            assert torch.equal(found.indptr.diff(), _degrees(wanted, owned))
            assert torch.equal(found.indices, wanted.indices)
            if edge_type == E:
                assert found.weights is not None
                assert wanted.weights is not None
                assert torch.equal(found.weights, wanted.weights)
                orders = [one.view_by_time("time").times[E] for one in (ours, theirs)]
                assert torch.equal(orders[0].times, orders[1].times)
                assert torch.equal(orders[0].order, orders[1].order)
        for kind in ("node_features", "node_labels"):
            found, wanted = getattr(ours.view(), kind)[N], getattr(theirs.view(), kind)[N]
            found, wanted = (rows.values[rows.locate(owned)] for rows in (found, wanted))
            assert found.tolist() == wanted.tolist()
        for split in ("train", "val", "test"):
            found, wanted = (by_type(one.split_node_ids(split))[N] for one in (ours, theirs))
            assert found.tolist() == wanted.tolist()


def _row_files(part: Path) -> dict[str, bytes]:
    """Return the bytes of features, labels, attributes and times, and of what finds them."""
    return {
        str(path.relative_to(part)): path.read_bytes()
        for folder in ("node_features", "node_labels", "node_attributes", "lookup")
        for path in sorted((part / folder).rglob("*.bin"))
    }


def _degrees(adjacency, owned: torch.Tensor) -> torch.Tensor:
    """Return the degrees of the nodes that a partition owns, of rows that may be of all nodes."""
    degrees = adjacency.indptr.diff()
    return degrees if len(degrees) == len(owned) else degrees[owned]


def test_links_are_split_and_the_ids_of_the_tables_stay(tmp_path: Path) -> None:
    ids = [f"n{i}" for i in range(20)]
    nodes = pa.table({"id": ids, "x": [float(i) for i in range(20)]})
    pairs = {"src": [ids[i % 20] for i in range(60)], "dst": [ids[(3 * i) % 20] for i in range(60)]}
    partition_tables(
        NodeTable(nodes, features="x"),
        EdgeTable(pa.table(pairs)),
        2,
        tmp_path / "parts",
        method="random",
        progress=False,
    )
    split_partitions(tmp_path / "parts", tmp_path / "split", num_val=0.2, num_test=0.2, seed=1)
    found = []
    for k in range(2):
        dataset = DistDataset.load(tmp_path / "split", k, verify="now")
        owned = by_type(dataset.node_ids)[N]
        rows = dataset.view().node_features[N]
        names = dataset.to_original(owned)
        wanted = [float(name[1:]) for name in names]
        assert rows.values[rows.locate(owned)].view(-1).tolist() == wanted
        edges: list[tuple[EdgeType, Any, EdgeDir]] = [(E, dataset.view().adjacency[E], "in")]
        edges += [(t, a, "out") for t, a in dataset.view().adjacency.items() if "val" in t[1]]
        edges += [(t, a, "out") for t, a in dataset.view().adjacency.items() if "test" in t[1]]
        for _, adjacency, edge_dir in edges:
            found += dataset.to_original(edges_of(adjacency, edge_dir).t().reshape(-1)).tolist()
    together = sorted(zip(found[::2], found[1::2], strict=True))
    assert together == sorted(zip(pairs["src"], pairs["dst"], strict=True))


@pytest.mark.parametrize("count", [1, 2])
def test_the_format_of_glt(tmp_path: Path, count: int) -> None:
    ids = [f"n{i}" for i in range(20)]
    nodes = pa.table({"id": ids, "x": [[float(i), -i] for i in range(20)], "y": [*range(4)] * 5})
    pairs = {"src": [ids[i % 20] for i in range(60)], "dst": [ids[(3 * i) % 20] for i in range(60)]}
    given = NodeTable(nodes, features="x", label="y"), EdgeTable(pa.table(pairs))
    for format in ("mapped", "glt"):
        partition_tables(
            *given, count, tmp_path / format, method="random", progress=False, format=format
        )
    for k in range(count):
        ours, theirs = (DistDataset.load(tmp_path / name, k) for name in ("mapped", "glt"))
        owned = by_type(ours.node_ids)[N]
        assert owned.tolist() == by_type(theirs.node_ids)[N].tolist()
        found, wanted = theirs.view().adjacency[E], ours.view().adjacency[E]
        assert torch.equal(_degrees(found, owned), wanted.indptr.diff())
        assert torch.equal(found.indices, wanted.indices)
        for kind in ("node_features", "node_labels"):
            rows = [getattr(one.view(), kind)[N] for one in (ours, theirs)]
            assert torch.equal(*(one.values[one.locate(owned)] for one in rows))
        if importlib.util.find_spec("graphlearn_torch"):
            from graphlearn_torch.partition import load_partition

            assert load_partition(str(tmp_path / "glt"), k)[0] == count
    assert (tmp_path / "glt" / "ids" / f"{N}.parquet").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glt", "mapped"]


def test_the_format_of_glt_needs_memory_for_a_partition(tmp_path: Path) -> None:
    """Four times its bytes, here of 80 MB."""
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(20_000_000, np.float32)), 20_000)
    nodes = NodeTable(pa.table({"id": [*range(1000)], "x": wide}), features="x")
    edges = EdgeTable(pa.table({"src": [0], "dst": [1]}))
    with pytest.raises(UsageError, match=r"needs about 0\.3 GB, memory is 0\.3 GB"):
        partition_tables(
            nodes, edges, 1, tmp_path / "glt", progress=False, format="glt", memory="300MB"
        )
    assert not (tmp_path / "glt").exists()
