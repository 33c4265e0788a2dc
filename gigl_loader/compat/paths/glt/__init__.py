"""Old public path of `compat.glt`: ``import gigl_loader.glt as glt``."""

from gigl_loader.compat.glt import distributed, sampler, typing

__all__ = ["distributed", "sampler", "typing"]
