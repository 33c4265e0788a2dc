"""What the examples' processes do together: start, agree, end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


@contextmanager
def process_group() -> Iterator[None]:
    """Join torchrun's processes; in a script that plain python started, this one is all of them.

    gloo carries what the loaders agree on, and for a model of this size the gradients too.
    """
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def shared_folder() -> Iterator[str]:
    """Yield a folder of this machine, the same on all ranks; removed when all have left it."""
    is_first = dist.get_rank() == 0
    folder = tempfile.TemporaryDirectory(prefix="gigl_loader_") if is_first else None
    try:
        names = [folder.name if folder else ""]
        dist.broadcast_object_list(names, src=0)
        yield names[0]
        dist.barrier()
    finally:
        if folder:
            folder.cleanup()


def on_all_ranks(ids: Tensor) -> Tensor:
    """Return the ids of all ranks, in rank order."""
    found: list[Tensor] = [ids] * dist.get_world_size()
    dist.all_gather_object(found, ids)
    return torch.cat(found)


def sum_over_ranks(*values: float) -> list[float]:
    """Return each value's sum over all ranks."""
    totals = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(totals)
    return totals.tolist()
