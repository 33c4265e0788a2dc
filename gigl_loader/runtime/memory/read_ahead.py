"""Asks the disk for rows of a mapped file all at once, before they are read one by one.

A row that is touched and not in memory stops its reader until the disk has answered. That is one
read at a time, of a disk that serves dozens at once for the same wait. The rows of a batch are
known before the first read. So all their pages are requested first, in the order of the file, and
only then touched. Nothing waits here, and no byte differs.

Linux has its own read-ahead: around each touched page it reads on, up to the megabytes that the
disk is set to. That fills memory quickly if the files fit into it. If they do not, needed pages
make room for pages that nobody requested. So all mappings are marked as read at random
(``MADV_RANDOM``) once files are larger than the memory for them.

The engine is the kernel's page cache: ``process_madvise`` takes a thousand ranges in a call, where
``madvise`` and ``posix_fadvise`` take one. If the kernel does not allow it, pages are read when
they are touched.
"""

import ctypes
import errno
import logging
import mmap
import os
import threading

import numpy as np

from gigl_loader.runtime.memory.segments import Array, mapped_file_at, mapped_files
from gigl_loader.runtime.system import available_memory

_SAMPLE, _CLOSE_SAMPLE = 32, 256
"""Pages to check for whether a file is in memory. If one page in ten is missing, a sample of 32
finds one with 97%. Where files do not fit, fewer pages are often missing, and each is waited for
alone. If one in fifty is missing, a sample of 256 finds one with 99%."""
_FEW_ROWS = 16
"""Below this number of rows, the request costs as much as the wait."""
_GAP_PAGES = 2
"""Largest gap between two ranges, in pages, that is read with them in the same time."""
_MOST_RANGES = 1024
"""Most ranges of one call: the kernel's ``UIO_MAXIOV``."""
_PROCESS_MADVISE = 440
"""Number of the system call, on every processor."""
_WILLNEED = 3
_ROOT = ""
"""Parent of ``/proc`` and ``/sys``, if not ``/``."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.syscall.argtypes = [
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_uint,
]
_libc.syscall.restype = ctypes.c_long

do_not_fit = threading.Event()
"""Set once the files mapped here do not fit into memory, so that batches wait for the disk."""

_log = logging.getLogger(__name__)
_refused = False
"""Set if the kernel does not take such calls."""


def want(values: Array, rows: Array) -> int:
    """Request rows of an array, if it lies in a file that is mapped and not in memory.

    Args:
        values: ``[num_rows, ...]``, contiguous.
        rows: ``[n]`` int64: the rows that will be read.

    Returns:
        The number of requested ranges of the file.
    """
    # called for each gather, also of arrays in memory: the cheap checks come first
    if _refused or rows.size < _FEW_ROWS or values.nbytes < _SAMPLE * mmap.PAGESIZE:
        return 0
    file = mapped_file_at(values.ctypes.data)
    if file is None:
        return 0
    row_bytes = values.nbytes // values.shape[0]
    start = values.ctypes.data
    # only the first page of a row is checked: rows are read whole
    sample = rows[:: -(-rows.size // (_CLOSE_SAMPLE if file.at_random else _SAMPLE))]
    if file.tells_residency and _is_resident(start + sample * row_bytes):
        return 0
    # checked again with each batch that waits, until the files do not fit: other processes come
    # later and take memory. Reading a few files of /proc takes microseconds, a disk milliseconds
    if not file.at_random:
        _look_at_memory()
    return _ask(_ranges(start + rows * row_bytes, row_bytes))


def _look_at_memory() -> None:
    """Have all mapped files read at random if they do not fit into memory.

    All: read-ahead in a small file costs the pages of the large one.
    """
    files = mapped_files()
    if sum(file.nbytes for file in files) <= available_memory(_ROOT):
        return
    for file in files:
        _libc.madvise(file.address, file.nbytes, mmap.MADV_RANDOM)  # advice: nothing fails by it
        file.at_random = True
    do_not_fit.set()


def _is_resident(addresses: Array) -> bool:
    flags = ctypes.create_string_buffer(1)
    # one page per call: a call for the whole range would fill a byte for each page of the file. If
    # the call itself fails, nothing is known, and nothing is requested
    for page in (addresses // mmap.PAGESIZE * mmap.PAGESIZE).tolist():
        if _libc.mincore(page, mmap.PAGESIZE, flags) == 0 and not flags.raw[0] & 1:
            return False
    return True


def _ranges(addresses: Array, nbytes: int) -> Array:
    """Return ``[m, 2]`` uint64 (address, bytes): the pages of memory at ``addresses``, in order."""
    # sorted, so that a disk reads in the order of the file, and rows of one page fall together.
    # All have one length, so ``last`` ascends as ``first`` does: comparing neighbours is enough
    addresses = np.sort(addresses)
    first, last = addresses // mmap.PAGESIZE, (addresses + nbytes - 1) // mmap.PAGESIZE
    begins = np.flatnonzero(np.r_[True, first[1:] > last[:-1] + 1 + _GAP_PAGES])
    ends = np.r_[begins[1:], first.size] - 1
    start, pages = first[begins], last[ends] - first[begins] + 1
    return np.stack([start, pages], 1).astype(np.uint64) * np.uint64(mmap.PAGESIZE)


def _ask(ranges: Array) -> int:
    global _refused
    # opened for each call: a child that is forked later would use its parent's with a kept one
    pidfd = os.pidfd_open(os.getpid())
    try:
        for begin in range(0, len(ranges), _MOST_RANGES):
            # rows of two words are the kernel's ``struct iovec``: address, bytes
            some = np.ascontiguousarray(ranges[begin : begin + _MOST_RANGES])
            if _libc.syscall(
                _PROCESS_MADVISE, pidfd, some.ctypes.data, len(some), _WILLNEED, 0
            ) < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
                # an old kernel, or a container's filter, will refuse the next time, too. Any other
                # failure concerns this call alone, and its rows are read when they are touched
                _refused = True
                reason = os.strerror(ctypes.get_errno())
                _log.info("pages of mapped files are not read ahead: process_madvise: %s", reason)
                return begin
    finally:
        os.close(pidfd)
    return len(ranges)
