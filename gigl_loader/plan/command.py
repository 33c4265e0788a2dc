"""``gigl-loader plan``: how many machines, and how many seeds per second."""

import argparse
import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.plan.costs import SHIPPED, Costs
from gigl_loader.plan.expect import Degrees
from gigl_loader.plan.job import DTYPE_BYTES, Job
from gigl_loader.plan.model import Plan, estimate
from gigl_loader.remote.status import add_security, host_and_port, security_of

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_LINK_GBIT = 10.0
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
    args = parser.parse_args(argv)
    try:
        _check_is_writable(args.calibrate or args.picture)
        if args.other is not None and args.calibrate is None:
            raise ConfigError("--with belongs to --calibrate FILE: give that, too")
        if args.answer is not None:
            return _answer(args)
        if args.calibrate is not None:
            return _calibrate(args)
        costs = Costs.read(Path(args.costs) if args.costs else SHIPPED)
        job, degrees = _job(args, costs)
        plan = estimate(job, costs, degrees)
        print(json.dumps(_as_json(plan, costs), indent=1) if args.json else table(plan, costs))
        if args.picture:
            from gigl_loader.plan.picture import draw

            draw(Path(args.picture), job, costs, degrees)
    except GiglLoaderError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def _check_is_writable(path: str | None) -> None:
    """Look before minutes of work end in a file that cannot be made."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {Path(path).parent}")
    if path is not None and Path(path).is_dir():
        raise ConfigError(f"{path} cannot be written: it is a folder")


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
    graph.add_argument("--remote", type=float, help="share of neighbours in other partitions, as "
                       "report.json has it (default: as if parts were drawn)")  # fmt: skip
    work = parser.add_argument_group("the work")
    work.add_argument("--fanouts", type=_fanouts, default=(15, 10), help="default 15,10")
    work.add_argument("--batch-size", type=int, default=1024, help="seeds (default 1024)")
    work.add_argument("--step-ms", type=float, default=0.0, help="of the model, for a batch")
    work.add_argument("--cache", type=share, default=0.0, help="of remote rows, as in 20%%")
    machines = parser.add_argument_group("the machines")
    machines.add_argument("--deployment", choices=("colocated", "graph-store"), default="colocated")
    machines.add_argument("--machines", type=int, default=1, help="that train")
    machines.add_argument("--servers", type=int, default=0, help="storage machines")
    machines.add_argument("--ranks-per-machine", type=int, default=1)
    machines.add_argument("--workers", type=int, default=1, help="of each rank (and server)")
    machines.add_argument("--cores", type=int, default=16, help="of each machine (default 16)")
    machines.add_argument("--memory", type=float, metavar="GB", help="of each machine")
    machines.add_argument("--link", type=gigabits, help="as in 25Gbit (default: what was measured "
                          "with a second host, else 10)")  # fmt: skip
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


def count(text: str) -> float:
    """Return a number of nodes or edges, as in ``111M`` or ``1.6B``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmbgt]?)\s*", text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"a number is as in 111M, 1.6B or 5000, got {text!r}")
    return float(found[1]) * _COUNTS[found[2]]


def gigabits(text: str) -> float:
    """Return the 10**9 bits per second of a link, as in ``25Gbit`` or ``100Mbit``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(g|m)?(bit(/s)?|bps)?\s*", text.lower())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"a link is as in 25Gbit or 500Mbit, got {text!r}")
    return float(found[1]) / (1000 if found[2] == "m" else 1)


def share(text: str) -> float:
    """Return a share, as in ``20%`` or ``0.2``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a share is as in 20% or 0.2, got {text!r}")
    return float(found[1]) / (100 if found[2] else 1)


def _fanouts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"fanouts are as in 15,10, got {text!r}") from None


def _job(args: argparse.Namespace, costs: Costs) -> tuple[Job, Degrees | None]:
    known, degrees = read_root(Path(args.root)) if args.root else ({}, None)
    given = {
        "nodes": args.nodes, "edges": args.edges, "dim": args.dim, "dtype": args.dtype,
        "remote": args.remote,
    }  # fmt: skip
    known |= {name: value for name, value in given.items() if value is not None}
    missing = [name for name in ("nodes", "edges", "dim") if name not in known]
    if missing:
        raise ConfigError(f"give --root, or {', '.join(f'--{name}' for name in missing)}")
    job = Job(
        **known, fanouts=args.fanouts, batch_size=args.batch_size, machines=args.machines,
        ranks_per_machine=args.ranks_per_machine, workers=args.workers, cores=args.cores,
        link_gbit=args.link or costs.link_gbit or _LINK_GBIT, step_ms=args.step_ms,
        deployment=args.deployment, servers=args.servers, cache=args.cache,
        encrypted=args.encrypted, memory_gb=args.memory, law=args.law,
    )  # fmt: skip
    return job, degrees


def read_root(root: Path) -> tuple[dict[str, Any], Degrees]:
    """Return the figures of a directory, and the degrees of its nodes."""
    from gigl_loader.dataset._disk import count_partitions
    from gigl_loader.dataset.local import DistDataset

    nodes, edges = 0, 0
    degrees = pulls = np.empty(0, np.int64)
    seeds: list[Any] = []
    info: Any = None
    for k in range(count_partitions(root)):
        dataset = DistDataset.load(root, k, memory="mapped")
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
        pulls += np.bincount(adjacency.indices.numpy(), minlength=nodes)
        edges += int(adjacency.indices.numel())
        seeds.append(dataset.train_node_ids)
        info = dataset.node_feature_info
    known: dict[str, Any] = {
        "nodes": float(nodes), "edges": float(edges), "dim": 0, "resident": resident_bytes(root),
    }  # fmt: skip
    if info is not None:
        known |= {"dim": info.dim, "dtype": str(info.dtype).removeprefix("torch.")}
    return known, Degrees.measured(degrees, pulls, _is_seed(nodes, seeds))


_PARTS_OF_A_GRAPH = (
    ("rows and labels", ("node_features", "edge_features", "node_labels", "node_attributes",
                         "edge_attributes", "lookup", "splits")),
    ("edges", ("edges",)),
    ("books", ("books",)),
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
    # before there are threads, which take it over; and back, as children of this process would too
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
        f"connections of the process with most: {plan.connections:,}",
    ]
    if plan.fits is False:
        lines.append(
            f"DOES NOT FIT: {_gigabytes(plan.total_memory)} are needed, {job.memory_gb:g} GB there "
            "are; take more machines, or features of fewer bytes"
        )
    if plan.changes:
        lines += ["", *_rows("what a change would bring", plan.changes, lambda v: f"{v:.2f} times")]
    return "\n".join([*lines, f"costs: {costs.machine}, {costs.date}"])


def _rows(title: str, values: dict[str, float], show: Any, total: bool = False) -> list[str]:
    lines = [f"{title}:"]
    lines += [f"  {name:<36} {show(value):>16}" for name, value in values.items()]
    if total:
        lines.append(f"  {'in all':<36} {show(sum(values.values())):>16}")
    return [*lines, ""]


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.2f} GB"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


if __name__ == "__main__":
    sys.exit(main())
