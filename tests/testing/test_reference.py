"""The reference finds each thing that may be wrong with a batch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from gigl_loader.testing import (
    BatchError,
    TinyGraph,
    batch_tensors,
    check_batch,
    check_same_batches,
)

GRAPH = TinyGraph.homogeneous(8, [(1, 0), (2, 0), (2, 0), (3, 1), (4, 2), (4, 2), (5, 3), (0, 4)])
SEEDS = torch.tensor([0, 4])


def _batch() -> Data:
    """Return all neighbours of 0 and 4 in one hop: edges 0, 1, 2 and 7."""
    ids, edges = torch.tensor([0, 4, 1, 2]), torch.tensor([0, 1, 2, 7])
    features = [[i, 0] for i in ids.tolist()]
    labels = [[i, 100 + i, 0] for i in ids.tolist()]
    batch = Data(
        x=torch.tensor(features, dtype=torch.float32),
        y=torch.tensor(labels),
        edge_index=torch.tensor([[2, 3, 3, 0], [0, 0, 0, 1]]),
        n_id=ids,
        node=ids,
        e_id=edges,
        edge=edges,
        batch=SEEDS,
        edge_attr=torch.stack([edges, 0 * edges], 1).float(),
    )
    batch.batch_size = 2
    batch.num_sampled_nodes, batch.num_sampled_edges = [2, 2], [4]
    return batch


def _check(batch: Data, fanout: int = -1, **how: Any) -> None:
    check_batch(batch, GRAPH, seeds=SEEDS, num_neighbors=[fanout], **how)


def test_a_right_batch_passes() -> None:
    _check(_batch())
    _check(_batch(), 3)


def test_with_replacement_a_single_neighbour_comes_as_often_as_the_fanout() -> None:
    batch, edges = _batch(), torch.tensor([0, 1, 2, 7, 7, 7])
    batch.e_id = batch.edge = edges
    batch.edge_index = torch.tensor([[2, 3, 3, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    batch.edge_attr, batch.num_sampled_edges = torch.stack([edges, 0 * edges], 1).float(), [6]
    _check(batch, 3, replace=True)
    with pytest.raises(BatchError):
        _check(_batch(), 3, replace=True)


def _set(name: str, at: Any, value: Any) -> Callable[[Any], None]:
    def change(batch: Any) -> None:
        if isinstance(batch[name], Tensor):
            batch[name] = batch[name].clone()
        batch[name][at] = value

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_set("x", (2, 0), 9), "features of another node"),
        (_set("y", (1, 1), 9), "labels of another node"),
        (_set("batch", 0, 3), "batch is not the seeds"),
        (_set("n_id", 3, 1), "node is not n_id"),
        (_set("edge_index", (0, 0), 3), "labels are not in order|no such edge|edge comes twice"),
        (_set("edge_index", (1, 0), 3), "not in the frontier"),
        (_set("edge_index", (0, 3), 1), "no such edge"),
        (_set("e_id", 0, 1), "edge is not e_id|wrong edge id"),
        (_set("edge_attr", (0, 0), 7), "features of another edge"),
        (_set("num_sampled_nodes", 1, 3), "nodes per hop"),
        (_set("num_sampled_edges", 0, 3), "neighbours|add up"),
        (lambda batch: setattr(batch, "batch_size", 3), "batch_size"),
        (lambda batch: setattr(batch, "x", batch.x.double()), "dtype of x"),
        (lambda batch: setattr(batch, "x", batch.x[:, :1]), "shape of x"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Any], None], text: str) -> None:
    batch = copy.copy(_batch())
    batch.num_sampled_nodes = list(batch.num_sampled_nodes)
    change(batch)
    with pytest.raises(BatchError, match=text):
        _check(batch)


def test_the_number_of_neighbours_is_that_of_the_fanout() -> None:
    with pytest.raises(BatchError, match="neighbours"):
        _check(_batch(), 2)
    with pytest.raises(BatchError, match="neighbours"):
        _check(_batch(), 3, replace=True)


def test_an_edge_that_weighs_nothing_is_none() -> None:
    with pytest.raises(BatchError, match=r"neighbours|no such edge"):
        _check(_batch(), with_weight=True)


def test_batches_are_compared_bit_for_bit() -> None:
    check_same_batches([_batch(), _batch()], [_batch(), _batch()])
    with pytest.raises(BatchError, match="numbers of batches"):
        check_same_batches([_batch()], [])
    other = _batch()
    other.x = other.x.double()
    with pytest.raises(BatchError, match=r"values: 'batch 1', 'x'"):
        check_same_batches([_batch(), _batch()], [_batch(), other])
    other = _batch()
    del other.edge_attr
    with pytest.raises(BatchError, match=r"\['edge_attr'\]"):
        check_same_batches([_batch()], [other])
    assert set(batch_tensors(_batch())) == set(_batch().keys())
