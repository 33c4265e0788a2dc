from gigl_loader.compat.advice import advise
from gigl_loader.graph_store import DistServer as DistServer

__getattr__ = advise("gigl_loader.graph_store.dist_server")
