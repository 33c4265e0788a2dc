"""GiGL's ``graph_store.shared_dist_sampling_producer``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.graph_store.shared_dist_sampling_producer")
