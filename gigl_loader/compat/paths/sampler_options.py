"""GiGL's ``gigl.distributed.sampler_options``."""

from gigl_loader import KHopNeighborSamplerOptions, PPRSamplerOptions, SamplerOptions
from gigl_loader.compat.advice import advise

__all__ = ["KHopNeighborSamplerOptions", "PPRSamplerOptions", "SamplerOptions"]

__getattr__ = advise("gigl_loader.sampler_options")
