"""`gigl-loader VERB ...`, the same as ``python -m gigl_loader VERB ...``: one door for the shell.

A verb's module is imported when the verb is used.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence

VERBS: dict[str, tuple[str, str]] = {
    "serve": ("gigl_loader.remote.command:serve_main", "serve a partition to compute processes"),
    "status": ("gigl_loader.remote.status:main", "ask a storage server how it is"),
    "certs": ("gigl_loader.cli:certs", "make a folder of certificates, for trying"),
    "token": ("gigl_loader.cli:token", "print a fresh cluster token"),
    "diagnose": ("gigl_loader.diagnose:main", "say what this machine can do"),
    "partition": ("gigl_loader.tables.command:main", "partition tables of nodes and edges"),
    "plan": ("gigl_loader.plan.command:main", "say how many machines a graph needs"),
    "infer": ("gigl_loader.inference.command:main", "run a model on the whole graph"),
}
"""Verb: (module and function that takes the arguments and returns the exit code, what it does)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    known = {verb: what for verb, (where, what) in VERBS.items() if _is_here(where)}
    parser = argparse.ArgumentParser(
        prog="gigl-loader",
        description="Distributed graph loaders: commands for the shell.",
        epilog="\n".join(
            [
                "verbs:",
                *(f"  {verb:10} {what}" for verb, what in known.items()),
                "example:",
                "  gigl-loader serve --help",
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gigl-loader {_version()}")
    parser.add_argument("verb", choices=list(known), help="what to do; see below")
    if not given:
        parser.print_help()
        return 0
    # only the verb: all after it, --help too, is the verb's own
    args = parser.parse_args(given[:1])
    return _function_of(args.verb)(given[1:])


def _version() -> str:
    return importlib.metadata.version("gigl_loader")


def _is_here(where: str) -> bool:
    """Tell whether a verb's module is installed, without importing it."""
    # find_spec() imports the packages above a module, and raises where one of them is missing
    package = where.partition(":")[0].rpartition(".")[0]
    found = importlib.util.find_spec(package) is not None
    return found and importlib.util.find_spec(where.partition(":")[0]) is not None


def _function_of(verb: str) -> Callable[[Sequence[str]], int]:
    module, _, name = VERBS[verb][0].partition(":")
    found: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), name)
    return found


def certs(argv: Sequence[str]) -> int:
    """Write a folder of certificates; return the exit code."""
    # modules are imported inside: `gigl-loader --help` is to be quick
    from gigl_loader.errors import GiglLoaderError
    from gigl_loader.transport.certs import make_folder

    parser = argparse.ArgumentParser(
        prog="gigl-loader certs",
        description="Write ca.pem, cert.pem and key.pem for all machines of a cluster, for trying. "
        "ca-key.pem signs further certificates: keep it off the machines.",
        epilog="example:\n  gigl-loader certs /etc/gigl storage0 storage1 compute0\n"
        "  gigl-loader serve --root /data/graph --tls /etc/gigl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("hosts", metavar="HOST", nargs="+", help="names and addresses of machines")
    parser.add_argument("--days", type=float, default=365, help="how long it is valid")
    args = parser.parse_args(argv)
    try:
        print(make_folder(args.folder, args.hosts, args.days))
    except GiglLoaderError as error:
        print(f"gigl-loader certs: {error}", file=sys.stderr)
        return 1
    return 0


def token(argv: Sequence[str]) -> int:
    """Print a token of 128 bits; return the exit code."""
    from gigl_loader.transport.certs import token as fresh

    argparse.ArgumentParser(
        prog="gigl-loader token",
        description="Print a fresh token of 128 bits, to be set on all machines of a cluster.",
        epilog='example:\n  export GIGL_LOADER_CLUSTER_TOKEN="$(gigl-loader token)"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    print(fresh())
    return 0
