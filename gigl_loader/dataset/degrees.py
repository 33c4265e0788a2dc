"""Degrees of all nodes, added up over the partitions of a graph."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError, NotReadyError
from gigl_loader.runtime.ranks.collectives import RankExchange
from gigl_loader.runtime.transport import own_address

# GiGL's type: its sampler by PageRank takes no other.
_LARGEST = torch.iinfo(torch.int32).max


def of_whole_graph(view: PartitionView) -> dict[NodeType, Tensor]:
    """Return each node's degree, added up over all partitions: ``[num_nodes]`` int32 by type.

    Label edges do not count. Collective with several partitions.

    Raises:
        ConfigError: No rank holds some partition.
        PeerError: A rank ended.
    """
    own: dict[NodeType, Tensor] = {}
    for edge_type, edges in view.adjacency.items():
        if is_label_edge_type(edge_type):
            continue
        node_type = edge_type[2 if view.edge_dir == "in" else 0]
        degrees = own.setdefault(
            node_type, torch.zeros(view.num_nodes[node_type], dtype=torch.long, device="cpu")
        )
        counts = edges.indptr.diff()
        degrees[edges.first_row : edges.first_row + counts.numel()] += counts
    if view.num_partitions == 1:
        return _clamped(own)
    return _added_up(own, view.partition_idx, range(view.num_partitions))


def compute_and_broadcast_degree_tensor(graph: Any, edge_dir: EdgeDir) -> Any:
    """Return the degrees of the nodes of graphlearn-torch's graphs; GiGL's function. Collective.

    As in GiGL, the processes of a machine have the same partition. `DistDataset.degree_tensor`
    knows the partitions.

    Args:
        graph: A ``Graph``, or a dict of them by edge type. Label edge types do not count.
        edge_dir: The end of edges by which they are grouped: ``"in"`` destinations, ``"out"``
            sources.

    Returns:
        ``[num_nodes]`` int32, or a dict of them by node type.

    Raises:
        NotReadyError: There is no process group.
        PeerError: A rank ended.
    """
    if not dist.is_initialized():
        raise NotReadyError("degrees are added up over torch.distributed: init_process_group first")
    own: dict[NodeType, Tensor] = {}
    plain = not isinstance(graph, Mapping)
    for edge_type, one in ({} if plain else graph).items():
        if not is_label_edge_type(edge_type):
            node_type = edge_type[2 if edge_dir == "in" else 0]
            own[node_type] = _sum_of(own.get(node_type), one.topo.indptr.diff())
    if plain:
        own[DEFAULT_HOMOGENEOUS_NODE_TYPE] = graph.topo.indptr.diff()
    summed = _added_up(own, own_address(), ())
    return summed[DEFAULT_HOMOGENEOUS_NODE_TYPE] if plain else summed


def _added_up(own: dict[NodeType, Tensor], part: int | str, parts: Any) -> dict[NodeType, Tensor]:
    """Return the sums over all parts of a graph, of which each rank has one.

    Args:
        own: ``[n]`` integers by node type.
        part: This rank's part; ranks of one part have the same values, and it counts once.
        parts: Parts that some rank must have.
    """
    exchange = RankExchange(doing="degrees were added up")
    sizes = {node_type: degrees.numel() for node_type, degrees in own.items()}
    everyone = exchange.gather((part, sizes), tuple[int | str, dict[str, int]])
    holders = [held for held, _ in everyone]
    if missing := sorted({*parts} - {*holders}):
        raise ConfigError(
            f"no rank holds partition {missing[0]} of {len(parts)}, so degrees cannot be added up: "
            "start a rank for each partition, and let all of them read the degrees"
        )
    # graphs of GLT end at their last row with an edge, and a part may lack a type
    longest: dict[NodeType, int] = {}
    for _, others in everyone:
        for node_type, size in others.items():
            longest[node_type] = max(size, longest.get(node_type, 0))
    counts = holders.index(part) == exchange.rank
    summed = {}
    for node_type in sorted(longest):
        row = torch.zeros(longest[node_type], dtype=torch.long, device="cpu")
        summed[node_type] = exchange.sum_values(_sum_of(row, own.get(node_type)) if counts else row)
    return _clamped(summed)


def _sum_of(one: Tensor | None, other: Tensor | None) -> Tensor:
    """Return the sum of two vectors, of which the shorter one ends in zeros."""
    given = [values for values in (one, other) if values is not None]
    out = torch.zeros(max(values.numel() for values in given), dtype=torch.long, device="cpu")
    for values in given:
        out[: values.numel()] += values
    return out


def _clamped(degrees: dict[NodeType, Tensor]) -> dict[NodeType, Tensor]:
    return {name: counts.clamp(max=_LARGEST).to(torch.int32) for name, counts in degrees.items()}
