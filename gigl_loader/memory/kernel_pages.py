"""Pages of memory: huge ones for the graph, and those that were freed, given back to the kernel.

A batch reads rows all over gigabytes. With pages of 4 KiB nearly every row needs an entry of the
page table that the processor does not have at hand; one huge page stands for 512 of them.

There are two kinds. Pages that an administrator has set aside (``vm.nr_hugepages``) are taken where
enough of them are free. Else the kernel is asked to make some of the memory that it has, which it
does where ``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` is ``advise`` or more. Nobody is
told which pages there are, and nothing fails where there are none.
"""

import contextlib
import ctypes
import mmap
import os

from gigl_loader.memory import segments
from gigl_loader.system import meminfo, number_in

_LEAST_PAGES = 16
"""Of a tensor: the last page is not full, and a small tensor stays in the cache all the same."""
_SET_ASIDE = "/sys/kernel/mm/hugepages/hugepages-{}kB/{}_hugepages"
_MADE = "/sys/kernel/mm/transparent_hugepage/{}"
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``: enter pages as if they were written to, and say where that fails."""

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def create_memfd(nbytes: int, name: str) -> tuple[int, int]:
    """Return (descriptor, bytes) of a new anonymous file, with all its pages; as large as is asked.

    It may be larger, up to the end of a huge page: map and unmap all of it.

    Args:
        nbytes: What it must have.
        name: As `segments.create_memfd` takes it.

    Raises:
        SharedMemoryError: There is no memory of any kind for it.
    """
    with contextlib.suppress(OSError):
        if found := _of_pages_set_aside(nbytes, name):
            return found
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        # in this order: what is reserved gets small pages, and leaves no place for huge ones
        _ask_for_huge_pages(fd, nbytes)
        segments.reserve(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd, nbytes


def _of_pages_set_aside(nbytes: int, name: str) -> tuple[int, int] | None:
    """Return what `create_memfd` does, of pages that are there for this; None: too few are free.

    Raises:
        OSError: Others took them, or this container may not have them.
    """
    page = meminfo("Hugepagesize")
    if page == 0 or nbytes < _LEAST_PAGES * page:
        return None
    # promised: others have reserved them, and they count as free until they are touched
    free, promised = (
        number_in(_SET_ASIDE.format(page // 1024, which)) or 0 for which in ("free", "resv")
    )
    reserved = -(-nbytes // page) * page
    if (free - promised) * page < reserved:
        return None
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_HUGETLB)
    try:
        os.posix_fallocate(fd, 0, reserved)  # all of them now: a page that is missing is SIGBUS
    except OSError:
        os.close(fd)
        raise
    return fd, reserved


def _ask_for_huge_pages(fd: int, nbytes: int) -> None:
    """Fill an anonymous file that has no pages with huge ones, if the kernel makes any.

    It makes them for memory that is mapped and marked. What it does not fill is left as it is.
    """
    page = number_in(_MADE.format("hpage_pmd_size"))
    if page is None or nbytes < _LEAST_PAGES * page or _is_off():
        return
    os.ftruncate(fd, nbytes)  # beyond the end of a file, a mapping has no pages to enter
    with contextlib.suppress(segments.SharedMemoryError):
        address = segments.map_fd(fd, nbytes, populate=False)
        _libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)
        # a kernel before 5.14 does not know it: then `segments.reserve` enters small pages
        _libc.madvise(address, nbytes, _POPULATE_WRITE)
        # the pages belong to the file, and stay; torch maps it itself
        segments.unmap(address, nbytes)


def _is_off() -> bool:
    """Return whether the kernel makes no huge pages for shared memory."""
    try:
        with open(_MADE.format("shmem_enabled")) as file:
            words = file.read()
    except OSError:
        return True
    return "[never]" in words or "[deny]" in words


def give_back_freed() -> None:
    """Let malloc give the kernel the pages that nothing uses, of all its heaps.

    By itself glibc keeps tens of MiB: it gives a heap back from the top only, and after the first
    large block that is freed it asks for twice that much to be free there. Takes a few
    milliseconds. Does nothing with another libc.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
