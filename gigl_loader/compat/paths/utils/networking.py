from gigl_loader.compat.advice import advise
from gigl_loader.compat.utils import get_free_port as get_free_port
from gigl_loader.compat.utils import get_free_ports as get_free_ports
from gigl_loader.compat.utils import (
    get_free_ports_from_master_node as get_free_ports_from_master_node,
)
from gigl_loader.compat.utils import get_free_ports_from_node as get_free_ports_from_node
from gigl_loader.compat.utils import get_graph_store_info as get_graph_store_info
from gigl_loader.compat.utils import (
    get_internal_ip_from_all_ranks as get_internal_ip_from_all_ranks,
)
from gigl_loader.compat.utils import (
    get_internal_ip_from_master_node as get_internal_ip_from_master_node,
)
from gigl_loader.compat.utils import get_internal_ip_from_node as get_internal_ip_from_node

__getattr__ = advise("gigl_loader.utils.networking")
