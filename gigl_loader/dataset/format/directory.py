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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, get_args

from gigl_loader.dataset.format.mapped import PART_FILE, ROOT_FILE, is_mapped_format
from gigl_loader.dataset.schema import FilePath
from gigl_loader.errors import ConfigError, UsageError, explained_limits
from gigl_loader.runtime.object_storage.folder_cache import Cache
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder, is_url
from gigl_loader.runtime.progress import note, showing

Format = Literal["mapped", "glt"]
RowOrder = Literal["ids", "degree"]
"""The order of stored node rows: see `partition_graph`."""
FORMATS = get_args(Format)
ORDERS = ("ids", "degree")
"""Orders of the rows of nodes in a partition: see `partition_graph`."""


def check_root(root: FilePath) -> None:
    """Check that ``root`` is there, a directory or the URL of one; its files are not read.

    Raises:
        ConfigError: It is not.
        ObjectStorageError: Object storage failed.
    """
    if is_url(root):
        ObjectFolder(str(root)).size(ROOT_FILE)
    elif not (path := Path(root)).is_dir():
        what = "is a file, not a directory" if path.exists() else "does not exist"
        raise ConfigError(
            f"root={str(path)!r} {what}: give the directory that partition_graph wrote; "
            f"{_nearest(path)}"
        )


def _nearest(path: Path) -> str:
    """Return the longest existing part of a mistyped path, as text."""
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    names = sorted(entry.name for entry in existing.iterdir())[:5] if existing.is_dir() else []
    return f"of it {existing} exists and holds {names}"


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
        path.relative_to(target)
        for path in target.rglob("*")
        if not ours or not _may_be_partition_file(path.relative_to(target), is_dir=path.is_dir())
    ]
    check_replaced(str(target), others, has_graph=bool(names), overwrite=overwrite)


def check_replaced(
    where: str, others: Sequence[PurePath], *, has_graph: bool, overwrite: bool
) -> None:
    """Check that a folder may be replaced.

    Args:
        where: Its name.
        others: Files in it that `partition_graph` does not write.
        has_graph: Whether partitions are in it.
        overwrite: Whether those may be replaced.

    Raises:
        ConfigError: It may not.
    """
    if others:
        examples = ", ".join(sorted(map(str, others))[:3])
        raise ConfigError(
            f"{where} holds other files ({examples}...), which would be removed with it: give an "
            "empty or a new directory"
        )
    if has_graph and not overwrite:
        raise ConfigError(f"{where} holds partitions: remove it, or give overwrite=True")


def _may_be_partition_file(path: PurePath, *, is_dir: bool = False) -> bool:
    """Return whether a path below a directory may be one that `partition_graph` wrote."""
    first, *rest = path.parts
    if not rest and first in (ROOT_FILE, "META", "report.json", "report.svg", "database.json"):
        return not is_dir
    known = re.fullmatch(r"part\d+|books|ids|edge_rows|(node|edge)_pb(\.pt)?", first) is not None
    suffixes = (".pt", ".pkl", ".bin", ".parquet")
    # by position and by kind: a notes.txt in part0 belongs to a user, and so does a mine/a.pt
    return known and (is_dir or path.suffix in suffixes or path.name == PART_FILE)


class Target:
    """Where a directory of partitions is written: a local path, or object storage.

    What goes to object storage is written to the cache of this machine, and uploaded when it is
    complete; the manifest goes last, and is removed first where it replaces another.

    Args:
        root: The path or URL.
        overwrite: Whether partitions there may be replaced.
        format: The format of the directory.

    Raises:
        ConfigError: The URL cannot work, or the format has no checksums, which a URL needs.
    """

    def __init__(self, root: FilePath, *, overwrite: bool, format: Format = "mapped") -> None:
        self._storage: ObjectFolder | None = None
        self._overwrite = self._overwrite_local = overwrite
        self.path = Path(root).absolute()
        """The local directory."""
        if is_url(root):
            if format != "mapped":
                raise ConfigError(
                    f'{root}: format="{format}" has no checksums, without which nothing is read '
                    "from object storage: write it to a local directory, or leave format out"
                )
            self._storage = ObjectFolder(str(root), create=True)
            self.path, self._overwrite_local = Cache().to_write(self._storage.url), True

    def check(self) -> None:
        """Check that the directory may be written, before anything is.

        Raises:
            ConfigError: See `check_target`.
            ObjectStorageError: Object storage failed.
        """
        check_target(self.path, overwrite=self._overwrite_local)
        if self._storage is not None:
            self._check_objects(self._storage, self._storage.sizes())

    def _check_objects(self, storage: ObjectFolder, objects: Iterable[str]) -> None:
        others = [path for path in map(PurePath, objects) if not _may_be_partition_file(path)]
        # without a manifest they are of an upload that was killed
        has_graph = ROOT_FILE in objects
        check_replaced(storage.url, others, has_graph=has_graph, overwrite=self._overwrite)

    def read(self, name: str) -> bytes | None:
        """Return a small file of the directory; None: it is not there.

        Raises:
            ObjectStorageError: Object storage failed.
        """
        if self._storage is not None:
            return self._storage.find(name)
        path = self.path / name
        return path.read_bytes() if path.is_file() else None

    def publish(self, *, progress: bool) -> None:
        """Upload the complete local directory; nothing to do for a local path.

        Args:
            progress: Show a bar.

        Raises:
            ConfigError: Something else was written there meanwhile.
            ObjectStorageError: Object storage failed.
        """
        if (storage := self._storage) is None:
            return
        manifest, objects = (self.path / ROOT_FILE).read_bytes(), storage.sizes()
        if ROOT_FILE in objects and storage.read(ROOT_FILE) == manifest:
            return  # killed after the upload
        self._check_objects(storage, objects)
        # from here on nothing there is a graph, until the new manifest
        storage.remove(objects.keys() & {ROOT_FILE})
        files = [path for path in self.path.rglob("*") if path.is_file()]
        names = {path.relative_to(self.path).as_posix() for path in files} - {ROOT_FILE}
        total = sum(path.stat().st_size for path in files)
        with showing(f"upload to {storage.url}", total, shown=progress):
            storage.upload(self.path, sorted(names), note)
        storage.remove(objects.keys() - {*names, ROOT_FILE})
        storage.write(ROOT_FILE, manifest)

    def clear(self) -> None:
        """Remove the local directory of what was uploaded."""
        if self._storage is not None:
            shutil.rmtree(self.path)


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
            _log.warning(
                "%s cannot be locked (%s): let no other process write %s", lock, error, what
            )
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
def complete_or_nothing(place: Target, *, progress: bool = False) -> Iterator[Path]:
    """Yield a directory beside that of ``place`` that takes its place at the end, or is removed.

    Args:
        place: Where the result goes; no other process of this machine writes there meanwhile.
        progress: Show a bar while it is uploaded.

    Raises:
        ConfigError: See `Target.check`.
        ObjectStorageError: Object storage failed.
        UsageError: Another process writes there.
    """
    target = place.path
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(lock_of(target), target):
        clear_killed(target)
        # again: another writer may have ended since the first check
        place.check()
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
        place.publish(progress=progress)
        place.clear()


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
