"""Weights to draw by from an attribute of the edges, in place of ``edge_weight``."""

import dataclasses

import torch
from torch import Tensor

from gigl_loader.dataset._checks import check_weights
from gigl_loader.dataset._pieces import WEIGHT_NAMES
from gigl_loader.dataset.schema import EdgeType, is_label_edge_type
from gigl_loader.dataset.view import Adjacency, PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.memory.tensors import share_tensor


def weighted_view(view: PartitionView, name: str) -> PartitionView:
    """Return ``view`` with the edge attribute ``name`` as weights, of the types that have it.

    Edge types without the attribute have no weights then, whatever they had before.

    Raises:
        ConfigError: No edge type has it, it is no weight, or some of it lies on other partitions.
    """
    walked = [t for t in view.adjacency if not is_label_edge_type(t)]
    named = [t for t in walked if (t, name) in view.edge_attributes]
    # weights that were given without a name are called edge_weight in batches, so that name is
    # understood where no attribute has it
    if not named and not (name in WEIGHT_NAMES and any(_weights(view, t) for t in walked)):
        known = sorted({attribute for _, attribute in view.edge_attributes})
        raise ConfigError(
            f"weight_attr={name!r} is no attribute of the edges: they have {known}; give the graph "
            "one before it is made a dataset"
        )
    adjacency = dict(view.adjacency)
    for edge_type in walked:
        # a type without it is drawn from evenly: its own weights may be of another measure
        weights = _read(view, edge_type, name) if edge_type in named else None
        if weights is None and name in WEIGHT_NAMES:
            weights = view.adjacency[edge_type].weights
        adjacency[edge_type] = dataclasses.replace(view.adjacency[edge_type], weights=weights)
    return dataclasses.replace(view, adjacency=adjacency)


def _weights(view: PartitionView, edge_type: EdgeType) -> bool:
    return view.adjacency[edge_type].weights is not None


def _read(view: PartitionView, edge_type: EdgeType, name: str) -> Tensor:
    """Return the attribute in the order of the edges of this partition, in shared memory."""
    edges: Adjacency = view.adjacency[edge_type]
    if not edges.has_edge_ids:
        raise ConfigError(f"weight_attr={name!r} needs edge ids, and {edge_type} keeps none")
    # attributes lie by edge id, weights by position in the adjacency
    ids = edges.edge_ids_at(torch.arange(edges.indices.numel()))
    book = view.edge_books.get(edge_type)
    # before rows are read: another partition's id would find no row here, or a wrong one
    if book is not None and bool((book.owner(ids) != view.partition_idx).any()):
        raise ConfigError(
            f"weight_attr={name!r}: some edges of {edge_type} are sampled by partition "
            f"{view.partition_idx}, and their attributes lie on another: partition with "
            "edge_weight, or cut the edges as they are sampled"
        )
    rows = view.edge_attributes[edge_type, name]
    values = rows.values[rows.locate(ids)]
    if values.numel() != ids.numel() or values.is_complex():
        raise ConfigError(
            f"weight_attr={name!r} of {edge_type} must be a number for each edge, got "
            f"{list(values.shape)} {values.dtype}"
        )
    # shared: the view goes to workers as descriptors
    return share_tensor(check_weights(values, ids.numel(), f"weight_attr {name!r} of {edge_type}"))
