"""The kinds of loaders: their graphs, their seeds, and what holds for their batches.

Batches are PyG's ``Data`` and ``HeteroData``, as gigl_loader and PyG deliver them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from _job import Batch, Job, check, check_edges, ids_of, seeds
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data, HeteroData

KINDS = {
    "nodes": "nodes",
    "links": "edges, each with a drawn negative",
    "labels": "anchors with a positive each (ABLP)",
    "times": "nodes with a time each, which no edge of their batch is later than",
    "disjoint": "nodes, each with a tree of its own",
    "weighted": "nodes, neighbours drawn by weight",
    "labor": "nodes, LABOR draws",
    "induced": "nodes, all edges between the nodes of a batch",
    "typed": "nodes of one of four types, with sixteen edge types",
}
"""What seeds are, by task."""
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


def edge_weights(job: Job) -> Tensor:
    """Return the weight of each edge, ``[edges]`` float32."""
    drawn = np.random.default_rng(6).random(job.graph.indices.size, dtype=np.float32)
    return torch.from_numpy(drawn + np.float32(0.1))


def positives(job: Job) -> Tensor:
    """Return a label of each seed, ``[2, needed_seeds]`` int64: the seed, a drawn node."""
    of = np.random.default_rng(7).integers(0, job.graph.indptr.size - 1, job.needed_seeds)
    return torch.stack([seeds(job), torch.from_numpy(of)])


def data(job: Job) -> Any:
    """Return the graph of a task as PyG has it."""
    arrays = job.graph
    nodes = arrays.indptr.size - 1
    target = np.repeat(np.arange(nodes), np.diff(arrays.indptr))
    edges = torch.from_numpy(np.stack([arrays.indices, target]))
    x = torch.from_numpy(np.array(arrays.x))  # in memory: PyG reads it there
    if job.task == "typed":
        return _typed(x, edges, nodes, job.types)
    made = Data(x=x, edge_index=edges, num_nodes=nodes)
    if job.task in ("times", "untimed"):
        made.time = edge_times(job)
    elif job.task == "weighted":
        made.edge_weight = edge_weights(job)
    return made


def _typed(x: Tensor, edges: Tensor, nodes: int, types: int) -> HeteroData:
    """Return the graph with its nodes in blocks, each a type."""
    made, bounds = HeteroData(), _bounds(nodes, types)
    first = torch.tensor(bounds)
    of = torch.searchsorted(first, edges, right=True) - 1
    for number in range(types):
        made[f"type{number}"].x = x[bounds[number] : bounds[number + 1]]
        for other in range(types):
            ends = edges[:, (of[0] == number) & (of[1] == other)]
            made[f"type{number}", "to", f"type{other}"].edge_index = ends - torch.stack(
                [first[number], first[other]]
            ).view(2, 1)
    return made


def typed_seeds(job: Job) -> Tensor:
    """Return seeds of the first type, ``[needed_seeds]`` int64; all again where it has fewer.

    One batch has none twice, but for that between two passes: PyG's would have edges of others.
    """
    size, draw = _bounds(job.graph.indptr.size - 1, job.types)[1], np.random.default_rng(8)
    passes = [draw.permutation(size) for _ in range(-(-job.needed_seeds // size))]
    return torch.from_numpy(np.concatenate(passes)[: job.needed_seeds])


def _bounds(nodes: int, types: int) -> list[int]:
    """Return the first node of each type, and the one past the last."""
    return [nodes * number // types for number in range(types + 1)]


def fanout_of(job: Job) -> list[int]:
    """Return the fanout; with types each of them has its share, so that batches are alike."""
    share = job.types if job.task == "typed" else 1
    return [-(-fanout // share) for fanout in job.fanout]


def batches(loader: Iterable[Any], job: Job) -> Iterator[Batch]:
    """Yield the batches of ``loader``, the first one checked."""
    for number, data in enumerate(loader):
        batch = list(data.x_dict.values()) if job.task == "typed" else [data.x]
        edges = list(data.edge_index_dict.values()) if job.task == "typed" else [data.edge_index]
        if number == 0 and job.task in _CHECKS:
            _CHECKS[job.task](data, job)
        yield batch, edges


def _trees(data: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the node and the tree of each feature row; raise where a tree has a node twice."""
    ids, tree = ids_of(data.x.numpy()), data.batch.numpy()
    if np.unique(np.stack([tree, ids]), axis=1).shape[1] != ids.size:
        raise AssertionError("a node is in a tree twice")
    return ids, tree


def _check_labels(data: Any, job: Job) -> None:
    """Raise unless each seed has its positive, and edges are the graph's."""
    ids, wanted = ids_of(data.x.numpy()), positives(job).numpy()[:, : job.batch_size]
    if not np.array_equal(ids[data.y_positive.numpy()], wanted):
        raise AssertionError("y_positive is not the label of each seed")
    check_edges(ids[data.edge_index.numpy()], job)


def _check_disjoint(data: Any, job: Job) -> None:
    """Raise unless a node is once in a tree, an edge within one, and edges are the graph's."""
    ids, tree = _trees(data)
    if (np.diff(tree[data.edge_index.numpy()], axis=0) != 0).any():
        raise AssertionError("an edge leads from tree to tree")
    check_edges(ids[data.edge_index.numpy()], job)


def _check_induced(data: Any, job: Job) -> None:
    """Raise unless the batch has all edges of the graph between its nodes."""
    check(([data.x], [data.edge_index]), job)
    ids, graph = ids_of(data.x.numpy()), job.graph
    is_here = np.zeros(graph.indptr.size - 1, bool)
    is_here[ids] = True
    had = np.bincount(data.edge_index[1].numpy(), minlength=ids.size)
    for place in range(0, ids.size, max(1, ids.size // 500)):
        row = graph.indices[graph.indptr[ids[place]] : graph.indptr[ids[place] + 1]]
        if had[place] != is_here[row].sum():
            raise AssertionError("an edge between two nodes of the batch is missing")


def _check_typed(data: Any, job: Job) -> None:
    """Raise unless nodes are of their types, seeds come first, and edges are the graph's."""
    bounds = _bounds(job.graph.indptr.size - 1, job.types)
    ids = {
        name: ids_of(store.x.numpy())
        for name, store in zip(data.node_types, data.node_stores, strict=True)
    }
    for name, of_type in ids.items():
        number = int(name.removeprefix("type"))
        if (
            of_type.size
            and not bounds[number] <= of_type.min() <= of_type.max() < bounds[number + 1]
        ):
            raise AssertionError("a node is of another type")
    if not np.isin(typed_seeds(job).numpy()[: job.batch_size], ids["type0"]).all():
        raise AssertionError("a seed is not in the batch")
    for (src, _, dst), ends in data.edge_index_dict.items():
        if ends.size(1):
            check_edges(np.stack([ids[src][ends[0].numpy()], ids[dst][ends[1].numpy()]]), job)


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
    ids, tree = _trees(data)
    graph, edge = job.graph, data.e_id.numpy()
    source, target = ids[data.edge_index.numpy()]
    in_row = (graph.indptr[target] <= edge) & (edge < graph.indptr[target + 1])
    if not in_row.all() or not np.array_equal(graph.indices[edge], source):
        raise AssertionError("an edge of the batch is not that of the graph")
    until = seed_times(job).numpy()[: job.batch_size][tree[data.edge_index[1].numpy()]]
    if (edge_times(job).numpy()[edge] > until).any():
        raise AssertionError("an edge is later than its seed")


_CHECKS = {
    "links": _check_links,
    "times": _check_times,
    "labels": _check_labels,
    "disjoint": _check_disjoint,
    "induced": _check_induced,
    "typed": _check_typed,
}
