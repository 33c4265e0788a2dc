"""Random graphs as tables, and what must come of them: read by hand, without the package."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from hypothesis import strategies as st

from gigl_loader.dataset.schema import EdgeDir, message_passing_to_positive_label
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")


@dataclass
class Tables:
    """A graph of users and items. Ids are text for users and large integers for items."""

    users: list[str]
    items: list[int]
    edges: dict[tuple, list[tuple[Any, Any]]]
    labels: list[tuple[Any, Any]]
    seed: int = 0
    features: dict[Any, list[float]] = field(default_factory=dict)

    def ids(self, node_type: str) -> list[Any]:
        return self.users if node_type == "user" else self.items

    def row(self, node_type: str, one: Any) -> int:
        return self.ids(node_type).index(one)

    def weight(self, edge_type: tuple, row: int) -> float:
        return ((row * 7 + len(edge_type[1])) % 5) / 2

    def write(self, folder: Path, files: int) -> tuple[dict, dict]:
        """Write Parquet (the items: CSV) in several files; return what `partition_tables` takes."""
        nodes = {
            "user": NodeTable(
                self._write(folder / "user", files, self._users()),
                id="name",
                features="x",
                label=["y", "z"],
                split="part",
                time="y",
            ),
            "item": NodeTable(
                self._write(folder / "item", files, self._items(), csv=True),
                features=["a", "b"],
                label="a",
            ),
        }
        edges: dict[tuple, Any] = {}
        for edge_type, pairs in self.edges.items():
            where = self._write(folder / edge_type[1], files, self._pairs(edge_type, pairs))
            extra: dict[str, Any] = (
                {"weight": "w", "features": "f", "time": "t"} if edge_type == BUYS else {}
            )
            edges[edge_type] = [EdgeTable(where, src="from", dst="to", **extra)]
        where = self._write(folder / "labels", files, self._pairs(BUYS, self.labels))
        edges[BUYS].append(EdgeTable(where, src="from", dst="to", supervision="positive"))
        return nodes, edges

    def _users(self) -> pa.Table:
        count = len(self.users)
        splits = [("train", "valid", "test", None)[i % 4] for i in range(count)]
        x = pa.array([[i, -i, 0.5] for i in range(count)], pa.list_(pa.float32()))
        return pa.table(
            {
                "name": pa.array(self.users, pa.string()),
                "x": x,
                "part": pa.array(splits, pa.string()),
                "y": pa.array(range(count), pa.int32()),
                "z": pa.array([7] * count, pa.int16()),
            }
        )

    def _items(self) -> pa.Table:
        count = len(self.items)
        return pa.table(
            {
                "id": pa.array(self.items, pa.int64()),
                "a": pa.array(range(count), pa.int64()),
                "b": pa.array([i / 2 + 0.25 for i in range(count)], pa.float64()),
            }
        )

    def _pairs(self, edge_type: tuple, pairs: list[tuple[Any, Any]]) -> pa.Table:
        kinds = [pa.string() if t == "user" else pa.int64() for t in (edge_type[0], edge_type[2])]
        rows = range(len(pairs))
        weights = pa.array([self.weight(edge_type, i) for i in rows], pa.float64())
        return pa.table(
            {
                "from": pa.array([p[0] for p in pairs], kinds[0]),
                "w": weights,
                "to": pa.array([p[1] for p in pairs], kinds[1]),
                "t": pa.array([10**15 + i for i in rows], pa.timestamp("ns")),
                "f": pa.array([[i, i + 0.5] for i in rows], pa.list_(pa.float64(), 2)),
            }
        )

    def _write(self, folder: Path, files: int, table: pa.Table, csv: bool = False) -> str:
        folder.mkdir(parents=True)
        size = -(-table.num_rows // files) if table.num_rows else 1
        for i in range(max(1, min(files, -(-table.num_rows // size)))):
            part = table.slice(i * size, size)
            if csv and table.num_rows:  # of an empty CSV no types can be told
                pyarrow.csv.write_csv(part, folder / f"{i}.csv")
            else:
                pq.write_table(part, folder / f"{i}.parquet", row_group_size=2)
        return str(folder)


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    """Draw a graph, with repeated edges, loops and nodes without edges."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    users = [f"u{i}é" for i in rng.sample(range(1000), draw(st.integers(1, 9)))]
    items = [rng.getrandbits(64) - 2**63 for _ in range(draw(st.integers(1, 6)))]

    def pairs(left: list, right: list, most: int) -> list:
        return [(rng.choice(left), rng.choice(right)) for _ in range(draw(st.integers(0, most)))]

    edges = {BUYS: pairs(users, items, 20), KNOWS: pairs(users, users, 12)}
    return Tables(users, items, edges, pairs(users, items, 5))


def check(graph: Tables, datasets: list, edge_dir: EdgeDir, order: str = "ids") -> None:
    """Check that ``datasets`` are all partitions of ``graph``, each value in its place."""
    names: dict[str, dict[int, Any]] = {}
    for node_type in ("user", "item"):
        found: dict[int, Any] = {}
        for dataset in datasets:
            owned = dataset.node_ids[node_type]
            found.update(zip(owned.tolist(), dataset.to_original(owned, node_type), strict=True))
        assert sorted(found) == list(range(len(graph.ids(node_type))))
        assert sorted(found.values()) == sorted(graph.ids(node_type))
        back = datasets[0].from_original(graph.ids(node_type), node_type)
        assert [found[i] for i in back.tolist()] == graph.ids(node_type)
        names[node_type] = found
    for edge_type, pairs in graph.edges.items():
        _check_edges(graph, datasets, names, edge_type, pairs, edge_dir)
    label = message_passing_to_positive_label(BUYS)
    positives = [
        (names["user"][a], names["item"][b])
        for dataset in datasets
        for a, b in dataset.label_edges[label].t().tolist()
    ]
    assert sorted(positives) == sorted(graph.labels)
    for dataset in datasets:
        assert dataset.num_classes == {"user": 2, "item": len(graph.items)}
        _check_nodes(graph, dataset, names)
        if order == "degree":
            _check_order(graph, dataset, names, edge_dir)


def _check_edges(graph, datasets, names, edge_type, pairs, edge_dir) -> None:
    src, _, dst = edge_type
    found, edge_ids = [], []
    for dataset in datasets:
        view = dataset.view()
        adjacency = view.adjacency[edge_type]
        row_type, other = (dst, src) if edge_dir == "in" else (src, dst)
        pointer = adjacency.indptr.tolist()
        owned = set(dataset.node_ids[row_type].tolist())
        for row in range(len(pointer) - 1):
            node = row + adjacency.first_row
            assert node in owned
            neighbors = adjacency.indices[pointer[row] : pointer[row + 1]].tolist()
            assert neighbors == sorted(neighbors)
            for position, neighbor in enumerate(neighbors, pointer[row]):
                ends = names[row_type][node], names[other][neighbor]
                edge_id = adjacency.first_edge + position
                edge_ids.append(edge_id)
                extra = ()
                if edge_type == BUYS:
                    rows = view.edge_features[edge_type]
                    feature = rows.values[edge_id - rows.first].tolist()
                    weight = view.edge_attributes[edge_type, "edge_weight"]
                    assert weight.values[position] == adjacency.weights[position]
                    time = view.edge_attributes[edge_type, "time"]
                    assert time.values[edge_id - time.first] == 10**15 + feature[0]
                    extra = (float(adjacency.weights[position]), *feature)
                found.append((*(ends[::-1] if edge_dir == "in" else ends), *extra))
        if len(datasets) > 1:
            book = view.edge_books[edge_type]
            assert book.num_ids == len(pairs)
    expected = [
        (*pair, graph.weight(edge_type, i), float(i), i + 0.5) if edge_type == BUYS else pair
        for i, pair in enumerate(pairs)
    ]
    assert sorted(found) == sorted(expected)
    assert edge_ids == list(range(len(pairs)))


def _check_nodes(graph, dataset, names) -> None:
    view = dataset.view()
    for node_type, owned in dataset.node_ids.items():
        features, labels = view.node_features[node_type], view.node_labels[node_type]
        rows = [graph.row(node_type, names[node_type][i]) for i in owned.tolist()]
        found = features.values[features.locate(owned)].tolist()
        known = labels.values[labels.locate(owned)].tolist()
        if node_type == "user":
            assert found == [[row, -row, 0.5] for row in rows]
            assert known == [[row, 7] for row in rows]
            times = view.node_attributes["user", "time"]
            assert times.values[times.locate(owned)].tolist() == rows
            for remainder, split in enumerate(("train", "val", "test")):
                ids = dataset.split_node_ids(split)["user"].tolist()
                wanted = [
                    i for i, row in zip(owned.tolist(), rows, strict=True) if row % 4 == remainder
                ]
                assert ids == wanted
        else:
            assert found == [[row, row / 2 + 0.25] for row in rows]
            assert known == rows


def _check_order(graph, dataset, names, edge_dir) -> None:
    """Check that the rows of nodes with more edges that lead to them come first, then lower ids."""
    for node_type, owned in dataset.node_ids.items():
        rows = dataset.view().node_features[node_type]
        degrees: dict[Any, int] = {}
        end = 0 if edge_dir == "in" else 2
        for edge_type, pairs in graph.edges.items():
            for pair in pairs if edge_type[end] == node_type else []:
                name = pair[end // 2]
                degrees[name] = degrees.get(name, 0) + 1
        wanted = sorted(owned.tolist(), key=lambda i: (-degrees.get(names[node_type][i], 0), i))
        assert [wanted[position] for position in rows.locate(owned).tolist()] == owned.tolist()
        assert rows.index.numel() == owned.numel()
