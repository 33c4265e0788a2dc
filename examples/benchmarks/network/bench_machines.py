"""Seeds/s over slow links, colocated and from a graph store, with and without a cache.

Each machine is a network namespace whose link `tc tbf` limits; a storage server is a machine, and
so is a rank. One row per case: seeds/s of a rank, bytes per seed by kind, share of rows that the
cache had, CPU time per gigabyte received and per seed, share of its link that the busiest machine
used.
Needs root, `ip` and `tc`::

    python examples/benchmarks/network/bench_machines.py --keep FOLDER --out results.md
    python examples/benchmarks/network/bench_machines.py --keep FOLDER --steps --rates 1gbit
    python examples/benchmarks/network/bench_machines.py --keep FOLDER --steps --delay-ms 5
    python examples/benchmarks/network/bench_machines.py --tiny
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _lines import HEADINGS, gains, line_of, medians
from _machines import LINK, UNLIMITED, Machine, machines, received_bytes
from _watch import Watch, all_cpu_s

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cache"))

FANOUTS, DEGREE = [15, 10], 20
PORT = 29_411
LIMIT_S = 1800.0
SILENCE_S = 60.0
"""As long may a process get no core, where all machines share a few."""
GLT_MODES = (
    "GLT colocated, seeded",
    "GLT graph store, seeded",
    "GLT colocated, unseeded",
    "GLT graph store, unseeded",
)
HUBS, HUBS_AT_RANDOM = "hubs in communities", "hubs in communities, parts at random"
STEPS = (
    (HUBS_AT_RANDOM, "random", "own"),
    (HUBS, "random", "own"),
    (HUBS, "groups", "own"),
    (HUBS, "groups", "all"),
)
"""Graph with its parts, order of seeds, edges on each machine: one more thing in each."""
COMMUNITY, WITHIN = 1024, 0.7
AT_ONCE, SEEDS_AT_ONCE = 60, 64
"""Batches of `loader(index)`, and the seeds of one, where links delay."""
GLT_BATCHES = (8, 24, 8)
"""Before those that count, those, and after them: it takes seconds for some."""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    graph: str
    dtype: str
    parts: int
    deployment: str
    rate: str
    cache: str
    folder: str
    batch_size: int
    warmup: int
    batches: int
    tail: int
    """Batches after those that count, so that what is ahead of the trainer stays the same."""
    width: int
    """Columns of the features."""
    python: str = sys.executable
    """The interpreter of the environment."""
    order: str = "random"
    """Of seeds: ``"random"``, or ``"groups"`` of communities."""
    edges: Literal["own", "all"] = "own"
    """As `DistDataset.load` has it."""
    delay_ms: float = 0.0
    """Time of each frame on its way. If it is not 0, single batches are timed."""

    @property
    def is_store(self) -> bool:
        """Whether storage servers are machines of their own."""
        return "graph store" in self.deployment

    @property
    def is_glt(self) -> bool:
        """Whether graphlearn-torch's own loaders are measured."""
        return self.deployment.startswith("GLT")

    @property
    def taken(self) -> int:
        """Batches of a rank's epoch."""
        return self.warmup + self.batches + self.tail

    @property
    def gbit(self) -> float:
        """10**9 bits per second of a link."""
        if self.rate == UNLIMITED:
            return float("inf")
        number, unit = self.rate[:-4], self.rate[-4:]
        return float(number) / {"gbit": 1, "mbit": 1000}[unit]


# --- the graphs -----------------------------------------------------------------------------------


def write_graph(kind: str, dtype: str, parts: int, nodes: int, folder: Path, width: int) -> None:
    """Partition a graph, unless it is there: uniform and R-MAT at random, communities by METIS.

    Hubs in communities have parts that follow these, by METIS too, or parts at random.

    Seeds, its training nodes, are those that have neighbours: half of the nodes of R-MAT have none,
    and cost nothing.
    """
    import torch
    from bench_cache import power_law, uniform
    from torch_geometric.data import Data

    from gigl_loader import partition_graph

    if (folder / "complete").exists():
        return
    random, scale = np.random.default_rng(0), max(1, (nodes - 1).bit_length())
    if kind == "communities":
        edges = communities(1 << scale, random)
    elif kind in (HUBS, HUBS_AT_RANDOM):
        edges = hubs_in_communities(1 << scale, random)
    else:
        edges = (power_law if kind == "power law" else uniform)(scale, random, DEGREE)
    count = 1 << scale
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn((count, width), generator=generator),
        edge_index=torch.from_numpy(edges),
        num_nodes=count,
        train_mask=torch.from_numpy(np.bincount(edges[1], minlength=count) > 0),
    )
    method: Literal["metis", "random"] = "metis" if kind in ("communities", HUBS) else "random"
    feature_dtype = None if dtype == "float32" else dtype
    partition_graph(
        data,
        parts,
        folder,
        method=method,
        feature_dtype=feature_dtype,
        progress=False,
        communities=count // COMMUNITY if kind == HUBS else None,
    )
    (folder / "complete").touch()


def communities(nodes: int, random: np.random.Generator) -> np.ndarray:
    """Return ``[2, edges]``: nine of ten edges stay within a thousand nodes."""
    source = random.integers(0, nodes, DEGREE * nodes)
    size = min(1000, nodes)
    within = np.minimum(source // size * size + random.integers(0, size, source.size), nodes - 1)
    anywhere = random.integers(0, nodes, source.size)
    return np.stack([np.where(random.random(source.size) < 0.9, within, anywhere), source])


def hubs_in_communities(nodes: int, random: np.random.Generator) -> np.ndarray:
    """Return ``[2, edges]`` with ends by a power law, of which most stay within `COMMUNITY` ids."""
    reach = (random.pareto(1.5, nodes) + 1).cumsum()
    reach /= reach[-1]
    target = np.searchsorted(reach, random.random(DEGREE * nodes))
    first = target // COMMUNITY * COMMUNITY
    # a number between where the community begins and ends is a node of it, by the same law
    low = np.where(first > 0, reach[first - 1], 0.0)
    high = reach[np.minimum(first + COMMUNITY, nodes) - 1]
    within = random.random(target.size) < WITHIN
    drawn = random.random(target.size)
    source = np.searchsorted(reach, np.where(within, low + (high - low) * drawn, drawn))
    return np.stack([np.minimum(source, nodes - 1), target])


# --- what runs on a machine -----------------------------------------------------------------------


def be_machine(role: str, number: int, case: Case, addresses: list[str], out: str) -> None:
    """Be a rank, or a storage server."""
    os.environ.update(
        GIGL_LOADER_INSECURE="1", GIGL_LOADER_SAME_MEMORY="0", GLOO_SOCKET_IFNAME=LINK
    )
    if not case.is_store:
        result = _colocated(number, case, addresses)
    else:
        result = _store(role, number, case, addresses)
    Path(out).write_text(json.dumps(result))


def _keywords(case: Case) -> dict[str, Any]:
    cache = None if case.cache == "none" else case.cache
    return {
        "batch_size": case.batch_size,
        "seed": 1,
        "shuffle": case.order == "random" or "groups",
        "num_workers": 1,
        "timeout": 600.0,
        "remote_cache": cache,
    }


def _some(ids: Any, case: Case, share: int) -> Any:
    """Return as many of the ids as are needed, drawn from all over; all, to be taken by group."""
    import torch

    if case.order == "groups":
        return ids

    wanted = case.taken * case.batch_size // share
    if wanted > len(ids):
        raise SystemExit(
            f"{wanted} seeds are needed, there are {len(ids)}: lower --batches or --tail"
        )
    return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(2))[:wanted]]


def _colocated(rank: int, case: Case, addresses: list[str]) -> dict[str, Any]:
    import torch.distributed as dist

    from gigl_loader import DistDataset, DistNeighborLoader

    os.environ.update(  # as torchrun does: addresses of machines are found by the master's
        MASTER_ADDR=addresses[0],
        MASTER_PORT=str(PORT),
        RANK=str(rank),
        WORLD_SIZE=str(case.parts),
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
    )
    dist.init_process_group("gloo")
    dataset = DistDataset.load(case.folder, rank, edges=case.edges)
    seeds = _some(dataset.train_node_ids, case, 1)
    with DistNeighborLoader(dataset, FANOUTS, seeds, **_keywords(case)) as loader:
        result = _measure(loader, case, dist.barrier)
        dist.barrier()
    dist.destroy_process_group()
    return result


def _store(role: str, number: int, case: Case, addresses: list[str]) -> dict[str, Any]:
    from gigl_loader import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
    from gigl_loader.graph_store import (
        init_compute_process,
        init_storage_process,
        shutdown_compute_process,
    )

    server, rank = addresses[0], addresses[case.parts]
    info = GraphStoreInfo(case.parts, case.parts, 1, server, server, rank, 0, 0, PORT, PORT + 1, 0)
    if role == "server":
        dataset = DistDataset.load(case.folder, number, edges=case.edges)
        host = addresses[number]
        with init_storage_process(
            number, info, dataset, host=host, num_jobs=1, network_timeout=SILENCE_S
        ) as process:
            process.wait()
        return {}
    import torch.distributed as dist

    os.environ["RANK"] = str(number)
    init_compute_process(0, info, "gloo", network_timeout=SILENCE_S)
    remote = RemoteDistDataset(info, 0)
    nodes = remote.fetch_node_ids(number, case.parts, split="train")
    share = sum(len(ids) > 0 for ids in nodes.values())  # a rank may be given one server's alone
    seeds = {one: _some(ids, case, share) if len(ids) else ids for one, ids in nodes.items()}
    with DistNeighborLoader(remote, FANOUTS, seeds, **_keywords(case)) as loader:
        result = _measure(loader, case, dist.barrier)
        dist.barrier()
    shutdown_compute_process()
    return result


def _measure(loader: Any, case: Case, meet: Any) -> dict[str, Any]:
    """Take batches of one epoch; what follows the warm-up counts."""
    if case.delay_ms:
        return _measure_at_once(loader, case, meet)
    batches = iter(loader)
    for _ in range(case.warmup):
        next(batches)
    meet()
    loader.stats(reset=True)
    came, cpu, at, begun = received_bytes(), all_cpu_s(), time.time(), time.perf_counter()
    rows = 0
    for _ in range(case.batches):
        rows += next(batches).x.shape[0]
    seconds = time.perf_counter() - begun
    stats = loader.stats()
    return {
        "seeds": case.batches * case.batch_size,
        "seconds": seconds,
        "rows": rows,
        "received": received_bytes() - came,
        "cpu": all_cpu_s() - cpu,
        "began": at,
        "ended": time.time(),
        "network": stats["network_bytes"],
        "hit_rate": stats["hit_rate"],
    }


def _measure_at_once(loader: Any, case: Case, meet: Any) -> dict[str, Any]:
    """Time batches that are asked for one by one."""
    import torch

    num_seeds, seconds = case.taken * case.batch_size, []
    for number in range(AT_ONCE + 5):
        index = torch.arange(SEEDS_AT_ONCE) * 97 + number * 13
        begun = time.perf_counter()
        loader(index % num_seeds)
        seconds.append(time.perf_counter() - begun)
    meet()
    return {"milliseconds": [1e3 * one for one in seconds[5:]]}


# --- the table ------------------------------------------------------------------------------------


def measure(case: Case) -> dict[str, Any]:
    """Run one case on machines of its own; return what was measured.

    Raises:
        RuntimeError: One of them failed.
    """
    num = 2 * case.parts if case.is_store else case.parts
    before = unused_segments()
    with machines(num, case.rate, case.delay_ms) as there, tempfile.TemporaryDirectory() as folder:
        addresses = [machine.address for machine in there]
        started, outs = [], []
        try:
            for position, machine in enumerate(there):
                is_server = case.is_store and position < case.parts
                number = position % case.parts
                out = Path(folder, f"{position}.json")
                started.append(_start(machine, is_server, number, case, addresses, out))
                if not is_server:
                    outs.append(out)
            with Watch(there) as watch:
                # GLT's servers do not end where a rank ends at once
                _await(started, started[case.parts :] if case.is_store and case.is_glt else started)
        finally:
            for process in started:
                process.kill()
                process.wait()
            for segment in unused_segments() - before:  # a peer may leave gigabytes behind
                subprocess.run(["ipcrm", "-m", segment], check=False)
        found = [json.loads(out.read_text()) for out in outs]
        return (_at_once if case.delay_ms else _summary)(case, found, watch)


def _start(
    machine: Machine, is_server: bool, number: int, case: Case, addresses: list[str], out: Path
) -> "subprocess.Popen[bytes]":
    role = "server" if is_server else "rank"
    told = json.dumps([role, number, asdict(case), addresses, str(out)])
    if not case.is_glt:
        return subprocess.Popen([*machine.prefix, sys.executable, __file__, "--be", told])
    script = str(Path(__file__).with_name("glt_machine.py"))
    # process ids of its own: else it copies from one machine's memory to the other's
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.Popen([*machine.prefix, *apart, case.python, script, told])


def _await(
    started: "list[subprocess.Popen[bytes]]", awaited: "list[subprocess.Popen[bytes]]"
) -> None:
    """Wait until those that are awaited have ended.

    Raises:
        RuntimeError: One that was started failed, or it takes too long.
    """
    deadline = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in awaited):
        failed = [process.returncode for process in started if process.returncode]
        if failed or time.monotonic() > deadline:
            raise RuntimeError(f"a process failed, or is late: exit codes {failed}")
        time.sleep(0.2)


def _at_once(case: Case, found: list[dict[str, Any]], _: Watch) -> dict[str, Any]:
    """Return the figures of batches that were asked for one by one."""
    times = np.array([one["milliseconds"] for one in found])
    least, middle, most = np.percentile(times, [10, 50, 90]).round(1).tolist()
    told = asdict(case)
    del told["python"]
    return {**told, "ms": middle, "ms_of_10th": least, "ms_of_90th": most}


def _summary(case: Case, found: list[dict[str, Any]], watch: Watch) -> dict[str, Any]:
    """Return a case's figures by name; lists are by machine, servers first."""
    seconds, seeds = max(one["seconds"] for one in found), sum(one["seeds"] for one in found)
    rates = [one["hit_rate"] for one in found if one["hit_rate"] is not None]
    received = sum(one["received"] for one in found)
    seen = watch.between(max(one["began"] for one in found), min(one["ended"] for one in found))
    told = asdict(case)
    del told["python"]
    return {
        **told,
        "seeds_per_s": seeds / len(found) / seconds,
        "nodes_per_batch": sum(one["rows"] for one in found) / len(found) / case.batches,
        **{
            f"{kind}_per_seed": sum(one["network"][kind] for one in found) / seeds
            for kind in ("rows", "structure")
        },
        "hit_rate": float(np.mean(rates)) if rates else None,
        "cpu_s_per_gb": sum(one["cpu"] for one in found) / len(found) / received * 1e9,
        "busiest_link": seen.busiest(case.gbit),
        **asdict(seen),
    }


def unused_segments() -> set[str]:
    """Return the System V segments of this machine that no process has attached."""
    rows = [row.split() for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[6] == "0"}


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    args = _arguments()
    if args.be:
        role, number, case, addresses, out = json.loads(args.be)
        be_machine(role, number, Case(**case), addresses, out)
        return
    if args.tiny:
        args.graphs, args.dtypes, args.parts = ["power law"], ["float32"], [2]
        args.rates, args.caches, args.nodes = ["20mbit"], ["none", "40%"], 1 << 13
        args.batch_size, args.warmup, args.batches, args.tail = 64, 4, 30, 4
    lines = [
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs for all machines, "
        f"2 ** {(args.nodes - 1).bit_length()} nodes, {DEGREE} edges each, {args.width} features, "
        f"fan-outs {FANOUTS}, batches of {args.batch_size}.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
    ]
    print("\n".join(lines), flush=True)
    every = []
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(args, args.keep or Path(folder)):
            found = measure(case)
            every.append(found)
            lines.append(str(found) if case.delay_ms else line_of(found))
            print(lines[-1], flush=True)
            if args.out is not None:
                args.out.write_text("\n".join(lines) + "\n")
            if args.records is not None:
                with args.records.open("a") as records:
                    records.write(json.dumps(found) + "\n")
    if args.rounds > 1 and not args.delay_ms:
        print(
            "\n".join([*medians(every), *(["", *gains(every)] if args.steps is not None else [])])
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["uniform", "power law", "communities"])
    parser.add_argument(
        "--steps",
        nargs="*",
        type=int,
        choices=range(1, len(STEPS) + 1),
        help="a graph with communities: 1 parts at random, 2 by community, 3 seeds "
        "in groups, 4 all edges everywhere; without numbers all",
    )
    parser.add_argument(
        "--delay-ms",
        type=float,
        default=0.0,
        help="time single batches over links that take so long in each direction",
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--parts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--deployments", nargs="*", default=["colocated", "graph store"])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "2.5gbit", "10gbit"])
    parser.add_argument("--caches", nargs="+", default=["none", "20%", "40%"])
    parser.add_argument("--caches-of-others", nargs="+", help="of rows other than float32")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="made a power of two")
    parser.add_argument("--width", type=int, default=100, help="columns of the features")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--warmup", type=int, default=40, help="batches; the cache fills meanwhile")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--tail", type=int, default=20, help="batches of the epoch afterwards")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="a graph and a case that take a minute")
    parser.add_argument("--keep", type=Path, help="a folder for the graphs, which are made once")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--records", type=Path, help="add a line of JSON for each case")
    parser.add_argument("--python-glt", help="an interpreter with GLT's native library")
    parser.add_argument("--glt", nargs="+", default=GLT_MODES, choices=GLT_MODES)
    parser.add_argument("--be", help=argparse.SUPPRESS)
    return parser.parse_args()


def _cases(args: argparse.Namespace, folder: Path) -> Any:
    """Give the cases, round by round; each graph is written before its first one."""
    all_steps = [(graph, "random", "own") for graph in args.graphs]
    if args.steps is not None:
        all_steps = [STEPS[number - 1] for number in args.steps or range(1, len(STEPS) + 1)]
    for _ in range(args.rounds):
        for step, dtype, parts in itertools.product(all_steps, args.dtypes, args.parts):
            graph, order, edges = step
            root = folder / f"{graph} {dtype} {parts} of {args.width}"
            write_graph(graph, dtype, parts, args.nodes, root, args.width)
            ways = itertools.product(args.deployments, args.rates, args.caches)
            for deployment, rate, cache in ways:
                if dtype == "float32" or cache in (args.caches_of_others or args.caches):
                    yield Case(
                        graph,
                        dtype,
                        parts,
                        deployment,
                        rate,
                        cache,
                        str(root),
                        args.batch_size,
                        args.warmup,
                        args.batches,
                        args.tail,
                        args.width,
                        order=order,
                        edges=edges,
                        delay_ms=args.delay_ms,
                    )
            if args.python_glt and dtype == "float32":
                for deployment, rate in itertools.product(args.glt, args.rates):
                    yield Case(
                        graph,
                        dtype,
                        parts,
                        deployment,
                        rate,
                        "none",
                        str(root),
                        args.batch_size,
                        *GLT_BATCHES,
                        args.width,
                        args.python_glt,
                    )


if __name__ == "__main__":
    main()
