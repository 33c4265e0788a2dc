"""Old public path of `compat.glt.data`."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.data import Dataset, Feature, Graph, Topology

__all__ = ["Dataset", "Feature", "Graph", "Topology"]

__getattr__ = advise("gigl_loader.glt.data")
