import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from dataset_reference import (
    BUYS,
    KNOWS,
    REV_BUYS,
    E,
    Graph,
    N,
    as_index,
    check_partitions,
    expected_rows,
    graphs,
    merge,
    rows_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader import _glt
from gigl_loader.dataset import _disk, partition
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.partition import partition_graph
from gigl_loader.dataset.schema import message_passing_to_positive_label
from gigl_loader.errors import ConfigError

RING = Graph({N: 8}, {E: [(i, (i + 1) % 8) for i in range(8)] + [(3, 3), (0, 1)]}, {}, False)
SHOP = Graph(
    {"user": 5, "item": 4},
    {BUYS: [(0, 1), (4, 3), (2, 0), (0, 1)], REV_BUYS: [(1, 0), (3, 4)], KNOWS: []},
    {BUYS: ([(2, 1), (0, 3), (4, 0)], [(0, 0)])},
)


def _partition(graph: Graph, count: int, root: Path, **options) -> list[DistDataset]:
    options = {"progress": False, "format": "glt", "overwrite": True, **options}
    partition_graph(graph.to_pyg(), count, root, supervision=graph.supervision(), **options)
    return [DistDataset.load(root, index) for index in range(count)]


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    graphs(), st.integers(1, 4), st.sampled_from(["contiguous", "random", "metis"]),
    st.sampled_from(["in", "out"]),
)  # fmt: skip
def test_partitions_on_disk_unite_to_the_graph(
    tmp_path: Path, graph: Graph, count: int, method: str, edge_dir: str
) -> None:
    root = tmp_path / "graph"  # the run before left one there, to be replaced
    for format in ("glt", "mapped"):
        datasets = _partition(
            graph, count, root, method=method, edge_dir=edge_dir, seed=3, format=format
        )
        check_partitions(graph, datasets, edge_dir)
    mapped = [DistDataset.load(root, i, memory="mapped", verify="now") for i in range(count)]
    check_partitions(graph, mapped, edge_dir)
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


@pytest.mark.glt
@pytest.mark.parametrize("graph", [RING, SHOP], ids=["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_glt_reads_what_we_write(tmp_path: Path, graph: Graph, edge_dir: str) -> None:
    _partition(graph, 2, tmp_path, method="random", edge_dir=edge_dir)
    data, edge_rows = graph.to_pyg(), {edge_type: [] for edge_type in graph.edges}
    for index in range(2):
        count, _, edges, nodes, edge_feats, node_pb, edge_pb = _glt.load_partition(
            str(tmp_path), index
        )
        assert count == 2
        for edge_type in graph.edges:
            key = edge_type if graph.heterogeneous else None
            part = edges[key] if key else edges
            feats = edge_feats[key] if key else edge_feats
            assert (feats.ids == part.eids).all()
            assert feats.feats[:, 0].tolist() == part.eids.tolist()
            assert ((edge_pb[key] if key else edge_pb)[part.eids] == index).all()
            edge_rows[edge_type] += zip(
                part.eids.tolist(), part.edge_index[0].tolist(), part.edge_index[1].tolist(),
                strict=True,
            )  # fmt: skip
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


def _write_with_glt(graph: Graph, root: Path, edge_dir: str, caching: bool = False) -> None:
    data, whole = graph.to_pyg(), graph.heterogeneous

    def pick(name, types):
        found = {t: getattr(data[t] if whole else data, name).float() for t in types}
        return found if whole else next(iter(found.values()))

    used = {edge_type: pairs for edge_type, pairs in graph.edges.items() if pairs}
    index = {t: as_index(pairs) for t, pairs in used.items()}
    _glt.RandomPartitioner(
        str(root), 2, graph.num_nodes if whole else graph.num_nodes[N],
        index if whole else index[E],
        node_feat=pick("x", graph.num_nodes), edge_feat=pick("edge_attr", used),
        edge_weights=pick("edge_weight", used),
        edge_assign_strategy="by_dst" if edge_dir == "in" else "by_src", chunk_size=3,
    ).partition(graph_caching=caching)  # fmt: skip


def _check_glt_written(graph: Graph, datasets: list[DistDataset], edge_dir: str) -> None:
    for edge_type, pairs in graph.edges.items():
        if not pairs:
            continue
        rows = [rows_of(dataset.view().adjacency[edge_type]) for dataset in datasets]
        assert merge(rows) == expected_rows(pairs, edge_dir)
    for dataset in datasets:
        view = dataset.view()
        assert dataset.edge_dir == edge_dir
        assert view.num_nodes == graph.num_nodes
        assert not view.node_labels
        for node_type, rows in view.node_features.items():
            ids = dataset.node_ids[node_type] if graph.heterogeneous else dataset.node_ids
            assert rows.values[rows.locate(ids)][:, 0].tolist() == ids.tolist()
        for edge_type, rows in view.edge_features.items():
            owned = (view.edge_books[edge_type].owner(torch.arange(len(graph.edges[edge_type])))
                     == view.partition_idx).nonzero().view(-1)  # fmt: skip
            assert rows.values[rows.locate(owned)][:, 0].tolist() == owned.tolist()


GLT_SHOP = Graph(
    {"user": 6, "item": 5},
    {BUYS: [(0, 1), (4, 3), (2, 0), (0, 1), (1, 2), (3, 4)], REV_BUYS: [(1, 0), (3, 4), (0, 2)]},
)


@pytest.mark.glt
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(
    ("graph", "caching"),
    [(RING, False), (GLT_SHOP, False), (GLT_SHOP, True)],
    ids=["homogeneous", "heterogeneous", "cached"],
)
def test_we_read_what_glt_writes(
    tmp_path: Path, graph: Graph, edge_dir: str, caching: bool
) -> None:
    torch.manual_seed(0)
    _write_with_glt(graph, tmp_path, edge_dir, caching)
    datasets = [DistDataset.load(tmp_path, index) for index in range(2)]
    _check_glt_written(graph, datasets, edge_dir)
    if not caching:
        other = "out" if edge_dir == "in" else "in"
        with pytest.raises(ConfigError, match=f'try "{edge_dir}"'):
            [DistDataset.load(tmp_path, index, edge_dir=other) for index in range(2)]


@pytest.mark.glt
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edge_ids_that_glt_did_not_save_come_from_the_features(
    tmp_path: Path, edge_dir: str
) -> None:
    torch.manual_seed(0)
    _write_with_glt(RING, tmp_path, edge_dir, caching=True)
    assert not list(tmp_path.rglob("eids.pt"))
    datasets = [DistDataset.load(tmp_path, index, edge_dir=edge_dir) for index in range(2)]
    _check_glt_written(RING, datasets, edge_dir)


def test_cached_features_of_others_are_left_where_they_are(tmp_path: Path) -> None:
    _partition(RING, 2, tmp_path)
    folder = tmp_path / "part0" / "node_feat"
    torch.save(torch.full((1, 3), -5.0), folder / "cache_feats.pt")
    torch.save(torch.tensor([7]), folder / "cache_ids.pt")
    check_partitions(RING, [DistDataset.load(tmp_path, index) for index in range(2)], "in")


@pytest.mark.glt
def test_labels_of_all_nodes_in_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    _write_with_glt(RING, tmp_path / "graph", "in")
    torch.save(torch.arange(8) * 2, tmp_path / "labels.pt")
    dataset = DistDataset.load(
        tmp_path / "graph", 1, whole_node_label_file=str(tmp_path / "labels.pt")
    )
    assert dataset.node_labels.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert dataset.view().node_labels[N].whole
    torch.save(torch.arange(3), tmp_path / "labels.pt")
    with pytest.raises(ConfigError, match="for 8 nodes"):
        DistDataset.load(tmp_path / "graph", 1, whole_node_label_file=tmp_path / "labels.pt")


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
        _partition(SHOP, 3, tmp_path / name, method=method, seed=seed)
        books.append(torch.load(tmp_path / name / "node_pb" / "user.pt"))
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    assert method == "metis" or (books[0].tolist() == books[2].tolist()) == (method != "random")


def test_contiguous_partitions_are_found_by_ranges(tmp_path: Path) -> None:
    dataset = _partition(RING, 3, tmp_path)[1]
    assert dataset.view().node_books[N].bounds.tolist() == [3, 6, 8]
    assert dataset.node_ids.tolist() == [3, 4, 5]


def test_metis_keeps_neighbours_together(tmp_path: Path) -> None:
    pairs = [(a, b) for a in range(20) for b in range(20) if a % 2 == b % 2]
    graph = Graph({N: 20}, {E: pairs}, {}, False)
    owned = _partition(graph, 2, tmp_path, method="metis")[0].node_ids
    assert owned.numel() == 10
    assert len(set((owned % 2).tolist())) == 1


def test_metis_that_is_not_installed_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ConfigError, match=r"gigl_loader\[metis\]"):
        _partition(RING, 2, tmp_path / "graph", method="metis")
    assert not (tmp_path / "graph").exists()


def test_progress_by_bar_or_by_log(tmp_path, monkeypatch, capfd, caplog) -> None:
    partition_graph(RING.to_pyg(), 2, tmp_path / "a")
    assert "100%" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with caplog.at_level("INFO", logger="gigl_loader"):
        partition_graph(RING.to_pyg(), 2, tmp_path / "b")
    assert "partition_graph: writing partition 1" in caplog.text


# --- bad input and failures -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_partitions": 0}, "at least 1"),
        ({"num_partitions": 2.0}, "must be an int"),
        ({"method": "hash"}, "contiguous, random, metis, got 'hash'"),
        ({"edge_dir": "both"}, "edge_dir"),
        ({"seed": -1}, "seed"),
        ({"data": Data(x=torch.ones(2, 1))}, "edge_index"),
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
        _partition(graph, 2, tmp_path / "graph")


def test_other_peoples_files_are_safe(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        _partition(RING, 2, tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        _partition(RING, 2, tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_that_fails_leaves_the_old_directory(tmp_path: Path, monkeypatch) -> None:
    _partition(RING, 2, tmp_path / "graph")
    before = _files(tmp_path / "graph")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(partition, "write_partition", fail)
    for name in ("graph", "new"):
        with pytest.raises(OSError, match="disk full"):
            _partition(SHOP, 2, tmp_path / name)
    assert _files(tmp_path / "graph") == before
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_directory_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch
) -> None:
    _partition(RING, 2, tmp_path / "graph")
    before, rename = _files(tmp_path / "graph"), os.rename

    def interrupted(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(partition.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _partition(RING, 3, tmp_path / "graph")
    assert _files(tmp_path / "graph") == before
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


SHOP_FILES = [
    "META",
    "node_pb/user.pt",
    "part1/graph/user__buys__item/rows.pt",
    "part1/graph/user__buys__item/eids.pt",
    "part1/node_feat/item/ids.pkl",
    "part1/node_feat/item/feats.pkl",
    "part1/edge_feat/user__buys__item/feats.pkl",
    "part1/gigl_loader/node_labels/user.pt",
    "part1/gigl_loader/splits/train/item.pt",
    f"part1/gigl_loader/label_edges/{'__'.join(message_passing_to_positive_label(BUYS))}.pt",
]


@pytest.mark.parametrize("name", SHOP_FILES)
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    _partition(SHOP, 2, tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=f"{Path(name).name} is damaged"):
        DistDataset.load(tmp_path, 1)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"{Path(name).name} is missing"):
        DistDataset.load(tmp_path, 1)


def test_load_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="META is missing"):
        DistDataset.load(tmp_path, 0)
    _partition(RING, 2, tmp_path)
    with pytest.raises(ConfigError, match=r"partition_idx must be in \[0, 2\)"):
        DistDataset.load(tmp_path, 2)
    with pytest.raises(ConfigError, match='partitioned for edge_dir="in", not "out"'):
        DistDataset.load(tmp_path, 0, edge_dir="out")
    extras = tmp_path / _disk.EXTRAS_FILE
    extras.write_text(extras.read_text().replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(ConfigError, match="format version 9"):
        DistDataset.load(tmp_path, 0)


class _Harmful:
    def __reduce__(self):
        return (print, ("run from a pickle",))


@pytest.mark.parametrize("name", ["META", "part0/node_feat/feats.pkl"])
def test_code_in_a_directory_is_not_run(tmp_path: Path, name: str, capfd) -> None:
    _partition(RING, 2, tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(_Harmful()))
    with pytest.raises(ConfigError, match="not allowed"):
        DistDataset.load(tmp_path, 0)
    assert "run from" not in capfd.readouterr().out


def test_features_are_written_and_read_in_chunks(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_disk, "CHUNK_BYTES", 24)  # two rows
    check_partitions(RING, _partition(RING, 2, tmp_path), "in")
    with (tmp_path / "part0" / "node_feat" / "feats.pkl").open("rb") as file:
        assert pickle.load(file).shape == (2, 3)


@pytest.mark.glt
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("graph", [RING, GLT_SHOP], ids=["homogeneous", "heterogeneous"])
def test_what_glt_loads_can_be_wrapped(tmp_path: Path, graph: Graph, edge_dir: str) -> None:
    _partition(graph, 2, tmp_path, method="random", edge_dir=edge_dir)
    datasets = []
    for index in range(2):
        theirs = _glt.DistDataset(edge_dir=edge_dir)
        theirs.load(str(tmp_path), index, graph_mode="CPU", feature_with_gpu=False)
        datasets.append(DistDataset.wrap(theirs))
        assert datasets[-1].node_features is theirs.node_features
    _check_glt_written(graph, datasets, edge_dir)


def test_features_that_glt_finds_by_offset_can_be_wrapped(tmp_path: Path) -> None:
    book = _glt.RangePartitionBook([(0, 3), (3, 5)], 1)
    theirs = _glt.DistDataset(2, 1, edge_dir="out", node_pb=book)
    topology = _glt.Topology(
        (torch.tensor([0, 0, 0, 0, 1, 2]), torch.tensor([0, 4])), torch.tensor([0, 1]),
        input_layout="CSR", layout="CSR",
    )  # fmt: skip
    theirs.graph = _glt.Graph(topology, "CPU")
    theirs.init_node_features(torch.tensor([[3.0], [4.0]]), id2idx=book.id2index, with_gpu=False)
    ours = DistDataset.wrap(theirs)
    rows = ours.view().node_features[N]
    assert rows.values[rows.locate(torch.tensor([4, 3]))].tolist() == [[4.0], [3.0]]
    assert ours.node_ids.tolist() == [3, 4]
