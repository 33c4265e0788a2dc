"""Tables to partitions: time, memory and scratch, beside a plain DuckDB script on the same tables.

Both are run as processes of their own in alternating rounds; memory is what the tree of processes
has resident, sampled, and disk is all that lies in the folder of a run, sampled::

    python examples/benchmarks/tables/bench_tables.py --nodes 10000000 --edges 100000000 \\
        --memory 2GB 1GB --out results.md

The plain script numbers ids, joins the edges with the numbers in one COPY, sorts the edges of each
part and writes its features; it has no checksums, no checks and no dictionary to ask.
"""

import argparse
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PARTS, WIDTH, FILES = 4, 64, 8
_SAMPLE_S = 0.05
_DISK_SAMPLES = 10
"""Samples of memory between two of the disk, which cost more."""
_LIMIT_SHARE = 0.65
"""Of the memory, what DuckDB is told: it goes over its limit."""


def write_tables(folder: Path, num_nodes: int, num_edges: int, ids: str) -> int:
    """Write nodes with 64 float16 and edges with targets of a power law; return bytes."""
    random = np.random.default_rng(0)
    if ids == "string":
        numbers = pc.cast(pa.array(random.permutation(num_nodes)), pa.string())
        names = pc.binary_join_element_wise("user", pc.utf8_lpad(numbers, 8, "0"), "_")
    else:
        names = pa.array(np.unique(random.integers(0, 2**62, num_nodes + num_nodes // 100)))
        names = names.take(pa.array(random.permutation(len(names))[:num_nodes]))
    for kind in ("nodes", "edges"):
        (folder / kind).mkdir(parents=True)
    for i, some in enumerate(np.array_split(np.arange(num_nodes), FILES)):
        values = pa.array(random.random(some.size * WIDTH, np.float32).astype(np.float16))
        rows = {
            "id": names.take(pa.array(some)),
            "x": pa.FixedSizeListArray.from_arrays(values, WIDTH),
        }
        pq.write_table(pa.table(rows), folder / f"nodes/{i}.parquet", row_group_size=1_000_000)
    for i in range(FILES):
        count = num_edges // FILES
        ends = random.integers(0, num_nodes, count), (random.random(count) ** 3 * num_nodes)
        columns = {
            name: names.take(pa.array(end.astype(np.int64)))
            for name, end in zip(("src", "dst"), ends, strict=True)
        }
        pq.write_table(pa.table(columns), folder / f"edges/{i}.parquet", row_group_size=1_000_000)
    return size_of(folder)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below ``folder`` that are there while it is read."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def plain_script(tables: Path, out: Path, memory: str) -> None:
    """Do the same in SQL alone."""
    (out / "edges").mkdir(parents=True)
    limit = int(float(memory.removesuffix("GB")) * 1e9 * _LIMIT_SHARE)
    con = duckdb.connect()
    con.sql(f"SET memory_limit='{limit}B'; SET threads={os.cpu_count()}")
    con.sql(f"SET temp_directory='{out}/spill'; SET preserve_insertion_order=false")
    con.sql(
        "COPY (SELECT id, (row_number() OVER () - 1)::UINTEGER AS n"
        f" FROM '{tables}/nodes/*.parquet') TO '{out}/ids.parquet'"
    )
    con.sql(
        f"COPY (SELECT s.n AS src, d.n AS dst, d.n % {PARTS} AS part"
        f" FROM '{tables}/edges/*.parquet' e JOIN '{out}/ids.parquet' s ON e.src = s.id"
        f" JOIN '{out}/ids.parquet' d ON e.dst = d.id)"
        f" TO '{out}/edges' (FORMAT parquet, PARTITION_BY (part), OVERWRITE)"
    )
    for part in range(PARTS):
        con.sql(
            f"COPY (SELECT dst, src FROM '{out}/edges/part={part}/*.parquet' ORDER BY dst, src)"
            f" TO '{out}/edges{part}.parquet'"
        )
        con.sql(
            f"COPY (SELECT x FROM read_parquet('{tables}/nodes/*.parquet', file_row_number=true)"
            f" WHERE file_row_number % {PARTS} = {part}) TO '{out}/x{part}.parquet'"
        )


@dataclass
class Run:
    """What a run took."""

    seconds: float
    peak_bytes: int
    scratch_bytes: int
    """The most that lay in its folder, without what it leaves there as the result."""


def run(command: list[str], folder: Path, result: list[str]) -> Run:
    """Run a command to its end and sample it; its results are removed."""
    folder.mkdir()
    started = time.perf_counter()
    process = subprocess.Popen(command)
    peak, disk, ended = 0, 0, threading.Event()
    watcher = psutil.Process(process.pid)

    def watch() -> None:
        nonlocal peak, disk
        number = 0
        while not ended.wait(_SAMPLE_S):
            try:
                tree = [watcher, *watcher.children(recursive=True)]
                peak = max(peak, sum(one.memory_info().rss for one in tree))
            except psutil.NoSuchProcess:
                continue
            number += 1
            if number % _DISK_SAMPLES == 0:
                disk = max(disk, size_of(folder))

    thread = threading.Thread(target=watch)
    thread.start()
    status = process.wait()
    seconds = time.perf_counter() - started
    ended.set()
    thread.join()
    if status:
        raise SystemExit(f"{command} ended with {status}")
    left = sum(
        path.stat().st_size for name in result for path in folder.glob(name) if path.is_file()
    )
    shutil.rmtree(folder)
    return Run(seconds, peak, max(0, disk - left))


def ours(tables: Path, folder: Path, memory: str) -> Run:
    """Partition by the command that users have."""
    command = [
        sys.executable, "-m", "gigl_loader", "partition", "--nodes", f"{tables}/nodes", "--edges",
        f"{tables}/edges", "--id", "id", "--src", "src", "--dst", "dst", "--features", "x", "--out",
        f"{folder}/out", "--scratch", f"{folder}/scratch", "--partitions", str(PARTS), "--method",
        "random", "--memory", memory, "--quiet",
    ]  # fmt: skip
    return run(command, folder, ["out/**/*"])


def script(tables: Path, folder: Path, memory: str) -> Run:
    """Run `plain_script` in a process of its own."""
    given = [str(tables), f"{folder}/out", memory]
    return run(
        [sys.executable, __file__, "--plain", *given],
        folder,
        ["out/ids.parquet", "out/edges?.parquet", "out/x?.parquet"],
    )


def compare(tables: Path, folder: Path, memory: str, rounds: int) -> str:
    """Return a line of the table."""
    found: tuple[list[Run], list[Run]] = ([], [])
    for number in range(rounds):
        for name, measure, runs in zip(("plain", "ours"), (script, ours), found, strict=True):
            runs.append(measure(tables, folder / "run", memory))
            print(f"{memory}, round {number}, {name}: {runs[-1]}", flush=True)
    ratio = [b.seconds / a.seconds for a, b in zip(*found, strict=True)]
    cells = [memory]
    for runs in found:
        seconds = [one.seconds for one in runs]
        cells.append(f"{statistics.median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f})")
    cells.append(f"{statistics.median(ratio):.2f}")
    for name in ("peak_bytes", "scratch_bytes"):
        cells += [f"{max(getattr(one, name) for one in runs) / 1e9:.2f}" for runs in found]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--ids", nargs="+", default=["string", "int64"])
    parser.add_argument("--memory", nargs="+", default=["2GB", "1GB"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="on the disk to be used (default: temp)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plain", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        plain_script(Path(args.plain[0]), Path(args.plain[1]), args.plain[2])
        return
    lines = [
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} "
        f"cores; duckdb {duckdb.__version__}, gigl_loader {version('gigl-loader')}; {args.nodes:,} "
        f"nodes with {WIDTH} float16, {args.edges:,} edges, {PARTS} parts at random, "
        f"{args.rounds} round(s).",
    ]  # fmt: skip
    for ids in args.ids:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            nbytes = write_tables(Path(folder) / "tables", args.nodes, args.edges, ids)
            lines += [
                "", f"## {ids} ids, {nbytes / 1e9:.2f} GB of Parquet", "",
                "| --memory | plain script, s | gigl-loader, s | times | peak GB, plain | ours "
                "| scratch GB, plain | ours |",
                "| --- | --- | --- | --- | --- | --- | --- | --- |",
            ]  # fmt: skip
            for memory in args.memory:
                lines.append(compare(Path(folder) / "tables", Path(folder), memory, args.rounds))
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(["# Tables to partitions", "", *lines, ""]))


if __name__ == "__main__":
    main()
