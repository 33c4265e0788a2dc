"""graphlearn-torch's ``typing``: the names that its scripts import."""

from enum import Enum

from gigl_loader.dataset.schema import EdgeType, NodeType, reverse_edge_type

__all__ = ["EdgeType", "NodeType", "Split", "reverse_edge_type"]


class Split(Enum):
    """Nodes of a split, which stay on their servers as seeds of a loader."""

    train = "train"
    valid = "valid"
    test = "test"
