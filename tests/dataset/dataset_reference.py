"""Small random graphs, and what their partitions must hold, in plain Python lists and dicts."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.partitioning.partition_graph import partition_graph

N, E = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE
BUYS = ("user", "buys", "item")
REV_BUYS = ("item", "rev_buys", "user")
KNOWS = ("user", "knows", "user")


@dataclass
class Graph:
    """Edge ``i`` of a type has edge id ``i``, features ``[i, i + 0.5]`` and weight ``i / 4``.

    Node ``i`` has features ``[i, -i, 7]`` and labels ``[i, 100 + i]``.
    """

    num_nodes: dict
    edges: dict
    labels: dict = field(default_factory=dict)
    heterogeneous: bool = True

    def to_pyg(self):
        data = HeteroData() if self.heterogeneous else Data()
        for node_type, count in self.num_nodes.items():
            store = data[node_type] if self.heterogeneous else data
            ids = torch.arange(count)
            store.x = torch.stack([ids, -ids, torch.full_like(ids, 7)], 1).float()
            store.y = torch.stack([ids, 100 + ids], 1)
            store.train_mask, store.val_mask = ids % 3 == 0, ids % 3 == 1
            store.test_mask = ids % 3 == 2
        for edge_type, pairs in self.edges.items():
            store = data[edge_type] if self.heterogeneous else data
            store.edge_index = as_index(pairs)
            ids = torch.arange(len(pairs))
            store.edge_attr = torch.stack([ids, ids + 0.5], 1)
            store.edge_weight = ids / 4
        return data

    def supervision(self):
        return {
            edge_type: tuple(None if pairs is None else as_index(pairs) for pairs in both)
            for edge_type, both in self.labels.items()
        } or None


def as_index(pairs):
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


def _pairs(num_src, num_dst, most=25):
    if not num_src or not num_dst:
        return st.just([])
    ids = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    return st.lists(ids, max_size=most)


@st.composite
def homogeneous(draw):
    count = draw(st.integers(1, 12))
    labels = {}
    if draw(st.booleans()):
        negatives = draw(st.none() | _pairs(count, count, 6))
        labels = {E: (draw(_pairs(count, count, 6)), negatives)}
    return Graph({N: count}, {E: draw(_pairs(count, count))}, labels, heterogeneous=False)


@st.composite
def heterogeneous(draw):
    users, items = draw(st.integers(0, 8)), draw(st.integers(1, 8))
    edges = {
        BUYS: draw(_pairs(users, items)),
        REV_BUYS: draw(_pairs(items, users)),
        KNOWS: draw(_pairs(users, users)),
    }
    labels = {}
    if draw(st.booleans()):
        labels = {BUYS: (draw(_pairs(users, items, 6)), draw(_pairs(users, items, 6)))}
    return Graph({"user": users, "item": items}, edges, labels)


def graphs():
    return homogeneous() | heterogeneous()


RING = Graph({N: 8}, {E: [(i, (i + 1) % 8) for i in range(8)] + [(3, 3), (0, 1)]}, {}, False)
SHOP = Graph(
    {"user": 5, "item": 4},
    {BUYS: [(0, 1), (4, 3), (2, 0), (0, 1)], REV_BUYS: [(1, 0), (3, 4)], KNOWS: []},
    {BUYS: ([(2, 1), (0, 3), (4, 0)], [(0, 0)])},
)
SMALL = Graph(
    {"user": 3, "item": 4},
    {BUYS: [(0, 1), (2, 3), (2, 0), (0, 1)], REV_BUYS: [(1, 0)], KNOWS: []},
    {BUYS: ([(2, 1), (0, 3)], [(0, 0)])},
)


def ring(size: int = 8) -> Data:
    """Return a ring with an attribute of each kind, whose values follow from the ids."""
    ids = torch.arange(size)
    data = Data(x=ids.float(), edge_index=torch.stack([ids, (ids + 1) % size]), y=ids % 4)
    data.edge_attr = -ids
    data.edge_weight = ids / 2
    data.edge_time = ids.to(torch.int16)
    data.time = ids * 10
    data.train_mask = ids < 3
    return data


def write(graph: Graph, root: Path, count: int = 2, **options) -> Path:
    """Write a graph as partitions at ``root``, in place of what is there; return ``root``."""
    options = {"progress": False, "overwrite": True, **options}
    partition_graph(graph.to_pyg(), count, root, supervision=graph.supervision(), **options)
    return root


def arrays(root: Path) -> list[Path]:
    """Return the files of arrays in a directory that hold anything."""
    return sorted(path for path in root.rglob("*.bin") if path.stat().st_size)


def written(graph: Graph, count: int, root: Path, **options) -> list[DistDataset]:
    """Return the partitions of a graph as they are loaded; in GLT's format if not told else."""
    write(graph, root, count, **{"format": "glt", **options})
    return [DistDataset.load(root, index) for index in range(count)]


# --- what must hold -------------------------------------------------------------------------------


def rows_of(adjacency):
    """Return ``{row: [(neighbour, edge id, weight)]}``."""
    ptr, found = adjacency.indptr.tolist(), {}
    for row in range(len(ptr) - 1):
        found[row + adjacency.first_row] = [
            (
                int(adjacency.indices[i]),
                None if adjacency.edge_ids is None else int(adjacency.edge_ids[i]),
                None if adjacency.weights is None else float(adjacency.weights[i]),
            )
            for i in range(ptr[row], ptr[row + 1])
        ]
    return {row: entries for row, entries in found.items() if entries}


def expected_rows(pairs, edge_dir):
    found: dict[int, list] = {}
    for edge_id, (src, dst) in enumerate(pairs):
        row, neighbour = (dst, src) if edge_dir == "in" else (src, dst)
        found.setdefault(row, []).append((neighbour, edge_id, edge_id / 4))
    return {row: sorted(entries) for row, entries in found.items()}


def expected_labels(pairs):
    found: dict[int, list] = {}
    for anchor, label in pairs:
        found.setdefault(anchor, []).append((label, None, None))
    return {row: sorted(entries) for row, entries in found.items()}


def merge(parts):
    """Join dicts by row; a row in two of them means an edge was stored twice."""
    found: dict[int, list] = {}
    for part in parts:
        assert not found.keys() & part.keys()
        found |= part
    return found


def by_type(value, default=N):
    if value is None:
        return {}
    return value if isinstance(value, dict) else {default: value}


def check_partitions(graph: Graph, datasets: list[DistDataset], edge_dir: EdgeDir) -> None:
    """Check that ``datasets`` are all partitions of ``graph``, and each value in its place."""
    views = [dataset.view() for dataset in datasets]
    for index, (dataset, view) in enumerate(zip(datasets, views, strict=True)):
        assert (view.partition_idx, view.num_partitions) == (index, len(datasets))
        assert dataset.edge_dir == view.edge_dir == dataset.schema.edge_dir == edge_dir
        assert view.num_nodes == graph.num_nodes
        assert view.is_heterogeneous == graph.heterogeneous
    for edge_type, pairs in graph.edges.items():
        rows = merge([rows_of(view.adjacency[edge_type]) for view in views])
        assert rows == expected_rows(pairs, edge_dir), edge_type
    for edge_type, (positives, negatives) in graph.labels.items():
        for label_type, pairs in (
            (message_passing_to_positive_label(edge_type), positives),
            (message_passing_to_negative_label(edge_type), negatives),
        ):
            if pairs is None:
                assert all(label_type not in view.adjacency for view in views)
                continue
            rows = merge([rows_of(view.adjacency[label_type]) for view in views])
            assert rows == expected_labels(pairs), label_type
    for dataset in datasets:
        _check_rows(graph, dataset, edge_dir)
    _check_ids(graph, datasets)


def _check_rows(graph, dataset, edge_dir):
    view = dataset.view()
    for node_type, owned in by_type(dataset.node_ids).items():
        assert all(
            edge_type[0 if edge_dir == "out" else 2] != node_type
            or set(rows_of(adjacency)) <= set(owned.tolist())
            for edge_type, adjacency in view.adjacency.items()
            if edge_type in graph.edges
        )
        features, labels = view.node_features[node_type], view.node_labels[node_type]
        assert features.values[features.locate(owned)].tolist() == [[i, -i, 7] for i in owned]
        assert labels.values[labels.locate(owned)].tolist() == [[i, 100 + i] for i in owned]
    for edge_type in graph.edges:
        ids = view.adjacency[edge_type].edge_ids
        rows = view.edge_features[edge_type]
        assert rows.values[rows.locate(ids)].tolist() == [[i, i + 0.5] for i in ids.tolist()]
        if edge_type in view.edge_books:
            owners = view.edge_books[edge_type].owner(ids)
            assert owners.tolist() == [view.partition_idx] * ids.numel()


def _check_ids(graph, datasets):
    for node_type, count in graph.num_nodes.items():
        owned = [by_type(dataset.node_ids)[node_type] for dataset in datasets]
        assert sorted(torch.cat(owned).tolist()) == list(range(count))
        for remainder, split in enumerate(("train", "val", "test")):
            for dataset, ids in zip(datasets, owned, strict=True):
                found = by_type(dataset.split_node_ids(split))[node_type]
                assert found.tolist() == [i for i in ids.tolist() if i % 3 == remainder]
        for dataset, ids in zip(datasets, owned, strict=True):
            books = dataset.view().node_books
            if node_type in books:
                assert books[node_type].owner(ids).tolist() == [dataset.partition_idx] * len(ids)
