from gigl_loader import DatasetSchema as DatasetSchema
from gigl_loader.batch.glt_message import extract_edge_type_metadata as extract_edge_type_metadata
from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_loaders import SamplingClusterSetup as SamplingClusterSetup
from gigl_loader.compat.gigl_loaders import extract_metadata as extract_metadata
from gigl_loader.compat.gigl_loaders import labeled_to_homogeneous as labeled_to_homogeneous
from gigl_loader.compat.gigl_loaders import (
    materialize_quantized_edge_features as materialize_quantized_edge_features,
)
from gigl_loader.compat.gigl_loaders import (
    materialize_quantized_node_features as materialize_quantized_node_features,
)
from gigl_loader.compat.gigl_loaders import set_missing_features as set_missing_features
from gigl_loader.compat.gigl_loaders import shard_nodes_by_process as shard_nodes_by_process
from gigl_loader.compat.gigl_loaders import strip_label_edges as strip_label_edges

__getattr__ = advise("gigl_loader.utils.neighborloader")
