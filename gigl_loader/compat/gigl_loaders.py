"""What GiGL's own loaders call, for subclasses that were made of their text.

Messages and batches of ours need little of it: features of types that were not reached are there,
label edges are not, and packed columns are floats.

Source:
    GiGL at fee4ba50, ``gigl/distributed/utils/neighborloader.py``, ``utils/ablp.py``,
    ``utils/sampling_errors.py`` and ``sampler_options.py``.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.collate import by_anchor
from gigl_loader.batch.message import META
from gigl_loader.compat.gigl_types import label_edge_type_to_message_passing_edge_type
from gigl_loader.dataset.schema import EdgeType, NodeType, is_label_edge_type
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.options import KHopNeighborSamplerOptions, SamplerOptions
from gigl_loader.sources.other_producer import raise_sampling_error


class SamplingClusterSetup(Enum):
    """Where a loader samples."""

    COLOCATED = "colocated"
    GRAPH_STORE = "graph_store"


def resolve_sampler_options(
    num_neighbors: Any, sampler_options: SamplerOptions | None
) -> SamplerOptions:
    """Return the sampler of a loader; without one, that of its fan-outs.

    Raises:
        ConfigError: It names other fan-outs than ``num_neighbors``.
    """
    if sampler_options is None:
        return KHopNeighborSamplerOptions(num_neighbors)
    if isinstance(sampler_options, KHopNeighborSamplerOptions) and (
        sampler_options.num_neighbors != num_neighbors
    ):
        raise ConfigError(
            f"num_neighbors={num_neighbors} and sampler_options={sampler_options} differ: give one"
        )
    return sampler_options


def shard_nodes_by_process(
    input_nodes: Tensor, local_process_rank: int, local_process_world_size: int
) -> Tensor:
    """Return a process's share: consecutive ids, as many for each; the last also has the rest."""
    share = input_nodes.size(0) // local_process_world_size
    start = local_process_rank * share
    is_last = local_process_rank == local_process_world_size - 1
    return input_nodes[start:] if is_last else input_nodes[start : start + share]


def extract_metadata(
    msg: Mapping[str, Any], device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the metadata of a message, on the device and without ``#META.``, and the rest."""
    found = {name[len(META) :]: msg[name].to(device) for name in msg if name.startswith(META)}
    return found, {name: value for name, value in msg.items() if not name.startswith(META)}


def set_missing_features(
    data: Any, node_feature_info: Any, edge_feature_info: Any, device: torch.device
) -> Any:
    """Give a batch empty features where its graph has some and its store has none."""
    for attribute, info in (("x", node_feature_info), ("edge_attr", edge_feature_info)):
        if isinstance(data, Data):
            info = next(iter(info.values()), None) if isinstance(info, Mapping) else info
            stores = {} if info is None else {None: info}
        else:
            known = data.node_types if attribute == "x" else data.edge_types
            stores = {name: one for name, one in (info or {}).items() if name in known}
        for name, one in stores.items():
            store = data if name is None else data[name]
            if store.get(attribute) is None:
                store[attribute] = torch.empty(0, one.dim, dtype=one.dtype, device=device)
    return data


def strip_label_edges(data: HeteroData) -> HeteroData:
    """Remove the edges that only carry labels."""
    for edge_type in filter(is_label_edge_type, list(data.edge_types)):
        del data[edge_type]
        data.get("num_sampled_edges", {}).pop(edge_type, None)
    return data


def labeled_to_homogeneous(supervision_edge_type: EdgeType, data: Any) -> Any:
    """Return the batch of a homogeneous graph with labels as `Data`, which ours are already."""
    if isinstance(data, Data):
        return data
    edges, nodes = data[supervision_edge_type], data[supervision_edge_type[0]]
    found = Data(**nodes.to_dict(), **edges.to_dict())
    found.num_sampled_nodes = data.num_sampled_nodes[supervision_edge_type[0]]
    found.num_sampled_edges = data.num_sampled_edges[supervision_edge_type]
    found.batch_size = found.batch.numel()
    return found


def materialize_quantized_node_features(
    data: Any, metadata: dict[str, Tensor], *_: Any, **__: Any
) -> tuple[Any, dict[str, Tensor]]:
    """Return both as they are: rows are floats in messages."""
    return data, metadata


materialize_quantized_edge_features = materialize_quantized_node_features


def raise_if_sampling_error(msg: Mapping[str, Any]) -> None:
    """Raise `SamplingError` with the traceback that a sampler sent in place of a batch."""
    raise_sampling_error(msg, "a sampler")


def label_edge_index_to_dict(label_edge_index: Tensor, num_anchors: int) -> dict[int, Tensor]:
    """Return the label nodes of each anchor.

    Args:
        label_edge_index: ``[2, num_labels]`` int64, anchors in row 0, ascending.
        num_anchors: Of the batch.
    """
    counts = torch.bincount(label_edge_index[0], minlength=num_anchors)
    return by_anchor(label_edge_index, counts)


def remap_labels_to_local_edge_indices(
    local_id_to_global_id_by_node_type: Mapping[NodeType, Tensor],
    positive_labels_by_edge_type: Mapping[EdgeType, Tensor],
    negative_labels_by_edge_type: Mapping[EdgeType, Tensor],
) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
    """Return labels as ``[2, num_labels]`` int64, local anchors and label nodes, by edge type.

    Args:
        local_id_to_global_id_by_node_type: Ids of a batch's nodes, each once.
        positive_labels_by_edge_type: By label edge type, ``[num_anchors, most]`` global ids,
            filled up with -1.
        negative_labels_by_edge_type: The same of the negatives.

    Raises:
        ConfigError: A label is not among the nodes.
    """
    found: list[dict[EdgeType, Tensor]] = [{}, {}]
    for links, by_type in zip(
        found, (positive_labels_by_edge_type, negative_labels_by_edge_type), strict=True
    ):
        for label_type, labels in by_type.items():
            if not labels.size(0):
                continue
            ids, order = torch.sort(local_id_to_global_id_by_node_type[label_type[2]])
            anchors, places = (labels >= 0).nonzero(as_tuple=True)
            wanted = labels[anchors, places]
            at = torch.searchsorted(ids, wanted)
            if not torch.isin(wanted, ids).all():
                raise ConfigError(f"labels of {label_type} are not among the nodes of the batch")
            edge_type = label_edge_type_to_message_passing_edge_type(label_type)
            links[edge_type] = torch.stack([anchors, order[at]])
    return found[0], found[1]
