"""`gigl-loader completion`: a script by which a shell completes verbs and options, by shtab."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from gigl_loader.commands.cli import VERBS, parser_of
from gigl_loader.errors import ConfigError, exit_code
from gigl_loader.runtime.command_line import verb_parser

SHELLS = ("bash", "zsh", "fish")
_FOLDERS = ("root", "out", "tls", "cache_dir", "scratch", "graph", "folder")
_FILES = ("tables", "pyg", "checkpoint", "nodes", "edges", "costs", "calibrate", "picture")
"""Options and arguments that name one, by their name in the namespace."""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser(
        "completion",
        "Print a script by which a shell completes verbs, options and their values.",
        "gigl-loader completion bash > ~/.local/share/bash-completion/completions/gigl-loader\n"
        "gigl-loader completion zsh > ~/.zfunc/_gigl-loader   # of a folder in fpath\n"
        "gigl-loader completion fish > ~/.config/fish/completions/gigl-loader.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    args = parser().parse_args(argv)
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        error = ConfigError('it needs shtab: run pip install "gigl_loader[completion]"')
        print(f"gigl-loader completion: {error}", file=sys.stderr)
        return exit_code(error)
    print(shtab.complete(_all_verbs(shtab), args.shell))
    return 0


def _all_verbs(shtab: Any) -> argparse.ArgumentParser:
    """Return a parser of the whole command."""
    whole = argparse.ArgumentParser(prog="gigl-loader")
    whole.add_argument("--version", action="store_true", help="print the version")
    verbs = whole.add_subparsers()
    for name, verb in VERBS.items():
        try:
            own = [parser_of(name)]
        except ImportError:  # a verb of an extra that is not installed
            own = []
        added = verbs.add_parser(name, parents=own, add_help=not own, help=verb.purpose)
        for action in added._actions:
            if action.choices or action.type:  # a name that means something else here
                continue
            if action.dest in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab's own
            elif action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's own
    return whole
