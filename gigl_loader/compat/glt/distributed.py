"""graphlearn-torch's ``distributed``: datasets, loaders, and its server-client mode."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.glt_dataset import DistDataset
from gigl_loader.compat.glt.loaders import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
)
from gigl_loader.compat.glt.roles import (
    async_request_server,
    get_server,
    init_client,
    init_server,
    request_server,
    shutdown_client,
    wait_and_shutdown_server,
)
from gigl_loader.graph_store.wire.signatures import DistServer
from gigl_loader.runtime.glt_classes import (
    CollocatedDistSamplingWorkerOptions,
    DistContext,
    DistRole,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    get_context,
    init_worker_group,
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
