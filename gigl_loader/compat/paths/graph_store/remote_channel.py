from gigl_loader.compat.advice import advise
from gigl_loader.graph_store import RemoteReceivingChannel as RemoteReceivingChannel

__getattr__ = advise("gigl_loader.graph_store.remote_channel")
