"""Where partitions are written, and in which format: checked before anything is.

Does not import torch, which what reads tables never needs.
"""

import re
from pathlib import Path
from typing import Any

from gigl_loader.dataset._manifest import ROOT_FILE
from gigl_loader.dataset._mapped import PART_FILE, is_mapped_format
from gigl_loader.errors import ConfigError

FORMATS = ("mapped", "glt")
ORDERS = ("ids", "degree")
"""Orders of the rows of nodes in a partition: see `partition_graph`."""


def check_format(format: Any) -> None:
    """Check the name of a format of partition directories."""
    if format not in FORMATS:
        raise ConfigError(f'format must be "mapped" or "glt", got {format!r}')


def check_order(order: Any, format: str) -> None:
    """Check the order of rows, in partitions of that format."""
    if order not in ORDERS:
        raise ConfigError(f'order must be "ids" or "degree", got {order!r}')
    if order == "degree" and format != "mapped":
        raise ConfigError('order="degree" needs format="mapped", which keeps where each row is')


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a directory may be written at ``target``: it is new or empty, or may be replaced.

    Raises:
        ConfigError: It holds files of somebody else's, or partitions that are not to be replaced.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{target} is a file: give a directory to write to")
    names = {path.name for path in target.iterdir()}
    # GLT's format has META and our extras; a directory with META alone, GLT's partitioner wrote
    ours = {ROOT_FILE, "META"} <= names or is_mapped_format(target)
    # every file, not only the top: the whole tree is removed when it is replaced, and people put
    # notes and models beside their data
    others = [path for path in target.rglob("*") if not (ours and _is_ours(path, target))]
    if others:
        found = ", ".join(sorted(str(path.relative_to(target)) for path in others)[:3])
        raise ConfigError(
            f"{target} holds other files ({found}...), which would be removed with it: give an "
            "empty or a new directory"
        )
    if names and not overwrite:
        raise ConfigError(
            f"{target} holds partitions: remove it, or give overwrite=True, which is --overwrite "
            "in the shell"
        )


def _is_ours(path: Path, target: Path) -> bool:
    """Return whether a file or folder below ``target`` may be one that `partition_graph` wrote."""
    first, *rest = path.relative_to(target).parts
    if not rest and first in (ROOT_FILE, "META", "report.json", "report.svg"):
        return path.is_file()
    known = re.fullmatch(r"part\d+|books|ids|edge_rows|(node|edge)_pb(\.pt)?", first) is not None
    suffixes = (".pt", ".pkl", ".bin", ".parquet")
    # by position and by kind: a notes.txt in part0 is somebody's, and so is a mine/a.pt
    return known and (path.is_dir() or path.suffix in suffixes or path.name == PART_FILE)
