"""Parsers of the shell's verbs: all have one form of help."""

import argparse
from typing import Any


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults that say something, and examples as they were written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default: Any = action.default
        says_nothing = default is None or default is False or default in ("", [], {})
        if says_nothing or "default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


def verb_parser(
    verb: str, description: str, examples: str, more: str = ""
) -> argparse.ArgumentParser:
    """Return a parser without options.

    Args:
        verb: The word after ``gigl-loader``.
        description: What it does, in a sentence.
        examples: Commands, a line each; a line that begins with a blank continues the one before.
        more: What to say after them.
    """
    lines = examples.strip().splitlines()
    title = "example" if sum(not line.startswith(" ") for line in lines) == 1 else "examples"
    return argparse.ArgumentParser(
        prog=f"gigl-loader {verb}",
        description=description,
        epilog="\n".join([f"{title}:", *(f"  {line}" for line in lines), more]),
        formatter_class=_HelpFormatter,
    )
