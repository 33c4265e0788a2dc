"""An epoch from disk, of a graph three times as large as the memory that is left.

The workers are in a memory control group, which after a first epoch may grow by a third of the
graph; where none can be made, a ballast of locked memory takes what the graph is not to have.
Rounds alternate: the graph in shared memory (without a limit), from disk with pages read ahead, and
from disk with pages that come when they are touched. Beside them what the disk itself gives: random
reads of a page, one at a time and many at once (by fio where it is installed)::

    python examples/benchmarks/disk/bench_disk.py [--nodes 4000000] [--rounds 3] [--out results.md]

Needs root for control groups (or to lock memory: ``ulimit -l unlimited``), and an otherwise idle
machine.
"""

import argparse
import ctypes
import datetime
import json
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    EdgeTable,
    NodeTable,
    partition_graph,
    partition_tables,
)
from gigl_loader.runtime.memory import read_ahead

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cache"))

FANOUTS, BATCH, DEGREE, WIDTH, CLASSES = [15, 10], 1024, 15, 160, 16
NEAR = 0.9
"""Share of the edges of the local graph that stay within `BLOCK` nodes, as partitioners aim for."""
BLOCK = 8192
KINDS = {
    "power-law": "R-MAT with the parameters of Graph500: some rows are read again and again",
    "uniform": "neighbours anywhere: each row is as likely as any other",
    "local": "nine of ten neighbours are within 8,192 nodes, as partitioners aim for",
}
ORDERS = {"ids": "rows by ids", "degree": "rows by degree", "tables": "rows by degree, from tables"}
"""By `partition_graph`; the last one by `partition_tables`, with the same ids."""
GROUP_VARIABLE = "BENCH_DISK_GROUP"
AT_ONCE = (1, 32, 128)
"""Reads that the disk alone is given at a time."""
RESIDENT, AHEAD, TOUCHED = "in memory", "from disk, read ahead", "from disk, when touched"


def make(root: Path, kind: str, num_nodes: int, order: Any) -> None:
    """Write a graph of one of `KINDS`, its rows in one of `ORDERS`."""
    random = np.random.default_rng(0)
    target = np.repeat(np.arange(num_nodes), DEGREE)
    source = random.integers(0, num_nodes, target.size)
    if kind == "power-law":
        from bench_cache import power_law

        scale = (num_nodes - 1).bit_length()
        source, target = power_law(scale, random, DEGREE)[:, : DEGREE * num_nodes] % num_nodes
    if kind == "local":
        near = random.random(target.size) < NEAR
        source[near] = (target[near] // BLOCK * BLOCK + source[near] % BLOCK) % num_nodes
    x = torch.arange(num_nodes, dtype=torch.float32)[:, None].expand(-1, WIDTH).contiguous()
    if order == "tables":
        from_tables(root, x.numpy(), source, target)
    else:
        edges = torch.from_numpy(np.stack([source, target]))
        data = Data(x=x, edge_index=edges, num_nodes=num_nodes)
        partition_graph(data, 1, root, order=order, progress=False)
    seeds = np.unique(target)  # labelled nodes have neighbours
    torch.save(torch.from_numpy(random.permutation(seeds)), root / "seeds.pt")


def from_tables(root: Path, x: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
    """Write the graph as tables, whose partition has the ids of its rows, and partition them."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        nodes, edges, features = (
            f"{folder}/{name}" for name in ("n.parquet", "e.parquet", "x.npy")
        )
        pq.write_table(pa.table({"id": np.arange(len(x))}), nodes)
        pq.write_table(pa.table({"src": source, "dst": target}), edges)
        np.save(features, x)
        tables = NodeTable(nodes, features=features), EdgeTable(edges)
        partition_tables(*tables, 1, root, order="degree", progress=False)


@contextmanager
def ballast(leave: int | None) -> Iterator[None]:
    """Lock memory, so that ``leave`` bytes are there for the page cache; None: all of it."""
    if leave is None or (size := psutil.virtual_memory().available - leave) <= 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    memory = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if libc.mlock(address, size):
        reason = os.strerror(ctypes.get_errno())
        raise SystemExit(f"cannot lock {size >> 20} MiB: {reason}; run as root, or ulimit -l")
    yield  # the mapping ends with its last reference


def join_group(worker: int) -> None:
    """Let the control group have what a worker reads, and all that it uses."""
    group = os.environ.get(GROUP_VARIABLE)
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))


def wait_for_pages(worker: int) -> None:
    """Switch reading ahead off, in a worker."""
    join_group(worker)
    read_ahead._ask = lambda ranges: 0


@contextmanager
def control_group() -> Iterator[Path | None]:
    """Make a memory control group for `join_group`; None: that is not possible here."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = root / f"bench_disk_{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if limit_file(group) is not None:
            break
        group.rmdir()
    else:
        yield None
        return
    os.environ[GROUP_VARIABLE] = str(group)
    try:
        yield group
    finally:
        remove(group)


def remove(group: Path) -> None:
    """Remove a control group; processes that have just ended are in it for a moment."""
    for _ in range(100):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def limit_file(group: Path) -> Path | None:
    """Return the file with a group's limit; None: it has none."""
    for name in ("memory.limit_in_bytes", "memory.max"):
        if (group / name).exists():
            return group / name
    return None


@contextmanager
def left(leave: int | None, group: Path | None) -> Iterator[None]:
    """Leave that many bytes for files: None: all of the memory."""
    if leave is None or group is None:
        with ballast(leave):
            yield
        return
    used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    own = sum(int(used.get(name, 0)) for name in ("rss", "anon", "shmem"))
    file = limit_file(group)
    assert file is not None
    file.write_text(str(own + leave))
    yield


def trainer() -> Callable[[Data], None]:
    """Return what a training step does with a batch: GraphSAGE, two layers of 128."""
    torch.manual_seed(0)
    model = GraphSAGE(WIDTH, 128, num_layers=2, out_channels=CLASSES)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Data) -> None:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        cross_entropy(out, batch.node[: batch.batch_size] % CLASSES).backward()
        optimizer.step()

    return step


def epoch(root: Path, how: str, batches: int, leave: int | None) -> dict[str, float]:
    """Return seconds of an epoch after a warm-up, alone and in training, and MB read per batch."""
    hook = {TOUCHED: wait_for_pages, AHEAD: join_group}.get(how)
    dataset = DistDataset.load(root, 0, mmap=how != RESIDENT, verify="off")
    seeds, found = torch.load(root / "seeds.pt")[: BATCH * batches], {}
    with (
        control_group() as group,
        DistNeighborLoader(
            dataset, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=1, worker_init_fn=hook
        ) as loader,
    ):
        steps: dict[str, Callable[[Data], None]] = {"alone": check, "training": trainer()}
        for batch in loader:  # processes and their memory are there: the rest is for files
            steps["training"](batch)
        with left(leave, group):
            for batch in loader:
                check(batch)
            for name, step in steps.items():
                read, started = psutil.disk_io_counters().read_bytes, time.perf_counter()
                for batch in loader:
                    step(batch)
                found[name] = time.perf_counter() - started
                read = psutil.disk_io_counters().read_bytes - read
                found["mb"] = read / batches / 1e6
    return found


def check(batch: Data) -> None:
    """See that a row is the one of its node."""
    assert torch.equal(batch.x[:, 0].long(), batch.node)


def in_process(root: Path, how: str, args: argparse.Namespace, leave: int) -> dict[str, float]:
    """Measure in a process of its own, so that no memory of the last one is there."""
    given = json.dumps([str(root), how, args.batches, leave])
    done = subprocess.run(
        [sys.executable, __file__, "--one", given], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(root: str, how: str, batches: int, leave: int) -> None:
    """Measure what `in_process` asks for, and print it."""
    if how != RESIDENT:
        drop_from_cache(Path(root))
    print(json.dumps(epoch(Path(root), how, batches, None if how == RESIDENT else leave)))


def drop_from_cache(root: Path) -> None:
    """Let the page cache forget the files."""
    for path in root.rglob("*.bin"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_alone(root: Path, at_once: int, seconds: float = 4.0) -> float:
    """Return random reads of a page per second, ``at_once`` of them under way."""
    path = max(root.rglob("*.bin"), key=lambda path: path.stat().st_size)
    drop_from_cache(root)
    if fio := shutil.which("fio"):
        command = [
            fio,
            "--name=read",
            f"--filename={path}",
            "--readonly",
            "--rw=randread",
            "--bs=4k",
            "--direct=1",
            "--ioengine=libaio",
            f"--iodepth={at_once}",
            "--time_based",
            f"--runtime={seconds}",
            "--output-format=json",
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])
    pages, fd = path.stat().st_size // mmap.PAGESIZE, os.open(path, os.O_RDONLY | os.O_DIRECT)
    end = time.monotonic() + seconds

    def read(number: int) -> int:
        random, count, page = np.random.default_rng(number), 0, mmap.mmap(-1, mmap.PAGESIZE)
        while time.monotonic() < end:
            os.preadv(fd, [page], int(random.integers(pages)) * mmap.PAGESIZE)
            count += 1
        return count

    with ThreadPoolExecutor(at_once) as pool:
        done_reads = sum(pool.map(read, range(at_once)))
    os.close(fd)
    return done_reads / seconds


def measure(kind: str, args: argparse.Namespace, folder: Path) -> list[str]:
    """Return the lines of one graph's table."""
    roots = {order: folder / f"{kind}-{order}" for order in args.orders}
    for order, root in roots.items():
        if not (root / "seeds.pt").exists():  # written last
            make(root, kind, args.nodes, order)
    first = next(iter(roots.values()))
    nbytes = sum(path.stat().st_size for path in first.rglob("*.bin"))
    leave = nbytes // 3
    cases = {RESIDENT: (first, RESIDENT)}
    cases |= {f"{AHEAD}, {ORDERS[order]}": (root, AHEAD) for order, root in roots.items()}
    cases |= {} if args.skip_touched else {TOUCHED: (first, TOUCHED)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(args.rounds):
        for name, (root, how) in cases.items():
            if how == TOUCHED and number:
                continue  # once says it: it takes longer than all others together
            found[name].append(in_process(root, how, args, leave))
            print(f"{kind}, round {number}, {name}: {found[name][-1]}", flush=True)
    lines = [
        f"## {kind}, {KINDS[kind]}",
        "",
        f"{nbytes / 1e9:.2f} GB, {leave / 1e9:.2f} GB of memory left for them.",
        "",
        "| | training epoch, s, median (spread) | times in memory | loading alone, s | times "
        "| MB read a batch |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, results in found.items():
        cells = [name]
        for step in ("training", "alone"):
            seconds = [result[step] for result in results]
            ratios = [a / b[step] for a, b in zip(seconds, found[RESIDENT], strict=False)]
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            cells += [f"{median(seconds):.2f} ({spread})", f"{median(ratios):.2f}"]
        cells.append(f"{median(result['mb'] for result in results):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    rates = [f"{disk_alone(first, at_once):,.0f} with {at_once} under way" for at_once in AT_ONCE]
    by = "fio" if shutil.which("fio") else "threads of this script"
    lines += ["", f"The disk alone ({by}), random pages a second: {', '.join(rates)}.", ""]
    if args.folder is None:
        for root in roots.values():
            shutil.rmtree(root)
    return lines


def main() -> None:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40, help=f"of {BATCH} seeds")
    parser.add_argument("--graphs", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--skip-touched", action="store_true", help="measure reading ahead alone")
    parser.add_argument("--folder", type=Path, help="keep the graphs here, and take what is there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(*json.loads(args.one))
        return
    lines = [
        "# An epoch from disk",
        "",
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} "
        f"cores, {psutil.virtual_memory().total / 2**30:.0f} GiB; torch {torch.__version__}, "
        f"gigl_loader {version('gigl-loader')}; {args.nodes:,} nodes, {DEGREE} edges each, "
        f"{WIDTH} float32; fanouts {FANOUTS}, {args.batches} batches of {BATCH} seeds, one worker.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.graphs:
            lines += measure(kind, args, args.folder or Path(folder))
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
