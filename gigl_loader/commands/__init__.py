"""What `gigl-loader VERB` does, a module for each verb; `gigl_loader.cli` is the door."""

from gigl_loader.errors import ConfigError


def exit_code(error: Exception) -> int:
    """Return a verb's exit code for an error: 2 for refused input, as argparse has it, or 1."""
    return 2 if isinstance(error, ConfigError) else 1
