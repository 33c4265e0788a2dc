"""GiGL's module path of `DistNeighborLoader`, for existing GiGL scripts."""

from gigl_loader import DistNeighborLoader

__all__ = ["DistNeighborLoader"]
