"""A graph in memory to two partitions on disk, beside graphlearn-torch's ``RandomPartitioner``.

    python examples/benchmarks/partitioning/bench_partitioning.py --python-glt PATH

Both cut the same random graph at random, in processes of their own and in turn. The clock runs
from the call to its return, in a process that has imported everything and cut a small graph. See
README.md beside this file.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

COLOCATED = Path(__file__).resolve().parents[1] / "colocated"
SMALL = 1000
"""Nodes of the graph that is cut before the clock runs."""


def graph(nodes: int, edges: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return ends of edges and rows of nodes, the same in each process."""
    draw = np.random.default_rng(0)
    ends = torch.from_numpy(draw.integers(0, nodes, (2, edges)))
    return ends, torch.from_numpy(draw.random((nodes, dim), dtype=np.float32))


def ours() -> Callable[[Tensor, Tensor, Path], None]:
    """Return a function that writes two partitions by `partition_graph`."""
    from torch_geometric.data import Data

    from gigl_loader import partition_graph

    def cut(ends: Tensor, rows: Tensor, root: Path) -> None:
        data = Data(x=rows, edge_index=ends)
        partition_graph(data, 2, root, method="random", progress=False)

    return cut


def theirs() -> Callable[[Tensor, Tensor, Path], None]:
    """Return the same by graphlearn-torch's partitioner."""
    sys.path.insert(0, str(COLOCATED))
    from run_glt import glt  # which does without torch_sparse and a GPU

    def cut(ends: Tensor, rows: Tensor, root: Path) -> None:
        glt.partition.RandomPartitioner(str(root), 2, len(rows), ends, rows).partition()

    return cut


SIDES = {"gigl_loader": ours, "graphlearn-torch": theirs}


def measured(side: str, nodes: int, edges: int, dim: int) -> dict[str, float]:
    """Return seconds, CPU seconds, and megabytes of files, of one side in this process."""
    cut = SIDES[side]()
    with tempfile.TemporaryDirectory() as folder:
        cut(*graph(SMALL, 10 * SMALL, 4), Path(folder) / "small")
        ends, rows = graph(nodes, edges, dim)
        cpu, wall = time.process_time(), time.monotonic()
        cut(ends, rows, Path(folder) / "root")
        spent = time.monotonic() - wall, time.process_time() - cpu
        files = [path for path in (Path(folder) / "root").rglob("*") if path.is_file()]
        nbytes = sum(path.stat().st_size for path in files)
        shutil.rmtree(Path(folder) / "root")
    return {"s": round(spent[0], 2), "cpu_s": round(spent[1], 2), "mb": round(nbytes / 1e6)}


def main() -> None:
    """Run both sides in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python-glt", help="interpreter that has graphlearn-torch")
    parser.add_argument("--side", choices=SIDES)
    args = parser.parse_args()
    size = args.nodes, args.edges, args.dim
    if args.side:
        print(json.dumps(measured(args.side, *size)))
        return
    pythons = {"gigl_loader": sys.executable, "graphlearn-torch": args.python_glt}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES if pythons[side]}
    for _ in range(args.rounds):
        for side, results in found.items():
            given = [pythons[side], __file__, "--side", side]
            for name, value in zip(("nodes", "edges", "dim"), size, strict=True):
                given += [f"--{name}", str(value)]
            done = subprocess.run(given, check=True, stdout=subprocess.PIPE, text=True)
            results.append(json.loads(done.stdout.strip().splitlines()[-1]))
    print("| | seconds | CPU seconds | files, MB |\n| --- | ---: | ---: | ---: |")
    for side, results in found.items():
        texts = [", ".join(f"{one[of]:g}" for one in results) for of in ("s", "cpu_s")]
        print(f"| {side} | {' | '.join(texts)} | {results[0]['mb']:,} |")
    if len(found) == len(SIDES):
        a, b = found.values()
        ratios = [theirs["s"] / ours["s"] for ours, theirs in zip(a, b, strict=True)]
        print(f"\nseconds, graphlearn-torch / gigl_loader: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
