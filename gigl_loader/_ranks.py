"""What ranks of the process group tell each other while loaders are built.

The group's own errors say neither what was going on nor what to do; a rank that is gone is the
common cause. Waits last as long as the group's ``timeout`` (an argument of
``init_process_group``) allows; the end of a process on the other side ends them at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from gigl_loader.errors import PeerError


def gather_from_ranks(value: Any, world_size: int) -> list[Any]:
    """Return ``value`` of every rank, by rank. All ranks have to call it.

    Raises:
        PeerError: The process group broke.
    """
    if world_size == 1:
        return [value]
    found: list[Any] = [None] * world_size
    with _named_failures():
        dist.all_gather_object(found, value)
    return found


def tell_ranks(value: Any, world_size: int) -> Any:
    """Return rank 0's ``value``, on all ranks. All ranks have to call it.

    Raises:
        PeerError: The process group broke.
    """
    if world_size == 1:
        return value
    found = [value]
    with _named_failures():
        dist.broadcast_object_list(found, src=0)
    return found[0]


@contextmanager
def _named_failures() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what all of torch.distributed's errors derive from
        raise PeerError(
            f"the process group broke while its ranks agreed on how to load: {error}; a rank of it "
            "has ended, or did not come in time: see the logs of the other ranks, and start the "
            "job again"
        ) from error
