"""From the start of Python to an open part and to the first batch, in processes of their own.

Takes directories that `partition_tables` or `partition_graph` wrote; a first batch needs one of a
single partition::

    python examples/benchmarks/tables/bench_load.py parts --batch whole --rounds 3
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

BATCH, FANOUTS = 1024, [15, 10]


def child(root: str, memory: Any, batch: bool) -> dict[str, float]:
    """Return seconds of each step of this process, whose start is in ``STARTED``."""
    last, found = float(os.environ["STARTED"]), {}

    def done(name: str) -> None:
        nonlocal last
        now = time.time()
        found[name], last = now - last, now

    done("start of Python")
    import torch

    done("import torch")
    import torch_geometric.data

    done("import torch_geometric")
    from gigl_loader import DistDataset, DistNeighborLoader

    done("import gigl_loader")
    dataset = DistDataset.load(root, 0, mmap=memory == "mapped", verify="off", progress=False)
    dataset.view()
    done("load")
    if batch:
        seeds = torch.randint(0, sum(dataset.view().num_nodes.values()), (4 * BATCH,))
        with DistNeighborLoader(dataset, FANOUTS, seeds, batch_size=BATCH) as loader:
            first = next(iter(loader))
            done("first batch")
            assert isinstance(first, torch_geometric.data.Data)
    return found


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--batch", type=Path, help="a directory of one partition, for a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(*json.loads(args.child))))
        return
    cases = [(args.root, "mapped", False), (args.root, "resident", False)]
    cases += [(args.batch, "mapped", True)] if args.batch else []
    for root, memory, batch in cases:
        rounds = []
        for _ in range(args.rounds):
            given = json.dumps([str(root), memory, batch])
            environment = {**os.environ, "STARTED": str(time.time())}
            command = [sys.executable, __file__, str(root), "--child", given]
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
        steps = {name: median(one[name] for one in rounds) for name in rounds[0]}
        total = median(sum(one.values()) for one in rounds)
        cells = ", ".join(f"{name} {seconds:.2f}" for name, seconds in steps.items())
        print(f"{root.name}, {memory}: {cells}; from the start of Python {total:.2f} s")


if __name__ == "__main__":
    main()
