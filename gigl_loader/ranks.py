"""What ranks of the process group tell each other while loaders are built, and the group's end.

The group's own errors say neither what was going on nor what to do; a rank that is gone is the
common cause. Waits last as long as the group's ``timeout`` (an argument of
``init_process_group``) allows; the end of a process on the other side ends them at once.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from gigl_loader.errors import PeerError

_MOMENT_S = 0.05


def end_group() -> None:
    """End the process group.

    Up to torch 2.6 at least, gloo's group holds the interpreter's lock while it waits for its own
    threads, and one that still wants the lock, to drop the tensors of the last collective, never
    gets it: `all_gather_object` and then `destroy_process_group` hangs. So they get a moment first.
    """
    threading.Event().wait(_MOMENT_S)
    dist.destroy_process_group()


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
