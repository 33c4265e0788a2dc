"""Old public path of `compat.glt`: ``import gigl_loader.glt as glt``."""

from gigl_loader.compat.glt import channel, data, distributed, sampler, typing, utils

__all__ = ["channel", "data", "distributed", "sampler", "typing", "utils"]
