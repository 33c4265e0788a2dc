"""Seed edges as users give them, checked and split into what a sampler's input holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from gigl_loader._glt import NodeSamplerInput
from gigl_loader.dataset.adjacency import edges_of
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.message import EDGE_LABEL, EDGE_TARGETS

EdgeInput = (
    Tensor | EdgeType | tuple[EdgeType, Tensor | None] | Mapping[int, Tensor]
    | tuple[EdgeType, Mapping[int, Tensor]]
)  # fmt: skip
"""What `DistLinkNeighborLoader` takes as ``edge_label_index``; None besides: all edges."""


@dataclass(frozen=True)
class SeedEdges:
    """Seed edges of one loader."""

    edge_type: EdgeType
    index: Tensor
    """``[2, num_edges]`` int64, global ids: sources, destinations."""
    label: Tensor | None
    """``[num_edges, ...]``."""

    def sampler_input(self) -> NodeSamplerInput:
        """Return them as seeds (sources) with columns (destinations, labels)."""
        # Rows of an index that was transposed are not contiguous, and seeds are read as one block.
        found = NodeSamplerInput(self.index[0].contiguous(), self.edge_type[0])
        found.extra = {EDGE_TARGETS: self.index[1].contiguous()}
        if self.label is not None:
            found.extra[EDGE_LABEL] = self.label.contiguous()
        return found

    def split(self, parts: int) -> "list[SeedEdges]":
        """Return contiguous blocks that concatenate to all."""
        labels = [None] * parts if self.label is None else self.label.tensor_split(parts)
        blocks = self.index.tensor_split(parts, dim=1)
        return [
            SeedEdges(self.edge_type, block, label)
            for block, label in zip(blocks, labels, strict=True)
        ]


def edge_type_of(edges: Any, schema: DatasetSchema) -> tuple[EdgeType, Any]:
    """Return (edge type, seed edges without it) of ``edge_label_index``.

    Raises:
        ConfigError: The type is missing, unknown, or a label edge type.
    """
    known = [one for one in schema.edge_types or () if not is_label_edge_type(one)]
    # Label edges alone do not make a graph heterogeneous: batches of it are `Data`.
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    if _is_edge_type(edges):
        edge_type, edges = _in_full(edges, known), None
    elif isinstance(edges, tuple) and len(edges) == 2 and _is_edge_type(edges[0]):
        edge_type, edges = _in_full(edges[0], known), edges[1]
    elif plain:
        return DEFAULT_HOMOGENEOUS_EDGE_TYPE, edges
    else:
        raise ConfigError(
            "the graph is heterogeneous: pass edge_label_index=(edge_type, index), with one of "
            f"{known}"
        )
    if tuple(edge_type) not in (known or [DEFAULT_HOMOGENEOUS_EDGE_TYPE]):
        raise ConfigError(f"edge_label_index names edge type {edge_type}, the graph has {known}")
    # A plain tuple, whatever class the user's is of: it becomes part of keys, and is sent to
    # workers.
    src, relation, dst = edge_type
    return (src, relation, dst), edges


def _is_edge_type(value: Any) -> bool:
    named = isinstance(value, tuple) and len(value) in (2, 3)
    return named and all(isinstance(part, str) for part in value)


def _in_full(named: tuple[str, ...], known: list[EdgeType]) -> tuple[str, ...]:
    """Return an edge type named by its ends alone, as PyG allows where only one has these ends."""
    if len(named) == 3:
        return named
    found = [one for one in known if (one[0], one[2]) == named]
    # PyG's own default relation, which then is refused like any other that is unknown.
    return found[0] if len(found) == 1 else (named[0], "to", named[1])


def read_edges(
    edge_type: EdgeType, index: Any, label: Any, num_nodes: Mapping[NodeType, int]
) -> SeedEdges:
    """Return checked seed edges.

    Raises:
        ConfigError: Wrong shape, dtype, device or range; names the first offender.
    """
    known = isinstance(index, (Tensor, np.ndarray, list))
    found = _as_tensor(index, "edge_label_index") if known else None
    if found is None or found.dtype != torch.int64 or found.dim() != 2 or found.size(0) != 2:
        what = type(index).__name__ if found is None else f"{list(found.shape)} {found.dtype}"
        raise ConfigError(
            f"edge_label_index must be [2, num_edges] int64, sources in row 0, got {what}"
        )
    if found.device.type != "cpu":
        raise ConfigError(
            f"edge_label_index must be on the CPU, where sampling is, got {found.device}"
        )
    # Row by row: the two ends may be of types with different numbers of nodes.
    for row, end in enumerate((edge_type[0], edge_type[2])):
        wrong = (found[row] < 0) | (found[row] >= num_nodes[end])
        if bool(wrong.any()):
            position = int(wrong.nonzero()[0])
            source, _, target = edge_type
            text = (
                f"edge_label_index[{row}, {position}] = {int(found[row, position])} is no node id: "
                f"ids of {end!r} are in [0, {num_nodes[end]})"
            )
            turned = torch.tensor([[num_nodes[target]], [num_nodes[source]]])
            if bool(((found >= 0) & (found < turned)).all()):
                text += f"; are its rows swapped? {source!r} is row 0 and {target!r} row 1"
            raise ConfigError(text)
    # Labels go with the seeds, wherever a split of the graph left them.
    labels = None if label is None else _as_tensor(label, "edge_label").cpu()
    if labels is not None and (labels.dim() == 0 or labels.size(0) != found.size(1)):
        raise ConfigError(
            f"edge_label must have one row for each of the {found.size(1)} edges of "
            f"edge_label_index, got {list(labels.shape)}"
        )
    return SeedEdges(edge_type, found, labels)


def _as_tensor(given: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name} cannot be read as a tensor: {error}") from None


def all_edges(data: DistDataset, edge_type: EdgeType) -> Tensor:
    """Return ``[2, num_edges]`` int64: the edges of a type in this partition.

    They are in the order of their edge ids, as PyG has them, where the dataset keeps these.
    """
    adjacency = data.view().adjacency[edge_type]
    edges = edges_of(adjacency, data.schema.edge_dir)
    # In memory they are grouped by node, and by what a partition got.
    return edges if adjacency.edge_ids is None else edges[:, adjacency.edge_ids.argsort()]


def negative_sampling(given: Any, ratio: float | None, label: Any) -> NegativeSampling | None:
    """Return PyG's `NegativeSampling` of what the user gave.

    Raises:
        ConfigError: It is none, or triplets with labels.
    """
    if given is not None and ratio is not None:
        raise ConfigError("neg_sampling and neg_sampling_ratio were both given: drop the ratio")
    if ratio is not None:
        # Not `ratio < 0`: a NaN is refused, too.
        if not ratio >= 0:
            raise ConfigError(f"neg_sampling_ratio must be >= 0, got {ratio!r}")
        # PyG refuses an amount of 0, and its loaders read a ratio of 0 as no negatives.
        given = NegativeSampling("binary", ratio) if ratio else None
    try:
        found: NegativeSampling | None = given if given is None else NegativeSampling.cast(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"neg_sampling must be 'binary', 'triplet' or PyG's NegativeSampling, got {given!r}: "
            f"{error}"
        ) from None
    if found is not None and found.is_triplet() and label is not None:
        raise ConfigError("triplets have no labels: leave edge_label out, or use 'binary'")
    return found


def shifted(
    labels: Sequence[Tensor | None], negatives: NegativeSampling | None
) -> list[Tensor | None]:
    """Return labels with 0 free for negatives: one more each, where binary ones use it.

    Args:
        labels: Of all seed edges of a loader, in parts: they move together, or none does.
        negatives: What the user gave.
    """
    # PyG's rule, of its `LinkLoader`: 0 is the label of negatives, so labels that use it move up.
    least = min((one.min().item() for one in labels if one is not None and one.numel()), default=1)
    if least != 0 or negatives is None or not negatives.is_binary():
        return list(labels)
    return [None if one is None else one + 1 for one in labels]


def weights_of(
    negatives: NegativeSampling, edge_type: EdgeType, num_nodes: Mapping[NodeType, int]
) -> dict[str, list[float]]:
    """Return the weights that were given, as keywords of the sampler.

    Raises:
        ConfigError: Not one weight for each node, a negative one, or nothing but zeros.
    """
    found = {}
    for name, end in (("src_weight", edge_type[0]), ("dst_weight", edge_type[2])):
        weight = getattr(negatives, name)
        if weight is None:
            continue
        # float64: weights of many nodes are summed up, and small ones must not get lost in the sum.
        weight = torch.as_tensor(weight, dtype=torch.float64)
        if tuple(weight.shape) != (num_nodes[end],):
            raise ConfigError(
                f"neg_sampling.{name} must have one weight for each of the {num_nodes[end]} nodes "
                f"of type {end!r}, got {list(weight.shape)}"
            )
        if not bool(((weight >= 0) & weight.isfinite()).all()) or not bool((weight > 0).any()):
            raise ConfigError(f"neg_sampling.{name} must be finite, >= 0, and not zero throughout")
        # A list, as keywords of samplers travel to workers that do without torch.
        found[name] = weight.tolist()
    return found
