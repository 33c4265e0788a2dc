"""One training process of `chaos.py`: takes its epochs as a plan says, and writes down what came.

A line of JSON for each: a loader that is made, a part of an epoch that begins (its *segment*), a
batch with its hash, an epoch that is over, an error. The plan says how many workers the loaders
have, and which epochs are broken off where. Goes on where the state in ``--folder`` says.
"""

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _chaos_cases import CASES, COMMON, RECIPES, Case, alone
from _train import dataset_of

from gigl_loader import DistDataset, GiglLoaderError
from gigl_loader.testing import batch_digest

NAMED, UNNAMED = 3, 4
"""Exit codes: an error of this library, and any other one."""
SAVE_EVERY = 4
"""Steps between two states."""


class EpochEndedShort(Exception):
    """A loader gave fewer, or more, batches than there were, and no error."""


class Notes:
    """What this process says, a line each."""

    def __init__(self, folder: Path, rank: int, life: int) -> None:
        self.rank = rank
        self._file = (folder / f"{life:03d}.{rank}.jsonl").open("a")

    def add(self, kind: str, **values: Any) -> None:
        """Write a line."""
        line = {"kind": kind, "at": time.monotonic(), "rank": self.rank, **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class Training:
    """The epochs that are left of a job."""

    def __init__(self, args: argparse.Namespace, notes: Notes) -> None:
        self.args, self.notes, self.folder = args, notes, Path(args.folder)
        self.case = case_of(args)
        self.plan = json.loads((self.folder / "plan.json").read_text())
        self.segment, self.total = 0, 0
        self.loader: Any = None
        self.saved = self.folder / "state.pt"
        self.state: dict[str, Any] = {"epoch": 0, "loader": None}
        if self.saved.exists():
            self.state = torch.load(self.saved)

    def run(self, dataset: Any) -> None:
        """Take epoch after epoch; leave early where the job is told to stop."""
        try:
            for epoch in range(self.state["epoch"], self.args.epochs):
                if self.is_told_to_stop():
                    break
                self.take(dataset, epoch, self.plan["epochs"][epoch])
        finally:
            if self.loader is not None:
                self.loader.shutdown()
        self.notes.add("over")

    def is_told_to_stop(self) -> bool:
        """Whether there is a file that says so; all ranks decide the same."""
        told = torch.tensor([float((self.folder / "stop").exists())])
        dist.broadcast(told, 0)
        return bool(told.item())

    def take(self, dataset: Any, epoch: int, plan: dict[str, Any]) -> None:
        """Take the rest of an epoch, broken off as planned."""
        then, at = plan["then"], plan["break_at"]
        if self.loader is None:
            self.build(dataset, epoch, plan["workers"])
        if then in ("again", "resume") and self.steps_to(epoch, at) > 0:
            self.steps(epoch, self.steps_to(epoch, at))
            if then == "again":
                self.save(epoch, None)
            else:
                self.state = {"epoch": epoch, "loader": self.loader.state_dict()}
                self.loader.shutdown()
                self.build(dataset, epoch, plan["workers_then"])
        self.steps(epoch, None)
        if dist.get_world_size() > 1:
            dist.barrier()
        if self.notes.rank == 0:
            segment = [self.plan["life"], self.segment - 1]
            restarts = self.loader.stats()["restarts"]
            self.notes.add("whole", epoch=epoch, segment=segment, restarts=restarts)
        self.save(epoch + 1, None)
        if then == "rebuild":
            self.loader.shutdown()
            self.loader = None

    def build(self, dataset: Any, epoch: int, workers: int) -> None:
        """Make a loader; it goes on where the former one was."""
        self.notes.add("building", epoch=epoch)
        how = {**COMMON, **self.case.how, "num_workers": workers}
        if self.case.servers:
            how["reconnect_timeout"] = self.args.reconnect
        self.loader = RECIPES[self.case.recipe].loader(dataset, bool(self.case.servers), **how)
        counts = [0] * self.args.world
        dist.all_gather_object(counts, len(self.loader))
        self.total = sum(counts)  # of an epoch, over all ranks

    def taken(self, epoch: int) -> int:
        """Return how many batches of the epoch the job has taken."""
        state = self.state
        is_its_state = state["epoch"] == epoch and state["loader"] is not None
        return int(state["loader"]["yielded"]) if is_its_state else 0

    def steps_to(self, epoch: int, at: float) -> int:
        """Return how many steps of all ranks lead to this share of the epoch."""
        return max(int(at * self.total) - self.taken(epoch), 0) // self.args.world

    def steps(self, epoch: int, count: int | None) -> None:
        """Take ``count`` steps, or all that are left, and write each down."""
        taken, total, world = self.taken(epoch), self.total, self.args.world
        if taken:
            self.loader.load_state_dict(self.state["loader"])
        else:
            self.loader.set_epoch(epoch)
        segment = [self.plan["life"], self.segment]
        self.segment += 1
        common = {"segment": segment, "epoch": epoch}
        self.notes.add("segment", start=taken, total=total, **common)
        together, own = (total - taken) // world, len(range(taken + self.notes.rank, total, world))
        step = 0
        for step, batch in enumerate(islice(self.loader, count), 1):
            position = taken + (step - 1) * world + self.notes.rank
            self.notes.add("batch", position=position, digest=batch_digest(batch), **common)
            time.sleep(self.args.pace)
            if step <= together:
                self.meet(epoch, step)
        if step != (own if count is None else count):
            raise EpochEndedShort(f"epoch {epoch}: {step} batches of {count or own} from {taken}")

    def meet(self, epoch: int, step: int) -> None:
        """Wait for the other ranks, which have written this step down, and save now and then."""
        if self.args.world > 1:
            dist.all_reduce(torch.zeros(1))
        if step % SAVE_EVERY == 0:
            self.save(epoch, self.loader.state_dict())

    def save(self, epoch: int, state: dict[str, Any] | None) -> None:
        """Save where the job is, on rank 0; there is a whole state at any time."""
        saved = {"epoch": epoch, "loader": state}
        if state is None:
            self.state = saved
        if self.notes.rank == 0:
            new = self.saved.with_suffix(".new")
            torch.save(saved, new)
            new.replace(self.saved)


def case_of(args: argparse.Namespace) -> Case:
    return alone(CASES[args.case]) if args.alone else CASES[args.case]


def train(args: argparse.Namespace, notes: Notes) -> None:
    case = case_of(args)

    def load() -> DistDataset:
        return DistDataset.load(args.root, args.rank % case.partitions, mmap=case.mmap)

    with dataset_of(args, load) as dataset:
        Training(args, notes).run(dataset)


def main() -> int:
    faulthandler.enable()  # SIGABRT shows where all threads are
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--alone", action="store_true", help="in its simplest deployment")
    parser.add_argument("--folder", required=True, help="for notes, the plan and the state")
    parser.add_argument("--root", required=True, help="the partitions")
    parser.add_argument("--store", help="HOST:PORT of storage server 0")
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--group-port", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--reconnect", type=float, default=60.0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of a training step")
    args = parser.parse_args()
    life = json.loads(Path(args.folder, "plan.json").read_text())["life"]
    notes = Notes(Path(args.folder), args.rank, life)
    try:
        train(args, notes)
    except Exception as error:
        traceback.print_exc()
        named = isinstance(error, GiglLoaderError)
        short = isinstance(error, EpochEndedShort)
        name, text = type(error).__name__, str(error)[:2000]
        notes.add("error", name=name, named=named, short=short, text=text)
        sys.stderr.flush()
        os._exit(NAMED if named else UNNAMED)  # without waiting for ranks that wait for this one
    return 0


if __name__ == "__main__":
    sys.exit(main())
