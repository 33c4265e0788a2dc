from gigl_loader import DistSamplingProducer as DistSamplingProducer
from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dist_sampling_producer")
