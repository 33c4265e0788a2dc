"""Edges of a graph store that are fetched once, for all layers."""

import logging
import os
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

import torch
from torch import Tensor

from gigl_loader.errors import ProtocolError
from gigl_loader.memory.tensors import bytes_of, dtype_name, dtype_named

logger = logging.getLogger(__name__)

_InFile = tuple[int, str, torch.Size]
"""A tensor in a file: offset in bytes, dtype and shape."""


class KeptTensors:
    """Tensors by key, in memory or in a file without a name, which is gone with the process.

    What the disk has no room for is not kept.

    Args:
        folder: Where the file goes; None: memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._kept: dict[Hashable, list[Tensor | _InFile | None]] = {}
        self._end = 0
        # beside the results, and not in /tmp, which is often memory
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def get(self, key: Hashable, fetch: Callable[[], list[Tensor | None]]) -> list[Tensor | None]:
        """Return what ``fetch`` returned when ``key`` was asked for first."""
        if key in self._kept:
            return [self._read(one) if isinstance(one, tuple) else one for one in self._kept[key]]
        # what fetch() raises is not kept: the next one to ask fetches again
        found = fetch()
        if self._file is None:
            self._kept[key] = list(found)
        else:
            self._write_all(key, found)
        return found

    def close(self) -> None:
        """Let go of all of it."""
        self._kept.clear()
        if self._file is not None:
            self._file.close()

    def _write_all(self, key: Hashable, tensors: list[Tensor | None]) -> None:
        start = self._end
        try:
            # the key is set only when all of its tensors were written: a part of them is not read
            # back
            self._kept[key] = [None if one is None else self._write(one) for one in tensors]
        except OSError as error:
            # what was written of this key is written over by the next one
            self._end = start
            logger.warning("edges cannot be kept, and are fetched for each layer: %s", error)

    def _write(self, tensor: Tensor) -> _InFile:
        assert self._file is not None
        tensor = tensor.contiguous()
        start, data = self._end, bytes_of(tensor)
        while data:
            # The kernel writes at most 2 GiB at a time, and less where the disk fills up. At an
            # offset, like the read: no position of the file is shared between threads.
            count = os.pwrite(self._file.fileno(), data, self._end)
            self._end, data = self._end + count, data[count:]
        return start, dtype_name(tensor.dtype), tensor.shape

    def _read(self, in_file: _InFile) -> Tensor:
        assert self._file is not None
        start, name, shape = in_file
        found = torch.empty(shape, dtype=dtype_named(name))
        data = bytes_of(found)
        while data:
            count = os.preadv(self._file.fileno(), [data], start)
            # 0 is the end of the file: without an error the loop would not end
            if not count:
                raise ProtocolError(f"kept edges end at byte {start}, {len(data)} bytes too early")
            start, data = start + count, data[count:]
        return found
