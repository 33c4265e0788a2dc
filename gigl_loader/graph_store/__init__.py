"""The other deployment: a storage cluster samples, compute processes train.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from gigl_loader._lazy import lazy_names

if TYPE_CHECKING:
    from gigl_loader.channel.remote import RemoteReceivingChannel
    from gigl_loader.dataset.remote import GraphStoreInfo as GraphStoreInfo
    from gigl_loader.dataset.remote import RemoteDistDataset as RemoteDistDataset
    from gigl_loader.graph_store.client import (
        async_request_server,
        init_compute_process,
        request_server,
        shutdown_compute_process,
    )
    from gigl_loader.graph_store.server import StorageProcess, init_storage_process
    from gigl_loader.graph_store.service import DistServer

__all__ = [
    "DistServer",
    "RemoteReceivingChannel",
    "StorageProcess",
    "async_request_server",
    "init_compute_process",
    "init_storage_process",
    "request_server",
    "shutdown_compute_process",
]

_MODULES = {
    "DistServer": "graph_store.service",
    "RemoteReceivingChannel": "channel.remote",
    "StorageProcess": "graph_store.server",
    "async_request_server": "graph_store.client",
    "init_compute_process": "graph_store.client",
    "init_storage_process": "graph_store.server",
    "request_server": "graph_store.client",
    "shutdown_compute_process": "graph_store.client",
}

_ALIASES = ("GraphStoreInfo", "RemoteDistDataset")
"""Names of ``gigl_loader`` that scripts written for GiGL import from its ``graph_store``."""

if not TYPE_CHECKING:  # a type checker that saw it would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _MODULES, _ALIASES)
