import gc
import pickle
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import EdgeDir
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
