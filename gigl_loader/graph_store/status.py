"""`gigl-loader status`: prints the health of a storage server.

Probes are frequent, so it needs no torch.
"""

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.runtime.transport import Caller, Security, split_address

_TIMEOUT_S = 10.0

NO_ANSWER = 1
NOT_LISTENING = 3  # 2 is argparse's
NOT_WHOLE = 4

_EXAMPLE = """example:
  gigl-loader status STORAGE0:29600 --tls /etc/gigl
exit codes:
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


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="gigl-loader status",
        description="Print the health of a storage server.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("where", metavar="HOST:PORT", type=host_and_port)
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
    add_security(parser)
    return parser.parse_args(argv)


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
    args = parse(argv)
    try:
        status = ask(args.where, security_of(args), args.timeout)
    except GiglLoaderError as error:
        # separate results for probes: a loading server is left alone, one that does not respond is
        # restarted
        refused = isinstance(error.__cause__, ConnectionRefusedError)
        health = "not listening" if refused else "no answer"
        print(json.dumps({"health": health, "error": f"{type(error).__name__}: {error}"}))
        return NOT_LISTENING if refused else NO_ANSWER
    print(json.dumps(status, indent=2, default=str))
    return 0 if args.live or status["health"] == "serving" else NOT_WHOLE
