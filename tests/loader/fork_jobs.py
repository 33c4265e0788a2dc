"""What the processes of `test_forks.py` do: they fork in mid-epoch, as user code may."""

import atexit
import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gigl_loader import DistNeighborLoader, RemoteDistDataset, UsageError, release_workers
from gigl_loader.graph_store import shutdown_compute_process
from gigl_loader.testing import Footprint, batch_digest, wait_until
from tests.loader import world_jobs

GRAPH = world_jobs.GRAPH
OURS = (
    "import os; n = [os.path.realpath(f'/proc/self/fd/{i}') for i in range(3, 500)]; "
    "os._exit(5 if any('gigl_loader.' in one for one in n) else 0)"
)
"""Of a program: whether it has shared memory of this package, which it would keep."""


def ends_at_once(loader: DistNeighborLoader, batches: Iterator[Any]) -> None:
    """Leave as multiprocessing's children do."""


def ends_as_python_does(loader: DistNeighborLoader, batches: Iterator[Any]) -> None:
    atexit._run_exitfuncs()


def becomes_another_program(loader: DistNeighborLoader, batches: Iterator[Any]) -> None:
    os.execv(sys.executable, [sys.executable, "-S", "-c", OURS])


def uses_them(loader: DistNeighborLoader, batches: Iterator[Any]) -> None:
    for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.load_state_dict({})):
        with pytest.raises(UsageError, match="fork"):
            use()


def leaves_the_blocks(loader: DistNeighborLoader, batches: Iterator[Any]) -> None:
    """As by an exception in the child, which passes the parent's ``with`` and ``finally``."""
    loader.__exit__(None, None, None)
    loader.shutdown()
    shutdown_compute_process()


def is_killed(loader: DistNeighborLoader, batches: Iterator[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


CHILDREN: tuple[tuple[Callable[..., None], int], ...] = (
    (ends_at_once, 0),
    (ends_as_python_does, 0),
    (becomes_another_program, 0),
    (uses_them, 0),
    (leaves_the_blocks, 0),
    (is_killed, -signal.SIGKILL),
)


def fork(job: Callable[..., None], *args: Any) -> int:
    """Return the exit code of a forked child that does ``job``."""
    pid = os.fork()
    if pid == 0:
        code = 7
        try:
            job(*args)
            code = 0
        finally:
            os._exit(code)
    found: list[int] = []

    def ended() -> bool:
        done, status = os.waitpid(pid, os.WNOHANG)
        found.extend([os.waitstatus_to_exitcode(status)] if done else [])
        return bool(done)

    wait_until(ended, f"the child of {job.__name__} ends")
    return found[0]


def epoch_with_children(make: Callable[[], DistNeighborLoader]) -> None:
    """The parent has its whole epoch, whatever its children do."""
    with make() as loader:
        wanted = list(map(batch_digest, loader))
    with make() as loader:
        batches, found = iter(loader), []
        for job, code in CHILDREN:
            found.append(batch_digest(next(batches)))
            assert fork(job, loader, batches) == code, job.__name__
        child = mp.get_context("fork").Process(target=abs, args=(1,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        beside = DataLoader(
            TensorDataset(torch.arange(4)),
            num_workers=2,
            multiprocessing_context="fork",
            timeout=60,
        )
        for _ in beside:
            found.append(batch_digest(next(batches)))
        found += map(batch_digest, batches)
        assert found == wanted
        assert loader.stats()["restarts"] == 0


def child_reads_a_batch(make: Callable[[], DistNeighborLoader]) -> None:
    """What a child has of a batch stays, while the parent goes on; the slots are used again."""
    with make() as loader:
        wanted = list(map(batch_digest, loader))
        batches = iter(loader)
        batch = next(batches)
        digest = batch_digest(batch)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 7
            try:
                os.close(write)
                os.read(read, 1)  # the parent is through, or gone
                code = 0 if batch_digest(batch) == digest else 5
            finally:
                os._exit(code)
        os.close(read)
        del batch
        for _ in batches:
            pass
        for _ in range(3):
            assert len(list(map(batch_digest, loader))) == len(wanted)
        os.close(write)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "it changed in the child"


def colocated(rank: int, size: int) -> None:
    common: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "input_nodes": torch.arange(60),
        "batch_size": 2,
        "seed": 1,
        "shuffle": True,
    }
    for how in (
        {"dataset": GRAPH.dataset(), "num_workers": 0, "shard": "none"},
        {"dataset": GRAPH.dataset(), "num_workers": 2},
        {"dataset": GRAPH.partitions(size)[rank], "exchange": "collective"},
    ):
        epoch_with_children(partial(DistNeighborLoader, **common, **how))
        child_reads_a_batch(partial(DistNeighborLoader, **common, **how))
    release_workers()
    assert not Footprint.below().alive(), "no process is left"


def store(info: Any, rank: int) -> None:
    remote = RemoteDistDataset(info, rank)
    seeds = {rank: torch.arange(30 * rank, 30 * rank + 30)}

    def make() -> DistNeighborLoader:
        return DistNeighborLoader(
            remote, [3, 2], seeds, batch_size=2, seed=1, shuffle=True, reconnect_timeout=0
        )

    epoch_with_children(make)
    child_reads_a_batch(make)
