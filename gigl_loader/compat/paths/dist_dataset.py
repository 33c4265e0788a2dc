"""GiGL's ``gigl.distributed.dist_dataset``."""

from gigl_loader import DistDataset
from gigl_loader.compat.advice import advise

__all__ = ["DistDataset"]

__getattr__ = advise("gigl_loader.dist_dataset")
