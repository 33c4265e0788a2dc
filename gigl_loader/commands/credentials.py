"""`gigl-loader certs` and `gigl-loader token`: what lets the processes of a cluster in."""

import argparse
import sys
from collections.abc import Sequence

from gigl_loader.errors import GiglLoaderError, exit_code
from gigl_loader.runtime.transport.certs import make_folder
from gigl_loader.runtime.transport.certs import token as fresh_token


def certs(argv: Sequence[str]) -> int:
    """Write a folder of certificates; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="gigl-loader certs",
        description="Write ca.pem, cert.pem and key.pem for all machines of a cluster. "
        "ca-key.pem signs further certificates: keep it off the machines.",
        epilog="example:\n  gigl-loader certs /etc/gigl storage0 storage1 compute0\n"
        "  gigl-loader serve --root /data/graph --tls /etc/gigl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("hosts", metavar="HOST", nargs="+", help="names and addresses of machines")
    parser.add_argument(
        "--days", type=float, default=365, help="days that it is valid (default 365)"
    )
    args = parser.parse_args(argv)
    try:
        print(make_folder(args.folder, args.hosts, args.days))
    except GiglLoaderError as error:
        print(f"gigl-loader certs: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


def token(argv: Sequence[str]) -> int:
    """Print a token of 128 bits; return the exit code."""
    argparse.ArgumentParser(
        prog="gigl-loader token",
        description="Print a fresh token of 128 bits, to be set on all machines of a cluster.",
        epilog='example:\n  export GIGL_LOADER_CLUSTER_TOKEN="$(gigl-loader token)"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    print(fresh_token())
    return 0
