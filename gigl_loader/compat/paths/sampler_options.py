"""GiGL's ``gigl.distributed.sampler_options``."""

from gigl_loader import KHopNeighborSamplerOptions, PPRSamplerOptions, SamplerOptions
from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_loaders import resolve_sampler_options

__all__ = [
    "KHopNeighborSamplerOptions",
    "PPRSamplerOptions",
    "SamplerOptions",
    "resolve_sampler_options",
]

__getattr__ = advise("gigl_loader.sampler_options")
