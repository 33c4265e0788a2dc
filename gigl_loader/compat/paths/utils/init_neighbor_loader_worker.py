from gigl_loader.compat.advice import advise
from gigl_loader.loader.deployment.job_ranks import get_process_group_name as get_process_group_name
from gigl_loader.loader.deployment.job_ranks import (
    init_neighbor_loader_worker as init_neighbor_loader_worker,
)

__getattr__ = advise("gigl_loader.utils.init_neighbor_loader_worker")
