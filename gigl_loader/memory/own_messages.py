"""Messages that the process which reads them writes itself."""

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from gigl_loader.memory.leases import tensors_over
from gigl_loader.memory.slots import layout_of, write_fields
from gigl_loader.message import Field, SampleMessage

_LARGE = 1 << 18
"""Bytes from which a message gets a block: a loop may keep many small ones; mappings are few."""
_SPARE = 1.2
"""A new block is this much larger than its first message: batches vary a little."""
_KEEP = 2
"""Free blocks that are kept."""


class OwnMessages:
    """The memory of one thread's messages: blocks that are used again once their tensors are gone.

    Fresh memory costs a page fault every 4 KiB, which takes longer than to write the page.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        # tensors end in whichever thread drops the last one; appending to a deque is atomic
        self._returned: deque[mmap.mmap] = deque()

    def write(self, fields: Sequence[Field]) -> tuple[SampleMessage, int]:
        """Let ``fields`` write themselves; return their tensors, and the bytes of these."""
        layout, nbytes = layout_of(fields)
        if nbytes < _LARGE:
            buffer: Any = (ctypes.c_char * nbytes)()
            write_fields(fields, layout, buffer)
            return tensors_over(buffer, layout), nbytes
        block = self._take(nbytes)
        buffer = (ctypes.c_char * len(block)).from_buffer(block)
        # of the buffer, which every tensor keeps, and every view of one; a finalizer holds its
        # arguments, so the block stays mapped until then. Not at exit: it goes with the process
        weakref.finalize(buffer, self._returned.append, block).atexit = False
        write_fields(fields, layout, buffer)
        return tensors_over(buffer, layout), nbytes

    def _take(self, nbytes: int) -> mmap.mmap:
        while self._returned:
            self._free.append(self._returned.popleft())
        # the smallest that fits is taken, and the next ones are kept. Those that are too small are
        # dropped, which unmaps them: sizes grow to the largest of a run soon, and then all fit
        fitting = sorted((one for one in self._free if len(one) >= nbytes), key=len)
        self._free = fitting[1 : 1 + _KEEP]
        if fitting:
            return fitting[0]
        # by default Python's anonymous mappings are shared, and a forked child would write to them
        return mmap.mmap(-1, int(nbytes * _SPARE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
