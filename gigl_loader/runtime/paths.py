"""Paths that others name."""

import os
from pathlib import Path

from gigl_loader.errors import ConfigError


def inside(folder: Path, name: str | Path) -> Path:
    """Return the path of a file below ``folder``, which may be a link itself.

    Raises:
        ConfigError: The name, or a link below ``folder``, leads to another folder.
    """
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ConfigError(
            f"{path} leads out of {folder}, from which alone files are read: remove it, or put a "
            "copy of the file in its place"
        )
    return path
