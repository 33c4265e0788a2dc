"""GiGL's ``gigl.distributed.graph_store.remote_dist_dataset``."""

from gigl_loader import RemoteDistDataset
from gigl_loader.compat.advice import advise

__all__ = ["RemoteDistDataset"]

__getattr__ = advise("gigl_loader.graph_store.remote_dist_dataset")
