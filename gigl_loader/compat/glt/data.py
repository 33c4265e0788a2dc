"""graphlearn-torch's ``data``: parts of a dataset, and what takes the place of the others."""

from gigl_loader.compat.advice import advise
from gigl_loader.runtime.glt_classes import Dataset, Feature, Graph, Topology

__all__ = ["Dataset", "Feature", "Graph", "Topology"]

__getattr__ = advise("gigl_loader.glt.data")
