"""The other deployment: a storage cluster samples, compute processes train.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from gigl_loader._lazy import lazy_names

if TYPE_CHECKING:
    from gigl_loader.remote.channel import RemoteReceivingChannel
    from gigl_loader.remote.client import (
        async_request_server,
        init_compute_process,
        request_server,
        shutdown_compute_process,
    )
    from gigl_loader.remote.dataset import RemoteDistDataset as RemoteDistDataset
    from gigl_loader.remote.info import GraphStoreInfo as GraphStoreInfo
    from gigl_loader.remote.service import DistServer
    from gigl_loader.remote.storage_process import (
        StorageProcess,
        init_storage_process,
        run_storage_server,
    )

__all__ = [
    "DistServer",
    "RemoteReceivingChannel",
    "StorageProcess",
    "async_request_server",
    "init_compute_process",
    "init_storage_process",
    "request_server",
    "run_storage_server",
    "shutdown_compute_process",
]

# written out, though it repeats the imports above: those are for type checkers, which read no dict
_MODULES = {
    "DistServer": "remote.service",
    "RemoteReceivingChannel": "remote.channel",
    "StorageProcess": "remote.storage_process",
    "async_request_server": "remote.client",
    "init_compute_process": "remote.client",
    "init_storage_process": "remote.storage_process",
    "request_server": "remote.client",
    "run_storage_server": "remote.storage_process",
    "shutdown_compute_process": "remote.client",
}

_ALIASES = ("GraphStoreInfo", "RemoteDistDataset")
"""Names of ``gigl_loader`` that scripts written for GiGL import from its ``graph_store``."""

if not TYPE_CHECKING:  # a type checker that saw it would let every name pass
    __getattr__, __dir__ = lazy_names(__name__, _MODULES, _ALIASES)
