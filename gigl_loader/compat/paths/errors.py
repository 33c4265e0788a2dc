"""The errors, under another package's name; else see `errors`."""

from gigl_loader.errors import *  # noqa: F403  # the tree of errors grows
