"""GiGL's ``gigl.distributed.dist_sampling_producer``."""

from gigl_loader import DistSamplingProducer
from gigl_loader.compat.advice import advise

__all__ = ["DistSamplingProducer"]

__getattr__ = advise("gigl_loader.dist_sampling_producer")
