from gigl_loader import GraphStoreInfo as GraphStoreInfo
from gigl_loader import RemoteDistDataset as RemoteDistDataset
from gigl_loader.compat.gigl_task import build_storage_dataset as build_storage_dataset
from gigl_loader.compat.utils import get_graph_store_info as get_graph_store_info
from gigl_loader.graph_store.client.compute_process import (
    async_request_server as async_request_server,
)
from gigl_loader.graph_store.client.compute_process import (
    init_compute_process as init_compute_process,
)
from gigl_loader.graph_store.client.compute_process import request_server as request_server
from gigl_loader.graph_store.client.compute_process import (
    shutdown_compute_process as shutdown_compute_process,
)
from gigl_loader.graph_store.client.receiving_channel import (
    RemoteReceivingChannel as RemoteReceivingChannel,
)
from gigl_loader.graph_store.server.storage_process import StorageProcess as StorageProcess
from gigl_loader.graph_store.server.storage_process import (
    init_storage_process as init_storage_process,
)
from gigl_loader.graph_store.server.storage_process import run_storage_server as run_storage_server
from gigl_loader.graph_store.wire.signatures import DistServer as DistServer
