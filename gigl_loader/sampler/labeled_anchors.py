"""Anchors that come with their labels: an input of samplers, as GiGL's loaders make it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigl_loader.batch.glt_message import NEGATIVE_LABELS, POSITIVE_LABELS
from gigl_loader.batch.message import label_column
from gigl_loader.dataset.schema import (
    NEGATIVE,
    POSITIVE,
    EdgeType,
    NodeType,
    is_label_edge_type,
    label_to_message_passing,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.glt_classes import NodeSamplerInput

POSITIVE_LABEL_METADATA_KEY, NEGATIVE_LABEL_METADATA_KEY = POSITIVE_LABELS, NEGATIVE_LABELS
"""GiGL's names of these."""


class ABLPNodeSamplerInput(NodeSamplerInput):
    """Anchors with their labels, as GiGL's loaders make them: an input of `BaseDistLoader`.

    Args:
        node: ``[num_anchors]`` int64, global ids.
        input_type: Their node type.
        positive_label_by_edge_types: By label edge type, in either direction: ``[num_anchors,
            most]`` int64, global ids of the positives of each anchor, filled up with -1.
        negative_label_by_edge_types: The same of the negatives.

    Raises:
        ConfigError: A name is no label edge type, or its labels are not of that shape.
    """

    def __init__(
        self,
        node: Tensor,
        input_type: NodeType | None,
        positive_label_by_edge_types: Mapping[EdgeType, Tensor],
        negative_label_by_edge_types: Mapping[EdgeType, Tensor],
    ) -> None:
        super().__init__(node, input_type)
        self.positive_label_by_edge_types = dict(positive_label_by_edge_types)
        self.negative_label_by_edge_types = dict(negative_label_by_edge_types)
        self.extra: dict[str, Tensor] = {}
        self.supervision: list[EdgeType] = []
        """Edge types that are predicted, anchors first."""
        for sign, by_type in (
            (POSITIVE, self.positive_label_by_edge_types),
            (NEGATIVE, self.negative_label_by_edge_types),
        ):
            for label_type, labels in by_type.items():
                where = f"the {sign} labels of {tuple(label_type)}"
                if not is_label_edge_type(label_type):
                    raise ConfigError(f"{where}: this is no label edge type")
                src, relation, dst = label_to_message_passing(label_type)
                edge_type = (src, relation, dst) if src == input_type else (dst, relation, src)
                self.supervision += [] if edge_type in self.supervision else [edge_type]
                if node.numel():  # else GiGL has a vector, and no server has rows of that input
                    check_labels(labels, node.numel(), torch.iinfo(torch.int64).max, where)
                    self.extra[label_column(sign, edge_type)] = labels

    def __getitem__(self, index: Any) -> "ABLPNodeSamplerInput":
        index = torch.as_tensor(index, dtype=torch.int64, device=self.node.device)
        positives, negatives = (
            {label_type: labels[index] for label_type, labels in by_type.items()}
            for by_type in (self.positive_label_by_edge_types, self.negative_label_by_edge_types)
        )
        return ABLPNodeSamplerInput(self.node[index], self.input_type, positives, negatives)


def check_labels(labels: Any, num_anchors: int, num_nodes: int, where: str) -> Tensor:
    """Return ``labels`` if they are ``[num_anchors, most]`` int64 ids or -1.

    Raises:
        ConfigError: Wrong shape, dtype or range.
    """
    shape = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.dtype != torch.int64:
        raise ConfigError(f"{where} must be [anchors, most labels] int64, got {shape}")
    if labels.size(0) != num_anchors:
        raise ConfigError(f"{where} has {labels.size(0)} rows for {num_anchors} anchors")
    wrong = (labels < -1) | (labels >= num_nodes)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ConfigError(
            f"{where}[{row}, {column}] = {int(labels[row, column])} is no node id: ids are in "
            f"[0, {num_nodes}), and -1 fills a row up"
        )
    return labels
