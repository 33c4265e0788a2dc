from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.graph_store.sharding")
