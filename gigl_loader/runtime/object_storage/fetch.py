"""Files of a folder in object storage, fetched in parallel ranges, each checked before it counts.

A file is written as ``NAME.part``, block by block, and gets its name when all blocks match their
checksums. The blocks of a ``.part`` file that a killed process left are recognised by their
checksums, too: there is no journal that could disagree with the file. So are those of a whole file,
if it is given once more: what is wrong in it is fetched and written in its place.
"""

import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.digests import digest_of
from gigl_loader.runtime.files_of_others import inside
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder

PARALLEL_RANGES = 16
"""Requests at a time. One gives 50 to 90 MB/s from S3, so that these fill a link of 10 Gbit/s."""
_ATTEMPTS = 3
"""For a block whose bytes do not match their checksum."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredFile:
    """A file of a folder, as the manifest of the folder describes it."""

    name: str
    """Path below the folder."""
    nbytes: int
    digests: Sequence[str]
    """See `digest_of`, of each block."""
    block_bytes: int
    """Bytes of a block, a multiple of a page; the last one may be shorter."""


@dataclass
class _Draft:
    """A file that is not whole yet."""

    file: StoredFile
    path: Path
    """Its final name."""
    part: Path
    """Where it is until all is right: its final name, if a file of its length is there."""
    is_new: bool
    """Whether no process has begun it."""
    blocks_left: int


class Fetch:
    """The fetch of some files into a folder on this machine, but for the blocks that are there.

    Args:
        source: The folder in object storage.
        folder: The local one; only one process at a time fetches into it.
        files: Files of ``source``.

    Raises:
        ConfigError: The name of a file, or a link in the folder, leads out of it.
    """

    def __init__(self, source: ObjectFolder, folder: Path, files: Iterable[StoredFile]) -> None:
        self._source, self._drafts = source, list[_Draft]()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.new_bytes = self.missing_bytes = 0
        """Bytes by which files become longer, and bytes that they take on the disk."""
        for file in files:
            path = inside(folder, file.name)  # of a manifest, which comes from elsewhere
            is_whole = path.exists() and path.stat().st_size == file.nbytes
            part = path if is_whole else inside(folder, f"{file.name}.part")
            begun = part.stat() if part.exists() else None
            self._drafts.append(_Draft(file, path, part, begun is None, len(file.digests)))
            self.new_bytes += file.nbytes - (begun.st_size if begun else 0)
            self.missing_bytes += max(0, file.nbytes - (512 * begun.st_blocks if begun else 0))

    def reserve(self) -> None:
        """Create the files, as long as they will be."""
        for draft in self._drafts:
            draft.part.parent.mkdir(parents=True, exist_ok=True)
            with draft.part.open("ab") as file:
                # to the same length would be a change for those who have mapped the file
                if file.tell() != draft.file.nbytes:
                    file.truncate(draft.file.nbytes)

    def run(
        self,
        on_bytes: Callable[[int], None],
        on_file: Callable[[StoredFile], None] = lambda file: None,
    ) -> None:
        """Fetch what is missing.

        Args:
            on_bytes: Called with the bytes that have come (0: a block was there), by one thread at
                a time, in the context of this one.
            on_file: Called with each file that is whole and right, by one thread at a time.

        Raises:
            ConfigError: An object is missing, or does not match its checksums.
            ObjectStorageError: Requests failed, repeatedly.
        """
        with ThreadPoolExecutor(PARALLEL_RANGES) as pool:
            try:
                for future in as_completed(
                    [
                        pool.submit(copy_context().run, self._fill, draft, block, on_bytes, on_file)
                        for draft in self._drafts
                        for block in range(max(1, draft.blocks_left))
                    ]
                ):
                    future.result()
            finally:
                # on Ctrl-C, too: the pool waits for its threads
                self._stop.set()
                pool.shutdown(cancel_futures=True)

    def _fill(
        self,
        draft: _Draft,
        block: int,
        on_bytes: Callable[[int], None],
        on_file: Callable[[StoredFile], None],
    ) -> None:
        """Write a block to its file unless it is there; after the last one the file is whole."""
        if draft.blocks_left:  # the file is not empty
            self._fill_block(draft, block, on_bytes)
        with self._lock:
            draft.blocks_left -= 1
            if draft.blocks_left <= 0:
                with draft.part.open("rb") as file:
                    # its name is believed by later processes, also after a power failure
                    os.fdatasync(file.fileno())
                os.replace(draft.part, draft.path)
                on_file(draft.file)

    def _fill_block(self, draft: _Draft, block: int, on_bytes: Callable[[int], None]) -> None:
        start = block * draft.file.block_bytes
        end = min(start + draft.file.block_bytes, draft.file.nbytes)
        with draft.part.open("r+b") as file:
            for attempt in range(_ATTEMPTS + 1):
                if attempt or not draft.is_new:  # else all of it is missing
                    file.flush()
                    with mmap.mmap(file.fileno(), end - start, offset=start) as content:
                        is_right = digest_of(content) == draft.file.digests[block]
                    if is_right:
                        with self._lock:
                            on_bytes(0)
                        return
                    if not attempt and draft.part == draft.path:
                        _log.warning(
                            "%s was damaged or changed after it was fetched: bytes %d to %d do not "
                            "match their checksum, and are fetched again",
                            *(draft.path, start, end),
                        )
                if attempt == _ATTEMPTS:
                    break
                file.seek(start)
                for chunk in self._source.chunks(draft.file.name, start, end):
                    # a server may send more than it was asked for
                    file.write(memoryview(chunk)[: max(0, end - file.tell())])
                    with self._lock:
                        on_bytes(len(chunk))
                    if self._stop.is_set():
                        raise CancelledError
        raise ConfigError(
            f"{self._source.url}/{draft.file.name}: bytes {start} to {end} do not match the "
            f"checksum in the manifest, {_ATTEMPTS} times: the object is damaged, was replaced or "
            "is of another run; upload the folder again"
        )
