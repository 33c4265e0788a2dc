from gigl_loader import RemoteDistDataset as RemoteDistDataset
from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.graph_store.remote_dist_dataset")
