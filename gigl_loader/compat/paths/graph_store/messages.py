"""GiGL's ``gigl.distributed.graph_store.messages``: no name of it exists here."""

from gigl_loader.compat.advice import advise

__getattr__ = advise("gigl_loader.graph_store.messages")
