"""What batches of one shape cost and gain: the bound, measured sizes, and none, in turns.

    python bench_padding.py
    python bench_padding.py --rounds 7 --compile

Each round takes the same batches in all ways, one after another, so that what the machine does
meanwhile is spread over all; a ratio is of two times of one round. ``loading`` is the loader alone,
in this process; ``training`` a step of GraphSAGE on batches that are there already.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, padding_sizes

CLASSES, HIDDEN = 16, 64


def graph(nodes: int, degree: int, features: int) -> Data:
    """Return a graph whose degrees follow a power law, as most real ones do."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.rand(2, nodes * degree, generator=draw)
    # Squared, low ids come often: they are hubs, of sources and of destinations.
    edges = (ends.square() * nodes).long()
    return Data(
        x=torch.randn(nodes, features, generator=draw),
        y=torch.randint(CLASSES, (nodes,), generator=draw),
        edge_index=torch.stack(
            [edges[0], edges[1][torch.randperm(nodes * degree, generator=draw)]]
        ),
    )


def step_of(model: Any) -> Callable[[Any], None]:
    """Return a training step."""
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Any) -> None:
        found = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = nn.functional.cross_entropy(found, batch.y[: batch.batch_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds(batches: Iterable[Any], step: Callable[[Any], None] = lambda batch: None) -> float:
    """Return how long it takes to go over ``batches``."""
    started = time.perf_counter()
    for batch in batches:
        step(batch)
    return time.perf_counter() - started


def new_model(features: int) -> nn.Module:
    torch.manual_seed(0)
    return GraphSAGE(features, HIDDEN, num_layers=2, out_channels=CLASSES)


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way in each round; the first round, a warm-up, is left out."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            took = run()
            if number:
                found[name].append(took)
    return found


def show(title: str, times: dict[str, list[float]], base: str, batches: int) -> None:
    """Print the median of each way, and of its ratios to ``base`` in the same round."""
    print(f"\n{title}\n| way | ms a batch | ratio to {base} | least to most |")
    print("| --- | --- | --- | --- |")
    for name, values in times.items():
        ratios = [one / other for one, other in zip(values, times[base], strict=True)]
        print(
            f"| {name} | {1e3 * statistics.median(values) / batches:.1f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=int, default=15)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--num-neighbors", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also compile (needs a C compiler)")
    given = parser.parse_args()
    dataset = DistDataset.from_pyg(graph(given.nodes, given.degree, given.features))
    seeds = torch.randperm(given.nodes, generator=torch.Generator().manual_seed(1))
    seeds = seeds[: given.batch_size * given.batches]

    def loader(pad: Any) -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset,
            given.num_neighbors,
            seeds,
            batch_size=given.batch_size,
            num_workers=0,
            seed=1,
            pad=pad,
        )

    with loader(False) as plain, loader(True) as bound:
        sizes = padding_sizes(plain, share=0.95)
        with loader(sizes) as measured:
            loaders = {"no padding": plain, "bound": bound, "measured": measured}
            held = {}
            for name, one in loaders.items():
                one.set_epoch(0)
                held[name] = list(one)
                nodes = sum(batch.num_nodes for batch in held[name]) / len(held[name])
                edges = sum(batch.num_edges for batch in held[name]) / len(held[name])
                print(f"{name}: {len(held[name])} batches of {nodes:.0f} nodes, {edges:.0f} edges")

            def loading(name: str) -> float:
                loaders[name].set_epoch(0)
                return seconds(loaders[name])

            ways: dict[str, Callable[[], float]] = {
                name: partial(loading, name) for name in loaders
            }
            show("Loading", in_turns(ways, given.rounds), "no padding", given.batches)
    eager = {name: step_of(new_model(given.features)) for name in held}
    ways = {name: partial(seconds, held[name], eager[name]) for name in held}
    show("Training, eager", in_turns(ways, given.rounds), "no padding", given.batches)
    if given.compile:
        compiled(held, given)


def compiled(held: dict[str, list[Any]], given: argparse.Namespace) -> None:
    """Compare compiled steps: what the first pass takes, which compiles, and those after it."""
    steps = {"no padding, eager": step_of(new_model(given.features))}
    batches = {"no padding, eager": held["no padding"]}
    for name, dynamic in (("no padding", True), ("bound", False), ("measured", False)):
        shapes = f"{name}, dynamic={dynamic}"
        steps[shapes] = step_of(torch.compile(new_model(given.features), dynamic=dynamic))
        batches[shapes] = held[name]
        first = seconds(itertools.islice(batches[shapes], 2), steps[shapes])
        print(f"{shapes}: {first:.1f} s for the first two steps")
    ways = {name: partial(seconds, batches[name], steps[name]) for name in steps}
    show("Training, compiled", in_turns(ways, given.rounds), "no padding, eager", given.batches)


if __name__ == "__main__":
    main()
