"""GiGL's ``gigl.distributed.sampler``, under another package's name; else see `sampler`."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.sampler")
