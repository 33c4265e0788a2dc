"""Operations over all ranks, for scripts in which each rank holds its own partition.

Without a process group, and without ``WORLD_SIZE`` above 1 in the environment, a script is rank 0
of 1, and they work for one rank.
"""

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.errors import ConfigError, NotReadyError
from gigl_loader.runtime.ranks.collectives import broadcast_value, gather_from_ranks


def on_all_ranks(values: Tensor) -> Tensor:
    """Return the rows of all ranks, in rank order; all ranks have to call it.

    ::

        seeds = on_all_ranks(dataset.train_node_ids)  # of all partitions, the same on each rank

    Args:
        values: ``[n, ...]``, of one type and width on all ranks; ``n`` may differ.

    Returns:
        ``[sum of n, ...]``, on the device of ``values``.

    Raises:
        ConfigError: Types or widths differ; on all ranks.
        NotReadyError: There is no process group, although the environment has other ranks.
        PeerError: A rank has ended, or did not come.
    """
    size = _world_size("on_all_ranks")
    if size == 1:
        return values
    rows = values.detach().cpu().contiguous()
    about = str(rows.dtype), tuple(rows.shape)
    everyone = gather_from_ranks(about, size, tuple[str, tuple[int, ...]])
    if len({(dtype, shape[1:], len(shape)) for dtype, shape in everyone}) > 1 or rows.dim() == 0:
        raise ConfigError(
            "on_all_ranks takes [n, ...] of one type and width on all ranks, got "
            + "; ".join(f"{dtype} {list(shape)}" for dtype, shape in everyone)
        )
    # as bytes: numpy, which transports them, does not know all types of torch
    data = rows.reshape(-1).view(torch.uint8).numpy().tobytes()
    parts = gather_from_ranks(data, size, bytes)
    whole = torch.frombuffer(bytearray(b"".join(parts) or bytes(16)), dtype=torch.uint8)
    shape = (sum(shape[0] for _, shape in everyone), *rows.shape[1:])
    flat = whole[: math.prod(shape) * rows.element_size()].view(rows.dtype)
    return flat.reshape(shape).to(values.device)


def sum_over_ranks(*values: float) -> list[float]:
    """Return each value's sum over all ranks; all ranks have to call it, with as many values.

    ::

        right, count = sum_over_ranks(right, count)

    Raises:
        ConfigError: Ranks gave different numbers of values; on all ranks.
        NotReadyError: There is no process group, although the environment has other ranks.
        PeerError: A rank has ended, or did not come.
    """
    numbers = [float(value) for value in values]
    everyone = gather_from_ranks(numbers, _world_size("sum_over_ranks"), list[float])
    if len({len(row) for row in everyone}) > 1:
        raise ConfigError(
            f"sum_over_ranks takes as many values on all ranks, got {[len(o) for o in everyone]}"
        )
    return [sum(column) for column in zip(*everyone, strict=True)]


@contextmanager
def shared_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """Give a new folder, the same on all ranks; removed once all have left the block.

    ::

        with shared_folder() as folder:
            if rank == 0:
                partition_graph(data, world_size, folder)

    Args:
        parent: Its parent directory; with several machines, one that all of them see. None: this
            machine's directory for temporary files.

    Raises:
        ConfigError: Another rank does not see it; on all ranks.
        NotReadyError: There is no process group, although the environment has other ranks.
        PeerError: A rank has ended, or did not come.
    """
    size = _world_size("shared_folder")
    is_first = size == 1 or dist.get_rank() == 0
    folder = None
    if is_first:
        folder = tempfile.TemporaryDirectory(prefix="gigl_loader_", dir=parent)
    try:
        name = broadcast_value(folder.name if folder else "", size, str)
        seen = gather_from_ranks(Path(name).is_dir(), size, bool)
        if not all(seen):
            blind = [rank for rank, sees in enumerate(seen) if not sees]
            raise ConfigError(
                f"ranks {blind} do not see {name}, which rank 0 made: give shared_folder a parent "
                "that all machines see"
            )
        yield name
        # the first rank here waits for the others, who may still read
        gather_from_ranks(None, size, None)
    finally:
        if folder is not None:
            folder.cleanup()


def _world_size(who: str) -> int:
    if dist.is_initialized():
        return dist.get_world_size()
    others = os.environ.get("WORLD_SIZE", "1")
    if others != "1":
        raise NotReadyError(
            f"{who}: WORLD_SIZE={others} and there is no process group: call "
            "torch.distributed.init_process_group() first"
        )
    return 1
