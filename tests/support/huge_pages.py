"""Memory of a process that is forked often, in pages of 2 MiB: such a fork takes a third as long.

A fork copies an entry for each page that its process has written, and the end of what was forked
gives each back. With torch and Numba imported that is some 80,000 pages of 4 KiB.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

_MADV_COLLAPSE = 25  # of linux/mman.h, since Linux 6.1; Python has no name for it
SIZE = 2 << 20
"""Bytes of a huge page."""
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def move_into_huge_pages() -> None:
    """Move what this process has in memory of its own into huge pages: half a second of work.

    What is forked from then on shares them. It is the same memory at the same addresses. Where the
    kernel has no huge pages to give, it stays as it is.
    """
    for start, end in list(_own_memory()):
        first, last = -(-start // SIZE) * SIZE, end // SIZE * SIZE
        if first < last:
            # an error says that a part is not in use, or that the kernel is too old: no matter
            _libc.madvise(first, last - first, _MADV_COLLAPSE)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Give start and end of each range of memory that is private, can be written, and is no file's.

    But the stack, which grows while this runs.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access.startswith("rw-p") and inode == "0" and (not name or name == ["[heap]"]):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)
