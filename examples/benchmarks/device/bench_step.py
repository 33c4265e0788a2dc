"""Time a training step on a GPU with its batches copied in three ways.

overlapped  `DevicePrefetcher(...)`: copies run ahead on a stream of their own
blocking    the same with ``non_blocking=False``: copy, then compute
resident    one batch that stays on the device: no loading at all, the floor

The batches wait in pinned host memory, so that nothing but the copies is measured. The step has
as many layers as make its compute ``--ratio`` times as long as the copy of a batch.

    python bench_step.py --ratio 1 --ratio 2 --out out/bench_step
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise, repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gigl_loader.batch.device.prefetch import DevicePrefetcher

NUM_HOST_BATCHES = 8
WARM_UP_STEPS = 10
MAX_EXPOSED, MIN_SPEEDUP = 0.05, 1.5
"""The bars: exposed copy time where compute is at least as long; throughput over blocking."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    nodes: int
    features: int
    edges: int
    hidden: int


@dataclass(frozen=True, kw_only=True)
class Result:
    wanted_ratio: float
    compute_over_copy: float
    copy_ms: float
    resident_ms: float
    overlapped_ms: float
    blocking_ms: float
    exposed_share: float
    speedup_over_blocking: float

    def verdict(self) -> str:
        checks = []
        if self.compute_over_copy >= 1:
            ok = self.exposed_share < MAX_EXPOSED
            checks.append(f"exposed share below {MAX_EXPOSED:.0%}: {'met' if ok else 'MISSED'}")
        if 0.9 <= self.compute_over_copy <= 1.1:
            ok = self.speedup_over_blocking >= MIN_SPEEDUP
            checks.append(f"{MIN_SPEEDUP} times blocking: {'met' if ok else 'MISSED'}")
        return "; ".join(checks)


class Step:
    """One training step: neighbours summed, ``layers`` square layers, backward, SGD."""

    def __init__(self, sizes: Sizes, layers: int) -> None:
        widths = [sizes.features] + [sizes.hidden] * (layers + 1)
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.model = nn.Sequential(*(m for linear in linears for m in (linear, nn.ReLU()))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def __call__(self, batch: Data) -> Tensor:
        source, target = batch.edge_index
        x = batch.x.index_add(0, target, batch.x[source])
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def host_batches(sizes: Sizes) -> list[Data]:
    generator = torch.Generator().manual_seed(0)
    return [
        Data(
            x=torch.rand(sizes.nodes, sizes.features, generator=generator),
            edge_index=torch.randint(sizes.nodes, (2, sizes.edges), generator=generator),
            y=torch.randint(10, (sizes.nodes,), generator=generator),
        ).pin_memory()
        for _ in range(NUM_HOST_BATCHES)
    ]


def time_steps(batches: Iterable[Data], step: Callable[[Data], object], num_steps: int) -> float:
    """Return the mean wall time of a step in ms."""
    iterator: Iterator[Data] = iter(batches)
    for batch in islice(iterator, WARM_UP_STEPS):
        step(batch)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in islice(iterator, num_steps):
        step(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / num_steps * 1e3


def modes(host: list[Data]) -> dict[str, Callable[[], Iterable[Data]]]:
    resident = next(iter(DevicePrefetcher(host, "cuda", non_blocking=False)))
    return {
        "resident": lambda: repeat(resident),
        "overlapped": lambda: DevicePrefetcher(cycle(host), "cuda"),
        "blocking": lambda: DevicePrefetcher(cycle(host), "cuda", non_blocking=False),
    }


def layers_for(sizes: Sizes, host: list[Data], target_ms: float) -> int:
    """Return how many layers make a step without loading last about ``target_ms``."""
    resident = modes(host)["resident"]
    few, many = (time_steps(resident(), Step(sizes, n), 20) for n in (1, 11))
    return max(1, 1 + round((target_ms - few) / max((many - few) / 10, 1e-3)))


def measure(sizes: Sizes, host: list[Data], ratio: float, *, steps: int, rounds: int) -> Result:
    ways = modes(host)
    copy_ms = time_steps(ways["blocking"](), lambda batch: None, steps)
    step = Step(sizes, layers_for(sizes, host, ratio * copy_ms))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):  # in turns, so that a drift of the machine meets all of them
        for name, way in ways.items():
            times[name].append(time_steps(way(), step, steps))
    ms = {name: statistics.median(values) for name, values in times.items()}
    return Result(
        wanted_ratio=ratio,
        compute_over_copy=ms["resident"] / copy_ms,
        copy_ms=copy_ms,
        resident_ms=ms["resident"],
        overlapped_ms=ms["overlapped"],
        blocking_ms=ms["blocking"],
        exposed_share=max(0.0, 1 - ms["resident"] / ms["overlapped"]),
        speedup_over_blocking=ms["blocking"] / ms["overlapped"],
    )


def save_trace(sizes: Sizes, host: list[Data], layers: int, path: Path) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    step = Step(sizes, layers)
    with torch.profiler.profile(activities=activities) as profiler:
        for name, way in modes(host).items():
            with torch.profiler.record_function(name):
                for batch in islice(iter(way()), 6):
                    step(batch)
                torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))


def report(results: list[Result]) -> str:
    lines = [
        "| compute/copy | copy ms | resident ms | overlapped ms | blocking ms | exposed | gain |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r.compute_over_copy:.2f} | {r.copy_ms:.2f} | {r.resident_ms:.2f} "
        f"| {r.overlapped_ms:.2f} | {r.blocking_ms:.2f} | {r.exposed_share:.1%} "
        f"| {r.speedup_over_blocking:.2f} |"
        for r in results
    ]
    lines += [f"{r.compute_over_copy:.2f}: {r.verdict()}" for r in results if r.verdict()]
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time a training step on a GPU.")
    parser.add_argument("--ratio", type=float, action="append", help="compute / copy; repeatable")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--edges", type=int, default=500_000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/bench_step"))
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if not torch.cuda.is_available():
        print(
            "no CUDA device on this machine: nothing measured; see README.md for the last numbers"
        )
        return
    sizes = Sizes(
        nodes=options.nodes, features=options.features, edges=options.edges, hidden=options.hidden
    )
    host = host_batches(sizes)
    ratios = options.ratio or [0.5, 1.0, 1.2, 2.0]
    results = [
        measure(sizes, host, ratio, steps=options.steps, rounds=options.rounds) for ratio in ratios
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    numbers = {"machine": machine, "sizes": asdict(sizes), "results": [asdict(r) for r in results]}
    (options.out / "results.json").write_text(json.dumps(numbers, indent=2))
    save_trace(
        sizes, host, layers_for(sizes, host, results[-1].copy_ms), options.out / "trace.json.gz"
    )
    print(machine, sizes, report(results), f"saved under {options.out}", sep="\n")


if __name__ == "__main__":
    main()
