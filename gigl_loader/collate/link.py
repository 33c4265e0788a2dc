"""The labels of a link-prediction batch, from a message to ``y_positive`` and ``y_negative``."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.errors import ConfigError
from gigl_loader.message import (
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
        message: From a sampler with `gigl_loader.sampler.link.AnchorRoots`.
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
                    "DistABLPLoader needs the roots gigl_loader.sampler.link.AnchorRoots"
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
