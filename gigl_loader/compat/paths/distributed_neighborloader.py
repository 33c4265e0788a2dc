from gigl_loader import DistNeighborLoader as DistNeighborLoader
from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.distributed_neighborloader")
