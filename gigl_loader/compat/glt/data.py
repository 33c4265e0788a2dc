"""graphlearn-torch's ``data``: parts of a dataset, and what takes the place of the others."""

from gigl_loader.compat.advice import advise
from gigl_loader.runtime.glt_classes import Dataset as Dataset
from gigl_loader.runtime.glt_classes import Feature as Feature
from gigl_loader.runtime.glt_classes import Graph as Graph
from gigl_loader.runtime.glt_classes import Topology as Topology

__getattr__ = advise("gigl_loader.glt.data")
