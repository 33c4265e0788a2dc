"""The other deployment: a storage cluster samples, compute processes train.

Names are imported when they are first used.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigl_loader.channel.remote import RemoteReceivingChannel
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


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"gigl_loader.{module}"), name)
    if isinstance(value, (type, FunctionType)):
        value.__module__ = __name__  # tracebacks, pickles and docs show the path that users import
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
