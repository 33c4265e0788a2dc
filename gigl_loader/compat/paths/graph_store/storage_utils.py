from gigl_loader.compat.advice import advise
from gigl_loader.compat.gigl_task import build_storage_dataset as build_storage_dataset
from gigl_loader.graph_store import run_storage_server as run_storage_server

__getattr__ = advise("gigl_loader.graph_store.storage_utils")
