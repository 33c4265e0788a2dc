"""GiGL's ``gigl.distributed.graph_store``, under another package's name; else see `graph_store`."""

from functools import partial

from gigl_loader import graph_store
from gigl_loader.compat import answers

__all__ = list(vars(graph_store)["__all__"])  # which its stub does not show
__path__ = [*__path__, *answers.__path__]
__getattr__ = partial(getattr, graph_store)
__dir__ = partial(dir, graph_store)
