"""The seed edges of `DistLinkNeighborLoader`, checked and split into a sampler's input."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.batch.message import SeedColumns
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.seeds.seed_input import TimeInput, check_servers, read_tensor, read_times
from gigl_loader.loader.seeds.seed_limits import SeedLimits
from gigl_loader.runtime.glt_classes import NodeSamplerInput

TIMES = "edge_label_time"
"""The keyword for the times of seed edges."""


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
        # Rows of a transposed index are not contiguous, and seeds are read as one block.
        found = NodeSamplerInput(self.index[0].contiguous(), self.edge_type[0])
        label = None if self.label is None else self.label.contiguous()
        found.extra = SeedColumns(targets=self.index[1].contiguous(), label=label).named()
        return found

    def split(self, parts: int) -> "list[SeedEdges]":
        """Return contiguous blocks that concatenate to all."""
        labels = [None] * parts if self.label is None else self.label.tensor_split(parts)
        blocks = self.index.tensor_split(parts, dim=1)
        return [
            SeedEdges(self.edge_type, block, label)
            for block, label in zip(blocks, labels, strict=True)
        ]


def edges_of_this_machine(data: DistDataset, given: Any, label: Any) -> SeedEdges:
    """Return the seed edges of all processes of this machine; None: all edges of the partition."""
    given, label = unpacked(given, label)
    num_nodes = data.view().num_nodes
    edge_type, index = edge_type_of(given, data.schema, num_nodes)
    if isinstance(index, Mapping):
        raise ConfigError(
            "edge_label_index is by server, as for a graph store, but the dataset is local: pass a "
            "tensor or (edge_type, tensor)"
        )
    if index is None:
        index = all_edges(data, edge_type)
    return read_edges(edge_type, index, label, num_nodes)


def edges_by_server(
    given: Any, label: Any, schema: DatasetSchema, num_nodes: Mapping[NodeType, int], servers: range
) -> list[SeedEdges]:
    """Return the seed edges of each storage server, empty ones included."""
    given, label = unpacked(given, label)
    edge_type, index = edge_type_of(given, schema, num_nodes)
    if index is None:
        raise ConfigError(
            "with a graph store, edge_label_index must be given: a [2, num_edges] tensor, "
            "or {server_rank: tensor}"
        )
    if not isinstance(index, Mapping):
        return read_edges(edge_type, index, label, num_nodes).split(len(servers))
    check_servers(index, servers)
    if not (label is None or (isinstance(label, Mapping) and label.keys() == index.keys())):
        raise ConfigError("edge_label must be by server as edge_label_index is, or None")
    nothing = torch.empty(2, 0, dtype=torch.int64, device="cpu")
    labels: Mapping[int, Tensor] = {} if label is None else label
    some = next(iter(labels.values()), None)
    # A server without edges still has labels of the same type and columns, but none of them: all
    # servers' labels become one tensor.
    none_left = None if some is None else some[:0]
    return [
        read_edges(edge_type, index.get(server, nothing), labels.get(server, none_left), num_nodes)
        for server in servers
    ]


def by_server_as_edges(limits: SeedLimits, inputs: list[NodeSamplerInput]) -> SeedLimits:
    """Return the limits of seed edges by server; one tensor of times is split like the edges."""
    sizes = [one.node.numel() for one in inputs]
    given: dict[str, tuple[str, TimeInput]] = {}
    for column, (name, times) in limits.given.named().items():
        if not isinstance(times, Mapping):
            times = dict(enumerate(read_times(times, sum(sizes), name).split(sizes)))
        given[column] = name, times
    return SeedLimits(SeedColumns.of(given))


def unpacked(given: Any, label: Any) -> tuple[Any, Any]:
    """Return (seed edges, labels) of GLT's ``EdgeSamplerInput``; anything else unchanged."""
    # By its attributes: the class is GLT's, which need not be installed.
    if not (hasattr(given, "row") and hasattr(given, "col")):
        return given, label
    index = torch.stack([given.row, given.col])
    edge_type = getattr(given, "input_type", None)
    # A separate label takes precedence over that of the input.
    label = getattr(given, "label", None) if label is None else label
    return (index if edge_type is None else (edge_type, index)), label


def edge_type_of(
    edges: Any, schema: DatasetSchema, node_types: Iterable[NodeType] = ()
) -> tuple[EdgeType, Any]:
    """Return (edge type, seed edges without it) of ``edge_label_index``.

    Args:
        edges: What the user gave.
        schema: Of the graph.
        node_types: Types of nodes, between which edges of a type that the graph lacks may be given:
            they are predicted, and not walked.

    Raises:
        ConfigError: The type is missing, unknown, or a label edge type.
    """
    known = [one for one in schema.edge_types or () if not is_label_edge_type(one)]
    # Label edges alone do not make a graph heterogeneous: batches of it are `Data`.
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    if _is_edge_type(edges):
        named, index = edges, None
    elif isinstance(edges, tuple) and len(edges) == 2 and _is_edge_type(edges[0]):
        named, index = edges
    elif plain:
        return DEFAULT_HOMOGENEOUS_EDGE_TYPE, edges
    else:
        raise ConfigError(
            "the graph is heterogeneous: pass edge_label_index=(edge_type, index), with one of "
            f"{known}"
        )
    # A plain tuple, whatever the user's class: it becomes part of keys, and is sent to workers.
    src, relation, dst = _in_full(named, known)
    edge_type = (src, relation, dst)
    may_be_new = len(named) == 3 and index is not None and not plain
    is_predicted = may_be_new and not is_label_edge_type(edge_type) and {src, dst} <= {*node_types}
    if not is_predicted and edge_type not in (known or [DEFAULT_HOMOGENEOUS_EDGE_TYPE]):
        raise ConfigError(f"edge_label_index names edge type {edge_type}, the graph has {known}")
    return edge_type, index


def _is_edge_type(value: Any) -> bool:
    named = isinstance(value, tuple) and len(value) in (2, 3)
    return named and all(isinstance(part, str) for part in value)


def _in_full(named: tuple[str, ...], known: list[EdgeType]) -> tuple[str, ...]:
    """Return an edge type named by its ends alone, as PyG allows if only one has these ends."""
    if len(named) == 3:
        return named
    found = [one for one in known if (one[0], one[2]) == named]
    # PyG's own default relation, which is then refused like any other unknown one.
    return found[0] if len(found) == 1 else (named[0], "to", named[1])


def read_edges(
    edge_type: EdgeType, index: Any, label: Any, num_nodes: Mapping[NodeType, int]
) -> SeedEdges:
    """Return checked seed edges.

    Raises:
        ConfigError: Wrong shape, dtype, device or range; names the first offender.
    """
    known = isinstance(index, (Tensor, np.ndarray, list))
    given = isinstance(index, Tensor)  # on any device, which is checked below
    found = index if given else read_tensor(index, "edge_label_index") if known else None
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
            turned = torch.tensor([[num_nodes[target]], [num_nodes[source]]], device="cpu")
            if bool(((found >= 0) & (found < turned)).all()):
                text += f"; are its rows swapped? {source!r} is row 0 and {target!r} row 1"
            raise ConfigError(text)
    # Labels go with the seeds, whichever device a split of the graph left them on.
    labels = None if label is None else read_tensor(label, "edge_label").cpu()
    if labels is not None and (labels.dim() == 0 or labels.size(0) != found.size(1)):
        raise ConfigError(
            f"edge_label must have one row for each of the {found.size(1)} edges of "
            f"edge_label_index, got {list(labels.shape)}"
        )
    return SeedEdges(edge_type, found, labels)


def all_edges(data: DistDataset, edge_type: EdgeType) -> Tensor:
    """Return ``[2, num_edges]`` int64: the edges of a type in this partition.

    They are in the order of their edge ids, as in PyG, if the dataset keeps these.
    """
    adjacency = data.view().adjacency[edge_type]
    edges = edges_of(adjacency, data.schema.edge_dir)
    # In memory they are grouped by node, and by the partition's share.
    return edges if adjacency.edge_ids is None else edges[:, adjacency.edge_ids.argsort()]
