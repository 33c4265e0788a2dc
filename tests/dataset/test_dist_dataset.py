import gc
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.partition_output import GraphPartitionData, PartitionOutput
from gigl_loader.dataset.schema import SPLITS, EdgeDir
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.processes import ForkedProcess
from tests.dataset.dataset_reference import SMALL, E, Graph, N, check_partitions, graphs
from tests.support.draws import examples

directions = st.sampled_from(["in", "out"])


# --- from_pyg -------------------------------------------------------------------------------------


@given(graphs(), directions)
def test_a_whole_graph_has_every_value_in_its_position(graph: Graph, edge_dir: EdgeDir) -> None:
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


def test_an_empty_dataset_says_so() -> None:
    with pytest.raises(UsageError, match="is empty"):
        DistDataset(0, 1).view()
    with pytest.raises(ConfigError, match="partition_idx must be in"):
        DistDataset(2, 2)
    with pytest.raises(ConfigError, match="edge_dir"):
        DistDataset(0, 1, edge_dir="both")  # type: ignore[arg-type]  # wrong on purpose


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
    assert edges.edge_ids is not None
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
    assert edges.edge_ids is not None
    expected = data.x.sum().item() + edges.indices.sum().item() + edges.edge_ids.sum().item()
    small = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    process = ForkedProcess(target=_read_in_child, args=(dataset, small, str(tmp_path / "answers")))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    total, grown, before = torch.load(tmp_path / "answers")
    assert total == expected
    assert grown < 16, f"{grown:.0f} MiB grown, {before:.0f} before"


@settings(max_examples=examples(5))
@given(graphs())
def test_what_is_shared_is_shared(graph: Graph) -> None:
    view = DistDataset.from_pyg(graph.to_pyg()).view()
    for adjacency in view.adjacency.values():
        for tensor in (adjacency.indptr, adjacency.indices, adjacency.edge_ids):
            assert tensor is not None
            assert tensor.is_shared() or tensor.numel() == 0


# --- GiGL's parts and splitters -------------------------------------------------------------------

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
TYPED = {("u", "to", "v"): EDGES, ("v", "to", "u"): EDGES.flip(0)}


def _output(edge_index: Any) -> PartitionOutput:
    if isinstance(edge_index, dict):
        return PartitionOutput(
            partitioned_edge_index={
                name: GraphPartitionData(edges) for name, edges in edge_index.items()
            }
        )
    return PartitionOutput(partitioned_edge_index=GraphPartitionData(edge_index))


class _Splitter:
    def __init__(self, *found: Any) -> None:
        self.found, self.given = found, dict[str, Any]()

    def __call__(self, **given: Any) -> Any:
        self.given = given
        return self.found[0] if len(self.found) == 1 else self.found


class _OfEdges(_Splitter):
    should_convert_labels_to_edges = False  # GiGL's: it has one, whatever it says


def test_build_splits_nodes_by_a_splitter() -> None:
    dataset = DistDataset(0, 1)
    splitter = _Splitter(torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([3, 4, 5]))
    dataset.build(_output(EDGES), splitter)
    assert splitter.given["node_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    found = dataset.train_node_ids, dataset.val_node_ids, dataset.test_node_ids
    assert [ids.tolist() for ids in found] == [[0, 2], [1], [3, 4, 5]]
    dataset = DistDataset(0, 1)
    nothing = torch.empty(0, dtype=torch.int64)
    dataset.build(
        partition_output=_output(TYPED),
        splitter=_Splitter({"u": (torch.tensor([0]), nothing, torch.tensor([5]))}),
    )
    assert dataset.train_node_ids["u"].tolist() == [0]
    assert dataset.test_node_ids["u"].tolist() == [5]


@pytest.mark.parametrize("edges", [EDGES, TYPED], ids=["homogeneous", "typed"])
def test_build_gives_a_splitter_of_anchors_the_edges(edges: Any) -> None:
    ids = torch.tensor([4]), torch.tensor([5]), torch.tensor([0])
    splitter = _OfEdges({"u": ids} if isinstance(edges, dict) else ids)
    dataset = DistDataset(0, 1)
    dataset.build(_output(edges), splitter)
    assert list(splitter.given) == ["edge_index"]
    given = splitter.given["edge_index"]
    if isinstance(edges, dict):
        assert {name: one.tolist() for name, one in given.items()} == {
            name: one.tolist() for name, one in edges.items()
        }
        assert dataset.val_node_ids["u"].tolist() == [5]
    else:
        assert given.tolist() == edges.tolist()
        assert dataset.val_node_ids.tolist() == [5]


def test_a_splitter_that_returns_no_splits_leaves_the_dataset_empty() -> None:
    dataset = DistDataset(0, 1)
    for found in (torch.arange(6), (EDGES[0], EDGES[1]), (EDGES, EDGES, EDGES)):
        with pytest.raises(ConfigError, match="a splitter return"):
            dataset.build(_output(EDGES), lambda node_ids, found=found: found)
    with pytest.raises(ConfigError, match="splitter must be a function"):
        dataset.build(_output(EDGES), "halves")  # type: ignore[arg-type]  # wrong on purpose
    dataset.build(_output(EDGES))
    assert dataset.num_edges == 6


def _parts(dataset: DistDataset) -> dict[str, Any]:
    return {
        "graph_partition": dataset.graph,
        "node_feature_partition": dataset.node_features,
        "edge_feature_partition": dataset.edge_features,
        "node_labels": dataset.node_labels,
        "node_partition_book": dataset.node_pb,
        "edge_partition_book": dataset.edge_pb,
    }


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_dataset_of_gigls_parts(edge_dir: EdgeDir) -> None:
    whole = DistDataset.from_pyg(SMALL.to_pyg(), edge_dir=edge_dir, supervision=SMALL.supervision())
    splits = whole.train_node_ids, whole.val_node_ids, whole.test_node_ids
    parts = _parts(whole) | {
        f"num_{split}": {name: some.numel() for name, some in ids.items()}
        for split, ids in zip(SPLITS, splits, strict=True)
    }
    ids = {name: torch.cat([split[name] for split in splits]) for name in SMALL.num_nodes}
    made = DistDataset(0, 1, edge_dir, **parts, node_ids=ids)
    check_partitions(replace(SMALL, labels={}), [made], edge_dir)
    assert {name: edges.tolist() for name, edges in made.label_edges.items()} == {
        name: edges.tolist() for name, edges in whole.label_edges.items()
    }


def test_node_ids_of_gigl_begin_with_the_splits() -> None:
    graph = Data(x=torch.rand(6, 2), edge_index=EDGES)
    parts = _parts(DistDataset.from_pyg(graph))
    ids = torch.tensor([5, 0, 3, 1, 2, 4])
    dataset = DistDataset(0, 1, "in", **parts, node_ids=ids, num_train=2, num_val=1)
    assert dataset.train_node_ids.tolist() == [0, 5]
    assert dataset.val_node_ids.tolist() == [3]
    assert dataset.known_split("test") is None
    with pytest.raises(ConfigError, match=r"num_val=5.*no so many ids"):
        DistDataset(0, 1, "in", **parts, node_ids=ids, num_train=2, num_val=5)
    with pytest.raises(ConfigError, match="not the nodes that this partition owns"):
        DistDataset(0, 1, "in", **parts, node_ids=ids[:5])
    with pytest.raises(ConfigError, match=r"num_train=2: .* node_ids"):
        DistDataset(0, 1, "in", **parts, num_train=2)
