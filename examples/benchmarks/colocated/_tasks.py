"""Seeds beside plain nodes: edges with negatives, and nodes with a time each.

Batches are PyG's ``Data``, as gigl_loader and PyG deliver them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from _job import Batch, Job, check_edges, ids_of
from torch import Tensor

_END_OF_TIME = 1000


def links(job: Job) -> Tensor:
    """Return the seed edges, ``[2, needed_seeds]`` int64: drawn from all edges of the graph."""
    graph = job.graph
    positions = np.random.default_rng(3).integers(0, graph.indices.size, job.needed_seeds)
    target = np.searchsorted(graph.indptr, positions, side="right") - 1
    return torch.from_numpy(np.stack([graph.indices[positions], target]))


def edge_times(job: Job) -> Tensor:
    """Return the time of each edge, ``[edges]`` int64."""
    times = np.random.default_rng(4).integers(0, _END_OF_TIME, job.graph.indices.size)
    return torch.from_numpy(times)


def seed_times(job: Job) -> Tensor:
    """Return the time of each seed, ``[needed_seeds]`` int64: in the later half of all times."""
    half = _END_OF_TIME // 2
    times = np.random.default_rng(5).integers(half, _END_OF_TIME, job.needed_seeds)
    return torch.from_numpy(times)


def batches(loader: Iterable[Any], job: Job) -> Iterator[Batch]:
    """Yield the batches of ``loader``, the first one checked."""
    for number, data in enumerate(loader):
        if number == 0 and job.task == "links":
            _check_links(data, job)
        elif number == 0 and job.task == "times":
            _check_times(data, job)
        yield data.x, data.edge_index


def _check_links(data: Any, job: Job) -> None:
    """Raise unless seed edges come first, as many negatives follow, and edges are the graph's."""
    ids = ids_of(data.x.numpy())
    if np.unique(ids).size != ids.size:
        raise AssertionError("a node is in the batch twice")
    ends, size = ids[data.edge_label_index.numpy()], job.batch_size
    if not np.array_equal(ends[:, :size], links(job).numpy()[:, data.input_id.numpy()]):
        raise AssertionError("edge_label_index does not begin with the seed edges")
    if data.edge_label.tolist() != [1] * size + [0] * size:
        raise AssertionError("there is not one negative for each seed edge")
    check_edges(ids[data.edge_index.numpy()], job)


def _check_times(data: Any, job: Job) -> None:
    """Raise unless edges are those of the graph, and none is later than its seed."""
    ids, tree = ids_of(data.x.numpy()), data.batch.numpy()
    if np.unique(np.stack([tree, ids]), axis=1).shape[1] != ids.size:
        raise AssertionError("a node is in a tree twice")
    graph, edge = job.graph, data.e_id.numpy()
    source, target = ids[data.edge_index.numpy()]
    in_row = (graph.indptr[target] <= edge) & (edge < graph.indptr[target + 1])
    if not in_row.all() or not np.array_equal(graph.indices[edge], source):
        raise AssertionError("an edge of the batch is not that of the graph")
    until = seed_times(job).numpy()[: job.batch_size][tree[data.edge_index[1].numpy()]]
    if (edge_times(job).numpy()[edge] > until).any():
        raise AssertionError("an edge is later than its seed")
