from gigl_loader.graph_store.ray.store import GraphStore as GraphStore
from gigl_loader.graph_store.ray.store import start_graph_store as start_graph_store
