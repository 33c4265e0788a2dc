"""graphlearn-torch's interface over these loaders; also ``import gigl_loader.glt as glt``.

A thin layer, for scripts that are written for graphlearn-torch: in `compat.glt.distributed`
they find datasets, loaders, and its server-client mode over a graph store. It needs no
graphlearn-torch.
"""

from gigl_loader.compat.glt import channel, data, distributed, sampler, typing, utils

__all__ = ["channel", "data", "distributed", "sampler", "typing", "utils"]
