"""Degrees, weights and labels under GiGL's names, against counts of plain lists."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data

from gigl_loader import (
    ConfigError,
    DistDataset,
    GraphPartitionData,
    PartitionOutput,
    UsageError,
    partition_graph,
)
from gigl_loader.compat.gigl_types import to_heterogeneous_node
from gigl_loader.dataset.degrees import compute_and_broadcast_degree_tensor
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.testing import TinyGraph, run_ranks
from tests.dataset.dataset_reference import BUYS, KNOWS, REV_BUYS, SMALL, E, Graph, N
from tests.support import glt

pytestmark = pytest.mark.usefixtures("starts_no_workers")


def _expected(graph: TinyGraph, edge_dir: EdgeDir) -> dict[str, list[int]]:
    """Return the degrees of each type, counted edge by edge."""
    end = 1 if edge_dir == "in" else 0
    counts: dict[str, Counter[int]] = {}
    for edge_type, pairs in graph.edges.items():
        counted = counts.setdefault(edge_type[2 * end], Counter())
        counted.update(pair[end] for pair in pairs)
    return {
        node_type: [counted[i] for i in range(graph.num_nodes[node_type])]
        for node_type, counted in counts.items()
    }


def _as_lists(degrees: Any) -> dict[str, list[int]]:
    by_type = degrees if isinstance(degrees, dict) else {N: degrees}
    assert all(values.dtype == torch.int32 for values in by_type.values())
    return {node_type: values.tolist() for node_type, values in by_type.items()}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("heterogeneous", [False, True])
def test_degrees_of_a_whole_graph_need_no_group(edge_dir: EdgeDir, heterogeneous: bool) -> None:
    graph = TinyGraph.random(30, 90, heterogeneous=heterogeneous)
    dataset = graph.dataset(edge_dir=edge_dir)
    assert isinstance(dataset.degree_tensor, dict) is heterogeneous
    assert _as_lists(dataset.degree_tensor) == _expected(graph, edge_dir)
    first, again = (to_heterogeneous_node(dataset.degree_tensor) for _ in range(2))
    assert first is not None
    assert again is not None
    assert all(again[node_type] is first[node_type] for node_type in first), "counted once"


def test_label_edges_are_no_degrees() -> None:
    dataset = DistDataset.from_pyg(SMALL.to_pyg(), supervision=SMALL.supervision())
    plain = DistDataset.from_pyg(SMALL.to_pyg())
    assert _as_lists(dataset.degree_tensor) == _as_lists(plain.degree_tensor)


def _add_up(rank: int, size: int, folder: str) -> None:
    """Three ranks hold two partitions, in memory, or mapped from a directory."""
    part = min(rank, 1)
    for heterogeneous in (False, True):
        graph = TinyGraph.random(40, 150, heterogeneous=heterogeneous)
        for edge_dir in ("in", "out"):
            whole = _expected(graph, edge_dir)
            parts = graph.partitions(2, edge_dir=edge_dir)
            assert _as_lists(parts[part].degree_tensor) == whole
            mapped = DistDataset.load(Path(folder) / f"{heterogeneous} {edge_dir}", part, mmap=True)
            assert _as_lists(mapped.degree_tensor) == whole
    with pytest.raises(ConfigError, match="no rank holds partition 1 of 2"):  # on all ranks
        graph.partitions(2)[0].degree_tensor  # noqa: B018


@pytest.mark.multiprocess
def test_ranks_add_up_each_partition_once(tmp_path: Path) -> None:
    for heterogeneous in (False, True):
        graph = TinyGraph.random(40, 150, heterogeneous=heterogeneous)
        for edge_dir in ("in", "out"):
            root = tmp_path / f"{heterogeneous} {edge_dir}"
            partition_graph(graph.to_pyg(), 2, root, edge_dir=edge_dir)
    run_ranks(_add_up, str(tmp_path), world_size=3, tmp_path=tmp_path)


def test_one_process_with_a_part_of_the_graph_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start a rank for each partition"):
        TinyGraph.random(10, 20).partitions(2)[0].degree_tensor  # noqa: B018


def _of_graphs(rank: int, size: int) -> None:
    graph = TinyGraph.random(20, 60, heterogeneous=True)
    for edge_dir in ("in", "out"):
        dataset = graph.dataset(edge_dir=edge_dir)
        found = compute_and_broadcast_degree_tensor(dataset.graph, edge_dir)
        # both ranks are processes of one machine, and have the same graph
        assert _as_lists(found) == _expected(graph, edge_dir)
    plain = TinyGraph.random(20, 60)
    found = compute_and_broadcast_degree_tensor(plain.dataset().graph, "in")
    assert _as_lists(found) == _expected(plain, "in")
    assert dist.get_world_size() == 2


@pytest.mark.multiprocess
def test_degrees_of_graphs_as_gigls_function_gives_them(tmp_path: Path) -> None:
    run_ranks(_of_graphs, world_size=2, tmp_path=tmp_path)


def test_gigls_function_needs_a_group() -> None:
    with pytest.raises(UsageError, match="init_process_group"):
        compute_and_broadcast_degree_tensor(TinyGraph.random(5, 5).dataset().graph, "in")


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_weights_are_in_the_order_in_which_they_were_given(
    edge_dir: EdgeDir, tmp_path: Path
) -> None:
    given = torch.tensor([20.0, 1.0, 12.0, 2.0, 7.0])
    edges = torch.tensor([[2, 0, 1, 0, 1], [0, 1, 2, 2, 0]])
    data = Data(edge_index=edges, edge_weight=given, num_nodes=3)
    ours = DistDataset.from_pyg(data, edge_dir=edge_dir)
    assert ours.edge_weights.tolist() == given.tolist()
    ids = ours.graph.topo.edge_ids
    assert ours.graph.topo.edge_weights.tolist() == given[ids].tolist()
    assert pickle.loads(pickle.dumps(ours)).edge_weights.tolist() == given.tolist()
    other = Data(edge_index=edges, other=given.flip(0), num_nodes=3)
    by_name = DistDataset.from_pyg(other, edge_dir=edge_dir).weighted_by("other")
    assert by_name.edge_weights.tolist() == given.flip(0).tolist()
    glts = glt.DistDataset(1, 0, edge_dir=edge_dir)
    glts.init_graph(edges, edge_weights=given, layout="COO", graph_mode="CPU")
    assert DistDataset.wrap(glts).edge_weights.tolist() == given.tolist()
    partition_graph(data, 1, tmp_path, edge_dir=edge_dir, progress=False)
    for mmap in (False, True):
        assert DistDataset.load(tmp_path, 0, mmap=mmap).edge_weights.tolist() == given.tolist()
    # ids of a partition, in any order, and those of another one between them
    for count, numbers in ((1, [4, 0, 3, 1, 2]), (2, [9, 0, 5, 3, 4])):
        built = DistDataset(0, count, edge_dir=edge_dir)
        part = GraphPartitionData(edges, torch.tensor(numbers), given)
        owners = torch.tensor([0 if number in numbers else 1 for number in range(10)])
        built.build(
            partition_output=PartitionOutput(
                node_partition_book=torch.zeros(3, dtype=torch.int64),
                edge_partition_book=owners if count > 1 else torch.zeros(5, dtype=torch.int64),
                partitioned_edge_index=part,
            )
        )
        assert built.edge_weights.tolist() == given.tolist()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_weights_by_type(edge_dir: EdgeDir) -> None:
    typed = SMALL.to_pyg()
    for edge_type in typed.edge_types:
        if edge_type != BUYS:
            del typed[edge_type].edge_weight
    ours = DistDataset.from_pyg(typed, edge_dir=edge_dir, supervision=SMALL.supervision())
    assert set(ours.edge_weights) == {BUYS}, "of label edges, and of types without, there are none"
    assert ours.edge_weights[BUYS].tolist() == typed[BUYS].edge_weight.tolist()
    del typed[BUYS].edge_weight
    without = DistDataset.from_pyg(typed)
    assert without.edge_weights is None
    assert without.has_edge_weights is False


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_labels_come_anchors_first_by_what_they_supervise(edge_dir: EdgeDir) -> None:
    pairs = [(0, 1), (2, 1), (1, 3)]
    positive, negative = torch.tensor([[0, 2, 3], [3, 1, 0]]), torch.tensor([[1], [0]])
    graph = Graph({N: 4}, {E: pairs}, {}, False)
    labelled = DistDataset.from_pyg(
        graph.to_pyg(), edge_dir=edge_dir, supervision=(positive, negative)
    )
    assert labelled.positive_edge_label.tolist() == positive.tolist()
    assert labelled.negative_edge_label.tolist() == negative.tolist()
    plain = DistDataset.from_pyg(graph.to_pyg(), edge_dir=edge_dir)
    assert (plain.positive_edge_label, plain.negative_edge_label) == (None, None)

    shop = Graph({"user": 4, "item": 4}, {BUYS: pairs, KNOWS: pairs, REV_BUYS: pairs})
    typed = DistDataset.from_pyg(
        shop.to_pyg(),
        edge_dir=edge_dir,
        supervision={BUYS: (positive, None), KNOWS: (positive, negative)},
    )
    assert {t: e.tolist() for t, e in typed.positive_edge_label.items()} == {
        BUYS: positive.tolist(),
        KNOWS: positive.tolist(),
    }
    assert {t: e.tolist() for t, e in typed.negative_edge_label.items()} == {
        KNOWS: negative.tolist()
    }
