"""Ranks of a process group on this machine."""

import contextlib
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gigl_loader.processes import ForkedProcess
from gigl_loader.ranks import end_group


class RankFailed(AssertionError):
    """A rank raised, was killed, or did not end in time."""


def run_ranks(
    fn: Callable[..., None],
    *args: Any,
    world_size: int,
    tmp_path: Path,
    timeout_s: float = 200.0,
    may_die: Collection[int] = (),
) -> None:
    """Call ``fn(rank, world_size, *args)`` on the ranks of a gloo group; no port is used.

    Each rank is a process of its own, with nothing of this one but the environment and what is
    given here. It is forked from multiprocessing's fork server, which imports this package once and
    ends with this process: only the first call waits for imports.

    Args:
        fn: A function of a module, so that the ranks can import it.
        args: More for ``fn``; picklable.
        world_size: Number of ranks.
        tmp_path: An empty folder, for the group's store and the ranks' tracebacks.
        timeout_s: For all of it.
        may_die: Ranks whose end by a signal is no failure, since the test is about that.

    Raises:
        RankFailed: As soon as a rank raises or is killed, with the tracebacks; or after
            ``timeout_s`` seconds. No rank is left.
    """
    ranks = [  # not daemons: daemons may not start sampling workers of their own
        ForkedProcess(target=_entry, args=(fn, rank, world_size, tmp_path, timeout_s, args))
        for rank in range(world_size)
    ]
    deadline = time.monotonic() + timeout_s
    try:
        for process in ranks:
            process.start()
        _watch(ranks, tmp_path, deadline, set(may_die))
    finally:
        for process in ranks:
            if process.pid is not None:
                process.kill()
                process.join()


@contextlib.contextmanager
def one_rank(tmp_path: Path) -> Iterator[None]:
    """Let this process be the only rank of a gloo group inside a ``with`` block; no port is used.

    Args:
        tmp_path: An empty folder for the group's store.
    """
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        end_group()


def meet_in_store(name: str) -> None:
    """Return once all ranks of the group have called this; none of their connections is used.

    For tests in which a rank dies next. `dist.barrier` may be over for that rank while its bytes
    are still on their way to another, which would fail there, and not where the test expects it.

    Args:
        name: Of this meeting; used once.
    """
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name}/{dist.get_rank()}", "")
    store.wait([f"{name}/{rank}" for rank in range(dist.get_world_size())])


def _watch(ranks: list[Any], tmp_path: Path, deadline: float, may_die: set[int]) -> None:
    while True:
        codes = {rank: process.exitcode for rank, process in enumerate(ranks)}
        failed = {r: code for r, code in codes.items() if code and not (code < 0 and r in may_die)}
        if failed:
            notes = "".join(note.read_text() for note in sorted(tmp_path.glob("rank*.txt")))
            raise RankFailed(f"exit codes by rank {failed}\n{notes}")
        alive = [rank for rank, code in codes.items() if code is None]
        if not alive:
            return
        left = max(0.0, deadline - time.monotonic())
        if not wait([ranks[rank].sentinel for rank in alive], left):
            raise RankFailed(f"ranks {alive} are still running at the time limit")


def _entry(
    fn: Callable[..., None], rank: int, size: int, tmp_path: Path, limit_s: float, args: Any
) -> None:
    try:
        limit = timedelta(seconds=limit_s)
        store = dist.FileStore(f"{tmp_path}/store", size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
        # Gloo connects all pairs: a rank whose own part is done may end, by ``fn``, before its
        # peers have connected, and they would fail in place of waiting.
        meet_in_store("connected")
        fn(rank, size, *args)
        end_group()
    except BaseException:
        (tmp_path / f"rank{rank}.txt").write_text(f"--- rank {rank} ---\n{traceback.format_exc()}")
        raise SystemExit(1) from None
