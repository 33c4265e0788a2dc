"""Old public path of `compat.glt.channel`."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.channel import ChannelBase

__all__ = ["ChannelBase"]

__getattr__ = advise("gigl_loader.glt.channel")
