"""The storage cluster on Ray: Ray places and restarts servers; batches do not go through it.

Names are imported when they are first used, and nothing of this package needs Ray to be imported.
"""

from typing import TYPE_CHECKING

from gigl_loader._lazy import lazy_names

if TYPE_CHECKING:
    from gigl_loader.ray.store import GraphStore, start_graph_store

__all__ = ["GraphStore", "start_graph_store"]

_MODULES = {"GraphStore": "ray.store", "start_graph_store": "ray.store"}

if not TYPE_CHECKING:  # a type checker that saw it would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
