"""How the examples' processes start and end together."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def process_group() -> Iterator[None]:
    """Join torchrun's processes; in a script that plain python started, this one is all of them.

    gloo carries what the loaders agree on, and for a model of this size the gradients too. What
    holds a DistributedDataParallel has to be gone at the end of the block: where one outlives its
    group, the end of the group may wait for ever.
    """
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        gc.collect()  # a DistributedDataParallel that was dropped may be held by a cycle
        dist.destroy_process_group()
