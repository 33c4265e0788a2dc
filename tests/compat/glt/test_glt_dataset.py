"""graphlearn-torch's constructor of a dataset, by position and by name."""

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import ConfigError
from gigl_loader import DistDataset as OwnDataset
from gigl_loader.compat.glt.distributed import DistDataset
from gigl_loader.runtime.glt_classes import DistDataset as GLTDataset

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
BOOK = torch.tensor([0, 1, 0, 1, 0, 1])
SPLIT = torch.tensor([0]), torch.tensor([2]), torch.tensor([4])


def _part() -> OwnDataset:
    graph = Data(x=torch.arange(12.0).view(6, 2), edge_index=EDGES, y=torch.arange(6))
    return OwnDataset.from_pyg(graph, edge_dir="out", partition_book=BOOK)


@pytest.mark.glt
def test_the_parameters_are_those_of_graphlearn_torch() -> None:
    ours, theirs = (list(inspect.signature(kind).parameters) for kind in (DistDataset, GLTDataset))
    assert ours == theirs


def test_a_dataset_by_position_has_the_values_of_its_parts() -> None:
    part = _part()
    made = DistDataset(
        2,
        0,
        part.graph,
        part.node_features,
        None,
        part.node_labels,
        part.node_pb,
        part.edge_pb,
        node_split=SPLIT,
    )
    for dataset in (made, pickle.loads(pickle.dumps(made))):
        assert (dataset.num_partitions, dataset.partition_idx, dataset.edge_dir) == (2, 0, "out")
        assert dataset.node_ids.tolist() == [0, 2, 4]
        edges = dataset.view().adjacency
        ((_, adjacency),) = edges.items()
        assert adjacency.indices.tolist() == [1, 3, 5]
        found = dataset.train_node_ids, dataset.val_node_ids, dataset.test_node_ids
        assert [ids.tolist() for ids in found] == [[0], [2], [4]]
        (rows,) = dataset.view().node_features.values()
        assert rows.values[rows.locate(torch.tensor([2, 4]))].tolist() == [[4, 5], [8, 9]]


def test_functions_of_ids_are_kept() -> None:
    part = _part()

    def select(*given: Any) -> Any:
        return given

    made = DistDataset(2, 0, part.graph, node_pb=part.node_pb, id_select=select)
    assert made.id_select is select


def test_graph_caching_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"graph_caching=True .*edges=.all"):
        DistDataset(2, 0, graph_caching=True)
