"""GiGL's ``gigl.distributed.utils.neighborloader``."""

from gigl_loader import DatasetSchema
from gigl_loader.compat.advice import advise

__all__ = ["DatasetSchema"]

__getattr__ = advise("gigl_loader.utils.neighborloader")
