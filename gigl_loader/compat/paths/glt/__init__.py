"""Old public path of `compat.glt`, whose modules it has: ``import gigl_loader.glt as glt``."""

from gigl_loader.compat import glt as _own
from gigl_loader.compat.glt import channel, data, distributed, sampler, typing, utils

__all__ = ["channel", "data", "distributed", "sampler", "typing", "utils"]
__path__ = _own.__path__
