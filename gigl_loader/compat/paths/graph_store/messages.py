"""GiGL's ``gigl.distributed.graph_store.messages``: no name of it exists here."""

from gigl_loader.compat.names import advise

__getattr__ = advise("gigl_loader.graph_store.messages")
