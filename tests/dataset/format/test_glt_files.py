"""Directories in GLT's format: ours and GLT's own, whole and damaged."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import UsageError, partition_graph
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format import view_writer
from gigl_loader.dataset.format.mapped import write_manifest
from gigl_loader.dataset.schema import EdgeDir, message_passing_to_positive_label
from gigl_loader.errors import ConfigError
from tests.dataset.dataset_reference import (
    BUYS,
    REV_BUYS,
    RING,
    SHOP,
    E,
    Graph,
    N,
    as_index,
    check_partitions,
    expected_rows,
    merge,
    ring,
    rows_of,
    written,
)


def _write_with_glt(graph: Graph, root: Path, edge_dir: EdgeDir, caching: bool = False) -> None:
    from graphlearn_torch.partition import RandomPartitioner

    data, whole = graph.to_pyg(), graph.heterogeneous

    def pick(name, types):
        found = {t: getattr(data[t] if whole else data, name).float() for t in types}
        return found if whole else next(iter(found.values()))

    used = {edge_type: pairs for edge_type, pairs in graph.edges.items() if pairs}
    index = {t: as_index(pairs) for t, pairs in used.items()}
    RandomPartitioner(
        str(root),
        2,
        graph.num_nodes if whole else graph.num_nodes[N],
        index if whole else index[E],
        node_feat=pick("x", graph.num_nodes),
        edge_feat=pick("edge_attr", used),
        edge_weights=pick("edge_weight", used),
        edge_assign_strategy="by_dst" if edge_dir == "in" else "by_src",
        chunk_size=3,
    ).partition(graph_caching=caching)


def _check_glt_written(graph: Graph, datasets: list[DistDataset], edge_dir: EdgeDir) -> None:
    for edge_type, pairs in graph.edges.items():
        if not pairs:
            continue
        found = [rows_of(dataset.view().adjacency[edge_type]) for dataset in datasets]
        assert merge(found) == expected_rows(pairs, edge_dir)
    for dataset in datasets:
        view = dataset.view()
        assert dataset.edge_dir == edge_dir
        assert view.num_nodes == graph.num_nodes
        assert not view.node_labels
        for node_type, rows in view.node_features.items():
            owned: Any = dataset.node_ids
            ids = owned[node_type] if graph.heterogeneous else owned
            assert rows.values[rows.locate(ids)][:, 0].tolist() == ids.tolist()
        for edge_type, rows in view.edge_features.items():
            owned = (
                (
                    view.edge_books[edge_type].owner(torch.arange(len(graph.edges[edge_type])))
                    == view.partition_idx
                )
                .nonzero()
                .view(-1)
            )
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
    tmp_path: Path, graph: Graph, edge_dir: EdgeDir, caching: bool
) -> None:
    torch.manual_seed(0)
    _write_with_glt(graph, tmp_path, edge_dir, caching)
    datasets = [DistDataset.load(tmp_path, index) for index in range(2)]
    _check_glt_written(graph, datasets, edge_dir)
    if not caching:
        other: EdgeDir = "out" if edge_dir == "in" else "in"
        with pytest.raises(ConfigError, match=f'try "{edge_dir}"'):
            [DistDataset.load(tmp_path, index, edge_dir=other) for index in range(2)]


@pytest.mark.glt
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edge_ids_that_glt_did_not_save_come_from_the_features(
    tmp_path: Path, edge_dir: EdgeDir
) -> None:
    torch.manual_seed(0)
    _write_with_glt(RING, tmp_path, edge_dir, caching=True)
    assert not list(tmp_path.rglob("eids.pt"))
    datasets = [DistDataset.load(tmp_path, index, edge_dir=edge_dir) for index in range(2)]
    _check_glt_written(RING, datasets, edge_dir)


def test_cached_features_of_others_are_left_where_they_are(tmp_path: Path) -> None:
    written(RING, 2, tmp_path)
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
    written(SHOP, 2, tmp_path)
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
    written(RING, 2, tmp_path)
    with pytest.raises(ConfigError, match=r"partition_idx must be in \[0, 2\)"):
        DistDataset.load(tmp_path, 2)
    with pytest.raises(ConfigError, match='partitioned for edge_dir="in", not "out"'):
        DistDataset.load(tmp_path, 0, edge_dir="out")
    write_manifest(tmp_path / "gigl_loader.json", {"format_version": 9})
    with pytest.raises(ConfigError, match="format version 9, this gigl_loader reads 1 and 3"):
        DistDataset.load(tmp_path, 0)


class _Harmful:
    def __reduce__(self):
        return (print, ("run from a pickle",))


@pytest.mark.parametrize("name", ["META", "part0/node_feat/feats.pkl"])
def test_code_in_a_directory_is_not_run(tmp_path: Path, name: str, capfd) -> None:
    written(RING, 2, tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(_Harmful()))
    with pytest.raises(ConfigError, match="not allowed"):
        DistDataset.load(tmp_path, 0)
    assert "run from" not in capfd.readouterr().out


def test_features_are_written_and_read_in_chunks(tmp_path: Path, constants) -> None:
    constants(view_writer, CHUNK_BYTES=24)  # two rows
    check_partitions(RING, written(RING, 2, tmp_path), "in")
    with (tmp_path / "part0" / "node_feat" / "feats.pkl").open("rb") as file:
        assert pickle.load(file).shape == (2, 3)


@pytest.mark.glt
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("graph", [RING, GLT_SHOP], ids=["homogeneous", "heterogeneous"])
def test_what_glt_loads_can_be_wrapped(tmp_path: Path, graph: Graph, edge_dir: EdgeDir) -> None:
    from graphlearn_torch.distributed import DistDataset as PlainDataset

    written(graph, 2, tmp_path, method="random", edge_dir=edge_dir)
    datasets = []
    for index in range(2):
        theirs = PlainDataset(edge_dir=edge_dir)
        theirs.load(str(tmp_path), index, graph_mode="CPU", feature_with_gpu=False)
        datasets.append(DistDataset.wrap(theirs))
        assert datasets[-1].node_features is theirs.node_features
    _check_glt_written(graph, datasets, edge_dir)


def test_a_root_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    with pytest.raises(ConfigError, match=r"grahps/a' does not exist.*holds \['graphs'\]"):
        DistDataset.load(tmp_path / "grahps" / "a", 0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file, not a directory"):
        DistDataset.load(tmp_path / "file", 0)


def test_a_directory_of_the_first_format_still_loads(tmp_path) -> None:
    partition_graph(ring(), 2, tmp_path / "g", progress=False, format="glt")
    path = tmp_path / "g" / "gigl_loader.json"
    made = {**json.loads(path.read_text()), "format_version": 1}
    later = (
        "checksum",
        "run",
        "node_attributes",
        "edge_attributes",
        "num_classes",
        "flat_nodes",
        "flat_edges",
    )
    path.write_text(json.dumps({key: made[key] for key in made if key not in later}))
    for part in ("part0", "part1"):
        for group in ("node_attributes", "edge_attributes"):
            shutil.rmtree(tmp_path / "g" / part / "gigl_loader" / group)
    dataset = DistDataset.load(tmp_path / "g", 1)
    view = dataset.view()
    assert view.node_features[N].values.shape == (4, 1)
    assert set(view.edge_attributes) == {(E, "edge_weight")}, "it had weights"
    assert not view.node_attributes
    with pytest.raises(UsageError, match=r"partition 1 of 2.*partition_graph"):
        _ = dataset.num_classes


@pytest.mark.parametrize("names", [("edge_weight",), ("weights",), ("edge_weight", "weights")])
def test_weights_are_written_once(tmp_path: Path, names: tuple[str, ...]) -> None:
    ids = torch.arange(8)
    data = Data(x=torch.arange(9.0), edge_index=torch.stack([ids, ids.flip(0)]))
    for number, name in enumerate(names):
        data[name] = ids / 2 + number
    partition_graph(data, 2, tmp_path, format="glt", progress=False)
    # what weights.pt says already is no attribute besides
    written = [
        name
        for path in tmp_path.rglob("edge_attributes/*.pt")
        for name in torch.load(path)["values"]
    ]
    assert sorted(written) == ([] if names == ("edge_weight",) else sorted([*names] * 2))
    for index in range(2):
        view, whole = DistDataset.load(tmp_path, index).view(), DistDataset.from_pyg(data).view()
        edges = view.adjacency[E]
        assert isinstance(edges.weights, torch.Tensor)
        assert edges.edge_ids is not None
        assert edges.weights.tolist() == (edges.edge_ids / 2).tolist()
        assert view.edge_attributes.keys() == whole.edge_attributes.keys()
