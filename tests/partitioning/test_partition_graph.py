import logging
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.partition_graph import partition_graph
from gigl_loader.runtime import progress
from tests.dataset.dataset_reference import (
    RING,
    SHOP,
    E,
    Graph,
    N,
    check_partitions,
    graphs,
    written,
)
from tests.support.conditions import files_up_to
from tests.support.draws import examples


@pytest.mark.filterwarnings("ignore:num_partitions=")  # a part without nodes
@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    graphs(),
    st.integers(1, 4),
    st.sampled_from(["contiguous", "random", "metis"]),
    st.sampled_from(["in", "out"]),
)
def test_partitions_on_disk_unite_to_the_graph(
    tmp_path: Path, graph: Graph, count: int, method: str, edge_dir: EdgeDir
) -> None:
    root = tmp_path / "graph"  # the run before left one there, to be replaced
    for format in ("glt", "mapped"):
        datasets = written(
            graph, count, root, method=method, edge_dir=edge_dir, seed=3, format=format
        )
        check_partitions(graph, datasets, edge_dir)
    mapped = [DistDataset.load(root, i, mmap=True, verify="now") for i in range(count)]
    check_partitions(graph, mapped, edge_dir)
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


@pytest.mark.glt
@pytest.mark.parametrize("graph", [RING, SHOP], ids=["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_glt_reads_what_we_write(tmp_path: Path, graph: Graph, edge_dir: EdgeDir) -> None:
    from graphlearn_torch.partition import load_partition

    written(graph, 2, tmp_path, method="random", edge_dir=edge_dir)
    data = graph.to_pyg()
    edge_rows: dict[Any, list] = {edge_type: [] for edge_type in graph.edges}
    for index in range(2):
        count, _, edges, nodes, edge_feats, node_pb, edge_pb = load_partition(str(tmp_path), index)
        assert count == 2
        for edge_type in graph.edges:
            key = edge_type if graph.heterogeneous else None
            part = edges[key] if key else edges
            feats = edge_feats[key] if key else edge_feats
            assert (feats.ids == part.eids).all()
            assert feats.feats[:, 0].tolist() == part.eids.tolist()
            assert ((edge_pb[key] if key else edge_pb)[part.eids] == index).all()
            edge_rows[edge_type] += zip(
                part.eids.tolist(),
                part.edge_index[0].tolist(),
                part.edge_index[1].tolist(),
                strict=True,
            )
        for node_type in graph.num_nodes:
            part, book = (
                (nodes[node_type], node_pb[node_type]) if graph.heterogeneous else (nodes, node_pb)
            )
            assert part.feats[:, 0].tolist() == part.ids.tolist()
            assert (book == index).nonzero().view(-1).tolist() == part.ids.tolist()
    for edge_type, pairs in graph.edges.items():
        store = data[edge_type] if graph.heterogeneous else data
        assert sorted(edge_rows[edge_type]) == [(i, *pair) for i, pair in enumerate(pairs)]
        assert store.edge_index.size(1) == len(edge_rows[edge_type])


# --- methods --------------------------------------------------------------------------------------


def _content(path: Path) -> object:
    if path.suffix != ".pkl":
        return path.read_bytes()
    with path.open("rb") as file:  # such a pickle has an address in it
        return pickle.load(file).tolist()


def _files(root: Path) -> dict[str, object]:
    return {str(p.relative_to(root)): _content(p) for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("method", ["contiguous", "random", "metis"])
def test_the_same_arguments_give_the_same_partitions(tmp_path: Path, method: str) -> None:
    books = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        written(SHOP, 3, tmp_path / name, method=method, seed=seed)
        books.append(torch.load(tmp_path / name / "node_pb" / "user.pt"))
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    assert method == "metis" or (books[0].tolist() == books[2].tolist()) == (method != "random")


def test_contiguous_partitions_are_found_by_ranges(tmp_path: Path) -> None:
    dataset = written(RING, 3, tmp_path)[1]
    bounds = dataset.view().node_books[N].bounds
    assert bounds is not None
    assert bounds.tolist() == [3, 6, 8]
    assert dataset.node_ids.tolist() == [3, 4, 5]


def test_metis_keeps_neighbours_together(tmp_path: Path) -> None:
    pairs = [(a, b) for a in range(20) for b in range(20) if a % 2 == b % 2]
    graph = Graph({N: 20}, {E: pairs}, {}, False)
    owned = written(graph, 2, tmp_path, method="metis")[0].node_ids
    assert owned.numel() == 10
    assert len(set((owned % 2).tolist())) == 1


def test_metis_that_is_not_installed_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ConfigError, match=r"gigl_loader\[metis\]"):
        written(RING, 2, tmp_path / "graph", method="metis")
    assert not (tmp_path / "graph").exists()


def test_progress_by_bar_or_by_log(tmp_path, monkeypatch, capfd, caplog) -> None:
    partition_graph(RING.to_pyg(), 2, tmp_path / "a")
    assert "100%" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    # a logger of this test alone: what ran before in this process may have set up the other one
    fresh = logging.getLogger("gigl_loader.tests.progress")
    monkeypatch.setattr(progress, "_log", fresh)
    with caplog.at_level("INFO", logger=fresh.name):
        partition_graph(RING.to_pyg(), 2, tmp_path / "b")
    assert "partition_graph: writing partition 1" in caplog.text, vars(fresh)


# --- bad input and failures -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_partitions": 0}, "at least 1"),
        ({"num_partitions": 2.0}, "must be an int"),
        ({"method": "hash"}, "contiguous, random, metis, got 'hash'"),
        ({"edge_dir": "both"}, "edge_dir"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_arguments_write_nothing(tmp_path: Path, arguments, message) -> None:
    given_arguments = {"data": RING.to_pyg(), "num_partitions": 2} | arguments
    with pytest.raises(ConfigError, match=message):
        partition_graph(root=tmp_path / "graph", **given_arguments)
    assert not list(tmp_path.iterdir())


def test_names_that_are_no_file_names_are_refused(tmp_path: Path) -> None:
    graph = Graph({"a/b": 2}, {("a/b", "to", "a/b"): [(0, 1)]})
    with pytest.raises(ConfigError, match="rename it"):
        written(graph, 2, tmp_path / "graph")


def test_a_run_that_fails_leaves_the_old_directory(tmp_path: Path) -> None:
    written(RING, 2, tmp_path / "graph")
    before = _files(tmp_path / "graph")

    for name in ("graph", "new"):
        with files_up_to(100), pytest.raises((OSError, RuntimeError)):  # of open files, of torch's
            written(SHOP, 2, tmp_path / name)
    assert _files(tmp_path / "graph") == before
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_directory_that_cannot_take_its_position_leaves_the_old_one(
    tmp_path: Path, monkeypatch
) -> None:
    written(RING, 2, tmp_path / "graph")
    before, rename = _files(tmp_path / "graph"), os.rename

    def interrupted(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(RING, 3, tmp_path / "graph")
    assert _files(tmp_path / "graph") == before
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
