"""Directories of partitions: checks before writing, and one writer of a directory at a time.

A directory appears when it is complete, or not at all. The lock is the kernel's (``flock``), on a
file beside the directory: it ends with the process that holds it, even after a crash. The text in
the file is for people. Does not import torch, which table readers never need.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from gigl_loader.dataset.mapped import PART_FILE, ROOT_FILE, is_mapped_format
from gigl_loader.errors import ConfigError, UsageError, explained_limits

Format = Literal["mapped", "glt"]
RowOrder = Literal["ids", "degree"]
"""The order of stored node rows: see `partition_graph`."""
FORMATS = get_args(Format)
ORDERS = ("ids", "degree")
"""Orders of the rows of nodes in a partition: see `partition_graph`."""


def check_format(format: Any) -> None:
    """Check the name of a format of partition directories."""
    if format not in FORMATS:
        raise ConfigError(f'format must be "mapped" or "glt", got {format!r}')


def check_order(order: Any, format: str) -> None:
    """Check the order of rows for partitions of that format."""
    if order not in ORDERS:
        raise ConfigError(f'order must be "ids" or "degree", got {order!r}')
    if order == "degree" and format != "mapped":
        raise ConfigError('order="degree" needs format="mapped", which keeps where each row is')


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a directory may be written at ``target``: it is new or empty, or may be replaced.

    Raises:
        ConfigError: It holds other files, or partitions that must not be replaced.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{target} is a file: give a directory to write to")
    names = {path.name for path in target.iterdir()}
    # GLT's format has META and our extras; META alone means that GLT's partitioner wrote it
    ours = {ROOT_FILE, "META"} <= names or is_mapped_format(target)
    # every file, not only the top: a replacement removes the whole tree, and people put notes and
    # models beside their data
    others = [
        path for path in target.rglob("*") if not (ours and _may_be_partition_file(path, target))
    ]
    if others:
        examples = ", ".join(sorted(str(path.relative_to(target)) for path in others)[:3])
        raise ConfigError(
            f"{target} holds other files ({examples}...), which would be removed with it: give an "
            "empty or a new directory"
        )
    if names and not overwrite:
        raise ConfigError(f"{target} holds partitions: remove it, or give overwrite=True")


def _may_be_partition_file(path: Path, target: Path) -> bool:
    """Return whether a file or folder below ``target`` may be one that `partition_graph` wrote."""
    first, *rest = path.relative_to(target).parts
    if not rest and first in (ROOT_FILE, "META", "report.json", "report.svg"):
        return path.is_file()
    known = re.fullmatch(r"part\d+|books|ids|edge_rows|(node|edge)_pb(\.pt)?", first) is not None
    suffixes = (".pt", ".pkl", ".bin", ".parquet")
    # by position and by kind: a notes.txt in part0 belongs to a user, and so does a mine/a.pt
    return known and (path.is_dir() or path.suffix in suffixes or path.name == PART_FILE)


LOCK = "lock"
"""The result folder in a scratch directory: files beside it may have another owner."""

_log = logging.getLogger(__name__)


def lock_of(target: Path) -> Path:
    """Return the file by which writers of a directory exclude each other."""
    return target.with_name(f".{target.name}.lock")


@contextmanager
def only_writer(lock: Path, what: Path) -> Iterator[None]:
    """Be the only process, and thread, that writes ``what``.

    Args:
        lock: A file that need not exist, in a directory that does.
        what: The name of the result, for the error.

    Raises:
        UsageError: Another process or thread writes it; the message names it.
    """
    fd = _acquire(lock, what)
    try:
        _note_owner(fd)
        yield
    finally:
        # while it is held: a process that has opened it notices that the path has changed
        if _is_same_file(fd, lock):
            lock.unlink()
        os.close(fd)


def _acquire(lock: Path, what: Path) -> int:
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(fd)
            os.close(fd)
            raise UsageError(
                f"{what} is being written by {owner}: wait until it has ended, or write elsewhere"
            ) from None
        except OSError as error:
            # some cluster file systems are mounted without locks: then only this check is lost
            _log.warning("%s cannot be locked (%s): let no other process write %s", lock, error,
                         what)  # fmt: skip
        if _is_same_file(fd, lock):
            break
        os.close(fd)  # the file of a writer that ended between our two calls
    return fd


def _note_owner(fd: int) -> None:
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    owner_now = {"pid": os.getpid(), "host": os.uname().nodename, "since": started}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(owner_now).encode() + b"\n", 0)


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (ValueError, KeyError, TypeError):  # not written yet
        return "another process"


@contextmanager
def complete_or_nothing(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a directory beside ``target`` that takes its place at the end, or is removed.

    Args:
        target: The final path; no other process writes there meanwhile.
        overwrite: Whether existing partitions may be replaced.

    Raises:
        ConfigError: See `check_target`.
        UsageError: Another process writes there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(lock_of(target), target):
        clear_killed(target)
        # again: another writer may have ended since the first check
        check_target(target, overwrite=overwrite)
        # beside it: a rename is atomic within a file system, a copy between two is not
        work = Path(tempfile.mkdtemp(prefix=_PARTIAL.format(target.name), dir=target.parent))
        try:
            folder = work / "new"
            folder.mkdir()
            with explained_limits(f"writing {target}"):
                yield folder
            _replace(target, folder, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


_PARTIAL = ".{}.partial-"


def clear_killed(target: Path) -> None:
    """Remove the leftovers of killed writers; the caller is the only writer."""
    start = _PARTIAL.format(target.name)
    for work in [path for path in target.parent.iterdir() if path.name.startswith(start)]:
        # killed between the two renames: the old directory is still whole
        if (work / "old").exists() and not target.exists():
            os.rename(work / "old", target)
        _log.info("removing %s, which a run that was killed left", work)
        shutil.rmtree(work, ignore_errors=True)


def _replace(target: Path, folder: Path, work: Path) -> None:
    replaced = target.exists()
    if replaced:
        # a rename cannot replace a directory with files: the old one moves away first
        os.rename(target, work / "old")
    try:
        os.rename(folder, target)
    except BaseException:  # a Ctrl-C, too: the old directory would go with the folder below
        if replaced and not target.exists():
            os.rename(work / "old", target)
        raise
