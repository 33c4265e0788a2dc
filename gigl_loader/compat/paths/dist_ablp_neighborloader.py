from gigl_loader import DistABLPLoader as DistABLPLoader
from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dist_ablp_neighborloader")
