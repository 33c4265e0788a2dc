"""Old public path of `graph_store.ray`."""

from gigl_loader.graph_store.ray import GraphStore as GraphStore
from gigl_loader.graph_store.ray import start_graph_store as start_graph_store
