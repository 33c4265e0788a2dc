"""What link batches are to predict, from a message to the names that GiGL and PyG use.

Labels of anchors become ``y_positive`` and ``y_negative``; seed edges become ``edge_label_index``,
or triplets.
"""

from collections.abc import Sequence
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
    LABEL_COUNTS,
    LABEL_LINKS,
    NEGATIVE,
    POSITIVE,
    SampleMessage,
    label_column,
)

Labels = Tensor | dict[int, Tensor]
"""``[2, num_labels]`` int64, or the labels of each anchor."""

_ATTRIBUTES = {POSITIVE: "y_positive", NEGATIVE: "y_negative"}


def add_labels(
    data: Any, message: SampleMessage, supervision: Sequence[EdgeType], *, as_edge_index: bool
) -> None:
    """Give ``data`` its ``y_positive``, and its ``y_negative`` where there are negatives.

    Args:
        data: A `Data` or `HeteroData`.
        message: From a sampler with `gigl_loader.sampler.anchors.AnchorRoots`.
        supervision: Edge types that are predicted. With one, an attribute is its labels; with
            several, a dict of them by edge type.
        as_edge_index: Labels as one tensor, anchors in row 0, label nodes in row 1; otherwise as a
            dict from each anchor to its label nodes. All of them are local.

    Raises:
        ConfigError: The message has no positives: another sampler made it.
    """
    for sign, attribute in _ATTRIBUTES.items():
        found = {}
        for edge_type in supervision:
            name = label_column(sign, edge_type)
            if LABEL_LINKS + name in message:
                links, counts = message[LABEL_LINKS + name], message[LABEL_COUNTS + name]
                found[edge_type] = links if as_edge_index else by_anchor(links, counts)
            # Every anchor sampler writes positives, even where a batch has none; negatives are
            # written only where the user gave some.
            elif sign == POSITIVE:
                raise ConfigError(
                    f"the sampler gave no positives of {edge_type}: a sampler of your own for a "
                    "DistABLPLoader needs the roots gigl_loader.sampler.anchors.AnchorRoots"
                )
        if found:
            data[attribute] = found if len(supervision) > 1 else next(iter(found.values()))


def by_anchor(links: Tensor, counts: Tensor) -> dict[int, Tensor]:
    """Return the label nodes of each anchor, an empty tensor where it has none.

    Args:
        links: ``[2, num_labels]`` int64, ascending by anchor (row 0); any device.
        counts: ``[num_anchors]`` int64 on the CPU, labels of each anchor.

    Returns:
        By local index of the anchor: views of ``links[1]``, nothing is copied.
    """
    # Anchors are the first nodes of their type, so the n-th count is that of local index n. The
    # counts are on the host, where `split` needs them: on the device they would cost a wait per
    # batch.
    return dict(enumerate(torch.split(links[1], counts.tolist())))


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
