"""GiGL's ``gigl.distributed.utils.ablp``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.utils.ablp")
