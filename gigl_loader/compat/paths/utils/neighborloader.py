"""GiGL's ``gigl.distributed.utils.neighborloader``."""

from gigl_loader import DatasetSchema
from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_loaders import (
    SamplingClusterSetup,
    extract_edge_type_metadata,
    extract_metadata,
    labeled_to_homogeneous,
    materialize_quantized_edge_features,
    materialize_quantized_node_features,
    set_missing_features,
    shard_nodes_by_process,
    strip_label_edges,
)

__all__ = [
    "DatasetSchema",
    "SamplingClusterSetup",
    "extract_edge_type_metadata",
    "extract_metadata",
    "labeled_to_homogeneous",
    "materialize_quantized_edge_features",
    "materialize_quantized_node_features",
    "set_missing_features",
    "shard_nodes_by_process",
    "strip_label_edges",
]

__getattr__ = advise("gigl_loader.utils.neighborloader")
