"""Sequences of 300 tokens on one core: seeds/s, tokens/s, the first step; and RelGT's tokeniser.

    python examples/benchmarks/tokens/bench_tokens.py
    python examples/benchmarks/tokens/bench_tokens.py --relgt DIRECTORY

``DIRECTORY`` is a git directory of snap-stanford/relgt, whose ``utils.py`` is read and run. See
README.md beside this file.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, TokenOptions, partition_graph

K, WIDTH, BATCH, DAY = 300, 64, 128, 86_400
RELGT_COMMIT = "280bd9c5"
WAYS: dict[str, TokenOptions | None] = {
    "no tokens, disjoint trees": None,
    "tokens": TokenOptions(K),
    "tokens, varlen": TokenOptions(K, layout="varlen"),
    "tokens, pairs": TokenOptions(K, pairs=True),
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time sequences of tokens.")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--fanout", type=int, nargs="+", default=[17, 17])
    parser.add_argument("--batches", type=int, default=100, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="all ways are timed in turn")
    parser.add_argument("--relgt", help="git directory of snap-stanford/relgt")
    parser.add_argument("--users", type=int, default=1000, help="of the graph beside RelGT's")
    parser.add_argument("--events", type=int, default=400, help="of each user")
    parser.add_argument("--first-step", help=argparse.SUPPRESS)  # a process that --relgt starts
    return parser.parse_args()


Times = tuple[int, int, float, float]
"""Seeds, tokens, wall seconds, CPU seconds."""


def timed(work: Callable[[], tuple[int, int]]) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    seeds, tokens = work()
    return seeds, tokens, time.perf_counter() - wall, time.process_time() - cpu


def spread(values: list[float], form: str = ",.0f") -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def show(way: str, rounds: list[Times]) -> None:
    by_cpu = spread([seeds / cpu for seeds, _, _, cpu in rounds])
    by_wall = spread([seeds / wall for seeds, _, wall, _ in rounds])
    tokens = median(tokens / cpu for _, tokens, _, cpu in rounds) / 1e6
    shown = f"{tokens:.2f}" if tokens else "-"
    print(f"| {way} | {by_cpu} | {by_wall} | {shown} |", flush=True)


def show_all(title: str, found: dict[str, list[Times]]) -> None:
    print(f"\n{title}\n")
    print("| | seeds/s of CPU time | seeds/s of wall time | million tokens/s of CPU time |")
    print("| --- | --- | --- | --- |")
    for way, rounds in found.items():
        show(way, rounds)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def take(batches: Iterator[Any], number: int) -> tuple[int, int]:
    """Return the seeds and tokens of some batches."""
    seeds = tokens = 0
    for _ in range(number):
        batch = next(batches)
        seeds += BATCH
        if "tokens" in batch:
            tokens += int(batch.tokens.length.sum())
    return seeds, tokens


def one_core(args: argparse.Namespace) -> None:
    graph = random_graph(args)
    dataset = DistDataset.from_pyg(graph)
    ways = {}
    for name, options in WAYS.items():
        how: dict[str, Any] = {"tokens": options} if options else {"disjoint": True}
        seeds = torch.arange(100 * BATCH)
        loader = DistNeighborLoader(
            dataset, args.fanout, seeds, batch_size=BATCH, num_workers=0, seed=1, **how
        )
        ways[name] = endless(loader)
        take(ways[name], 20)  # what is compiled is loaded, and memory is warm
    found: dict[str, list[Times]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, batches in ways.items():
            found[name].append(timed(partial(take, batches, args.batches)))
    title = f"{args.nodes:,} nodes of degree {args.degree}, fan-out {args.fanout}, K = {K}, "
    show_all(title + f"{WIDTH} floats a row, batches of {BATCH}", found)


def random_graph(args: argparse.Namespace) -> Data:
    draw = torch.Generator().manual_seed(0)
    size = args.nodes, args.nodes * args.degree
    return Data(
        x=torch.randn(size[0], WIDTH, generator=draw),
        edge_index=torch.randint(size[0], (2, size[1]), generator=draw),
    )


def first_step(folder: str, args: argparse.Namespace) -> None:
    """Load partition 0, and take the first batch; another process has the time."""
    loader = DistNeighborLoader(
        DistDataset.load(folder, 0),
        args.fanout,
        torch.arange(args.nodes),
        batch_size=BATCH,
        num_workers=1,
        seed=1,
        shuffle=True,
        tokens=TokenOptions(K),
    )
    with loader:
        batch = next(iter(loader))
    assert batch.tokens.gather(batch.x).shape == (BATCH, K, WIDTH)


def time_first_step(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as folder:
        partition_graph(random_graph(args), 1, f"{folder}/graph", progress=False)
        sizes = f"--nodes={args.nodes}", "--fanout", *map(str, args.fanout)
        command = [sys.executable, __file__, f"--first-step={folder}/graph", *sizes]
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            subprocess.run(command, check=True)
            seconds.append(time.perf_counter() - began)
    shown = spread(seconds, ".1f")
    print(f"\nFrom the start of Python to the first batch, and the end of its worker: {shown} s")


def events(args: argparse.Namespace) -> tuple[HeteroData, Tensor, Tensor]:
    """Return users, items and events of both with times; and seeds, with times."""
    draw = torch.Generator().manual_seed(0)
    graph, number = HeteroData(), args.users * args.events
    user = torch.arange(args.users).repeat_interleave(args.events)
    item = torch.randint(args.users, (number,), generator=draw)
    for name, size in (("event", number), ("item", args.users), ("user", args.users)):
        graph[name].x = torch.randn(size, WIDTH, generator=draw)
    graph["event"].time = torch.randint(1000 * DAY, (number,), generator=draw)
    for name, ids in (("user", user), ("item", item)):
        graph["event", "of", name].edge_index = torch.stack([torch.arange(number), ids])
        graph[name, "rev_of", "event"].edge_index = torch.stack([ids, torch.arange(number)])
    seeds = torch.randint(args.users, (20_000,), generator=draw)
    return graph, seeds, torch.randint(500 * DAY, 1000 * DAY, (20_000,), generator=draw)


def their_utils(directory: str) -> ModuleType:
    """Return RelGT's ``utils``; stubs stand for what it imports and the tokeniser does not call."""
    names = {
        "h5py": ["File"],
        "sentence_transformers": ["SentenceTransformer"],
        "relbench": [],
        "relbench.base": ["Dataset", "EntityTask"],
        "relbench.modeling": [],
        "relbench.modeling.graph": ["get_node_train_table_input"],
    }
    for name, members in names.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(dict.fromkeys(members, object), __path__=[])
    show = ["git", "-C", directory, "show", f"{RELGT_COMMIT}:utils.py"]
    text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    module = ModuleType("utils")
    exec(compile(text, "utils.py", "exec"), vars(module))
    return module


def beside_relgt(args: argparse.Namespace) -> None:
    graph, seeds, times = events(args)
    utils = their_utils(args.relgt)
    began = time.perf_counter()
    nodes = [(name, n) for name in graph.node_types for n in range(graph[name].num_nodes)]
    utils.init_worker_globals(utils.build_adjacency_hetero(graph), nodes)
    built = time.perf_counter() - began

    def theirs(number: int, at: list[int]) -> tuple[int, int]:
        for n in range(at[0], at[0] + number):
            row = graph, K, "user", int(seeds[n]), int(times[n]), n
            utils._process_one_seed(row)  # what each of its processes does, without their pickling
        at[0] += number
        return number, number * K

    loader = DistNeighborLoader(
        DistDataset.from_pyg(graph),
        [-1, -1],
        ("user", seeds),
        input_time=times,
        time_attr="time",
        batch_size=BATCH,
        num_workers=0,
        seed=1,
        tokens=TokenOptions(K, order="random", fill="repeat", pairs=True),  # as theirs
    )
    ours, at = endless(loader), [0]
    take(ours, 20)
    found: dict[str, list[Times]] = {"RelGT's tokeniser": [], "ours": []}
    for _ in range(args.rounds):
        found["RelGT's tokeniser"].append(timed(lambda: theirs(300, at)))
        found["ours"].append(timed(partial(take, ours, 100)))
    title = f"{args.users:,} users and items, {args.events} events a user, K = {K}, RelGT at "
    show_all(f"{title}{RELGT_COMMIT}; to build its sets of neighbours took {built:.0f} s", found)
    for n, kind in ((3, "CPU"), (2, "wall")):
        ratios = [
            (our[0] / our[n]) / (their[0] / their[n])
            for their, our in zip(*found.values(), strict=True)
        ]
        print(f"ours to RelGT's, by {kind} time: {spread(ratios)}", flush=True)


def main() -> None:
    args = parse_args()
    if args.first_step:
        first_step(args.first_step, args)
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if args.relgt:
        beside_relgt(args)
    one_core(args)
    time_first_step(args)


if __name__ == "__main__":
    main()
