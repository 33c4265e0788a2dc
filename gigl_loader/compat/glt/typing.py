"""graphlearn-torch's ``typing``: the names that its scripts import."""

from gigl_loader.compat.glt.scripts import Split
from gigl_loader.dataset.schema import EdgeType, NodeType, reverse_edge_type

__all__ = ["EdgeType", "NodeType", "Split", "reverse_edge_type"]
