"""GiGL's ``gigl.distributed.graph_store``, under another package's name; else see `graph_store`."""

from typing import Any

from gigl_loader import graph_store
from gigl_loader.compat import answers

__all__ = list(vars(graph_store)["__all__"])  # which its stub does not show
__path__ = [*__path__, *answers.__path__]


def __getattr__(name: str) -> Any:
    return getattr(graph_store, name)


def __dir__() -> list[str]:
    return dir(graph_store)
