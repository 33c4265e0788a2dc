"""Communities that partitioning finds, beside planted ones and beside METIS."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, EdgeTable, NodeTable
from gigl_loader.dataset.schema import COMMUNITY
from gigl_loader.errors import ConfigError
from gigl_loader.inference.local_graph import local_graph
from gigl_loader.partitioning.metis import community_bounds
from gigl_loader.partitioning.partition_graph import partition_graph
from gigl_loader.partitioning.partition_tables import partition_tables
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.communities import CommunityCut
from gigl_loader.runtime.ranks.collectives import RankExchange
from gigl_loader.testing import batch_digest
from tests.dataset.dataset_reference import N

NUM_PLANTED, SIZE = 20, 50
"""Planted communities, and the nodes of each."""


def _planted(inside: float = 0.8, degree: int = 16) -> tuple[Any, Any]:
    """Return edges ``[2, num_edges]`` and the planted community of each node, in drawn order."""
    rng = np.random.default_rng(0)
    num_nodes = NUM_PLANTED * SIZE
    ends = rng.integers(0, num_nodes, (2, num_nodes * degree // 2))
    kept = np.flatnonzero(rng.random(ends.shape[1]) < inside)
    ends[0, kept] = ends[1, kept] // SIZE * SIZE + rng.integers(0, SIZE, len(kept))
    names = rng.permutation(num_nodes)
    planted = np.empty(num_nodes, np.int64)
    planted[names] = np.arange(num_nodes) // SIZE
    return names[ends], planted


def _power_law(num_nodes: int = 1000, num_edges: int = 8000) -> Any:
    """Return edges ``[2, num_edges]`` whose ends have degrees of a power law."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.pareto(1.5, num_nodes) + 1)
    return rng.permutation(num_nodes)[np.searchsorted(ends, rng.random((2, num_edges)) * ends[-1])]


def _tables(edges: Any, num_nodes: int) -> tuple[NodeTable, EdgeTable]:
    nodes = pa.table({"id": np.arange(num_nodes), "x": np.arange(num_nodes, dtype=np.float32)})
    ends = pa.table({"src": edges[0], "dst": edges[1]})
    return NodeTable(nodes, features="x"), EdgeTable(ends)


def _loaded(root: Path, count: int, num_nodes: int, **how: Any) -> tuple[Any, Any]:
    """Return owner and community of each node, by the number that is its feature."""
    owners, communities = np.full(num_nodes, -1), np.full(num_nodes, -1)
    for k in range(count):
        dataset = DistDataset.load(root, k, **how)
        view, owned = dataset.view(), dataset.node_ids
        assert isinstance(owned, torch.Tensor)
        rows, features = view.node_attributes[N, COMMUNITY], view.node_features[N]
        names = features.values[features.locate(owned)].view(-1).long().numpy()
        assert rows.values.dtype == torch.int64
        assert rows.values.dim() == 1
        owners[names], communities[names] = k, rows.values[rows.locate(owned)].numpy()
    assert owners.min() >= 0, "each node is in a partition"
    return owners, communities


def _check_nested(owners: Any, communities: Any) -> None:
    """Check that ids are dense, and each community lies in one partition."""
    assert np.unique(communities).tolist() == list(range(max(communities, default=-1) + 1))
    pairs = {*zip(communities.tolist(), owners.tolist(), strict=True)}
    assert len(pairs) == max(communities, default=-1) + 1


def _cut(edges: Any, labels: Any) -> float:
    return float((labels[edges[0]] != labels[edges[1]]).mean())


# --- what is found --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ldg", "metis"])
def test_planted_communities_are_found_and_loaded_in_each_way(tmp_path: Path, method: Any) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    edges, planted = _planted()
    partition_tables(
        *_tables(edges, len(planted)),
        4,
        tmp_path / "parts",
        method=method,
        communities=NUM_PLANTED,
        progress=False,
        threads=1,
        order="degree",
    )
    owners, communities = _loaded(tmp_path / "parts", 4, len(planted), verify="now")
    _check_nested(owners, communities)
    members = [planted[communities == k] for k in range(NUM_PLANTED)]
    assert sum(np.bincount(nodes).max() for nodes in members) > 0.97 * len(planted)
    mapped = _loaded(tmp_path / "parts", 4, len(planted), mmap=True)
    assert all(map(np.array_equal, mapped, (owners, communities)))


@pytest.mark.parametrize("graph", ["planted", "power law"])
def test_parts_are_nearly_as_good_as_those_of_metis(tmp_path: Path, graph: str) -> None:
    pytest.importorskip("pymetis")
    edges, num_nodes = _planted()[0] if graph == "planted" else _power_law(), NUM_PLANTED * SIZE
    cuts, finer = {}, {}
    for method in ("ldg", "metis"):
        root = tmp_path / method
        partition_tables(
            *_tables(edges, num_nodes),
            4,
            root,
            method=method,
            communities=20,
            progress=False,
            threads=1,
        )
        owners, communities = _loaded(root, 4, num_nodes)
        cuts[method], finer[method] = _cut(edges, owners), _cut(edges, communities)
        assert np.bincount(owners).max() <= 1.05 * num_nodes / 4 + 1
    assert cuts["ldg"] <= 1.3 * cuts["metis"]
    assert finer["ldg"] <= 1.2 * finer["metis"]


def test_metis_cuts_the_same_parts_as_without(tmp_path: Path) -> None:
    pytest.importorskip("pymetis")
    edges, planted = _planted()
    data = Data(x=torch.arange(len(planted)).float().view(-1, 1), edge_index=torch.tensor(edges))
    roots = {}
    for name, communities in (("with", NUM_PLANTED), ("without", None)):
        for kind in ("graph", "tables"):
            roots[kind, name] = tmp_path / kind / name
        how: Any = {"method": "metis", "communities": communities, "progress": False}
        partition_graph(data, 4, roots["graph", name], **how)
        partition_tables(*_tables(edges, len(planted)), 4, roots["tables", name], **how)
    for kind in ("graph", "tables"):
        for k in range(4):
            files = [
                {
                    str(path.relative_to(roots[kind, name])): path.read_bytes()
                    for path in (roots[kind, name] / f"part{k}").rglob("*.bin")
                }
                for name in ("with", "without")
            ]
            more = set(files[0]) - set(files[1])
            assert all(COMMUNITY in path for path in more)
            assert files[1] == {name: files[0][name] for name in files[1]}
    of_graph, of_tables = (_loaded(roots[kind, "with"], 4, 1000) for kind in ("graph", "tables"))
    assert all(map(np.array_equal, of_graph, of_tables)), "both ways find the same"


class _InMemory:
    """Edges in both directions, ascending, in batches as `Union` reads them."""

    def __init__(self, num_nodes: int, pairs: Any, batch: int) -> None:
        both = sorted((u, v) for a, b in pairs for u, v in ((a, b), (b, a)) if u != v)
        self.ends = np.array([pair for pair in both if max(pair) < num_nodes], np.int64)
        self.ends = self.ends.reshape(-1, 2)
        self.num_nodes, self._batch = num_nodes, batch

    def read(self) -> Any:
        for start in range(0, len(self.ends), self._batch):
            yield tuple(self.ends[start : start + self._batch].T)


RING_OF_CLIQUES = [(5 * k + a, 5 * k + b) for k in range(6) for a in range(5) for b in range(a)]
RING_OF_CLIQUES += [(5 * k + a, (5 * k + 5 + a) % 30) for k in range(6) for a in range(2)]
"""Six cliques of five; clusters of cliques have several edges of several edges between them."""
PAIRS = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(1, 30), PAIRS, st.integers(1, 4), st.integers(0, 30), st.integers(1, 9))
@example(1, [], 4, 0, 1)
@example(30, RING_OF_CLIQUES, 1, 4, 7)
def test_any_graph_has_each_node_in_a_community_of_one_part(
    tmp_path: Path, constants: Any, num_nodes: int, pairs: Any, count: int, more: int, batch: int
) -> None:
    constants(
        "gigl_loader.partitioning.stages.communities", _CLUSTERS_A_PART=2
    )  # so that small graphs have levels, too
    shutil.rmtree(tmp_path / "job", ignore_errors=True)
    job = ResumableJob(tmp_path / "job", {}, memory=10**9, threads=1, progress=False)
    graph: Any = _InMemory(num_nodes, pairs, batch)
    cut = CommunityCut(job, graph, count, count + more, lambda _, make: make())
    owners, found = cut.cut()
    assert len(owners) == len(found) == num_nodes
    assert set(owners.tolist()) <= {*range(count)}
    assert np.bincount(owners).max() <= 1.05 * -(-num_nodes // count)
    _check_nested(owners, found)
    # each level has the edges of the one below, between clusters
    edges = Counter(map(tuple, graph.ends.tolist()))
    for level, clusters in zip(cut._levels, [*cut._clusters, None], strict=True):
        read: Counter[tuple[int, int]] = Counter()
        last = -1
        for nodes, neighbors, weights in level.blocks():
            assert not len(nodes) or nodes[0] > last, "the edges of a node are in one block"
            last = nodes[-1] if len(nodes) else last
            ones = weights.tolist() or [1] * len(nodes)
            for u, v, weight in zip(nodes.tolist(), neighbors.tolist(), ones, strict=True):
                read[u, v] += weight
        assert read == edges
        if clusters is not None:
            merged: Counter[tuple[int, int]] = Counter()
            for (u, v), weight in edges.items():
                if clusters[u] != clusters[v]:
                    merged[int(clusters[u]), int(clusters[v])] += weight
            edges = merged


def test_types_are_grouped_together(tmp_path: Path) -> None:
    """Two cliques of users and items; a community has nodes of both types."""
    names = {"user": [f"u{i}" for i in range(10)], "item": [f"i{i}" for i in range(6)]}
    pairs = [(u, i) for u in range(10) for i in range(6) if u % 2 == i % 2]
    nodes = {t: NodeTable(pa.table({"id": ids})) for t, ids in names.items()}
    ends = {"src": [f"u{u}" for u, _ in pairs], "dst": [f"i{i}" for _, i in pairs]}
    edges = {("user", "buys", "item"): EdgeTable(pa.table(ends))}
    for method in ("ldg", "metis"):
        how: Any = {"method": method, "communities": 2, "progress": False, "overwrite": True}
        partition_tables(nodes, edges, 1, tmp_path / "parts", **how)
        dataset = DistDataset.load(tmp_path / "parts", 0)
        of_names: dict[Any, int] = {}
        for node_type in names:
            ids = dataset.node_ids[node_type]
            rows = dataset.view().node_attributes[node_type, COMMUNITY]
            found = rows.values[rows.locate(ids)].tolist()
            of_names |= dict(zip(dataset.to_original(ids, node_type), found, strict=True))
        assert sorted(set(of_names.values())) == [0, 1]
        assert all(
            (of_names[name] == of_names["u0"]) == (int(name[1]) % 2 == 0) for name in of_names
        )


def test_communities_are_shared_out_by_nodes() -> None:
    owners = np.repeat([0, 1, 2], [60, 0, 40])
    assert community_bounds(owners, 3, 10).tolist() == [0, 6, 7, 10]
    assert community_bounds(owners[:0], 3, 5).tolist() == [0, 1, 2, 3]
    assert community_bounds(owners[:10], 3, 4).tolist() == [0, 4, 5, 6], "each has one"


def test_an_unfinished_run_goes_on_with_the_same_number_alone(
    tmp_path: Path, before_stage: Any
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    nodes, edges = _tables(_planted()[0], NUM_PLANTED * SIZE)
    how: Any = {"method": "ldg", "progress": False}
    before_stage("sort", interrupt)
    with pytest.raises(KeyboardInterrupt):
        partition_tables(nodes, edges, 2, tmp_path / "parts", communities=8, **how)
    with pytest.raises(ConfigError, match="unfinished run of other tables or settings"):
        partition_tables(nodes, edges, 2, tmp_path / "parts", communities=9, **how)
    partition_tables(nodes, edges, 2, tmp_path / "parts", communities=8, **how)
    _check_nested(*_loaded(tmp_path / "parts", 2, NUM_PLANTED * SIZE))


# --- who sees them --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["mapped", "glt"])
def test_batches_are_the_same_bits_and_keep_attributes_of_users(
    tmp_path: Path, format: Any
) -> None:
    pytest.importorskip("pymetis")
    edges, planted = _planted()
    count = len(planted)
    data = Data(
        x=torch.arange(count).float().view(-1, 1),
        edge_index=torch.tensor(edges),
        community=torch.arange(count) % 7,
    )
    digests = []
    for communities in (None, NUM_PLANTED):
        root = tmp_path / str(communities)
        partition_graph(
            data, 1, root, method="metis", communities=communities, format=format, progress=False
        )
        dataset = DistDataset.load(root, 0)
        has = (N, COMMUNITY) in dataset.view().node_attributes
        assert has == (communities is not None)
        with DistNeighborLoader(dataset, [4, 3], batch_size=300, seed=1, num_workers=0) as loader:
            batches = list(loader)
        assert torch.equal(batches[0].community, batches[0].n_id % 7)
        assert COMMUNITY not in batches[0]
        digests.append([batch_digest(batch) for batch in batches])
        graph = local_graph(
            dataset, RankExchange(None, "a test"), torch.device("cpu"), None, 0
        ).data
        assert torch.equal(graph.community, graph.n_id % 7)
        assert COMMUNITY not in graph
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"communities": 3}, "at least num_partitions=4"),
        ({"communities": 20.0}, "must be an int or None, got 20.0"),
        ({"communities": True}, "must be an int or None"),
        ({"communities": 20, "method": "random"}, "needs .*method=\"metis\": method='random'"),
    ],
)
def test_wrong_numbers_and_methods_are_refused(tmp_path: Path, wrong: Any, message: str) -> None:
    edges, planted = _planted()
    data = Data(num_nodes=len(planted), edge_index=torch.tensor(edges))
    how: Any = {"method": "metis", "progress": False} | wrong
    with pytest.raises(ConfigError, match=message):
        partition_graph(data, 4, tmp_path / "parts", **how)
    with pytest.raises(ConfigError, match=message):
        partition_tables(*_tables(edges, len(planted)), 4, tmp_path / "parts", **how)
    assert not list(tmp_path.iterdir())
