"""Tables to partitions: time, memory and scratch, beside a plain DuckDB script on the same tables.

Both are run as processes of their own in alternating rounds; memory is what the tree of processes
has resident, sampled, and disk is all that lies in the folder of a run, sampled::

    python examples/benchmarks/tables/bench_tables.py --nodes 10000000 --edges 100000000 \\
        --memory 2GB 1GB --out results.md

The plain script numbers ids, joins the edges with the numbers in one COPY, sorts the edges of each
part and writes its features; it has no checksums, no checks and no dictionary to ask.
"""

import argparse
import contextlib
import datetime
import os
import platform
import resource
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
CATALOG = "bench"
_ROWS = 1_000_000
"""Rows of a row group, which are made at a time."""
_TYPES = {"string": pa.string(), "int64": pa.int64()}
_VECTOR = pa.list_(pa.float16(), WIDTH)
_DELTA_VECTOR = pa.list_(pa.float32())
"""Delta Lake has neither float16 nor lists of a fixed length."""
_SAMPLE_S = 0.05
_DISK_SAMPLES = 10
"""Samples of memory between two of the disk, which cost more."""
_LIMIT_SHARE = 0.65
"""Of the memory, what DuckDB is told: it goes over its limit."""
VERSIONED = ("Delta", "Iceberg", "Delta, copied", "Iceberg, copied")
_COPYING = """
from gigl_loader.__main__ import main
from gigl_loader.partitioning.tables import row_sources
row_sources.can_be_read_in_place = lambda *given: False
raise SystemExit(main())
"""
"""The command, for which no version can be read in place."""


def write_tables(folder: Path, num_nodes: int, num_edges: int, ids: str) -> int:
    """Write nodes with 64 float16 and edges with targets of a power law; return bytes.

    Files that are there are kept, so that a large input can be written in several runs.
    """
    for kind in ("nodes", "edges"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for i in range(FILES):
        for kind, write in (("nodes", write_nodes), ("edges", write_edges)):
            path = folder / kind / f"{i}.parquet"
            if not path.exists():
                write(path.with_suffix(".tmp"), num_nodes, num_edges, ids, i)
                path.with_suffix(".tmp").rename(path)
    return size_of(folder)


def write_versioned(folder: Path) -> None:
    """Write the tables once more: as Delta and Iceberg tables, and as Parquet of the same types."""
    import deltalake
    from pyiceberg.catalog import load_catalog

    (folder / "iceberg").mkdir()
    catalog = load_catalog(CATALOG)
    catalog.create_namespace("graph")
    for kind in ("nodes", "edges"):
        for i in range(FILES):
            file = pq.ParquetFile(folder / kind / f"{i}.parquet", pre_buffer=False)
            schema = pa.schema(
                [f.with_type(_DELTA_VECTOR) if f.name == "x" else f for f in file.schema_arrow]
            )
            plain = folder / "plain" / kind / f"{i}.parquet"
            plain.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(plain, schema) as writer:
                for batch in file.iter_batches(_ROWS):
                    writer.write_table(pa.Table.from_batches([batch]).cast(schema))
            rows = pq.ParquetFile(plain, pre_buffer=False)
            deltalake.write_deltalake(
                folder / "delta" / kind,
                pa.RecordBatchReader.from_batches(schema, rows.iter_batches()),
                mode="append",
            )
            table = catalog.create_table_if_not_exists(f"graph.{kind}", schema)
            table.append(pq.read_table(plain))
    catalog.close()


def describe_catalog(folder: Path) -> None:
    """Let the processes that this one starts find the Iceberg tables in a folder, and itself.

    It must not have imported pyiceberg before.
    """
    os.environ[f"PYICEBERG_CATALOG__{CATALOG.upper()}__URI"] = (
        f"sqlite:///{folder}/iceberg/catalog.db"
    )
    os.environ[f"PYICEBERG_CATALOG__{CATALOG.upper()}__WAREHOUSE"] = f"file://{folder}/iceberg"


def names_of(numbers: np.ndarray, num_nodes: int, ids: str) -> pa.Array:
    """Return the ids of nodes: each another, in no order."""
    if ids == "int64":  # times an odd number, so that no two are alike
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return pa.array((mixed & np.uint64(2**62 - 1)).astype(np.int64))
    # a prime above any number of nodes here keeps them apart, too
    mixed = pc.cast(pa.array(numbers * 982_451_653 % 999_999_937), pa.string())
    return pc.binary_join_element_wise("user", pc.utf8_lpad(mixed, 9, "0"), "_")


def write_nodes(path: Path, num_nodes: int, num_edges: int, ids: str, number: int) -> None:
    """Write a file of nodes, ``number`` of `FILES`."""
    random = np.random.default_rng((0, number))
    some = np.array_split(np.arange(num_nodes), FILES)[number]
    with pq.ParquetWriter(path, pa.schema({"id": _TYPES[ids], "x": _VECTOR})) as writer:
        for numbers in np.array_split(some, max(1, some.size // _ROWS)):
            values = pa.array(random.random(numbers.size * WIDTH, np.float32).astype(np.float16))
            vectors = pa.FixedSizeListArray.from_arrays(values, WIDTH)
            rows = {"id": names_of(numbers, num_nodes, ids), "x": vectors}
            writer.write_table(pa.table(rows))


def write_edges(path: Path, num_nodes: int, num_edges: int, ids: str, number: int) -> None:
    """Write a file of edges, ``number`` of `FILES`."""
    random = np.random.default_rng((1, number))
    count = num_edges // FILES
    with pq.ParquetWriter(path, pa.schema(dict.fromkeys(("src", "dst"), _TYPES[ids]))) as writer:
        for begin in range(0, count, _ROWS):
            some = min(_ROWS, count - begin)
            ends = random.integers(0, num_nodes, some), random.random(some) ** 3 * num_nodes
            columns = [names_of(end.astype(np.int64), num_nodes, ids) for end in ends]
            writer.write_table(pa.table(columns, names=["src", "dst"]))


def size_of(folder: Path) -> int:
    """Return the bytes of all files below ``folder`` that are there while it is read."""
    total = 0
    for parent, _, names in os.walk(folder):  # which passes over a folder that is removed meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(parent, name)).st_size
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
    cpu_seconds: float
    """Of the process and those that it waited for: what others do meanwhile changes it little."""
    peak_bytes: int
    scratch_bytes: int
    """The most that lay in its folder, without what it leaves there as the result."""


def cpu_of_children() -> float:
    """Return the CPU seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: list[str], folder: Path, result: list[str]) -> Run:
    """Run a command to its end and sample it; its results are removed."""
    folder.mkdir()
    started, used = time.perf_counter(), cpu_of_children()
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
    seconds, used = time.perf_counter() - started, cpu_of_children() - used
    ended.set()
    thread.join()
    if status:
        raise SystemExit(f"{command} ended with {status}")
    left = sum(
        path.stat().st_size for name in result for path in folder.glob(name) if path.is_file()
    )
    shutil.rmtree(folder)
    return Run(seconds, used, peak, max(0, disk - left))


def ours(tables: Path, folder: Path, memory: str) -> Run:
    """Partition by the command that users have."""
    command = [
        sys.executable,
        "-m",
        "gigl_loader",
        "partition",
        "--nodes",
        f"{tables}/nodes",
        "--edges",
        f"{tables}/edges",
        "--id",
        "id",
        "--src",
        "src",
        "--dst",
        "dst",
        "--features",
        "x",
        "--root",
        f"{folder}/out",
        "--scratch",
        f"{folder}/scratch",
        "--num-partitions",
        str(PARTS),
        "--method",
        "random",
        "--memory",
        memory,
        "--quiet",
    ]
    return run(command, folder, ["out/**/*"])


def from_file(tables: Path, kind: str, folder: Path, memory: str) -> Run:
    """Partition tables of a kind of `VERSIONED`, which a file describes."""
    rows = {
        "Parquet": f"source: {tables}/plain/%s",
        "Delta": f"delta: {tables}/delta/%s",
        "Iceberg": f"iceberg: {CATALOG}.graph.%s",
    }[kind.partition(",")[0]]
    description = folder.with_suffix(".yaml")
    description.write_text(
        f"nodes: {{{rows % 'nodes'}, features: x}}\nedges: {{{rows % 'edges'}}}\n"
    )
    program = ["-c", _COPYING] if kind.endswith("copied") else ["-m", "gigl_loader"]
    command = [
        sys.executable,
        *program,
        "partition",
        str(description),
        "--root",
        f"{folder}/out",
        "--scratch",
        f"{folder}/scratch",
        "--num-partitions",
        str(PARTS),
        "--method",
        "random",
        "--memory",
        memory,
        "--quiet",
    ]
    return run(command, folder, ["out/**/*"])


def compare_versioned(
    tables: Path, folder: Path, memory: str, rounds: int, kinds: list[str]
) -> list[str]:
    """Return the lines of a table: kinds of tables of the same rows and types, beside Parquet."""
    describe_catalog(tables)
    if not (tables / "iceberg").exists():
        write_versioned(tables)
    runs: dict[str, list[Run]] = {kind: [] for kind in ("Parquet", *kinds)}
    for number in range(rounds):
        for kind, of_kind in runs.items():
            of_kind.append(from_file(tables, kind, folder / "run", memory))
            print(f"{memory}, round {number}, {kind}: {of_kind[-1]}", flush=True)
    lines = [
        f"| tables, {memory} | s | times | CPU s | times | peak GB | times | scratch GB |",
        f"| --- |{' ---: |' * 7}",
    ]
    figures = ("seconds", "cpu_seconds", "peak_bytes", "scratch_bytes")
    medians = {
        kind: [statistics.median(getattr(one, figure) for one in of_kind) for figure in figures]
        for kind, of_kind in runs.items()
    }
    for kind, (seconds, cpu, peak, scratch) in medians.items():
        times = [
            f"{own / other:.2f}"
            for own, other in zip(medians[kind], medians["Parquet"], strict=True)
        ]
        lines.append(
            f"| {kind} | {seconds:.1f} | {times[0]} | {cpu:.1f} | {times[1]} | {peak / 1e9:.2f} "
            f"| {times[2]} | {scratch / 1e9:.2f} |"
        )
    return lines


def script(tables: Path, folder: Path, memory: str) -> Run:
    """Run `plain_script` in a process of its own."""
    given = [str(tables), f"{folder}/out", memory]
    return run(
        [sys.executable, __file__, "--plain", *given],
        folder,
        ["out/ids.parquet", "out/edges?.parquet", "out/x?.parquet"],
    )


def compare(tables: Path, folder: Path, memory: str, rounds: int, skip_plain: bool) -> str:
    """Return a line of the table."""
    found: dict[str, list[Run]] = {"plain": [], "ours": []}
    for number in range(rounds):
        for name, measure in (("plain", script), ("ours", ours)):
            if not (skip_plain and name == "plain"):
                found[name].append(measure(tables, folder / "run", memory))
                print(f"{memory}, round {number}, {name}: {found[name][-1]}", flush=True)
    seconds = {name: [one.seconds for one in runs] for name, runs in found.items()}
    cells = [memory]
    for each in seconds.values():
        span = f"{statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})" if each else ""
        cells.append(span)
    ratios = [b / a for a, b in zip(*seconds.values(), strict=False)]
    cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
    for name, unit in (("cpu_seconds", 1.0), ("peak_bytes", 1e9), ("scratch_bytes", 1e9)):
        for runs in found.values():
            most = max((getattr(one, name) for one in runs), default=None)
            cells.append("" if most is None else f"{most / unit:.{0 if unit == 1.0 else 2}f}")
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
    parser.add_argument("--tables", type=Path, help="keep the input here, and take what is there")
    parser.add_argument("--skip-plain", action="store_true", help="measure gigl-loader alone")
    parser.add_argument(
        "--versioned",
        nargs="*",
        choices=VERSIONED,
        metavar="KIND",
        help=f"measure such tables beside Parquet instead (default: {', '.join(VERSIONED)})",
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plain", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        plain_script(Path(args.plain[0]), Path(args.plain[1]), args.plain[2])
        return
    lines = [
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} "
        f"cores; duckdb {duckdb.__version__}, gigl_loader {version('gigl-loader')}; {args.nodes:,} "
        f"nodes with {WIDTH} {'float16' if args.versioned is None else 'float32'}, "
        f"{args.edges:,} edges, {PARTS} parts at random, "
        f"{args.rounds} round(s)."
    ]
    for ids in args.ids:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            tables = Path(args.tables or folder) / "tables" / ids
            nbytes = write_tables(tables, args.nodes, args.edges, ids)
            if args.versioned is not None:
                kinds = args.versioned or list(VERSIONED)
                for memory in args.memory:
                    given = tables.absolute(), Path(folder), memory, args.rounds, kinds
                    lines += ["", *compare_versioned(*given)]
                continue
            lines += [
                "",
                f"## {ids} ids, {nbytes / 1e9:.2f} GB of Parquet",
                "",
                "| --memory | plain script, s | gigl-loader, s | times | CPU s, plain | ours "
                "| peak GB, plain | ours | scratch GB, plain | ours |",
                f"|{' --- |' * 10}",
            ]
            for memory in args.memory:
                lines.append(compare(tables, Path(folder), memory, args.rounds, args.skip_plain))
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(["# Tables to partitions", "", *lines, ""]))


if __name__ == "__main__":
    main()
