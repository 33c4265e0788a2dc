"""GiGL's ``gigl.distributed.utils.channel``: no name of it exists here."""

from gigl_loader.compat.names import advise

__getattr__ = advise("gigl_loader.utils.channel")
