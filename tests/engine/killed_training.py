"""Training that is killed with SIGKILL again and again, and resumed from its last checkpoint.

A *supervisor* process imports what training needs, and forks each life of the ranks from there:
lives then cost no imports, and have nothing of each other's but the checkpoints.
"""

import ctypes
import hashlib
import os
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from gigl_loader import DistNeighborLoader, GraphStoreInfo, RemoteDistDataset, profile_workers
from gigl_loader.testing import batch_tensors
from tests.graph_store import store_cluster
from tests.support.zygote import fork_zygote, uses_zygote

MOMENTS = ("yielded", "saved", "any")
"""Of a step: the batch was yielded, its checkpoint was not written; it was; wherever it happens."""
EPOCHS = 3
BATCH_SIZE = 4
STEPS = 15
"""In an epoch of all seeds of `store_cluster.tiny_graph`."""
_NUM_WORKERS = (1, 2, 3, 1, 2)
"""By life."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Kill:
    """When a life ends."""

    step: int
    """After so many steps of the whole run, or at once where they were made already."""
    moment: str


_NEVER = Kill(10**9, "saved")


def kills_of(seed: int, steps_per_epoch: int, count: int = 3) -> list[Kill]:
    """Return ``count`` kills; one falls on the last step of an epoch, the others anywhere."""
    draw = random.Random(seed)
    steps = draw.sample(range(1, EPOCHS * steps_per_epoch), count - 1)
    steps.append(steps_per_epoch * draw.randrange(1, EPOCHS))
    moments = [MOMENTS[one % len(MOMENTS)] for one in range(count)]
    draw.shuffle(moments)
    return [Kill(step, moment) for step, moment in zip(sorted(steps), moments, strict=True)]


def bits_of(batch: Any) -> tuple[list[int], str]:
    """Return where the seeds stand in the input, and a fingerprint of every bit of ``batch``."""
    found = hashlib.blake2b(digest_size=12)
    for name, value in sorted(batch_tensors(batch).items(), key=lambda item: str(item[0])):
        found.update(str(name).encode())
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return batch.input_id.tolist(), found.hexdigest()


@dataclass(frozen=True)
class Life:
    """One life of one rank."""

    folder: Path
    rank: int
    number: int
    kill: Kill | None
    pipe: int | None
    """Where it says that it has come to its end."""

    @property
    def _file(self) -> Path:
        return self.folder / f"checkpoint{self.rank}.pt"

    def train(self, loader: DistNeighborLoader) -> None:
        """Go on from the last checkpoint; write one after each step; die when it is time."""
        seen: list[Any] = []
        if self._file.exists():
            checkpoint = torch.load(self._file, weights_only=True)
            seen = checkpoint["seen"]
            loader.load_state_dict(checkpoint["loader"])
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                seen.append(bits_of(batch))
                self._pass("yielded", len(seen))
                self._save({"loader": loader.state_dict(), "seen": seen})
                self._pass("saved", len(seen))
                self._pass("any", len(seen))
        if self.kill is not None:
            self._wait_for_the_end()

    def _save(self, checkpoint: dict[str, Any]) -> None:
        new = self._file.with_suffix(".new")
        torch.save(checkpoint, new)
        new.replace(self._file)

    def _pass(self, moment: str, step: int) -> None:
        if self.kill is None or moment != self.kill.moment or step < self.kill.step:
            return
        if moment != "any":
            self._wait_for_the_end()
        self._say_so()

    def _say_so(self) -> None:
        if self.pipe is not None:
            os.write(self.pipe, b"!")

    def _wait_for_the_end(self) -> None:
        self._say_so()
        while True:
            signal.pause()


def supervise(
    body: Callable[..., None], folder: Path, kills: list[Kill], num_ranks: int, *args: Any
) -> None:
    """Let the ranks run ``body(life, *args)`` undisturbed, and again with ``kills``.

    Their checkpoints are left in the folders ``whole`` and ``killed``.
    """
    number = 0
    for name, ends in (("whole", [None]), ("killed", [*kills, None])):
        (folder / name).mkdir()
        for kill in ends:
            life = Life(folder / name, 0, number, kill, None)
            _live(life, num_ranks, body, args)
            number += 1


def _live(life: Life, num_ranks: int, body: Callable[..., None], args: tuple[Any, ...]) -> None:
    """Let one life of all ranks pass.

    They are killed when the last of them has come to its point, the others wherever they are.
    """
    reader, writer = os.pipe()
    others = replace(life, kill=life.kill and _NEVER)
    lives = [replace(others, rank=rank) for rank in range(num_ranks - 1)]
    lives.append(replace(life, rank=num_ranks - 1, pipe=writer))
    pids = [_fork(body, one, args) for one in lives]
    os.close(writer)
    if life.kill is not None:
        assert os.read(reader, 1) == b"!", f"it ended early: {life}, {_codes(pids)}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    os.close(reader)
    expected = 0 if life.kill is None else -signal.SIGKILL
    assert _codes(pids) == [expected] * num_ranks, life


def _codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def _fork(body: Callable[..., None], life: Life, args: tuple[Any, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if uses_zygote():  # its supervisors are to be this process's children, not the parent's
            fork_zygote()
        body(life, *args)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def colocated(life: Life, num_ranks: int) -> None:
    """Train over as many partitions as there are ranks."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{life.folder}/group{life.number}",
        rank=life.rank,
        world_size=num_ranks,
    )
    dataset = store_cluster.tiny_graph().partitions(num_ranks)[life.rank]
    with _loader(dataset, torch.arange(57), life, even_ranks="wrap") as loader:
        life.train(loader)
    dist.destroy_process_group()


def from_a_store(life: Life, info: GraphStoreInfo) -> None:
    """Train on what the storage servers sample."""
    store_cluster.compute(info, life.rank, _train_from_a_store, life)


def _train_from_a_store(info: GraphStoreInfo, rank: int, life: Life) -> None:
    remote = RemoteDistDataset(info, rank)
    with _loader(remote, remote.fetch_node_ids(), life) as loader:
        if life.kill is not None:
            life.train(loader)  # does not return
        with (
            profile(activities=[ProfilerActivity.CPU]) as profiler,
            profile_workers(loader) as workers,
        ):
            life.train(loader)
    path = str(life.folder / "trace.json")
    profiler.export_chrome_trace(path)
    workers.add_to(path)


def _loader(dataset: Any, seeds: Any, life: Life, **how: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        dataset,
        [3, 2],
        seeds,
        num_workers=_NUM_WORKERS[life.number % len(_NUM_WORKERS)],
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=7,
        **how,
    )


def checkpoint(folder: Path, rank: int = 0) -> list[tuple[list[int], str]]:
    """Return what a run saw."""
    return torch.load(folder / f"checkpoint{rank}.pt", weights_only=True)["seen"]
