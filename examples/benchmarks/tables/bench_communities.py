"""Parts and communities: METIS, `ldg`, and `ldg` with communities, on six graphs.

Each run is a process of its own. Graphs are made here, Cora (Planetoid's files) and Last.fm (HetRec
2011, the files of LightGCN) are read from folders that you name; nodes have drawn names, so that
their order says nothing::

    python examples/benchmarks/tables/bench_communities.py --cora Planetoid/Cora/raw \\
        --lastfm lastfm --out communities.md

Cut: the share of edges between parts, or between communities. CPU seconds are of the step that
finds the owners (reading and sorting edges for it included): others' work on the machine changes
them little. Peak: the most that the process had resident.
"""

import argparse
import datetime
import json
import os
import pickle
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARTS = 4
RUNS = (("metis", True), ("ldg", False), ("ldg", True))
Graph = tuple[Any, int, int]
"""``[2, num_edges]``, number of nodes, number of communities to find."""


def planted() -> Graph:
    """200 communities, 70% of the edges within; all nodes alike."""
    rng, num_nodes, size = np.random.default_rng(1), 200_000, 1_000
    ends = rng.integers(0, num_nodes, (2, 2_000_000))
    kept = np.flatnonzero(rng.random(ends.shape[1]) < 0.7)
    ends[0, kept] = ends[1, kept] // size * size + rng.integers(0, size, len(kept))
    return ends, num_nodes, num_nodes // size


def power_with_communities() -> Graph:
    """400 communities, 70% of the edges within; ends by a power law."""
    rng, num_nodes, size = np.random.default_rng(1), 400_000, 1_000
    weights = rng.pareto(1.5, num_nodes) + 1
    ends = _drawn(rng, weights, (2, 8_000_000))
    kept = np.flatnonzero(rng.random(ends.shape[1]) < 0.7)
    kept = kept[np.argsort(ends[1, kept] // size, kind="stable")]
    starts = np.searchsorted(ends[1, kept] // size, np.arange(num_nodes // size + 1))
    for k, (start, end) in enumerate(pairwise(starts)):
        within = _drawn(rng, weights[k * size : (k + 1) * size], end - start)
        ends[0, kept[start:end]] = k * size + within
    return ends, num_nodes, num_nodes // size


def _drawn(rng: Any, weights: Any, shape: Any) -> Any:
    """Draw positions, each as likely as its weight."""
    ends = np.cumsum(weights)
    return np.searchsorted(ends, rng.random(shape) * ends[-1], "right").clip(0, len(ends) - 1)


def preferential() -> Graph:
    """A power law without communities: a node takes 8 ends of earlier edges (Barabasi-Albert)."""
    rng, num_nodes, each = np.random.default_rng(1), 200_000, 8
    sources = np.repeat(np.arange(num_nodes), each)
    targets = np.zeros_like(sources)
    # 2 e + 0 is the source of edge e, 2 e + 1 its target: drawn among all ends of earlier nodes
    chosen = (rng.random(len(sources)) * np.maximum(1, 2 * each * sources)).astype(np.int64)
    known = (chosen % 2 == 0).tolist()
    for e, (end, is_source) in enumerate(zip((chosen // 2).tolist(), known, strict=True)):
        targets[e] = sources[end] if is_source else targets[end]
    return np.stack([sources, targets]), num_nodes, 200


def rmat() -> Graph:
    """R-MAT: a core with nearly all edges; a third of the nodes has none."""
    rng, scale = np.random.default_rng(1), 18
    ends = np.zeros((2, 16 << scale), np.int64)
    for _ in range(scale):
        drawn = rng.random(ends.shape[1])
        ends = 2 * ends + [drawn >= 0.76, ((drawn >= 0.57) & (drawn < 0.76)) | (drawn >= 0.95)]
    return ends, 1 << scale, 256


def cora(folder: Path) -> Graph:
    """Cora: citations among papers."""
    with (folder / "ind.cora.graph").open("rb") as file:  # Planetoid's files are pickles
        lists = pickle.load(file, encoding="latin1")
    pairs = np.array([(node, other) for node, others in lists.items() for other in others])
    return np.unique(np.sort(pairs, axis=1), axis=0).T, len(lists), 32


def lastfm(folder: Path) -> Graph:
    """Last.fm: users, artists to whom they listen, and ties among users; one type of nodes here."""
    listens = np.concatenate(
        [np.loadtxt(folder / name, usecols=(0, 1)) for name in ("data1.txt", "test1.txt")]
    ).T.astype(np.int64)
    ties = np.loadtxt(folder / "trustnetwork.txt", usecols=(0, 1)).T.astype(np.int64)
    listens[1] += 1 + max(listens[0].max(), ties.max())  # artists come after users
    names, ends = np.unique(np.concatenate([listens, ties], axis=1), return_inverse=True)
    return ends.reshape(2, -1), len(names), 64


def write_tables(folder: Path, graph: Graph) -> None:
    """Write a graph with drawn names as Parquet."""
    ends, num_nodes, _ = graph
    ends = np.random.default_rng(9).permutation(num_nodes)[ends]
    pq.write_table(pa.table({"id": np.arange(num_nodes)}), folder / "nodes.parquet")
    pq.write_table(pa.table({"src": ends[0], "dst": ends[1]}), folder / "edges.parquet")


def child(folder: str, method: Any, communities: int | None) -> None:
    """Partition, and print what it took and found."""
    from gigl_loader import EdgeTable, NodeTable, partition_tables
    from gigl_loader.dataset.format.glt_files import read_partition
    from gigl_loader.dataset.schema import COMMUNITY
    from gigl_loader.partitioning.stages import pipeline

    place, took = pipeline.Run._place_with_edges, []

    def timed(*given: Any) -> None:
        started = time.process_time()
        place(*given)
        took.append(time.process_time() - started)

    pipeline.Run._place_with_edges = timed  # type: ignore[method-assign, assignment]  # put in a method's place
    report = partition_tables(
        NodeTable(f"{folder}/nodes.parquet"),
        EdgeTable(f"{folder}/edges.parquet"),
        PARTS,
        f"{folder}/parts",
        method=method,
        communities=communities,
        progress=False,
        overwrite=True,
        memory="10GB" if method == "metis" else "1GB",
    )
    found = {
        "cut": report.edge_cut,
        "placing": took[0],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "largest": max(part.nodes for part in report.parts) / sum(p.nodes for p in report.parts),
    }
    if communities is not None:
        views = [read_partition(Path(folder) / "parts", k, None)[0] for k in range(PARTS)]
        labels = np.concatenate(
            [
                rows.values.numpy()
                for view in views
                for (_, name), rows in view.node_attributes.items()
                if name == COMMUNITY
            ]
        )
        between, edges = 0, 0
        for view in views:
            for adjacency in view.adjacency.values():
                degrees = adjacency.indptr.diff().numpy()
                rows = np.repeat(labels[adjacency.first_row :][: len(degrees)], degrees)
                between += int((rows != labels[adjacency.indices.numpy()]).sum())
                edges += len(rows)
        found |= {"communities": int(labels.max()) + 1, "finer": between / edges}
    print(json.dumps(found))


def measure(folder: Path, name: str, graph: Graph) -> list[str]:
    """Return the lines of the table for one graph."""
    write_tables(folder, graph)
    lines: list[str] = []
    first = 0.0
    for method, with_communities in RUNS:
        given = json.dumps([str(folder), method, graph[2] if with_communities else None])
        command = [sys.executable, __file__, "--child", given]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        first = first or found["cut"]
        finer = f"{found['communities']} | {found['finer']:.1%}" if with_communities else " | "
        title = f"{name}, {graph[1]:,} nodes, {graph[0].shape[1]:,} edges" if not lines else ""
        lines.append(
            f"| {title} | {method}{', communities' if with_communities else ''} | "
            f"{found['cut']:.1%} | {found['cut'] / first:.2f} | {PARTS * found['largest']:.2f} | "
            f"{finer} | {found['placing']:.1f} | {found['peak']:.2f} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cora", type=Path, help="folder of Planetoid's files")
    parser.add_argument("--lastfm", type=Path, help="folder of LightGCN's files")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*json.loads(args.child))
        return
    graphs: dict[str, Callable[[], Graph]] = {
        "planted": planted,
        "power law with communities": power_with_communities,
        "preferential attachment": preferential,
        "R-MAT": rmat,
    }
    if args.cora:
        graphs["Cora"] = lambda: cora(args.cora)
    if args.lastfm:
        graphs["Last.fm"] = lambda: lastfm(args.lastfm)
    lines = [
        f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} "
        f"cores; duckdb {version('duckdb')}, pymetis {version('pymetis')}, numba "
        f"{version('numba')}, gigl_loader {version('gigl-loader')}; {PARTS} parts.",
        "",
        "| graph | method | cut of parts | times METIS's | largest part / mean | communities "
        "| cut of communities | CPU s to place | peak GB |",
        f"| --- | --- |{' ---: |' * 7}",
    ]
    for name, make in graphs.items():
        with tempfile.TemporaryDirectory() as folder:
            lines += measure(Path(folder), name, make())
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(["# Parts and communities", "", *lines, ""]))


if __name__ == "__main__":
    main()
