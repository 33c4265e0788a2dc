import gc
import pickle
from pathlib import Path

import numpy as np
import psutil
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
    by_type,
    check_partitions,
    expected_rows,
    graphs,
    rows_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader import _glt
from gigl_loader.dataset._build import compress, is_canonical
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.parts import (
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
)
from gigl_loader.dataset.schema import (
    FeatureInfo,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.dataset.view import Book
from gigl_loader.errors import ConfigError, UsageError, WrongTypeError
from gigl_loader.testing._forked import ForkedProcess

directions = st.sampled_from(["in", "out"])


# --- from_pyg -------------------------------------------------------------------------------------


@given(graphs(), directions)
def test_a_whole_graph_has_every_value_in_its_place(graph: Graph, edge_dir: str) -> None:
    dataset = DistDataset.from_pyg(
        graph.to_pyg(), edge_dir=edge_dir, supervision=graph.supervision()
    )
    check_partitions(graph, [dataset], edge_dir)


@given(graphs(), directions, st.integers(2, 4), st.randoms(use_true_random=False))
def test_partitions_unite_to_the_graph(graph, edge_dir, num_partitions, random) -> None:
    books = {
        node_type: torch.tensor(
            [random.randrange(num_partitions) for _ in range(count)], dtype=torch.int64
        )
        for node_type, count in graph.num_nodes.items()
    }
    datasets = [
        DistDataset.from_pyg(
            graph.to_pyg(),
            edge_dir=edge_dir,
            partition_book=books if graph.heterogeneous else books[N],
            partition_idx=index,
            num_partitions=num_partitions,
            supervision=graph.supervision(),
        )
        for index in range(num_partitions)
    ]
    check_partitions(graph, datasets, edge_dir)


SMALL = Graph(
    {"user": 3, "item": 4},
    {BUYS: [(0, 1), (2, 3), (2, 0), (0, 1)], REV_BUYS: [(1, 0)], KNOWS: []},
    {BUYS: ([(2, 1), (0, 3)], [(0, 0)])},
)


def test_the_schema_of_each_kind_of_graph() -> None:
    plain = DistDataset.from_pyg(Graph({N: 3}, {E: [(0, 1)]}, {}, False).to_pyg())
    assert plain.schema.edge_types is None
    assert plain.node_feature_info == FeatureInfo(3, torch.float32)
    assert plain.edge_feature_info == FeatureInfo(2, torch.float32)
    labeled = DistDataset.from_pyg(
        Graph({N: 3}, {E: [(0, 1)]}, {}, False).to_pyg(), supervision=as_index([(0, 2)])
    )
    positive = message_passing_to_positive_label(E)
    assert labeled.schema.is_homogeneous_with_labeled_edge_type
    assert labeled.schema.edge_types == [E, positive]
    assert labeled.node_feature_info == {N: FeatureInfo(3, torch.float32)}
    assert not labeled.view().is_heterogeneous
    assert labeled.num_nodes == {N: 3}
    hetero = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    assert not hetero.schema.is_homogeneous_with_labeled_edge_type
    assert set(hetero.edge_feature_info or {}) == {BUYS, REV_BUYS, KNOWS}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_label_edges_are_anchor_first_in_both_directions(edge_dir: str) -> None:
    dataset = DistDataset.from_pyg(
        SMALL.to_pyg(), edge_dir=edge_dir, supervision=SMALL.supervision()
    )
    assert dataset.positive_label_edges(BUYS).tolist() == [[0, 2], [3, 1]]
    assert dataset.negative_label_edges(BUYS).tolist() == [[0], [0]]
    assert dataset.positive_label_edges(KNOWS) is None
    # GLT's own name is that of the stored edges, which edge_dir="in" groups by destination
    positive = message_passing_to_positive_label(BUYS)
    name = ("item", "rev_" + positive[1], "user") if edge_dir == "in" else positive
    assert dataset.graph[name].topo.indptr.tolist() == [0, 1, 1, 2]


def test_label_edge_types_of_a_heterodata_are_labels() -> None:
    data = SMALL.to_pyg()
    data[message_passing_to_negative_label(KNOWS)].edge_index = as_index([(1, 2)])
    dataset = DistDataset.from_pyg(data)
    assert dataset.negative_label_edges(KNOWS).tolist() == [[1], [2]]
    none = torch.empty((2, 0), dtype=torch.int64)
    with pytest.raises(ConfigError, match="give them once"):
        DistDataset.from_pyg(data, supervision={KNOWS: (none, as_index([(1, 2)]))})


def test_what_glt_users_read_is_the_same_memory() -> None:
    dataset = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    view, graph = dataset.view(), dataset.get_graph(BUYS)
    assert isinstance(dataset, _glt.DistDataset)
    assert graph.topo.indices.data_ptr() == view.adjacency[BUYS].indices.data_ptr()
    assert graph.topo.edge_ids.data_ptr() == view.adjacency[BUYS].edge_ids.data_ptr()
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


@pytest.mark.parametrize("ids", [[], [0], [2, 4, 3], [4, 5], [9, 5], [1, 2], [2, 9, 4]])
def test_who_owns_ids_is_the_same_by_range_and_by_table(ids: list[int]) -> None:
    owners = np.array([0, 0, 1, 1, 1, 3, 3, 3, 3, 3])  # partition 2 has none
    ranges = np.array([2, 5, 5, 10])
    for partition in range(4):
        owned = all(owners[one] == partition for one in ids)
        for book in (Book(table=owners), Book(bounds=ranges)):
            assert book.owns(partition, np.array(ids, np.int64)) == owned
        table, bounds = torch.from_numpy(owners), torch.from_numpy(ranges)
        for tensors in (Book(table=table), Book(bounds=bounds)):
            assert tensors.owns(partition, torch.tensor(ids, dtype=torch.int64)) == owned


def test_owners_in_order_become_ranges() -> None:
    data = Graph({N: 5}, {E: [(0, 1)]}, {}, False).to_pyg()
    for book in (torch.tensor([0, 0, 1, 1, 1]), _glt.RangePartitionBook([(0, 2), (2, 5)], 1)):
        dataset = DistDataset.from_pyg(data, partition_book=book, partition_idx=1)
        assert dataset.view().node_books[N].bounds.tolist() == [2, 5]
        assert isinstance(dataset.node_pb, _glt.RangePartitionBook)
        assert dataset.node_ids.tolist() == [2, 3, 4]
        assert dataset.id_filter(dataset.node_pb, 0).tolist() == [0, 1]


def test_attributes_that_may_be_absent() -> None:
    dataset = DistDataset.from_pyg(Data(edge_index=as_index([(0, 4)])))
    view = dataset.view()
    assert view.num_nodes == {N: 5}
    assert [view.node_features, view.node_labels, view.edge_features] == [{}, {}, {}]
    assert view.adjacency[E].weights is None
    assert dataset.train_node_ids is None
    assert dataset.node_feature_info is None
    one_column = Data(edge_index=as_index([(0, 1)]), edge_attr=torch.tensor([3.0]), num_nodes=2)
    assert DistDataset.from_pyg(one_column).edge_feature_info == FeatureInfo(1, torch.float32)


def test_arrays_are_taken_also_those_of_a_mapped_file(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for x in (rows, rows[::-1][::-1], mapped):
        data = Data(x=x, edge_index=torch.tensor([[0, 1], [5, 4]]))
        found = DistDataset.from_pyg(data).view().node_features[N].values
        assert found.tolist() == rows.tolist()
    data = Data(x=rows.astype(str), edge_index=torch.tensor([[0], [5]]))
    with pytest.raises(WrongTypeError, match=r"data\.x is a numpy array of <U"):
        DistDataset.from_pyg(data)


def test_integer_and_half_features_keep_their_type() -> None:
    data = Data(x=torch.ones(2, 1, dtype=torch.uint8), edge_index=as_index([(0, 1)]))
    assert DistDataset.from_pyg(data).node_feature_info == FeatureInfo(1, torch.uint8)
    data.x = data.x.half()
    assert DistDataset.from_pyg(data).node_features[torch.tensor([1])].dtype == torch.float16


# --- order ----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=30), st.randoms(),
    st.booleans(),
)  # fmt: skip
def test_compress_sorts_whatever_the_input_order(pairs, random, one_key: bool) -> None:
    ids = list(range(10, 10 + len(pairs)))
    random.shuffle(ids)
    edges, edge_ids = as_index(pairs), torch.tensor(ids, dtype=torch.int64)
    found = compress(
        edges[0], edges[1], num_rows=5, num_cols=7, edge_ids=edge_ids, weights=edge_ids.double(),
        key_limit=2**62 if one_key else 1,
    )  # fmt: skip
    expected = {}
    for (row, col), edge_id in zip(pairs, ids, strict=True):
        expected.setdefault(row, []).append((col, edge_id, float(edge_id)))
    assert rows_of(found) == {row: sorted(entries) for row, entries in expected.items()}
    assert is_canonical(found)
    assert found.indptr.is_shared()


# --- build ----------------------------------------------------------------------------------------


def _output(**changes):
    fields = {
        "node_partition_book": torch.tensor([0, 1, 0, 1]),
        "edge_partition_book": torch.tensor([1, 0, 1]),
        "partitioned_edge_index": GraphPartitionData(
            as_index([(2, 1), (0, 3)]), torch.tensor([2, 0]), torch.tensor([0.5, 2.0])
        ),
        "partitioned_node_features": FeaturePartitionData(
            torch.tensor([[3.0], [1.0]]), torch.tensor([3, 1])
        ),
        "partitioned_edge_features": FeaturePartitionData(
            torch.tensor([[0], [2]]), torch.tensor([0, 2])
        ),
        "partitioned_positive_labels": as_index([(3, 0), (1, 2)]),
        "partitioned_node_labels": FeaturePartitionData(
            torch.tensor([30, 10]), torch.tensor([3, 1])
        ),
    }
    return PartitionOutput(**(fields | changes))


def _rows(ids):
    return FeaturePartitionData(torch.ones(1, 1), torch.tensor(ids))


def _built(**changes):
    dataset = DistDataset(1, 2, edge_dir="in")
    dataset.build(partition_output=_output(**changes))
    return dataset


def test_build_takes_tensors_with_their_ids() -> None:
    dataset = _built()
    view = dataset.view()
    assert dataset.schema.is_homogeneous_with_labeled_edge_type
    assert rows_of(view.adjacency[E]) == {1: [(2, 2, 0.5)], 3: [(0, 0, 2.0)]}
    assert dataset.positive_label_edges().tolist() == [[1, 3], [2, 0]]
    for rows, scale in ((view.node_features[N], 1), (view.node_labels[N], 10)):
        assert rows.values[rows.locate(torch.tensor([1, 3]))].flatten().tolist() == [
            scale, 3 * scale,
        ]  # fmt: skip
    assert by_type(dataset.node_ids)[N].tolist() == [1, 3]
    with pytest.raises(UsageError, match="built already"):
        dataset.build(partition_output=_output())


def test_build_by_type_with_one_partition_needs_no_books() -> None:
    dataset = DistDataset(0, 1, edge_dir="out")
    dataset.build(
        partition_output=PartitionOutput(
            partitioned_edge_index={BUYS: GraphPartitionData(as_index([(0, 1), (0, 0)]))},
            partitioned_node_features={"user": FeaturePartitionData(torch.ones(3, 2))},
            partitioned_positive_labels={KNOWS: as_index([(2, 1)])},
        )
    )
    assert dataset.view().num_nodes == {"user": 3, "item": 2}
    assert rows_of(dataset.view().adjacency[BUYS]) == {0: [(0, 1, None), (1, 0, None)]}
    assert dataset.positive_label_edges(KNOWS).tolist() == [[2], [1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partitioned_edge_index": None}, "needs edges"),
        ({"partitioned_edge_index": GraphPartitionData(as_index([(0, 1)]))}, "needs edge_ids"),
        (
            {"partitioned_edge_index": GraphPartitionData(as_index([(0, 2)]), torch.tensor([0]))},
            r'belong to other partitions.*edge_dir="in"',
        ),
        (
            {"partitioned_edge_index": GraphPartitionData(as_index([(0, 1)]), torch.tensor([9]))},
            "id 9",
        ),
        ({"node_partition_book": None}, "several partitions need"),
        ({"node_partition_book": torch.tensor([0, 1, 0, 2])}, "names partition 2"),
        ({"partitioned_positive_labels": as_index([(0, 1)])}, r"anchors \(row 0\)"),
        ({"edge_partition_book": None}, "need an edge_partition_book"),
        (
            {"partitioned_node_features": _rows([3])},
            "1 of this partition's ids have no row",
        ),
        (
            {"partitioned_node_features": _rows([1.0])},
            "1-D int64",
        ),
    ],
)  # fmt: skip
def test_build_refuses(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        _built(**changes)


def test_an_empty_dataset_says_so() -> None:
    with pytest.raises(UsageError, match="is empty"):
        DistDataset(0, 1).view()
    with pytest.raises(ConfigError, match="partition_idx must be in"):
        DistDataset(2, 2)
    with pytest.raises(ConfigError, match="edge_dir"):
        DistDataset(0, 1, edge_dir="both")


# --- bad input ------------------------------------------------------------------------------------


def _data(**changes):
    return Data(**({"edge_index": as_index([(0, 1), (1, 2)]), "num_nodes": 3} | changes))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_data(edge_index=as_index([(0, 3)])), r"edge_index, row 1.*id 3.*3 nodes"),
        (_data(edge_index=as_index([(-1, 0)])), "negative id -1"),
        (_data(edge_index=torch.tensor([[0.0], [1.0]])), "must be int64"),
        (_data(edge_index=torch.tensor([[0], [1]], dtype=torch.int32)), r"pass it as .long\(\)"),
        (_data(edge_index=torch.zeros((3, 2), dtype=torch.int64)), r"shape \[2, num_edges\]"),
        (Data(x=torch.ones(3, 1)), "no edge_index"),
        (_data(x=torch.ones(2, 1)), r"data.x.*3 expected, got shape \(2, 1\)"),
        (_data(x=torch.eye(3).to_sparse()), "sparse"),
        (_data(y=torch.ones(4)), "data.y"),
        (_data(edge_attr=torch.ones(3, 1)), "edge_attr.*2 expected"),
        (_data(edge_weight=torch.tensor([1.0, -2.0])), "edge_weight has the negative value -2"),
        (_data(edge_weight=torch.tensor([1.0, float("nan")])), "NaN"),
        (_data(weights=torch.ones(3)), "weights must have one value per edge"),
        (_data(train_mask=torch.tensor([True])), "train_mask has 1 entries for 3"),
        (_data(val_mask=torch.tensor([0, 1, 0])), "val_mask must be bool"),
        (_data(test_mask=torch.ones(3, 2, dtype=torch.bool)), "pick one column"),
        (_data(num_nodes=-1), "num_nodes"),
    ],
)
def test_malformed_data_is_named(data, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DistDataset.from_pyg(data)


def test_malformed_heterodata_is_named() -> None:
    data = HeteroData()
    data["user"].x = torch.ones(2, 1)
    with pytest.raises(ConfigError, match="no message-passing edge type"):
        DistDataset.from_pyg(data)
    data["user", "buys", "item"].edge_index = as_index([(0, 0)])
    with pytest.raises(ConfigError, match="node type 'item', which has no nodes"):
        DistDataset.from_pyg(data)
    data["item"].name = "without a count"
    with pytest.raises(ConfigError, match="does not say how many nodes"):
        DistDataset.from_pyg(data)
    with pytest.raises(WrongTypeError, match="must be a torch_geometric"):
        DistDataset.from_pyg({"edge_index": None})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"partition_idx": 1}, "partition_idx must be in"),
        ({"num_partitions": 2}, "needs a partition_book"),
        ({"partition_book": torch.tensor([0, 1])}, "covers 2 nodes, the graph has 3"),
        ({"partition_book": torch.tensor([0.0, 1, 1])}, "1-D integer"),
        ({"partition_book": torch.tensor([0, -1, 1])}, "partition -1"),
        ({"partition_book": {"a": torch.tensor([0])}}, "not a dict"),
        ({"partition_book": [0, 0, 1]}, "list"),
        ({"edge_dir": "IN"}, "edge_dir"),
        ({"supervision": as_index([(0, 5)])}, "id 5"),
        ({"supervision": {"to": as_index([(0, 1)])}}, "tuple"),
        ({"supervision": {message_passing_to_positive_label(E): as_index([(0, 1)])}}, "suffix"),
        ({"supervision": {("a", "to", "b"): as_index([(0, 1)])}}, "node type 'a'"),
    ],
)
def test_from_pyg_refuses(keywords, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DistDataset.from_pyg(_data(), **keywords)


# --- GLT's datasets -------------------------------------------------------------------------------


def _glt_dataset(graph: Graph, edge_dir: str):
    data = graph.to_pyg()
    dataset = _glt.DistDataset(1, 0, edge_dir=edge_dir)

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
def test_a_plain_glt_dataset_is_wrapped_not_copied(edge_dir: str, heterogeneous: bool) -> None:
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
    theirs = _glt.DistDataset(1, 0, edge_dir="out")
    topology = _glt.Topology(
        (torch.tensor([0, 3, 3, 4]), torch.tensor([2, 0, 0, 1])), torch.tensor([0, 3, 1, 2]),
        input_layout="CSR", layout="CSR",
    )  # fmt: skip
    theirs.graph = _glt.Graph(topology, "CPU")
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
        DistDataset.wrap(_glt.DistDataset(1, 0))
    with pytest.raises(WrongTypeError, match="got dict"):
        DistDataset.wrap({})


# --- to other processes ---------------------------------------------------------------------------


def test_a_pickle_has_the_same_values() -> None:
    dataset = DistDataset.from_pyg(SMALL.to_pyg(), edge_dir="out", supervision=SMALL.supervision())
    check_partitions(SMALL, [pickle.loads(pickle.dumps(dataset))], "out")
    check_partitions(SMALL, [DistDataset.from_ipc_handle(dataset.share_ipc())], "out")
    assert pickle.loads(pickle.dumps(DistDataset(1, 3))).partition_idx == 1


def _own_mib() -> float:
    """Memory of this process that nobody else maps, in MiB."""
    gc.collect()
    return psutil.Process().memory_full_info().uss / 2**20


def _read_in_child(dataset: DistDataset, small: DistDataset, answers: str) -> None:
    before = _own_mib()
    total = sum(float(rows.values.sum()) for rows in dataset.view().node_features.values())
    edges = dataset.view().adjacency[E]
    total += float(edges.indices.sum()) + float(edges.edge_ids.sum())
    grown = _own_mib() - before
    check_partitions(SMALL, [small], "in")
    torch.save((total, grown, before), answers)


@pytest.mark.multiprocess
def test_another_process_reads_it_without_a_copy(tmp_path: Path) -> None:
    num_nodes = 200_000  # 128 MiB of features
    data = Data(x=torch.ones(num_nodes, 160), edge_index=torch.randint(num_nodes, (2, 1_000_000)))
    dataset = DistDataset.from_pyg(data)
    edges = dataset.view().adjacency[E]
    expected = data.x.sum().item() + edges.indices.sum().item() + edges.edge_ids.sum().item()
    small = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    process = ForkedProcess(target=_read_in_child, args=(dataset, small, str(tmp_path / "answers")))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    total, grown, before = torch.load(tmp_path / "answers")
    assert total == expected
    assert grown < 16, f"{grown:.0f} MiB grown, {before:.0f} before"


@settings(max_examples=5)
@given(graphs())
def test_what_is_shared_is_shared(graph: Graph) -> None:
    view = DistDataset.from_pyg(graph.to_pyg()).view()
    for adjacency in view.adjacency.values():
        for tensor in (adjacency.indptr, adjacency.indices, adjacency.edge_ids):
            assert tensor.is_shared() or tensor.numel() == 0
