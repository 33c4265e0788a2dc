"""Options of commands that read a graph which may be in object storage."""

import argparse


def add_cache(parser: argparse._ActionsContainer) -> None:
    """Add the options of copies of object storage to a parser or group, see `DistDataset.load`."""
    parser.add_argument(
        "--cache-dir",
        metavar="DIR",
        help="where copies of a --root in object "
        "storage are kept, for all processes of this machine (default: "
        "GIGL_LOADER_CACHE_DIR, or the user's cache)",
    )
    parser.add_argument(
        "--cache-size",
        metavar="SIZE",
        help="most bytes of all copies, as 2TB; "
        "the oldest that nobody uses are removed (default: no limit)",
    )
