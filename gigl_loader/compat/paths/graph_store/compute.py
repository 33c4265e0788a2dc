"""GiGL's ``gigl.distributed.graph_store.compute``."""

from gigl_loader.compat.advice import advise
from gigl_loader.graph_store import (
    async_request_server,
    init_compute_process,
    request_server,
    shutdown_compute_process,
)

__all__ = [
    "async_request_server",
    "init_compute_process",
    "request_server",
    "shutdown_compute_process",
]

__getattr__ = advise("gigl_loader.graph_store.compute")
