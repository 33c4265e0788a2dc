"""Old public path of `graph_store.ray`."""

from gigl_loader.graph_store.ray import GraphStore, start_graph_store

__all__ = ["GraphStore", "start_graph_store"]
