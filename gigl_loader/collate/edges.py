"""Seed edges of a link batch, from a message to PyG's ``edge_label_index`` or triplets."""

from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.message import (
    EDGE_INPUT_ID,
    EDGE_LABEL,
    EDGE_LABEL_INDEX,
    EDGE_TIME,
    SampleMessage,
)

_NOT_OF_A_BATCH = ("edge_label_index", "edge_label", "edge_label_time")
"""Attributes of a whole graph that `RandomLinkSplit` leaves; a batch has its own, or none."""


def add_edge_labels(
    data: Any, message: SampleMessage, edge_type: EdgeType | None, *, kind: str | None
) -> None:
    """Give ``data`` its seed edges, by the names that PyG's ``LinkNeighborLoader`` uses.

    Args:
        data: A `Data` or `HeteroData`.
        message: From a sampler with `gigl_loader.sampler.edges.EdgeRoots`.
        edge_type: Of the seed edges; None on a `Data`.
        kind: ``"binary"``, ``"triplet"``, or None: there are no negatives.

    Raises:
        ConfigError: The message has no seed edges: another sampler made it.
    """
    if EDGE_LABEL_INDEX not in message:
        raise ConfigError(
            "the sampler gave no seed edges: a sampler of your own for a DistLinkNeighborLoader "
            "needs the roots gigl_loader.sampler.edges.EdgeRoots"
        )
    # On a `Data` all three are the batch itself; on a `HeteroData` PyG keeps what is of the edges
    # with the edge type, and what is of one end with the node type of that end.
    store, src, dst = data, data, data
    if edge_type is not None:
        store, src, dst = data[edge_type], data[edge_type[0]], data[edge_type[2]]
    # They came with the graph's own attributes; left in, those of all edges would pass for the
    # batch's wherever the batch sets none of its own.
    for name in _NOT_OF_A_BATCH:
        if name in store:
            del store[name]
    # Of a triplet batch `links` is one row, [sources, positives, negatives]; else two, sources over
    # destinations, with the columns of the negatives behind those of the seed edges.
    links, store.input_id = message[EDGE_LABEL_INDEX], message[EDGE_INPUT_ID]
    num_edges = store.input_id.numel()
    if kind == "triplet":
        src.src_index, dst.dst_pos_index = links[:num_edges], links[num_edges : 2 * num_edges]
        # Row i has the negatives of seed edge i. PyG drops the second dimension where each has one.
        negatives = links[2 * num_edges :].view(num_edges, -1)
        dst.dst_neg_index = negatives.squeeze(-1)
        if EDGE_TIME in message:
            src.seed_time = dst.seed_time = message[EDGE_TIME]
        return
    store.edge_label_index = links
    if EDGE_TIME in message:
        store.edge_label_time = message[EDGE_TIME]
    label = message.get(EDGE_LABEL)
    # A missing label stays missing without negatives: there is nothing that it would tell apart.
    if kind == "binary":
        label = _with_zeros(label, num_edges, links)
    if label is not None:
        store.edge_label = label


def _with_zeros(label: Tensor | None, num_edges: int, links: Tensor) -> Tensor:
    """Return the labels of seed edges (1 where none were given), then 0 for each negative."""
    if label is None:
        label = torch.ones(num_edges, device=links.device)
    # Labels may have several dimensions, [num_edges, ...]; a negative is 0 in all of them.
    size = (links.size(1) - num_edges, *label.shape[1:])
    return torch.cat([label, label.new_zeros(size)])
