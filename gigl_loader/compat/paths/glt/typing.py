"""Old public path of `compat.glt.typing`."""

from gigl_loader.compat.glt.typing import EdgeType, NodeType, Split, reverse_edge_type

__all__ = ["EdgeType", "NodeType", "Split", "reverse_edge_type"]
