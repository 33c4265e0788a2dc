"""What ranks of a test do whose process group breaks: they meet without it, and end without it."""

import os
from typing import NoReturn

from gigl_loader.testing.local_processes import meet_in_store

__all__ = ["end_at_once", "meet_in_store"]


def end_at_once() -> NoReturn:
    """End this process well: a group that is broken cannot be taken down in order."""
    os._exit(0)
