"""GiGL's ``gigl.distributed.utils.networking``."""

from gigl_loader.compat.advice import advise
from gigl_loader.compat.utils import (
    get_free_port,
    get_free_ports,
    get_free_ports_from_master_node,
    get_free_ports_from_node,
    get_graph_store_info,
    get_internal_ip_from_all_ranks,
    get_internal_ip_from_master_node,
    get_internal_ip_from_node,
)

__all__ = [
    "get_free_port",
    "get_free_ports",
    "get_free_ports_from_master_node",
    "get_free_ports_from_node",
    "get_graph_store_info",
    "get_internal_ip_from_all_ranks",
    "get_internal_ip_from_master_node",
    "get_internal_ip_from_node",
]

__getattr__ = advise("gigl_loader.utils.networking")
