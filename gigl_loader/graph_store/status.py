"""`gigl-loader status`: prints the health of a storage server.

Probes are frequent, so it needs no torch.
"""

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.runtime.transport import Caller, Security, split_address

_TIMEOUT_S = 10.0

NO_ANSWER = 1
NOT_LISTENING = 3  # 2 is argparse's
NOT_WHOLE = 4

_EXAMPLES = """
gigl-loader status STORAGE0:29600 --tls /etc/gigl
gigl-loader status STORAGE0:29600 --json | jq .jobs
"""
_EXIT_CODES = """exit codes:
  0  health is "serving"; with --live: the server responds, whatever its health
  1  no response in time, or the server does not let this process in
  3  nothing listens there: the server still loads, or its process is gone
  4  the server responds, but is not whole: another server is away or lost, or a producer failed
"""


def add_security(parser: argparse.ArgumentParser) -> None:
    """Add the options for authentication."""
    group = parser.add_argument_group("authentication", "without these, that of the environment")
    group.add_argument("--tls", metavar="DIR", help="folder with ca.pem, cert.pem and key.pem")
    group.add_argument(
        "--insecure", action="store_true", default=None, help="plain sockets, on a closed network"
    )


def security_of(args: argparse.Namespace) -> Security:
    """Return what the options of `add_security` say, and where they do not, the environment.

    Raises:
        ConfigError: As `Security.resolve`.
    """
    return Security.resolve(args.tls, None, args.insecure)


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser("status", "Print the health of a storage server.", _EXAMPLES, _EXIT_CODES)
    parser.add_argument(
        "where", metavar="HOST:PORT", type=host_and_port, help="where the server listens"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="longest wait for the response",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="exit with 0 if the server responds at all: a liveness probe",
    )
    parser.add_argument("--json", action="store_true", help="print all that the server says")
    add_security(parser)
    return parser


def host_and_port(text: str) -> tuple[str, int]:
    """Return what ``HOST:PORT`` names.

    Raises:
        ArgumentTypeError: It is something else.
    """
    try:
        return split_address(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def ask(
    where: tuple[str, int],
    security: Security,
    timeout_s: float = _TIMEOUT_S,
    patience_s: float = 0.0,
) -> dict[str, Any]:
    """Return the status of the server at ``where``.

    Args:
        where: Address and port.
        security: The same as the server's.
        timeout_s: Longest wait for the response.
        patience_s: As of `Caller`. 0: without retries, as a probe reports the current state, and
            the next one comes soon.

    Raises:
        PeerError: Nothing listens there, or it does not respond in time.
        JoinRefusedError: It does not let this process in, or is another service.
    """
    deadline = time.monotonic() + timeout_s
    caller = Caller(*where, security, "status", patience_s=patience_s, what="storage server")
    with caller:
        caller.connect(deadline)
        reply = caller.ask("status", {}, dict[str, dict[str, Any]])
        # a client admitted in the last moment still gets the time for one response
        return reply.wait(max(0.1, deadline - time.monotonic()))["value"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code, one for each state that a probe tells apart."""
    args = parser().parse_args(argv)
    try:
        status = ask(args.where, security_of(args), args.timeout)
    except GiglLoaderError as error:
        # separate results for probes: a loading server is left alone, one that does not respond is
        # restarted
        refused = isinstance(error.__cause__, ConnectionRefusedError)
        health = "not listening" if refused else "no answer"
        why = f"{type(error).__name__}: {error}"
        print(json.dumps({"health": health, "error": why}) if args.json else f"{health}: {why}")
        return NOT_LISTENING if refused else NO_ANSWER
    print(json.dumps(status, indent=2, default=str) if args.json else "\n".join(table(status)))
    return 0 if args.live or status["health"] == "serving" else NOT_WHOLE


def table(status: dict[str, Any]) -> list[str]:
    """Return what people look for in a status, in lines."""
    figures = {
        "health": status["health"],
        "server": f"{status.get('server_rank')} of {status.get('num_servers')}",
        "partition": f"{status.get('partition_idx')} of {status.get('num_partitions')}",
        "nodes": _nodes(status.get("num_nodes", {})),
        "process": f"{status.get('pid')}, up {_duration(status.get('uptime_s', 0.0))}",
        "jobs served": f"{status.get('jobs_served', 0):,}",
    }
    figures |= {f"server {rank} away": why for rank, why in status.get("away", {}).items()}
    lines = [f"{name:14}{value}" for name, value in figures.items()]
    jobs = [("job", "ranks", "producers", "seeds/s", "batches queued", "their size")]
    for name, job in status.get("jobs", {}).items():
        jobs.append(
            (
                name or "(of no job)",
                f"{len(job['ranks']):,}",
                f"{len(job['producers']):,}",
                f"{job['seeds_per_s']:,.0f}",
                f"{job['queued_batches']:,}",
                size_in_words(job["queued_bytes"]),
            )
        )
    if len(jobs) == 1:
        return [*lines, "no job is here"]
    widths = [max(map(len, column)) for column in zip(*jobs, strict=True)]
    for name, *values in jobs:
        cells = (f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True))
        lines.append("  ".join([f"{name:{widths[0]}}", *cells]))
    return lines


def _nodes(counts: dict[str, int]) -> str:
    if len(counts) == 1:
        return f"{next(iter(counts.values())):,}"
    return ", ".join(f"{count:,} {node_type}" for node_type, count in counts.items())


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"
