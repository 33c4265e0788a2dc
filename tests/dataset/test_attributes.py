"""GLT's attributes of our datasets, and GLT's datasets as ours."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.glt_attributes import ComputedOnUse, NotComputed
from gigl_loader.dataset.schema import EdgeDir, glt_edge_type, message_passing_to_positive_label
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.testing import wait_until
from tests.dataset.dataset_reference import (
    BUYS,
    KNOWS,
    REV_BUYS,
    RING,
    SHOP,
    SMALL,
    E,
    Graph,
    N,
    expected_rows,
    rows_of,
    write,
)
from tests.support import glt


def test_what_glt_users_read_is_the_same_memory() -> None:
    dataset = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    view, graph = dataset.view(), dataset.get_graph(BUYS)
    assert isinstance(dataset, glt.DistDataset)
    assert graph.topo.indices.data_ptr() == view.adjacency[BUYS].indices.data_ptr()
    edge_ids = view.adjacency[BUYS].edge_ids
    assert edge_ids is not None
    assert graph.topo.edge_ids.data_ptr() == edge_ids.data_ptr()
    features = dataset.get_node_feature("item")
    assert features.feature_tensor.data_ptr() == view.node_features["item"].values.data_ptr()
    assert features[torch.tensor([3, 1])].tolist() == [[3, -3, 7], [1, -1, 7]]
    assert sorted(dataset.get_node_types()) == ["item", "user"]
    assert dataset.node_pb["item"][torch.tensor([3])].tolist() == [0]
    assert dataset.get_node_label("user").tolist() == [[0, 100], [1, 101], [2, 102]]
    assert view is dataset.view()


def test_glt_attributes_of_a_partition() -> None:
    dataset = DistDataset.from_pyg(
        Graph({N: 4}, {E: [(0, 1), (3, 2)]}, {}, False).to_pyg(),
        partition_book=torch.tensor([0, 1, 0, 1]),
        partition_idx=1,
    )
    assert dataset.id_filter(dataset.node_pb, 1).tolist() == [1, 3]
    assert dataset.node_features[torch.tensor([3])].tolist() == [[3, -3, 7]]
    assert dataset.node_labels[torch.tensor([3])].tolist() == [[3, 103]]
    assert dataset.edge_features[torch.tensor([0])].tolist() == [[0, 0.5]]
    assert dataset.edge_pb[torch.tensor([0, 1])].tolist() == [1, 0]


def _glt_dataset(graph: Graph, edge_dir: EdgeDir):
    data = graph.to_pyg()
    dataset = glt.DistDataset(1, 0, edge_dir=edge_dir)

    def pick(name, types):
        found = {t: getattr(data[t] if graph.heterogeneous else data, name) for t in types}
        return found if graph.heterogeneous else next(iter(found.values()))

    index = pick("edge_index", graph.edges)
    dataset.init_graph(
        index, edge_weights=pick("edge_weight", graph.edges), layout="COO", graph_mode="CPU"
    )
    dataset.init_node_features(pick("x", graph.num_nodes), with_gpu=False)
    dataset.init_edge_features(pick("edge_attr", graph.edges), with_gpu=False)
    dataset.init_node_labels(pick("y", graph.num_nodes))
    return dataset


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("heterogeneous", [False, True])
def test_a_plain_glt_dataset_is_wrapped_not_copied(edge_dir: EdgeDir, heterogeneous: bool) -> None:
    pairs = [(0, 1), (2, 1), (1, 2), (0, 1), (2, 2)]
    graph = Graph({N: 3}, {E: pairs}, {}, False)
    if heterogeneous:
        graph = Graph({"user": 3, "item": 3}, {BUYS: pairs, REV_BUYS: [(2, 0)]})
    theirs = _glt_dataset(graph, edge_dir)
    ours = DistDataset.wrap(theirs)
    edge_type = BUYS if heterogeneous else E
    assert ours.graph is theirs.graph
    assert ours.view().is_heterogeneous == heterogeneous
    adjacency = ours.view().adjacency[edge_type]
    assert rows_of(adjacency) == expected_rows(pairs, edge_dir)
    topology = theirs.get_graph(edge_type).topo
    assert adjacency.indices.data_ptr() == topology.indices.data_ptr()
    node_type = "item" if heterogeneous else N
    features = theirs.get_node_feature(node_type).feature_tensor
    assert ours.view().node_features[node_type].values.data_ptr() == features.data_ptr()
    assert ours.view().node_labels[node_type].values.tolist() == [[i, 100 + i] for i in range(3)]
    assert DistDataset.wrap(ours) is ours


def test_wrap_sorts_what_is_out_of_order(caplog: pytest.LogCaptureFixture) -> None:
    theirs = glt.DistDataset(1, 0, edge_dir="out")
    topology = glt.Topology(
        (torch.tensor([0, 3, 3, 4]), torch.tensor([2, 0, 0, 1])),
        torch.tensor([0, 3, 1, 2]),
        input_layout="CSR",
        layout="CSR",
    )
    theirs.graph = glt.Graph(topology, "CPU")
    theirs.node_pb = torch.zeros(3, dtype=torch.int64)
    with caplog.at_level("INFO", logger="gigl_loader"):
        ours = DistDataset.wrap(theirs)
    assert "sorting a copy" in caplog.text
    assert rows_of(ours.view().adjacency[E]) == {
        0: [(0, 1, None), (0, 3, None), (2, 0, None)],
        2: [(1, 2, None)],
    }


def test_wrap_refuses() -> None:
    with pytest.raises(ConfigError, match="has no graph"):
        DistDataset.wrap(glt.DistDataset(1, 0))
    with pytest.raises(WrongTypeError, match="got dict"):
        DistDataset.wrap({})


def test_features_that_glt_finds_by_offset_can_be_wrapped(tmp_path: Path) -> None:
    book = glt.RangePartitionBook([(0, 3), (3, 5)], 1)
    theirs = glt.DistDataset(2, 1, edge_dir="out")
    theirs.node_pb = book
    topology = glt.Topology(
        (torch.tensor([0, 0, 0, 0, 1, 2]), torch.tensor([0, 4])),
        torch.tensor([0, 1]),
        input_layout="CSR",
        layout="CSR",
    )
    theirs.graph = glt.Graph(topology, "CPU")
    theirs.init_node_features(torch.tensor([[3.0], [4.0]]), id2idx=book.id2index, with_gpu=False)
    ours: Any = DistDataset.wrap(theirs)
    rows = ours.view().node_features[N]
    assert rows.values[rows.locate(torch.tensor([4, 3]))].tolist() == [[4.0], [3.0]]
    assert ours.node_ids.tolist() == [3, 4]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("graph", [RING, SHOP], ids=["homogeneous", "heterogeneous"])
def test_what_glt_code_reads_is_there_by_global_id(
    tmp_path: Path, graph: Graph, mmap: bool
) -> None:
    write(graph, tmp_path)
    data = graph.to_pyg()
    for index in range(2):
        dataset: Any = DistDataset.load(tmp_path, index, mmap=mmap)
        topology = dataset.graph[BUYS].topo if graph.heterogeneous else dataset.graph.topo
        pairs = graph.edges[BUYS if graph.heterogeneous else E]
        store = data[BUYS] if graph.heterogeneous else data
        ids = topology.edge_ids
        rows = torch.repeat_interleave(
            torch.arange(topology.indptr.numel() - 1), topology.indptr.diff()
        )
        assert torch.equal(store.edge_index[:, ids], torch.stack([topology.indices, rows]))
        assert topology.indptr.numel() - 1 == graph.num_nodes[BUYS[2] if graph.heterogeneous else N]
        assert len(ids) < len(pairs)
        for node_type in graph.num_nodes:
            feature = (
                dataset.node_features[node_type] if graph.heterogeneous else (dataset.node_features)
            )
            owned = dataset.node_ids[node_type] if graph.heterogeneous else dataset.node_ids
            assert feature[owned][:, 0].tolist() == owned.tolist()


class _Asked:
    value = ComputedOnUse()


def test_an_attribute_is_made_once_and_when_it_is_asked_for() -> None:
    made: list[int] = []

    def make() -> str:
        made.append(1)
        return "made"

    one, other = _Asked(), _Asked()
    one.value = NotComputed(make)
    other.value = None
    assert not made
    assert (one.value, one.value, other.value) == ("made", "made", None)
    assert made == [1]
    one.value = "set"
    assert one.value == "set"
    assert isinstance(_Asked.value, ComputedOnUse)


def test_threads_that_ask_for_an_attribute_wait_for_the_one_that_makes_it() -> None:
    made, both = list[int](), threading.Barrier(2)

    def make() -> list[int]:
        made.append(1)
        both.wait(60.0)
        return made

    one = _Asked()
    one.value = NotComputed(make)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(lambda: one.value) for _ in range(2)]
        wait_until(lambda: bool(made), "one of them makes it")
        both.wait(60.0)
        assert [each.result(60.0) for each in asked] == [made, made]
    assert made == [1]


@pytest.mark.parametrize("edge_type", [BUYS, KNOWS])
def test_label_edges_are_named_as_glt_groups_them(edge_type: tuple[str, str, str]) -> None:
    label_type = message_passing_to_positive_label(edge_type)
    turned = glt_edge_type(label_type, "in")
    assert (turned[0], turned[2]) == (edge_type[2], edge_type[0])
    assert glt_edge_type(turned, "in") == label_type
    assert glt_edge_type(label_type, "out") == label_type
    assert glt_edge_type(edge_type, "in") == edge_type


def test_a_partition_that_owns_nothing_has_a_table_as_its_book() -> None:
    """GLT's range books allow no empty range."""
    data = Graph({N: 3}, {E: [(0, 1)]}, {}, False).to_pyg()
    dataset = DistDataset.from_pyg(data, partition_book=torch.tensor([0, 0, 2]), partition_idx=1)
    assert dataset.node_pb.tolist() == [0, 0, 2]
    assert dataset.id_filter(dataset.node_pb, 1).tolist() == []
