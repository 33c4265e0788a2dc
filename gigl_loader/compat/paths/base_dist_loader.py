from gigl_loader import BaseDistLoader as BaseDistLoader
from gigl_loader import DistributedRuntimeInfo as DistributedRuntimeInfo
from gigl_loader.compat.advice import advise
from gigl_loader.loader.deployment.job_ranks import (
    DEFAULT_NUM_CPU_THREADS as DEFAULT_NUM_CPU_THREADS,
)

__getattr__ = advise("gigl_loader.base_dist_loader")
