from gigl_loader import DistDataset as DistDataset
from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.dist_dataset")
