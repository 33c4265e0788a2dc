from gigl_loader.compat.advice import advise
from gigl_loader.graph_store import async_request_server as async_request_server
from gigl_loader.graph_store import init_compute_process as init_compute_process
from gigl_loader.graph_store import request_server as request_server
from gigl_loader.graph_store import shutdown_compute_process as shutdown_compute_process

__getattr__ = advise("gigl_loader.graph_store.compute")
