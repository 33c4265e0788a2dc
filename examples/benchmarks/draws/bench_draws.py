"""Time the draws of one hop by the three implementations, on one device.

numba  the compiled kernels that workers run, always on the CPU, in one thread
torch  plain torch operators
warp   Warp's kernels (extra ``gpu``); on the CPU they run in one thread

All three draw the same edges; the script checks that before it times them.

    python bench_draws.py --rows 100000 --fanout 15 [--device cuda]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from gigl_loader.dataset.partition.partition_view import Adjacency, PartitionView
from gigl_loader.sampler.gpu.device_kernels import DeviceDraw
from gigl_loader.sampler.gpu.kernel_choice import kernels_for, kinds_on
from gigl_loader.sampler.gpu.torch_numbers import signed
from gigl_loader.sampler.plan import Draw
from gigl_loader.sampler.rows.reader import LocalReader

EDGE_TYPE = ("node", "to", "node")
WAYS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "with replacement": {"replace": True},
    "weighted": {"with_weight": True},
    "labor": {"method": "labor"},
}


def make_graph(rows: int, seed: int = 0) -> tuple[Adjacency, int]:
    """Return a graph with degrees 0 to 199, as tensors, and its largest degree."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 200, rows)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    owners = np.repeat(np.arange(rows), degrees)
    neighbors = rng.integers(0, rows, indptr[-1])
    indices = neighbors[np.lexsort((neighbors, owners))].astype(np.int32)
    weights = rng.exponential(1, indices.size).astype(np.float32)
    parts = [torch.from_numpy(one) for one in (indptr, indices, weights)]
    return Adjacency(parts[0], parts[1], None, parts[2], first_edge=0), int(degrees.max())


def seconds(device: torch.device, call: Callable[[], object]) -> float:
    """Return how long one call takes, and what it put on the device."""
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def calls(
    draw: Draw, adjacency: Adjacency, largest: int, device: torch.device
) -> dict[str, Callable[[], object]]:
    """Return one call for each implementation; all were asked once, and agree."""
    rows = adjacency.indptr.numel() - 1
    nodes = torch.from_numpy(np.random.default_rng(1).permutation(rows))
    parts = adjacency.indptr, adjacency.indices, adjacency.weights
    arrays = [one.numpy() for one in parts]
    view = PartitionView(
        False,
        "in",
        1,
        0,
        {"node": rows},
        {EDGE_TYPE: Adjacency(arrays[0], arrays[1], None, arrays[2], first_edge=0)},
    )
    reader = LocalReader(view)
    there = [one.to(device) for one in parts]
    ids = nodes.to(device)
    key = torch.tensor([signed(draw.key)], device=device)
    asked = DeviceDraw(
        draw,
        Adjacency(there[0], there[1], None, there[2]),
        ids,
        ids,
        key,
        draw.fanout,
        largest_degree=largest,
    )
    found: dict[str, Callable[[], object]] = {"numba": lambda: reader.draw(draw, nodes.numpy())}
    wanted = torch.from_numpy(reader.draw(draw, nodes.numpy()).edge_ids)
    for kind in kinds_on(device):
        kernels = kernels_for(device, kind)
        drawn = kernels.draw(asked)
        used = torch.arange(draw.fanout, device=device) < drawn.counts[:, None]
        assert torch.equal(drawn.edges[used].cpu(), wanted), f"{kind} draws other edges"
        found[kind] = partial(kernels.draw, asked)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--fanout", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    adjacency, largest = make_graph(options.rows)
    print(f"one hop of {options.fanout} from {options.rows:,} nodes on {device}, ms (median)")
    kinds = kinds_on(device)
    heads = ["draw", "numba", *kinds, *(f"{kind}/numba" for kind in kinds)]
    print(f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", sep="\n")
    for name, how in WAYS.items():
        draw = Draw(EDGE_TYPE, options.fanout, 12345, with_edge=True, **how)
        ways = calls(draw, adjacency, largest, device)
        times: dict[str, list[float]] = {kind: [] for kind in ways}
        for _ in range(options.rounds):  # side by side, so that a busy machine slows all of them
            for kind, call in ways.items():
                times[kind].append(seconds(device, call))
        ms = {kind: 1000 * statistics.median(some) for kind, some in times.items()}
        ratios = [f"{ms[kind] / ms['numba']:.2f}" for kind in kinds]
        figures = [f"{ms[kind]:.1f}" for kind in ("numba", *kinds)]
        print(f"| {name} | {' | '.join([*figures, *ratios])} |", flush=True)


if __name__ == "__main__":
    main()
