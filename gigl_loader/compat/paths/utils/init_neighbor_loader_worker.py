"""GiGL's ``gigl.distributed.utils.init_neighbor_loader_worker``."""

from gigl_loader.compat.advice import advise
from gigl_loader.loader.deployment.job_ranks import (
    get_process_group_name,
    init_neighbor_loader_worker,
)

__all__ = ["get_process_group_name", "init_neighbor_loader_worker"]

__getattr__ = advise("gigl_loader.utils.init_neighbor_loader_worker")
