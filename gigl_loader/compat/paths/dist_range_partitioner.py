"""GiGL's ``gigl.distributed.dist_range_partitioner``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dist_range_partitioner")
