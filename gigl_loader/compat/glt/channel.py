"""graphlearn-torch's ``channel``: its base class, and what takes the place of the others."""

from gigl_loader.compat.advice import advise
from gigl_loader.runtime.glt_classes import ChannelBase as ChannelBase

__getattr__ = advise("gigl_loader.glt.channel")
