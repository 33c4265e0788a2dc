"""GiGL's module path of `DistNeighborLoader`, for scripts that were written for GiGL."""

from gigl_loader import DistNeighborLoader

__all__ = ["DistNeighborLoader"]
