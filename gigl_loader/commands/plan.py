"""``gigl-loader plan``: how many machines, and how many seeds per second."""

import argparse
import json
import os
import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gigl_loader.commands.capacity.expect import DegreeDistribution
from gigl_loader.commands.capacity.measure import Answerer, SecondHost
from gigl_loader.commands.capacity.model import DevicePlan, Plan, estimate, plan_device
from gigl_loader.commands.capacity.needs import (
    DTYPE_BYTES,
    SHIPPED,
    Costs,
    Job,
    graph_bytes,
    share_kept,
)
from gigl_loader.errors import ConfigError, GiglLoaderError, exit_code, needed
from gigl_loader.graph_store.status import add_security, host_and_port, security_of
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.sizes import NUMBER, parse_size, read_number
from gigl_loader.runtime.system import told_to_end

_LINK_GBIT = 10.0
_LOOK_S = 0.25
_OF_A_GRAPH = ("nodes", "edges", "dim", "dtype")
_OF_A_JOB = (
    "num_neighbors",
    "batch_size",
    "ranks_per_machine",
    "num_workers",
    "cores",
    "step_ms",
    "jobs",
    "deployment",
    "encrypted",
    "degree_distribution",
    "all_edges",
)
"""Options that `Job` has under the same name, with the same unit."""
_OF_A_PLAN = ("root", "nodes", "edges", "dim", "dtype", "costs", "picture", "json")
_EXAMPLES = """
gigl-loader plan --nodes 111M --edges 1.6B --dim 128 --dtype float16 --num-neighbors 15,10 \\
    --batch-size 1024 --machines 16 --ranks-per-machine 8 --num-workers 2 --link 25Gbit --step-ms 40
gigl-loader plan --root /data/graph --num-neighbors 15,10 --machines 4
gigl-loader plan --calibrate costs.json
gigl-loader plan --answer STORAGE0:29700 --tls /etc/gigl    # on a second host, and on the first:
gigl-loader plan --calibrate costs.json --with STORAGE0:29700 --tls /etc/gigl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0, or 2 where something is wrong with the input."""
    args = parser().parse_args(_joined(sys.argv[1:] if argv is None else argv))
    try:
        _check(args)
        if args.answer is not None:
            return _serve_measurement(args)
        if args.calibrate is not None:
            return _calibrate(args)
        costs = Costs.read(Path(args.costs) if args.costs else SHIPPED)
        job, degrees = _job(args, costs)
        plan = estimate(job, costs, degrees)
        device = None if args.gpu is None else plan_device(job, args.gpu)
        # Before the text: if it fails, only the error should appear.
        if args.picture:
            draw(Path(args.picture), job, costs, degrees)
        if args.json:
            print(json.dumps(_as_json(plan, costs, device), indent=1))
        else:
            print("\n".join([table(plan, costs), *_gpu_lines(device)]))
    except GiglLoaderError as error:
        print(f"gigl-loader plan: error: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


def _joined(argv: Sequence[str]) -> list[str]:
    """Return the arguments, ``--num-neighbors -1,10`` as one: argparse sees -1,10 as an option."""
    # Arguments have no NUL, so it joins them without ambiguity.
    text = "\0".join(argv)
    return text.replace("--num-neighbors\0-", "--num-neighbors=-").split("\0") if text else []


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
            "reads the costs by --costs FILE"
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


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser("plan", "Predict memory, speed and limits.", _EXAMPLES)
    graph = parser.add_argument_group("the graph: a directory, or figures")
    graph.add_argument("--root", help="partitions that partition_graph or partition_tables wrote")
    graph.add_argument("--nodes", type=count, help="number of nodes, such as 111M")
    graph.add_argument("--edges", type=count, help="number of edges, such as 1.6B")
    graph.add_argument("--dim", type=int, help="number of feature columns of nodes")
    graph.add_argument(
        "--dtype", choices=list(DTYPE_BYTES), help="type of the features (default: float32)"
    )
    graph.add_argument(
        "--degree-distribution",
        choices=("uniform", "power-law"),
        default="uniform",
        help="degrees of the nodes, without --root",
    )
    graph.add_argument(
        "--remote-share",
        type=share,
        help="share of neighbours in other partitions "
        "(default: as in --root; else as in random partitions)",
    )
    work = parser.add_argument_group("the work")
    work.add_argument(
        "--num-neighbors",
        type=fanouts,
        default=(15, 10),
        help="neighbours per hop; -1 or all: all of them (default: 15,10)",
    )
    work.add_argument("--batch-size", type=int, default=1024, help="seeds per batch")
    work.add_argument(
        "--step-ms", type=float, default=0.0, help="milliseconds of the model per batch"
    )
    work.add_argument(
        "--remote-cache",
        type=cache_size,
        default=0.0,
        help="cache of remote rows: a share such as 20%%, or 2GB per machine (default: none)",
    )
    machines = parser.add_argument_group("the machines")
    machines.add_argument(
        "--deployment",
        choices=("colocated", "graph-store"),
        default="colocated",
        help="where sampling runs",
    )
    machines.add_argument(
        "--machines",
        type=int,
        help="machines that train (default: 1; colocated: the number of partitions in --root)",
    )
    machines.add_argument(
        "--num-servers",
        type=int,
        help="storage servers of a graph store (default: the number of partitions in --root)",
    )
    machines.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="equal jobs that use the graph store at once; seeds/s are of one of them",
    )
    machines.add_argument(
        "--ranks-per-machine", type=int, default=1, help="training processes per machine"
    )
    machines.add_argument(
        "--num-workers",
        type=int,
        default=1,
        help="workers per rank; in a graph store per rank and server",
    )
    machines.add_argument(
        "--all-edges",
        action="store_true",
        help='the edges of all partitions are on each machine, by edges="all"',
    )
    machines.add_argument("--cores", type=int, default=16, help="cores per machine")
    machines.add_argument(
        "--memory", type=gigabytes, metavar="GB", help="memory per machine, such as 64GB"
    )
    machines.add_argument(
        "--gpu",
        type=gigabytes,
        metavar="GB",
        help="memory of a GPU that samples the graph itself, such as 80GB",
    )
    machines.add_argument(
        "--link",
        type=gigabits,
        help="network of a machine, such as "
        "25Gbit (default: as measured with a second host, else 10Gbit)",
    )
    machines.add_argument(
        "--disk",
        type=gigabytes,
        default=1.0,
        metavar="GB",
        help="bytes per second that the disk reads (default: 1GB)",
    )
    machines.add_argument("--encrypted", action="store_true", help="connections use TLS")
    machines.add_argument(
        "--costs",
        metavar="FILE",
        help="a file that --calibrate wrote on such a machine (default: costs in this package)",
    )
    output = parser.add_argument_group("the output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--picture", metavar="FILE", help="draw seeds/s over the number of machines"
    )
    measure = parser.add_argument_group("measuring machines")
    measure.add_argument(
        "--calibrate", metavar="FILE", help="measure this machine for a minute, and write its costs"
    )
    measure.add_argument(
        "--with",
        dest="other",
        metavar="HOST:PORT",
        type=host_and_port,
        help="measure the link to a second host, too; it runs --answer",
    )
    measure.add_argument(
        "--answer",
        metavar="HOST:PORT",
        type=host_and_port,
        help="be the second host, and listen at this address",
    )
    add_security(parser)
    return parser


def _job(args: argparse.Namespace, costs: Costs) -> tuple[Job, DegreeDistribution | None]:
    known: dict[str, Any] = {}
    degrees = parts = None
    if args.root:
        # with torch; figures need none
        from gigl_loader.commands.capacity.graph_on_disk import read_root
        from gigl_loader.dataset.format.fetched_root import opened_root

        with opened_root(args.root) as root:
            known, degrees, parts = read_root(root)
    # Options override the directory's figures: a plan for the same graph with wider rows.
    given = {name: getattr(args, name) for name in _OF_A_GRAPH}
    known |= {name: value for name, value in given.items() if value is not None}
    missing = [name for name in ("nodes", "edges", "dim") if name not in known]
    if missing:
        raise ConfigError(f"give --root, or {', '.join(f'--{name}' for name in missing)}")
    is_store = args.deployment == "graph-store"
    machines = (1 if is_store else parts or 1) if args.machines is None else args.machines
    servers = ((is_store and parts) or 0) if args.num_servers is None else args.num_servers
    job = Job(
        **known,
        **{name: getattr(args, name) for name in _OF_A_JOB},
        machines=machines,
        num_servers=servers,
        link_gbit=args.link or costs.link_gbit or _LINK_GBIT,
        memory_gb=args.memory,
        disk_gb_per_s=args.disk,
        remote_cache=args.remote_cache if isinstance(args.remote_cache, float) else 0.0,
    )
    if parts and parts != job.parts:  # the directory would be partitioned again
        partitioned = replace(job, num_servers=parts) if is_store else replace(job, machines=parts)
        job = partitioned.with_machines(machines, servers)
    if args.remote_share is not None:
        job = replace(job, remote_share=args.remote_share)
    # Bytes are computed for a job's own rows, so the job comes first.
    if isinstance(args.remote_cache, int):
        job = replace(job, remote_cache=share_kept(job, args.remote_cache))
    return job, degrees


# --- figures as people write them -----------------------------------------------------------------

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
# In 10**9: a number without a unit means this, as --help says, except for nodes and edges.
_GIGABITS = {"k": 1e-6, "m": 1e-3, "": 1.0, "g": 1.0, "t": 1e3}


def count(text: str) -> float:
    """Return a number of nodes or edges, as in ``111M``, ``1.6B``, ``1e9`` or ``111,000,000``."""
    match = re.fullmatch(rf"{NUMBER}([kmbgt]?)\s*", text.lower())
    if match is None or read_number(match[1]) == 0:
        raise ArgumentTypeError(f"a number is above 0, as in 111M, 1.6B, 1e9 or 5000, got {text!r}")
    return round(read_number(match[1]) * _COUNTS[match[2]])


def gigabits(text: str) -> float:
    """Return the 10**9 bits per second of a link, as in ``25Gbit`` or ``100Mbit``."""
    match = re.fullmatch(rf"{NUMBER}([kmgtKMGT]?)(bit|bps|b)?(/s)?\s*", text)
    if match is not None and read_number(match[1]) > 0:
        return read_number(match[1]) * _GIGABITS[match[2].lower()]
    # Memory is sold in "GB", but links are not: "GB" would be a silent factor of eight. "Gb" is
    # right, so case counts here and nowhere else.
    if re.fullmatch(rf"{NUMBER}[kmgtKMGT]?B(/s|ps)?\s*", text):
        raise ArgumentTypeError(
            f"a link is given in bits, not bytes: 8 times as many, as in 25Gbit, got {text!r}"
        )
    raise ArgumentTypeError(f"a link is as in 25Gbit or 500Mbit, got {text!r}")


def gigabytes(text: str) -> float:
    """Return 10**9 bytes, as in ``64``, ``64GB`` or ``1.5TB``; of ``64GiB``, which are 2**30."""
    # a bare number is in GB here, as --help says
    return _size(f"{text}GB" if re.fullmatch(NUMBER, text) else text, "memory") / 1e9


def _size(text: str, what: str, also: str = "") -> int:
    try:
        return parse_size(text, what, also=also)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error


def share(text: str) -> float:
    """Return a share, as in ``20%`` or ``0.2``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"a share is 0 to 1, as in 20% or 0.2, got {text!r}")
    return value


def cache_size(text: str) -> int | float:
    """Return bytes of a cache, as in ``2GB``, which are those of ``remote_cache``; or a share."""
    # "2" is not clearly a share, nor "0.2" bytes: only a unit decides.
    if not re.search(r"[bB]\s*$", text):
        return share(text)
    return _size(text, "a cache", ', or a share such as "20%"')


def fanouts(text: str) -> tuple[int, ...]:
    """Return neighbours per hop, as in ``15,10``; ``all``, or -1, takes all of them."""
    try:
        return tuple(-1 if hop.strip() == "all" else int(hop) for hop in text.split(","))
    except ValueError:
        raise ArgumentTypeError(
            f"neighbours per hop are as in 15,10 or all,10, got {text!r}"
        ) from None


# --- measuring ------------------------------------------------------------------------------------


def _calibrate(args: argparse.Namespace) -> int:
    from gigl_loader.commands.capacity.calibrate import calibrate  # its imports take seconds

    other = None
    if args.other is not None:
        host, port = args.other
        other = SecondHost(host, port, security_of(args))
    costs = calibrate(say=lambda line: print(line, file=sys.stderr, flush=True), other=other)
    costs.write(Path(args.calibrate))
    print(f"{args.calibrate}: {costs.machine}, {costs.date}")
    print(
        f"rows: {costs.plain_gb_per_s:.2f} GB/s plain, {costs.tls_gb_per_s:.2f} GB/s encrypted"
        + (f"; link: {costs.link_gbit:.2f} Gbit/s" if costs.link_gbit else "")
    )
    return 0


def _serve_measurement(args: argparse.Namespace) -> int:
    """Be the second host of a measurement, until this process is told to stop."""
    security, (host, port) = security_of(args), args.answer
    told: list[int] = []
    with told_to_end(told.append), Answerer(host, port, security) as answerer:
        host, port = answerer.address
        print(f"answers gigl-loader plan --calibrate FILE --with {host}:{port}", flush=True)
        while not told:
            time.sleep(_LOOK_S)
    return 0


# --- output ---------------------------------------------------------------------------------------


_UNCONFIRMED = "predicted from the costs of one machine; no cluster has confirmed it"
_PLACES = {
    "device": 'fits: dataset.to("cuda"), num_workers=0',
    "host": 'the features do not fit: dataset.to("cuda", features="host") leaves them in pinned '
    "memory of the host",
    "workers": "DOES NOT FIT: sample with workers, or give smaller batches",
}


def _gpu_lines(device: DevicePlan | None) -> list[str]:
    if device is None:
        return []
    parts = {
        "edges and labels": device.structure,
        "features": device.features,
        "batches under way": device.batches,
    }
    title = f"memory of a GPU of {device.gpu_gb:g} GB that samples the whole graph"
    return ["", *_rows(title, parts, _gigabytes, total=True)[:-1], _PLACES[device.where]]


def _as_json(plan: Plan, costs: Costs, device: DevicePlan | None) -> dict[str, Any]:
    of_a_gpu = None if device is None else asdict(device) | {"where": device.where}
    return asdict(plan) | {
        "gpu": of_a_gpu,
        "seeds_per_second": plan.seeds_per_second,
        "bottleneck": plan.bottleneck,
        "round_trips": plan.job.round_trips,
        "fits": plan.fits,
        "costs": {"machine": costs.machine, "date": costs.date},
    }


def table(plan: Plan, costs: Costs) -> str:
    """Return a plan as text."""
    job, batch, rate = plan.job, plan.batch, plan.seeds_per_second
    # The spread is a share, of times and of rates: as many times less as more.
    low, high = rate / (1 + plan.spread), rate * (1 + plan.spread)
    epoch = job.nodes / rate
    of_each = f" of each of {job.jobs} jobs" if job.jobs > 1 else ""
    lines = [
        f"{_rounded(rate)} seeds/s of all ranks{of_each} ({_rounded(low)} to {_rounded(high)}); "
        f"the limit: {plan.bottleneck}",
        _UNCONFIRMED,
        f"all nodes once: {_duration(epoch)}",
        f"a batch: {batch.seeds:,.0f} seeds, {_rounded(batch.nodes)} nodes, "
        f"{_rounded(batch.edges)} edges",
        "",
        *_rows("limits, seeds/s", plan.bounds, _rounded),
        *_rows(f"memory of a {plan.memory_machine} machine", plan.memory, _gigabytes, total=True),
        *_rows("bytes per seed between machines", plan.network, _rounded, total=True),
        f"round trips of a batch, one after another: {job.round_trips}",
        "",
        *_rows("CPU microseconds per seed", plan.cpu, lambda v: _rounded(v * 1e6), total=True),
        *_rows("seconds to the first batch", plan.start, _rounded, total=True),
        "connections, and descriptors in all, of a process:",
        *(
            f"  {name:<36} {number:>7,} {plan.descriptors[name]:>8,}"
            for name, number in plan.connections.items()
        ),
        "",
    ]
    if plan.fits is False:
        lines.append(
            # not rounded, as it may be a little more than there is
            f"DOES NOT FIT: {plan.total_memory / 1e9:,.2f} GB are needed, {job.memory_gb:g} GB "
            f"there are; {_what_would_fit(plan)}"
        )
    if job.ranks_per_machine > 1 and not job.is_store:
        graph = sum(graph_bytes(job).values())
        lines.append(
            f"the graph is in memory once for all ranks of a machine, by mmap=True or where "
            "one process loads it and starts the ranks; loaded by each of them it takes "
            f"{_gigabytes(job.ranks_per_machine * graph)}"
        )
    if plan.changes:
        lines += [
            "",
            *_rows("what a change would bring", plan.changes, lambda v: f"{_rounded(v)} times"),
        ]
    return "\n".join([*lines, f"costs: {costs.machine}, {costs.date}"])


def _what_would_fit(plan: Plan) -> str:
    if plan.enough is None:
        return "more machines do not help: take fewer ranks or workers, or smaller batches"
    kind = "storage machines" if plan.job.is_store else "machines"
    return f"it would fit with {plan.enough:,} {kind}, or with quantized features"


def _rows(title: str, values: dict[str, float], show: Any, total: bool = False) -> list[str]:
    lines = [f"{title}:"]
    lines += [f"  {name:<36} {show(value):>16}" for name, value in values.items()]
    if total:
        lines.append(f"  {'in all':<36} {show(sum(values.values())):>16}")
    return [*lines, ""]


def _rounded(value: float) -> str:
    """Return two significant digits: a prediction holds no more."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:g}"


def _gigabytes(nbytes: float) -> str:
    return f"{_rounded(nbytes / 1e9)} GB"


def _duration(seconds: float) -> str:
    # A larger unit from two of it on: "1.2 hours" says less than "72 minutes".
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{_rounded(seconds / size)} {unit}"
    return f"{_rounded(seconds)} s"


def draw(path: Path, job: Job, costs: Costs, degrees: DegreeDistribution | None = None) -> None:
    """Write a picture; its kind is that of the path's suffix.

    Raises:
        ConfigError: matplotlib is not installed, knows no such kind of picture, or cannot write it.
    """
    with needed("--picture needs matplotlib: run pip install matplotlib"):
        # without pyplot, which would choose a backend for the whole process, also in a notebook
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 4.5))
    # Before any work: else a wrong suffix would only be found after drawing.
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in kinds:
        raise ConfigError(f"--picture {path} must end in one of: .{', .'.join(sorted(kinds))}")
    # From an eighth to eight times the planned number, in steps of two like the axis.
    counts = sorted({max(1, round(job.machines * 2**k)) for k in range(-3, 4)})
    jobs = [
        job.with_machines(count, job.num_servers)
        for count in counts
        if job.is_store or count <= job.nodes
    ]
    counts = [sized.machines for sized in jobs]
    plans = [estimate(sized, costs, degrees) for sized in jobs]
    axes = figure.subplots()
    # The first may be a single machine, which has no links; a missing limit gets no point.
    for number, name in enumerate(plans[0].bounds | plans[-1].bounds):
        values = [plan.bounds.get(name, float("inf")) for plan in plans]
        # If lines overlap, like the limit and the resulting rate, dashes take turns
        axes.plot(counts, values, linestyle=(3 * number, (3, 6)), linewidth=2, zorder=3, label=name)
    most = [plan.seeds_per_second for plan in plans]
    axes.plot(counts, most, "-o", color="0.7", linewidth=4, zorder=2, label="what is left")
    low = [rate / (1 + plan.spread) for rate, plan in zip(most, plans, strict=True)]
    high = [rate * (1 + plan.spread) for rate, plan in zip(most, plans, strict=True)]
    axes.fill_between(counts, low, high, color="k", alpha=0.12)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xlabel("training machines")
    axes.set_ylabel("seeds/s of all ranks")
    axes.set_title(
        f"{job.deployment}, {job.nodes:,.0f} nodes, {job.edges:,.0f} edges, {job.dim} "
        f"{job.dtype}, {list(job.num_neighbors)}",
        fontsize=9,
    )
    axes.legend(fontsize=8, handlelength=4)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"--picture {path} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
