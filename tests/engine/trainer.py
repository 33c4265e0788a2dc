"""A training script to be killed: ``trainer.py folder how``."""

import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gigl_loader import DistNeighborLoader
from gigl_loader.testing import TinyGraph, one_rank


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir()
    if how == "early":  # the workers are still starting when it is killed
        (folder / "ready").touch()
    with one_rank(folder):
        loader = DistNeighborLoader(
            TinyGraph.random(60, 500).dataset(), [3, 2], num_workers=2, batch_size=2, seed=1
        )
        kept: list[Any] = []
        while True:
            for number, batch in enumerate(loader):
                kept = [*kept[-20:], batch]
                if number == 5 and not (folder / "ready").exists():
                    (folder / "ready").touch()
                    sys.stdin.readline()  # the test has looked at the processes
                    if how == "exception":
                        raise RuntimeError("a bug in the training loop")
                    if how == "end":
                        return  # without shutdown()
                    if how == "fork":
                        _fork_a_child(folder)


def _fork_a_child(folder: Path) -> None:
    """Fork, as a DataLoader does: the child holds copies of all that the trainer has open."""
    if os.fork() == 0:
        (folder / "child").write_text(str(os.getpid()))
        sys.stdin.read()  # ends when the test closes its end
        os._exit(0)


if __name__ == "__main__":
    main()
    assert not dist.is_initialized()
