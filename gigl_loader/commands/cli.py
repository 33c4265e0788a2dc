"""`gigl-loader VERB ...`, the same as ``python -m gigl_loader VERB ...``: one door for the shell.

A verb's module is imported when the verb is used.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, cast


class Verb(NamedTuple):
    """A word after ``gigl-loader``."""

    module: str
    purpose: str
    group: str
    """Title of those beside which help lists it."""
    main: str = "main"
    """Name of the function that takes the arguments and returns the exit code."""
    parser: str = "parser"
    """Name of the function that returns the parser."""


_GRAPHS, _STORES, _MODELS, _MACHINES = "graphs", "graph stores", "models", "machines"
_STORE, _COMMANDS = "gigl_loader.graph_store", "gigl_loader.commands"
_CREDENTIALS = f"{_COMMANDS}.credentials"
VERBS: dict[str, Verb] = {
    "partition": Verb(
        f"{_COMMANDS}.partition", "partition tables, or a graph of another library", _GRAPHS
    ),
    "serve": Verb(
        f"{_STORE}.serve", "serve a partition to compute processes", _STORES, "serve_main"
    ),
    "status": Verb(f"{_STORE}.status", "print the health of a storage server", _STORES),
    "stop-job": Verb(f"{_STORE}.stop_job", "end a job on a graph store", _STORES),
    "certs": Verb(_CREDENTIALS, "make a folder of certificates", _STORES, "certs", "certs_parser"),
    "token": Verb(_CREDENTIALS, "print a fresh cluster token", _STORES, "token", "token_parser"),
    "infer": Verb(f"{_COMMANDS}.infer", "run a model on the whole graph", _MODELS),
    "plan": Verb(f"{_COMMANDS}.plan", "predict machines, memory and speed", _MACHINES),
    "diagnose": Verb(f"{_COMMANDS}.diagnose", "check this machine, and try a loader", _MACHINES),
    "completion": Verb(
        f"{_COMMANDS}.completion", "print a script for completion in a shell", _MACHINES
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="gigl-loader",
        usage="gigl-loader VERB ...",
        description="Distributed graph loaders: commands for the shell.",
        epilog="\n".join([*_listed(), "example:", "  gigl-loader serve --help"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gigl-loader {_version()}")
    parser.add_argument("verb", metavar="VERB", help="what to do; --help after it says how")
    if not given:
        parser.print_help()
        return 0
    # only the verb: everything after it, including --help, is the verb's own
    verb = parser.parse_args(given[:1]).verb
    if verb not in VERBS:
        close = get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(VERBS)}"
        parser.error(f"there is no verb {verb!r}: {hint}")
    return cast("int", _named(verb, VERBS[verb].main)(given[1:]))


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Return the parser of a verb.

    Raises:
        ImportError: It needs an extra that is not installed.
    """
    return cast("argparse.ArgumentParser", _named(verb, VERBS[verb].parser)())


def _listed() -> list[str]:
    """Return the verbs by group, in lines."""
    lines = []
    for group in dict.fromkeys(verb.group for verb in VERBS.values()):
        lines.append(f"{group}:")
        lines += [f"  {n:11} {v.purpose}" for n, v in VERBS.items() if v.group == group]
    return lines


def _version() -> str:
    return importlib.metadata.version("gigl_loader")


def _named(verb: str, name: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(importlib.import_module(VERBS[verb].module), name))
