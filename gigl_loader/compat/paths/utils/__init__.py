"""Old public path of helpers for scripts, and GiGL's ``gigl.distributed.utils``."""

from gigl_loader.compat import utils as _own
from gigl_loader.compat.advice import advise
from gigl_loader.compat.utils import *  # noqa: F403  # all of them
from gigl_loader.runtime.ranks.for_scripts import on_all_ranks, shared_folder, sum_over_ranks

# After its module, which has its name: Python names the module here when it is first imported.
from .init_neighbor_loader_worker import init_neighbor_loader_worker as init_neighbor_loader_worker

__all__ = [*_own.__all__, "on_all_ranks", "shared_folder", "sum_over_ranks"]

__getattr__ = advise("gigl_loader.utils")
