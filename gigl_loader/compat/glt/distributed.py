"""graphlearn-torch's ``distributed``: datasets, loaders, and its server-client mode."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.glt.glt_dataset import DistDataset as DistDataset
from gigl_loader.compat.glt.loaders import DistLinkNeighborLoader as DistLinkNeighborLoader
from gigl_loader.compat.glt.loaders import DistNeighborLoader as DistNeighborLoader
from gigl_loader.compat.glt.loaders import DistSubGraphLoader as DistSubGraphLoader
from gigl_loader.compat.glt.roles import get_server as get_server
from gigl_loader.compat.glt.roles import init_client as init_client
from gigl_loader.compat.glt.roles import init_server as init_server
from gigl_loader.compat.glt.roles import shutdown_client as shutdown_client
from gigl_loader.compat.glt.roles import wait_and_shutdown_server as wait_and_shutdown_server
from gigl_loader.graph_store import async_request_server as async_request_server
from gigl_loader.graph_store import request_server as request_server
from gigl_loader.graph_store.wire.signatures import DistServer as DistServer
from gigl_loader.runtime.glt_classes import (
    CollocatedDistSamplingWorkerOptions as CollocatedDistSamplingWorkerOptions,
)
from gigl_loader.runtime.glt_classes import DistContext as DistContext
from gigl_loader.runtime.glt_classes import DistRole as DistRole
from gigl_loader.runtime.glt_classes import (
    MpDistSamplingWorkerOptions as MpDistSamplingWorkerOptions,
)
from gigl_loader.runtime.glt_classes import (
    RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions,
)
from gigl_loader.runtime.glt_classes import get_context as get_context
from gigl_loader.runtime.glt_classes import init_worker_group as init_worker_group

__getattr__ = advise("gigl_loader.glt.distributed")
