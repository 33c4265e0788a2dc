from gigl_loader import KHopNeighborSamplerOptions as KHopNeighborSamplerOptions
from gigl_loader import PPRSamplerOptions as PPRSamplerOptions
from gigl_loader import SamplerOptions as SamplerOptions
from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_loaders import resolve_sampler_options as resolve_sampler_options

__getattr__ = advise("gigl_loader.sampler_options")
