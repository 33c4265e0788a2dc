"""``gigl-loader plan``: how many machines, and how many seeds per second."""

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from gigl_loader.commands.status import add_security, host_and_port, security_of
from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.plan.costs import SHIPPED, Costs
from gigl_loader.plan.expect import DegreeDistribution
from gigl_loader.plan.figures import cache_size, count, fanouts, gigabits, gigabytes, share
from gigl_loader.plan.job import BOOKS, DTYPE_BYTES, Job
from gigl_loader.plan.memory import graph_bytes, share_kept
from gigl_loader.plan.model import Plan, estimate

_LINK_GBIT = 10.0
_OF_A_PLAN = ("root", "nodes", "edges", "dim", "dtype", "costs", "picture", "json")
_EXAMPLE = """example:
  gigl-loader plan --nodes 111M --edges 1.6B --dim 128 --dtype float16 --fanouts 15,10 \\
    --batch-size 1024 --machines 16 --ranks-per-machine 8 --workers 2 --link 25Gbit --step-ms 40
  gigl-loader plan --root /data/graph --fanouts 15,10 --machines 4
  gigl-loader plan --calibrate costs.json
  gigl-loader plan --answer STORAGE0:29700 --tls /etc/gigl    # on a second host, and on the first:
  gigl-loader plan --calibrate costs.json --with STORAGE0:29700 --tls /etc/gigl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0, or 2 where something is wrong with the input."""
    parser = _parser()
    args = parser.parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        _check(args)
        if args.answer is not None:
            return _answer(args)
        if args.calibrate is not None:
            return _calibrate(args)
        costs = Costs.read(Path(args.costs) if args.costs else SHIPPED)
        job, degrees = _job(args, costs)
        plan = estimate(job, costs, degrees)
        # Before the text: it may fail, and then there should be an error alone.
        if args.picture:
            from gigl_loader.plan.picture import draw

            draw(Path(args.picture), job, costs, degrees)
        print(json.dumps(_as_json(plan, costs), indent=1) if args.json else table(plan, costs))
    except GiglLoaderError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def _joined(argv: Sequence[str]) -> list[str]:
    """Return the arguments with ``--fanouts -1,10`` as one: argparse takes -1,10 for an option."""
    # Arguments have no NUL, so it joins them without ambiguity.
    text = "\0".join(argv)
    return text.replace("--fanouts\0-", "--fanouts=-").split("\0") if text else []


def _check(args: argparse.Namespace) -> None:
    """Refuse what was given for another purpose, and files that cannot be made, before work."""
    graph = [f"--{name}" for name in _OF_A_PLAN if getattr(args, name)]
    if args.answer is not None and (args.calibrate or args.other):
        raise ConfigError("--answer runs on the second host, --calibrate FILE --with on the first")
    if args.other is not None and args.calibrate is None:
        raise ConfigError("--with belongs to --calibrate FILE: give that, too")
    if graph and (args.answer or args.calibrate):
        what = "--answer" if args.answer else "--calibrate"
        raise ConfigError(
            f"{what} measures a machine, and plans nothing: leave out {', '.join(graph)}; a plan "
            "takes what was measured by --costs FILE"
        )
    for path in (args.calibrate, args.picture):
        _check_is_writable(path)


def _check_is_writable(path: str | None) -> None:
    """Look before minutes of work end in a file that cannot be made."""
    if path is None:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {Path(path).parent}")
    if Path(path).is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written: this user may not")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gigl-loader plan", description=(__doc__ or "").splitlines()[0], epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    graph = parser.add_argument_group("the graph: a directory, or figures")
    graph.add_argument("--root", help="partitions that partition_graph or partition_tables wrote")
    graph.add_argument("--nodes", type=count, help="as in 111M")
    graph.add_argument("--edges", type=count, help="as in 1.6B")
    graph.add_argument("--dim", type=int, help="columns of the node features")
    graph.add_argument("--dtype", choices=list(DTYPE_BYTES))
    graph.add_argument("--law", choices=("uniform", "power-law"), default="uniform",
                       help="of degrees, without --root (default uniform)")  # fmt: skip
    graph.add_argument("--remote", type=share, help="share of neighbours in other partitions "
                       "(default: what --root has, else as if parts were drawn)")  # fmt: skip
    work = parser.add_argument_group("the work")
    work.add_argument("--fanouts", type=fanouts, default=(15, 10),
                      help="default 15,10; all, or -1, for all neighbours")  # fmt: skip
    work.add_argument("--batch-size", type=int, default=1024, help="seeds (default 1024)")
    work.add_argument("--step-ms", type=float, default=0.0, help="of the model, for a batch")
    work.add_argument("--cache", type=cache_size, default=0.0,
                      help="of remote rows, as in 20%% or, of each machine, 2GB")  # fmt: skip
    machines = parser.add_argument_group("the machines")
    machines.add_argument("--deployment", choices=("colocated", "graph-store"), default="colocated")
    machines.add_argument("--machines", type=int, help="that train (default 1; colocated, as "
                          "many as --root has partitions)")  # fmt: skip
    machines.add_argument("--servers", type=int, help="storage machines of a graph store "
                          "(default: as many as --root has partitions)")  # fmt: skip
    machines.add_argument("--ranks-per-machine", type=int, default=1)
    machines.add_argument("--workers", type=int, default=1, help="of each rank (and server)")
    machines.add_argument("--cores", type=int, default=16, help="of each machine (default 16)")
    machines.add_argument("--memory", type=gigabytes, metavar="GB", help="of each machine, as in "
                          "64GB")  # fmt: skip
    machines.add_argument("--link", type=gigabits, help="as in 25Gbit (default: what was measured "
                          "with a second host, else 10)")  # fmt: skip
    machines.add_argument("--disk", type=gigabytes, default=1.0, metavar="GB", help="that a "
                          "second reads of partitions (default 1GB)")  # fmt: skip
    machines.add_argument("--encrypted", action="store_true", help="connections use TLS")
    parser.add_argument("--costs", help="what --calibrate wrote (default: what this package has)")
    measure = parser.add_argument_group("measuring machines")
    measure.add_argument("--calibrate", metavar="FILE", help="measure this machine, a minute")
    measure.add_argument("--with", dest="other", metavar="HOST:PORT", type=host_and_port,
                         help="and the link to a second host, where --answer runs")  # fmt: skip
    measure.add_argument("--answer", metavar="HOST:PORT", type=host_and_port,
                         help="be that second host, at this address of it")  # fmt: skip
    add_security(parser)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--picture", metavar="FILE", help="seeds/s over machines")
    return parser


def _job(args: argparse.Namespace, costs: Costs) -> tuple[Job, DegreeDistribution | None]:
    known, degrees, parts = read_root(Path(args.root)) if args.root else ({}, None, None)
    given = {
        "nodes": args.nodes, "edges": args.edges, "dim": args.dim, "dtype": args.dtype,
    }  # fmt: skip
    # What is given comes before what the directory has: a plan for the same graph with wider rows.
    known |= {name: value for name, value in given.items() if value is not None}
    missing = [name for name in ("nodes", "edges", "dim") if name not in known]
    if missing:
        raise ConfigError(f"give --root, or {', '.join(f'--{name}' for name in missing)}")
    is_store = args.deployment == "graph-store"
    machines = (1 if is_store else parts or 1) if args.machines is None else args.machines
    servers = ((is_store and parts) or 0) if args.servers is None else args.servers
    job = Job(
        **known, fanouts=args.fanouts, batch_size=args.batch_size, machines=machines,
        ranks_per_machine=args.ranks_per_machine, workers=args.workers, cores=args.cores,
        link_gbit=args.link or costs.link_gbit or _LINK_GBIT, step_ms=args.step_ms,
        deployment=args.deployment, servers=servers, encrypted=args.encrypted,
        memory_gb=args.memory, disk_gb_per_s=args.disk, law=args.law,
        cache=args.cache if isinstance(args.cache, float) else 0.0,
    )  # fmt: skip
    if parts and parts != job.parts:  # the directory would be partitioned anew
        there = replace(job, servers=parts) if is_store else replace(job, machines=parts)
        job = there.with_machines(machines, servers)
    if args.remote is not None:
        job = replace(job, remote=args.remote)
    # Bytes are a share of a job's own rows, so the job comes first.
    if isinstance(args.cache, int):
        job = replace(job, cache=share_kept(job, args.cache))
    return job, degrees


def read_root(root: Path) -> tuple[dict[str, Any], DegreeDistribution, int]:
    """Return a directory's figures for a `Job`, the degrees of its nodes, and its partitions."""
    import torch

    from gigl_loader.dataset._disk import count_partitions
    from gigl_loader.dataset._mapped import is_mapped_format
    from gigl_loader.dataset.local import DistDataset

    nodes, edges, remote = 0, 0, 0
    degrees = pulls = np.empty(0, np.int64)
    seeds: list[Any] = []
    rows: list[Any] = []
    parts = count_partitions(root)
    # Mapped where that can be: of a graph larger than this machine's memory, only edges are read.
    memory: Any = "mapped" if is_mapped_format(root) else "resident"
    for k in range(parts):
        dataset = DistDataset.load(root, k, memory=memory)
        view = dataset.view()
        if len(view.num_nodes) > 1 or sum(len(t) == 3 for t in view.adjacency) > 1:
            raise ConfigError(
                f"{root} has several node or edge types: give --nodes, --edges and --dim of all"
            )
        (nodes,) = view.num_nodes.values()
        (adjacency,) = view.adjacency.values()
        if k == 0:
            degrees, pulls = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        found = adjacency.indptr.diff().numpy()  # of all nodes, of those here, or up to the last
        degrees[adjacency.first_row : adjacency.first_row + len(found)] += found
        # How often each node is a neighbour, here and in all; of those here, which other parts own.
        pulled = np.bincount(adjacency.indices.numpy(), minlength=nodes)
        pulls += pulled
        for book in view.node_books.values():
            remote += int(pulled[(book.owner(torch.arange(nodes)) != k).numpy()].sum())
        edges += int(adjacency.indices.numel())
        seeds.append(dataset.train_node_ids)
        rows = list(view.node_features.values())
    known: dict[str, Any] = {
        "nodes": float(nodes), "edges": float(edges), "dim": 0, "resident": resident_bytes(root),
    }  # fmt: skip
    if parts > 1 and edges:
        known["remote"] = remote / edges
    if rows:  # as they are stored, and travel: in fewer bytes, it may be, than batches have
        known |= {"dim": math.prod(rows[0].values.shape[1:]), "dtype": rows[0].dtype}
    return known, DegreeDistribution.measured(degrees, pulls, _is_seed(nodes, seeds)), parts


_PARTS_OF_A_GRAPH = (
    ("rows and labels", ("node_features", "edge_features", "node_labels", "node_attributes",
                         "edge_attributes", "lookup", "splits")),
    ("edges", ("edges",)),
    (BOOKS, ("books",)),
)  # fmt: skip


def resident_bytes(root: Path) -> tuple[tuple[str, float], ...]:
    """Return by kind the bytes that the largest part of a directory takes once it is loaded.

    Of a directory that graphlearn-torch wrote nothing is returned: its files are no tensors.
    """
    sizes = {
        part: {file: float(file.stat().st_size) for file in part.rglob("*.bin")}
        for part in root.glob("part[0-9]*")
    }
    if not any(sizes.values()):
        return ()
    # The machine with most decides. Sizes of files: a loaded partition has the same bytes in
    # memory.
    largest = max(sizes, key=lambda part: sum(sizes[part].values()))
    files = {file.relative_to(largest): nbytes for file, nbytes in sizes[largest].items()}
    files |= {file.relative_to(root): file.stat().st_size for file in root.glob("books/**/*.bin")}
    return tuple(
        (name, sum(nbytes for file, nbytes in files.items() if file.parts[0] in folders))
        for name, folders in _PARTS_OF_A_GRAPH
    )


def _is_seed(nodes: int, of_parts: Sequence[Any]) -> Any:
    """Return ``[nodes]`` bool, the nodes that training starts from; None: all, or not known."""
    if any(ids is None or isinstance(ids, dict) or len(ids) == 0 for ids in of_parts):
        return None
    found = np.zeros(nodes, bool)
    for ids in of_parts:
        found[ids.numpy()] = True
    return found


def _calibrate(args: argparse.Namespace) -> int:
    from gigl_loader.plan.calibrate import calibrate
    from gigl_loader.plan.wire import Other

    other = None
    if args.other is not None:
        host, port = args.other
        other = Other(host, port, security_of(args))
    costs = calibrate(say=lambda line: print(line, file=sys.stderr, flush=True), other=other)
    costs.write(Path(args.calibrate))
    print(f"{args.calibrate}: {costs.machine}, {costs.date}")
    print(
        f"rows: {costs.plain_gb_per_s:.2f} GB/s plain, {costs.tls_gb_per_s:.2f} GB/s encrypted"
        + (f"; link: {costs.link_gbit:.2f} Gbit/s" if costs.link_gbit else "")
    )
    return 0


def _answer(args: argparse.Namespace) -> int:
    """Answer whoever measures, until this process is told to stop."""
    from gigl_loader.plan.wire import Answerer

    ends = {signal.SIGINT, signal.SIGTERM}
    security, (host, port) = security_of(args), args.answer
    # Before there are threads, which take it over; and back, as children of this process would too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        with Answerer(host, port, security) as answerer:
            host, port = answerer.address
            print(f"answers gigl-loader plan --calibrate FILE --with {host}:{port}", flush=True)
            signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


# --- what is printed ------------------------------------------------------------------------------


def _as_json(plan: Plan, costs: Costs) -> dict[str, Any]:
    return asdict(plan) | {
        "seeds_per_second": plan.seeds_per_second, "bottleneck": plan.bottleneck,
        "fits": plan.fits, "costs": {"machine": costs.machine, "date": costs.date},
    }  # fmt: skip


def table(plan: Plan, costs: Costs) -> str:
    """Return a plan as text."""
    job, batch, rate = plan.job, plan.batch, plan.seeds_per_second
    # The spread is a share, of times as of rates: as many times less as more.
    low, high = rate / (1 + plan.spread), rate * (1 + plan.spread)
    epoch = job.nodes / rate
    lines = [
        f"{rate:,.0f} seeds/s of all ranks ({low:,.0f} to {high:,.0f}); the limit: "
        f"{plan.bottleneck}",
        f"all nodes once: {_duration(epoch)}",
        f"a batch: {batch.seeds:,.0f} seeds, {batch.nodes:,.0f} nodes, {batch.edges:,.0f} edges",
        "",
        *_rows("limits, seeds/s", plan.bounds, lambda value: f"{value:,.0f}"),
        *_rows(f"memory of a {plan.memory_machine} machine", plan.memory, _gigabytes, total=True),
        *_rows("bytes per seed between machines", plan.wire, lambda v: f"{v:,.0f}", total=True),
        *_rows("CPU microseconds per seed", plan.cpu, lambda v: f"{v * 1e6:,.1f}", total=True),
        *_rows("seconds to the first batch", plan.start, lambda v: f"{v:,.1f}", total=True),
        "connections, and descriptors in all, of a process:",
        *(
            f"  {name:<36} {number:>7,} {plan.descriptors[name]:>8,}"
            for name, number in plan.connections.items()
        ),
        "",
    ]
    if plan.fits is False:
        lines.append(
            f"DOES NOT FIT: {_gigabytes(plan.total_memory)} are needed, {job.memory_gb:g} GB there "
            f"are; {_what_would_fit(plan)}"
        )
    if job.ranks_per_machine > 1 and not job.is_store:
        graph = sum(graph_bytes(job).values())
        lines.append(
            f'the graph is in memory once for all ranks of a machine, by memory="mapped" or where '
            "one process loads it and starts the ranks; loaded by each of them it takes "
            f"{_gigabytes(job.ranks_per_machine * graph)}"
        )
    if plan.changes:
        lines += ["", *_rows("what a change would bring", plan.changes, lambda v: f"{v:.2f} times")]
    return "\n".join([*lines, f"costs: {costs.machine}, {costs.date}"])


def _what_would_fit(plan: Plan) -> str:
    if plan.enough is None:
        return "more machines do not help: take fewer ranks or workers, or smaller batches"
    kind = "storage machines" if plan.job.is_store else "machines"
    return f"it would fit with {plan.enough:,} {kind}, or in features of fewer bytes"


def _rows(title: str, values: dict[str, float], show: Any, total: bool = False) -> list[str]:
    lines = [f"{title}:"]
    lines += [f"  {name:<36} {show(value):>16}" for name, value in values.items()]
    if total:
        lines.append(f"  {'in all':<36} {show(sum(values.values())):>16}")
    return [*lines, ""]


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.2f} GB"


def _duration(seconds: float) -> str:
    # From two of a unit on: "1.2 hours" says less than "72 minutes".
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


if __name__ == "__main__":
    sys.exit(main())
