"""A script that is interrupted again and again within its epochs, catches it, and goes on."""

import os
import signal
import subprocess
import sys
from typing import Any

from gigl_loader import DistNeighborLoader
from gigl_loader.testing import TinyGraph

SENDER = """
import os, random, signal, sys, time

draw = random.Random(int(sys.argv[2]))
while os.getppid() == int(sys.argv[1]):
    time.sleep(draw.random() * 0.02)
    os.kill(int(sys.argv[1]), signal.SIGINT)
"""


def contents(loader: DistNeighborLoader) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in loader]


def main(workers: int, many: int, seed: int) -> None:
    graph = TinyGraph.random(200, 1200, seed=3)
    how: dict[str, Any] = {"batch_size": 8, "seed": 4, "shuffle": True, "timeout": 30.0}
    loader = DistNeighborLoader(graph.dataset(), [4, 3], num_workers=workers, **how)
    expected = contents(loader)
    armed = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal armed
        if armed:  # this script's own steps are none that it could be interrupted in
            armed = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    sender = subprocess.Popen([sys.executable, "-c", SENDER, str(os.getpid()), str(seed)])
    caught = whole = 0
    while caught < many:
        try:
            while True:
                # Again for each epoch: Python swallows what is raised as a `__del__` begins.
                armed = True
                loader.set_epoch(0)
                assert contents(loader) == expected
                whole += 1
        except KeyboardInterrupt:
            caught += 1
    sender.kill()
    sender.wait()
    loader.set_epoch(0)
    assert contents(loader) == expected, "it goes on"
    assert loader.stats()["restarts"] == 0, "no worker was lost"
    loader.shutdown()
    print(f"{caught} interrupts, {whole} whole epochs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
