"""Files of a dataset that are mapped: noted as they are opened, compared as they are used.

A mapping shows what is written to its file later: other rows, or SIGBUS where the file has become
shorter. A file that takes the place of another one, as by a rename, changes no mapping.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gigl_loader.dataset.format.mapped import FileStamp, Part
from gigl_loader.errors import FileChangedError
from gigl_loader.runtime.memory.tensors import map_file, mapping_of

_RULE = (
    "batches may have had other rows since. Files of a running job are never changed: write new "
    "partitions beside them, or with overwrite=True, and start the job again"
)


class MappedFiles:
    """The files that one object has mapped; it keeps them mapped."""

    def __init__(self) -> None:
        # with what keeps each descriptor open: else its number would be another file's
        self._files: list[tuple[Path, int, FileStamp, Any]] = []

    def map(self, part: Part, path: Path, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """Return a file of ``part`` as a tensor, as `runtime.memory.tensors.map_file` does.

        Raises:
            FileChangedError: It is not the file that `check_sizes` has looked at.
        """
        known = part.stamps.get(str(path.relative_to(part.folder)))
        try:
            tensor = map_file(path, dtype, shape)
        except FileNotFoundError as error:
            raise FileChangedError(f"{path} was removed after the dataset was loaded") from error
        if tensor.numel():
            descriptor, mapping = mapping_of(tensor)
            stamp = FileStamp.of(os.fstat(descriptor))
            if known is not None and stamp != known:
                raise _changed(path, known, stamp)
            self._files.append((path, descriptor, stamp, mapping))
        return tensor

    def check(self) -> None:
        """Compare all files with what they were; two microseconds for each.

        Raises:
            FileChangedError: One was written to, became shorter or longer, or is out of reach.
        """
        for path, descriptor, stamp, _ in self._files:
            try:
                now = os.fstat(descriptor)
            except OSError as error:  # it was removed on the server of a network disk
                raise FileChangedError(
                    f"{path} can no longer be read: {error.strerror}; it was in use; {_RULE}"
                ) from error
            # the inode is that of the descriptor; times first, as they change with the size
            if now.st_mtime_ns != stamp.mtime_ns or now.st_size != stamp.size:
                raise _changed(path, stamp, FileStamp.of(now))


def check_stamps(part: Part, known: Mapping[str, FileStamp]) -> None:
    """Check that the files of ``part`` are those that another process has noted.

    Raises:
        FileChangedError: One is not.
    """
    for name, stamp in part.stamps.items():
        if known.get(name, stamp) != stamp:
            raise _changed(part.folder / name, known[name], stamp)


def _changed(path: Path, before: FileStamp, now: FileStamp) -> FileChangedError:
    how = f"had {before.size} bytes and now has {now.size}"
    if now.inode != before.inode:
        how = "another file is in its place"
    elif now.size == before.size:
        how = f"written to at {time.strftime('%F %T', time.localtime(now.mtime_ns // 10**9))}"
    return FileChangedError(f"{path} was changed while it was in use ({how}): {_RULE}")
