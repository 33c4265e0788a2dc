"""GiGL's ``gigl.types.graph``."""

from gigl_loader import DEFAULT_HOMOGENEOUS_EDGE_TYPE as DEFAULT_HOMOGENEOUS_EDGE_TYPE
from gigl_loader import DEFAULT_HOMOGENEOUS_NODE_TYPE as DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader import FeatureInfo as FeatureInfo
from gigl_loader import FeaturePartitionData as FeaturePartitionData
from gigl_loader import GraphPartitionData as GraphPartitionData
from gigl_loader import PartitionOutput as PartitionOutput
from gigl_loader import is_label_edge_type as is_label_edge_type
from gigl_loader import message_passing_to_negative_label as message_passing_to_negative_label
from gigl_loader import message_passing_to_positive_label as message_passing_to_positive_label
from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_types import (
    label_edge_type_to_message_passing_edge_type as label_edge_type_to_message_passing_edge_type,
)
from gigl_loader.compat.gigl_types import reverse_edge_type as reverse_edge_type
from gigl_loader.compat.gigl_types import select_label_edge_types as select_label_edge_types
from gigl_loader.compat.gigl_types import to_heterogeneous_edge as to_heterogeneous_edge
from gigl_loader.compat.gigl_types import to_heterogeneous_node as to_heterogeneous_node
from gigl_loader.compat.gigl_types import to_homogeneous as to_homogeneous

__getattr__ = advise("gigl_loader.types.graph")
