"""Old public path of `compat.glt.distributed`."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistContext,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistRole,
    DistServer,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    async_request_server,
    get_context,
    get_server,
    init_client,
    init_server,
    init_worker_group,
    request_server,
    shutdown_client,
    wait_and_shutdown_server,
)

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "DistContext",
    "DistDataset",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistRole",
    "DistServer",
    "DistSubGraphLoader",
    "MpDistSamplingWorkerOptions",
    "RemoteDistSamplingWorkerOptions",
    "async_request_server",
    "get_context",
    "get_server",
    "init_client",
    "init_server",
    "init_worker_group",
    "request_server",
    "shutdown_client",
    "wait_and_shutdown_server",
]

__getattr__ = advise("gigl_loader.glt.distributed")
