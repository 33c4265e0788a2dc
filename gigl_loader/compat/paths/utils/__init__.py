"""Old public path of helpers for scripts, and GiGL's ``gigl.distributed.utils``."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.utils import (
    GraphStoreInfo,
    get_available_device,
    get_free_port,
    get_free_ports,
    get_free_ports_from_master_node,
    get_free_ports_from_node,
    get_graph_store_info,
    get_internal_ip_from_all_ranks,
    get_internal_ip_from_master_node,
    get_internal_ip_from_node,
)
from gigl_loader.runtime.ranks.for_scripts import on_all_ranks, shared_folder, sum_over_ranks

# After its module, which has its name: Python names the module here when it is first imported.
from .init_neighbor_loader_worker import get_process_group_name, init_neighbor_loader_worker

__all__ = [
    "GraphStoreInfo",
    "get_available_device",
    "get_free_port",
    "get_free_ports",
    "get_free_ports_from_master_node",
    "get_free_ports_from_node",
    "get_graph_store_info",
    "get_internal_ip_from_all_ranks",
    "get_internal_ip_from_master_node",
    "get_internal_ip_from_node",
    "get_process_group_name",
    "init_neighbor_loader_worker",
    "on_all_ranks",
    "shared_folder",
    "sum_over_ranks",
]

__getattr__ = advise("gigl_loader.utils")
