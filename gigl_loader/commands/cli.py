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
    "serve": ("gigl_loader.graph_store.serve:serve_main", "serve a partition to compute processes"),
    "status": ("gigl_loader.graph_store.status:main", "print the health of a storage server"),
    "stop-job": ("gigl_loader.graph_store.stop_job:main", "end a job on a graph store"),
    "certs": ("gigl_loader.commands.credentials:certs", "make a folder of certificates"),
    "token": ("gigl_loader.commands.credentials:token", "print a fresh cluster token"),
    "diagnose": ("gigl_loader.commands.diagnose:main", "check this machine, and try a loader"),
    "partition": (
        "gigl_loader.commands.partition:main",
        "partition tables, or a graph of another library",
    ),
    "plan": ("gigl_loader.commands.plan:main", "predict machines, memory and speed"),
    "infer": ("gigl_loader.commands.infer:main", "run a model on the whole graph"),
}
"""Verb: (module and function that takes the arguments and returns the exit code, description)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    known = {verb: what for verb, (where, what) in VERBS.items() if _is_installed(where)}
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
    # only the verb: everything after it, including --help, is the verb's own
    args = parser.parse_args(given[:1])
    return _function_of(args.verb)(given[1:])


def _version() -> str:
    return importlib.metadata.version("gigl_loader")


def _is_installed(where: str) -> bool:
    """Tell whether a verb's module is installed, without importing it."""
    # find_spec() imports the parent packages of a module, and raises if one is missing
    package = where.partition(":")[0].rpartition(".")[0]
    has_package = importlib.util.find_spec(package) is not None
    return has_package and importlib.util.find_spec(where.partition(":")[0]) is not None


def _function_of(verb: str) -> Callable[[Sequence[str]], int]:
    module, _, name = VERBS[verb][0].partition(":")
    function: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), name)
    return function
