"""GiGL's ``gigl.distributed.dist_neighbor_sampler``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dist_neighbor_sampler")
