"""GiGL's ``gigl.types.graph``."""

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    FeatureInfo,
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_types import (
    label_edge_type_to_message_passing_edge_type,
    reverse_edge_type,
    select_label_edge_types,
    to_heterogeneous_edge,
    to_heterogeneous_node,
    to_homogeneous,
)

__all__ = [
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "FeatureInfo",
    "FeaturePartitionData",
    "GraphPartitionData",
    "PartitionOutput",
    "is_label_edge_type",
    "label_edge_type_to_message_passing_edge_type",
    "message_passing_to_negative_label",
    "message_passing_to_positive_label",
    "reverse_edge_type",
    "select_label_edge_types",
    "to_heterogeneous_edge",
    "to_heterogeneous_node",
    "to_homogeneous",
]

__getattr__ = advise("gigl_loader.types.graph")
