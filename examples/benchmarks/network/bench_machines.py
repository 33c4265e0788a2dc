"""Seeds/s over slow links, colocated and from a graph store, with and without a cache.

Each machine is a network namespace whose link `tc tbf` limits; a storage server is a machine, and
so is a rank. One row per case: seeds/s of a rank, bytes per seed by kind, share of rows that the
cache had, CPU seconds per gigabyte received, share of the link used. Needs root, `ip` and `tc`::

    python examples/benchmarks/network/bench_machines.py --out results.md
    python examples/benchmarks/network/bench_machines.py --tiny
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _machines import LINK, Machine, machines, received_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cache"))

FANOUTS = [15, 10]
PORT = 29_411
LIMIT_S = 1800.0
COLUMNS = (
    "graph", "rows as", "machines", "deployment", "link", "cache", "seeds/s per rank",
    "bytes per seed: rows", "structure", "hit rate", "CPU s per GB", "link used",
)  # fmt: skip


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


# --- the graphs -----------------------------------------------------------------------------------


def write_graph(kind: str, dtype: str, parts: int, nodes: int, folder: Path) -> None:
    """Partition a graph: uniform and R-MAT at random, communities by METIS."""
    import torch
    from bench_cache import power_law, uniform
    from torch_geometric.data import Data

    from gigl_loader import partition_graph

    random, scale = np.random.default_rng(0), max(1, (nodes - 1).bit_length())
    if kind == "communities":
        edges = communities(1 << scale, random)
    else:
        edges = (power_law if kind == "power law" else uniform)(scale, random)
    count = 1 << scale
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn((count, 100), generator=generator), edge_index=torch.from_numpy(edges),
        num_nodes=count,
    )  # fmt: skip
    method = "metis" if kind == "communities" else "random"
    feature_dtype = None if dtype == "float32" else dtype
    partition_graph(
        data, parts, folder, method=method, feature_dtype=feature_dtype, progress=False
    )  # fmt: skip


def communities(nodes: int, random: np.random.Generator) -> np.ndarray:
    """Return ``[2, 16 * nodes]``: nine of ten edges stay within a thousand nodes."""
    source = random.integers(0, nodes, 16 * nodes)
    size = min(1000, nodes)
    within = np.minimum(source // size * size + random.integers(0, size, source.size), nodes - 1)
    anywhere = random.integers(0, nodes, source.size)
    return np.stack([np.where(random.random(source.size) < 0.9, within, anywhere), source])


# --- what runs on a machine -----------------------------------------------------------------------


def be_machine(role: str, number: int, case: Case, addresses: list[str], out: str) -> None:
    """Be a rank, or a storage server."""
    os.environ.update(
        GIGL_LOADER_INSECURE="1", GIGL_LOADER_SAME_MEMORY="0", GLOO_SOCKET_IFNAME=LINK,
    )  # fmt: skip
    if case.deployment == "colocated":
        result = _colocated(number, case, addresses)
    else:
        result = _store(role, number, case, addresses)
    Path(out).write_text(json.dumps(result))


def _keywords(case: Case) -> dict[str, Any]:
    cache = None if case.cache == "none" else case.cache
    return {"batch_size": case.batch_size, "seed": 1, "shuffle": True, "num_workers": 1,
            "timeout": 600.0, "remote_cache": cache}  # fmt: skip


def _some(ids: Any, case: Case, share: int) -> Any:
    """Return as many of the ids as are needed, drawn from all over."""
    import torch

    wanted = (case.warmup + case.batches) * case.batch_size // share
    if wanted > len(ids):
        raise SystemExit(f"{wanted} seeds are needed, there are {len(ids)}: lower --batches")
    return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(2))[:wanted]]


def _colocated(rank: int, case: Case, addresses: list[str]) -> dict[str, Any]:
    import torch.distributed as dist

    from gigl_loader import DistDataset, DistNeighborLoader

    os.environ.update(  # as torchrun does: addresses of machines are found by the master's
        MASTER_ADDR=addresses[0], MASTER_PORT=str(PORT), RANK=str(rank), WORLD_SIZE=str(case.parts),
        LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
    )  # fmt: skip
    dist.init_process_group("gloo")
    dataset = DistDataset.load(case.folder, rank)
    seeds = _some(dataset.node_ids, case, 1)
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
    info = GraphStoreInfo(
        case.parts, case.parts, 1, server, server, rank, 0, 0, PORT, PORT + 1, 0
    )  # fmt: skip
    if role == "server":
        dataset = DistDataset.load(case.folder, number)
        with init_storage_process(number, info, dataset, host=addresses[number]) as process:
            process.wait()
        return {}
    import torch.distributed as dist

    os.environ["RANK"] = str(number)
    init_compute_process(0, info, "gloo")
    remote = RemoteDistDataset(info, 0)
    nodes = remote.fetch_node_ids(number, case.parts)
    share = sum(len(ids) > 0 for ids in nodes.values())  # a rank may be given one server's alone
    seeds = {one: _some(ids, case, share) if len(ids) else ids for one, ids in nodes.items()}
    with DistNeighborLoader(remote, FANOUTS, seeds, **_keywords(case)) as loader:
        result = _measure(loader, case, dist.barrier)
        dist.barrier()
    shutdown_compute_process()
    return result


def _measure(loader: Any, case: Case, meet: Any) -> dict[str, Any]:
    """Take one epoch; what follows the warm-up counts."""
    batches = iter(loader)
    for _ in range(case.warmup):
        next(batches)
    meet()
    loader.stats(reset=True)
    came, cpu, begun = received_bytes(), _cpu_seconds(), time.perf_counter()
    rows = 0
    for _ in range(case.batches):
        rows += next(batches).x.shape[0]
    seconds = time.perf_counter() - begun
    stats = loader.stats()
    return {
        "seeds": case.batches * case.batch_size, "seconds": seconds, "rows": rows,
        "received": received_bytes() - came, "cpu": _cpu_seconds() - cpu,
        "network": stats["network_bytes"], "hit_rate": stats["hit_rate"],
    }  # fmt: skip


def _cpu_seconds() -> float:
    """Return the seconds for which a CPU was at work, of the whole machine: it runs all of them."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


# --- the table ------------------------------------------------------------------------------------


def measure(case: Case) -> list[dict[str, Any]]:
    """Run one case on machines of its own; return what the ranks measured.

    Raises:
        RuntimeError: One of them failed.
    """
    num = case.parts if case.deployment == "colocated" else 2 * case.parts
    with machines(num, case.rate) as there, tempfile.TemporaryDirectory() as folder:
        addresses = [machine.address for machine in there]
        started, outs = [], []
        try:
            for place, machine in enumerate(there):
                is_server = case.deployment != "colocated" and place < case.parts
                number = place % case.parts
                out = Path(folder, f"{place}.json")
                started.append(_start(machine, is_server, number, case, addresses, out))
                if not is_server:
                    outs.append(out)
            _await(started)
        finally:
            for process in started:
                process.kill()
                process.wait()
        return [json.loads(out.read_text()) for out in outs]


def _start(
    machine: Machine, is_server: bool, number: int, case: Case, addresses: list[str], out: Path
) -> "subprocess.Popen[bytes]":
    role = "server" if is_server else "rank"
    told = json.dumps([role, number, asdict(case), addresses, str(out)])
    return subprocess.Popen([*machine.prefix, sys.executable, __file__, "--be", told])


def _await(started: "list[subprocess.Popen[bytes]]") -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in started):
        failed = [process.returncode for process in started if process.returncode]
        if failed or time.monotonic() > deadline:
            raise RuntimeError(f"a process failed, or is late: exit codes {failed}")
        time.sleep(0.2)


def line_of(case: Case, found: list[dict[str, Any]]) -> str:
    """Return the row of the table."""
    seconds = max(one["seconds"] for one in found)
    seeds = sum(one["seeds"] for one in found)
    received = sum(one["received"] for one in found)
    by_kind = {kind: sum(one["network"][kind] for one in found) for kind in ("rows", "structure")}
    rates = [one["hit_rate"] for one in found if one["hit_rate"] is not None]
    cpu = sum(one["cpu"] for one in found) / len(found)
    link = float(case.rate.removesuffix("gbit")) * 1e9 / 8 * seconds * len(found)
    cells = (
        case.graph, case.dtype, case.parts, case.deployment, case.rate, case.cache,
        f"{seeds / len(found) / seconds:,.0f}", f"{by_kind['rows'] / seeds:,.0f}",
        f"{by_kind['structure'] / seeds:,.0f}", f"{np.mean(rates):.0%}" if rates else "-",
        f"{cpu / received * 1e9:.2f}", f"{received / link:.0%}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table, and write it where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["uniform", "power law", "communities"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--parts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--deployments", nargs="+", default=["colocated", "graph store"])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "2.5gbit", "10gbit"])
    parser.add_argument("--caches", nargs="+", default=["none", "20%", "40%"])
    parser.add_argument("--nodes", type=int, default=1_000_000, help="made a power of two")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--warmup", type=int, default=40, help="batches; the cache fills meanwhile")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="a graph and a case that take a minute")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--be", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        role, number, case, addresses, out = json.loads(args.be)
        be_machine(role, number, Case(**case), addresses, out)
        return
    if args.tiny:
        args.graphs, args.dtypes, args.parts = ["power law"], ["float32"], [2]
        args.rates, args.caches, args.nodes = ["1gbit"], ["none", "40%"], 1 << 13
        args.batch_size, args.warmup, args.batches = 128, 4, 12  # deployments as given
    lines = [
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs for all machines, "
        f"2 ** {(args.nodes - 1).bit_length()} nodes, 16 edges each, 100 features, fan-outs "
        f"{FANOUTS}, batches of {args.batch_size}.",
        "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|",
    ]  # fmt: skip
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(args, Path(folder)):
            lines.append(line_of(case, measure(case)))
            print(lines[-1], flush=True)
            if args.out is not None:
                args.out.write_text("\n".join(lines) + "\n")


def _cases(args: argparse.Namespace, folder: Path) -> Any:
    """Give the cases, each graph written before its first one; those of a round alternate."""
    for graph in args.graphs:
        for dtype in args.dtypes:
            for parts in args.parts:
                root = folder / f"{graph} {dtype} {parts}"
                write_graph(graph, dtype, parts, args.nodes, root)
                for _ in range(args.rounds):
                    for deployment in args.deployments:
                        for rate in args.rates:
                            for cache in args.caches:
                                yield Case(
                                    graph, dtype, parts, deployment, rate, cache, str(root),
                                    args.batch_size, args.warmup, args.batches,
                                )  # fmt: skip


if __name__ == "__main__":
    main()
