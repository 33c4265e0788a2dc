"""Folders of object storage, kept on this machine for its processes.

::

    CACHEDIR.TAG                tells programs that make backups to leave the folder out
    read/<digest>/              a folder with the manifest of that digest, whole or in part
    read/<digest>/.checked/     notes of its files that were compared: see `checked_files`
    write/<digest>/             what is about to be uploaded, by the digest of its URL

A folder's name is the digest of its manifest, which has the checksums of all else: the same graph
under two URLs is kept once, and a new graph under an old URL is another folder. A file counts as
there if it is as it was when its blocks were compared with their checksums; else they are compared
again, and those that are wrong are fetched, before anyone reads it.

Locks are the kernel's (``flock``): they end with the process that holds them. Who uses a folder
holds a shared lock on it, so it is not evicted. One process at a time fetches into it, by an
exclusive lock on ``.fetching``; the others wait, and find the files there.
"""

import errno
import fcntl
import logging
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gigl_loader.errors import ConfigError, PeerTimeoutError, ResourceError
from gigl_loader.runtime.digests import digest_of
from gigl_loader.runtime.object_storage.checked_files import (
    forget_checks,
    is_checked,
    note_as_checked,
)
from gigl_loader.runtime.object_storage.fetch import Fetch, StoredFile
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder, is_url, shown_url
from gigl_loader.runtime.sizes import parse_size, size_in_words

CACHE_DIR_VARIABLE = "GIGL_LOADER_CACHE_DIR"
_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# Folders of object storage: gigl_loader\n"
)
_PAUSE_S, _SAY_EVERY_S = 0.1, 10.0
_STALLED_S = 120.0
"""Seconds without a byte after which the process that holds a lock counts as stopped."""

_log = logging.getLogger(__name__)


class InUse:
    """A shared lock on a folder of the cache, until it is closed or collected.

    Processes that are forked meanwhile hold it, too.
    """

    def __init__(self, folder: Path) -> None:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.close = weakref.finalize(self, os.close, fd)
            _lock(fd, fcntl.LOCK_SH, folder)
            if os.fstat(fd).st_nlink:
                return
            self.close()  # it was evicted between our calls


def hold(folder: Path) -> InUse | None:
    """Return a lock that keeps ``folder`` from being evicted; None: it is not of a cache."""
    return InUse(folder) if is_of_a_cache(folder) else None


def distrust(folder: Path) -> None:
    """Let the next who opens ``folder`` of a cache compare all its files, and fetch what is wrong.

    What is wrong need not be in one file alone.
    """
    forget_checks(folder)


def is_of_a_cache(folder: Path) -> bool:
    """Return whether ``folder`` is the copy of one in object storage."""
    return (folder.parent.parent / _TAG).exists()


class Cache:
    """The folders of object storage that are kept on this machine.

    Args:
        folder: Where; None: ``GIGL_LOADER_CACHE_DIR``, or ``gigl_loader`` in the user's cache.
        size: Most bytes for folders that were fetched, also as ``"2TB"``; None: no limit.

    Raises:
        ConfigError: The size cannot be read, or the folder is a URL.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, size: int | str | None = None
    ) -> None:
        self._size = None if size is None else parse_size(size, "cache_size")
        folder = folder or os.environ.get(CACHE_DIR_VARIABLE)
        if folder and is_url(folder):
            raise ConfigError(f"cache_dir must be a local directory, got {shown_url(str(folder))}")
        users = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "gigl_loader"
        self.folder = Path(folder or users).absolute()

    def to_write(self, url: str) -> Path:
        """Return the folder for what is uploaded to ``url`` when it is complete."""
        return self.folder / "write" / digest_of(url.encode())

    @contextmanager
    def opened(self, source: ObjectFolder, manifest: str) -> Iterator["CachedFolder"]:
        """Yield the copy of a folder, which is in use meanwhile and has its manifest.

        Raises:
            ConfigError: The manifest is missing, or the cache cannot be written.
            ObjectStorageError: Requests failed, repeatedly.
        """
        data = source.read(manifest)
        path = self.folder / "read" / digest_of(data)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self.folder} cannot keep copies of {source.url}: {error.strerror}; give "
                f"cache_dir, or set {CACHE_DIR_VARIABLE}"
            ) from error
        in_use = InUse(path)
        try:
            (self.folder / _TAG).write_text(_TAG_TEXT)
            draft = path / f"{manifest}.{os.getpid()}.part"
            draft.write_bytes(data)
            os.replace(draft, path / manifest)
            os.utime(path)  # the order of eviction
            yield CachedFolder(self, source, path)
        finally:
            in_use.close()

    def make_room(self, fetch: Fetch, own: Path) -> None:
        """Check that there is room for what is fetched into the folder ``own``, and take it.

        Raises:
            ConfigError: ``cache_size`` is less than that and what is in use.
            ResourceError: The disk is too small.
        """
        with (self.folder / _TAG).open("a") as mutex:  # two that look would both find room
            _lock(mutex.fileno(), fcntl.LOCK_EX, self.folder)
            if self._size is not None:
                self._evict(self._size, fetch.new_bytes, own)
            free, missing = shutil.disk_usage(self.folder).free, fetch.missing_bytes
            if missing > free:
                raise ResourceError(
                    errno.ENOSPC,
                    f"{size_in_words(missing)} are to be fetched and {self.folder} has "
                    f"{size_in_words(free)} free; nothing was fetched: give cache_dir on a larger "
                    "disk, or a cache_size, so that old graphs are removed",
                )
            fetch.reserve()

    def _evict(self, limit: int, new: int, own: Path) -> None:
        sizes = {folder: _size(folder) for folder in own.parent.iterdir()}
        excess = sum(sizes.values()) + new - limit
        for folder in sorted(sizes, key=lambda folder: folder.stat().st_mtime):
            if excess > 0 and folder != own and _removed(folder):
                excess -= sizes[folder]
                _log.info("removed %s: %s", folder, size_in_words(sizes[folder]))
        if excess > 0:
            raise ConfigError(
                f"cache_size is {size_in_words(limit)}, {size_in_words(excess)} less than what is "
                f"to be fetched and what is in use in {self.folder}: give more"
            )


class CachedFolder:
    """The copy of a folder of object storage in a cache.

    Args:
        cache: The cache.
        source: The folder in object storage.
        path: The copy.
    """

    def __init__(self, cache: Cache, source: ObjectFolder, path: Path) -> None:
        self._cache, self.source, self.path = cache, source, path

    def fetch(self, files: Sequence[StoredFile], on_bytes: Callable[[int], None]) -> None:
        """Fetch the files, or blocks of them, that are not there or were changed on the disk.

        Args:
            files: Some files of the folder.
            on_bytes: As for `Fetch.run`.

        Raises:
            ConfigError: An object is missing or damaged, or ``cache_size`` is too small.
            ObjectStorageError: Requests failed, repeatedly.
            PeerTimeoutError: Another process fetches them, and is stuck.
            ResourceError: The disk is too small.
        """
        if not self._unchecked(files):
            return
        with (self.path / ".fetching").open("a") as mutex:
            _lock(mutex.fileno(), fcntl.LOCK_EX, self.path)

            def note(nbytes: int) -> None:
                os.utime(mutex.fileno())  # those who wait look at the time
                on_bytes(nbytes)

            note(0)
            # another process may have fetched them meanwhile
            fetch = Fetch(self.source, self.path, self._unchecked(files))
            self._cache.make_room(fetch, self.path)
            fetch.run(note, lambda file: note_as_checked(self.path, file.name))

    def _unchecked(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        return [file for file in files if not is_checked(self.path, file.name)]


def _lock(fd: int, kind: int, what: Path) -> None:
    """Take a lock; whoever holds it lives, as locks end with their process.

    Raises:
        PeerTimeoutError: That process has not touched the file for `_STALLED_S`.
    """
    began = said = time.time()
    while True:
        try:
            return fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.time()
        except OSError as error:  # some network disks have no locks
            return _log.warning("%s cannot be locked (%s): let one process use it", what, error)
        if now > max(began, os.fstat(fd).st_mtime) + _STALLED_S:
            raise PeerTimeoutError(
                f"another process holds {what} and does not go on: is it stopped? End it, or give "
                "another cache_dir"
            )
        if now > said + _SAY_EVERY_S:
            said = now
            _log.warning("waiting for another process that fetches into %s", what)
        time.sleep(_PAUSE_S)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a file that has just got its final name
            total += path.stat().st_size if path.is_file() else 0
    return total


def _removed(folder: Path) -> bool:
    """Remove a folder unless it is in use; return whether it was not."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
