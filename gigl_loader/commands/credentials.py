"""`gigl-loader certs` and `gigl-loader token`: what lets the processes of a cluster in."""

import argparse
import sys
from collections.abc import Sequence

from gigl_loader.errors import GiglLoaderError, exit_code
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.transport.certs import make_folder
from gigl_loader.runtime.transport.certs import token as fresh_token


def certs_parser() -> argparse.ArgumentParser:
    """Return the parser of `certs`."""
    parser = verb_parser(
        "certs",
        "Write ca.pem, cert.pem and key.pem for all machines of a cluster. ca-key.pem signs "
        "further certificates: keep it off the machines.",
        "gigl-loader certs /etc/gigl storage0 storage1 compute0\n"
        "gigl-loader serve --root /data/graph --tls /etc/gigl",
    )
    parser.add_argument("folder", metavar="DIR", help="folder to write")
    parser.add_argument("hosts", metavar="HOST", nargs="+", help="names and addresses of machines")
    parser.add_argument("--days", type=float, default=365, help="days that it is valid")
    return parser


def certs(argv: Sequence[str]) -> int:
    """Write a folder of certificates; return the exit code."""
    args = certs_parser().parse_args(argv)
    try:
        print(make_folder(args.folder, args.hosts, args.days))
    except GiglLoaderError as error:
        print(f"gigl-loader certs: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


def token_parser() -> argparse.ArgumentParser:
    """Return the parser of `token`."""
    return verb_parser(
        "token",
        "Print a fresh token of 128 bits, to be set on all machines of a cluster.",
        'export GIGL_LOADER_CLUSTER_TOKEN="$(gigl-loader token)"',
    )


def token(argv: Sequence[str]) -> int:
    """Print a token of 128 bits; return the exit code."""
    token_parser().parse_args(argv)
    print(fresh_token())
    return 0
