"""`gigl-loader stop-job`: ends a job on a graph store.

Any process that the storage servers admit may do that.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from gigl_loader.errors import GiglLoaderError, exit_code
from gigl_loader.graph_store.status import add_security, host_and_port, security_of
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.transport import Caller

_TIMEOUT_S = 30.0

_EXAMPLE = "gigl-loader stop-job nightly STORAGE0:29600 --tls /etc/gigl"
_MORE = """`gigl-loader status STORAGE0:29600` prints the names of jobs. The job's compute processes
raise JobStoppedError; those of other jobs notice nothing.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser(
        "stop-job", "End a job: free what it has on all storage servers.", _EXAMPLE, _MORE
    )
    parser.add_argument("name", metavar="NAME", help="the job's name")
    parser.add_argument("where", metavar="HOST:PORT", type=host_and_port, help="storage server 0")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="longest wait for the response",
    )
    add_security(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    args = parser().parse_args(argv)
    deadline = time.monotonic() + args.timeout
    host, port = args.where
    try:
        with Caller(host, port, security_of(args), "stop-job", what="storage server") as caller:
            caller.connect(deadline)
            reply = caller.ask("stop_job", {"name": args.name}, dict[str, int])
            count = reply.wait(max(0.1, deadline - time.monotonic()))["value"]
    except GiglLoaderError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return exit_code(error)
    print(f"job {args.name!r} is stopped: it had {count} compute processes")
    return 0
