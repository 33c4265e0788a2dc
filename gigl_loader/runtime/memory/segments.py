"""Shared memory that leaves nothing behind: anonymous files (``memfd``), never names in /dev/shm.

A ``memfd`` has no name, so it is gone with its last user, however that user ends. It does not
count against the size of /dev/shm, which containers keep small.

There are two uses. Long-lived tensors (graph, features, seeds) are shared unchanged: the trainer
pickles them as file descriptors (`gigl_loader.runtime.memory.tensors`), and `loads` maps them in a
worker as arrays, without a copy. Messages lie in slots: one mapping each, recycled.

Workers import this, so it does not import torch.
"""

import ctypes
import ctypes.util
import io
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gigl_loader.errors import PeerError
from gigl_loader.runtime.anonymous_files import new_memfd

Array = NDArray[Any]
"""An array of numbers, or of the bits of numbers for which numpy has no name."""

ALIGNMENT = 64
"""Bytes to which every array inside a segment is aligned: one cache line."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p  # without types, ctypes cuts addresses to an int's 32 bits
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedMemoryError(PeerError, OSError):
    """This machine has too little shared memory for the requested bytes."""

    def __init__(self, nbytes: int, reason: str) -> None:
        super().__init__(nbytes, reason)
        self.nbytes, self.reason = nbytes, reason

    def __str__(self) -> str:
        return (
            f"could not reserve {self.nbytes / 2**20:.0f} MiB of shared memory: {self.reason}; "
            "lower batch_size, num_neighbors or worker_concurrency, or raise the memory limit"
        )


def align(nbytes: int) -> int:
    """Round ``nbytes`` up to `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def create_memfd(nbytes: int, name: str = "gigl_loader") -> int:
    """Return the descriptor of a new anonymous file of ``nbytes`` bytes, pages reserved.

    Raises:
        SharedMemoryError: The pages cannot be reserved. (Without the reservation the first write
            to a missing page would end the process with SIGBUS.)
        ResourceError: See `new_memfd`.
    """
    fd = new_memfd(name)
    try:
        reserve(fd, max(nbytes, 1))  # fallocate refuses 0
    except SharedMemoryError:
        os.close(fd)
        raise
    return fd


def reserve(fd: int, nbytes: int) -> None:
    """Give an anonymous file at least ``nbytes`` bytes, pages reserved.

    Raises:
        SharedMemoryError: The pages cannot be reserved.
    """
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        raise SharedMemoryError(nbytes, os.strerror(error.errno or 0)) from error


def map_fd(fd: int, nbytes: int, *, populate: bool = True, file: bool = False) -> int:
    """Map ``nbytes`` bytes of ``fd`` for reading and writing; return the address.

    The descriptor may be closed afterwards. (``mmap.mmap`` keeps a duplicate of it, and a loop that
    keeps many batches would run out of descriptors.)

    Args:
        fd: The memory.
        nbytes: At most the size of the memory.
        populate: Enter all pages into the page table now, not on first touch.
        file: ``fd`` is a file on disk, perhaps opened for reading only. Pages are read from the
            page cache, and writes stay in this process.

    Raises:
        SharedMemoryError: The system refuses.
    """
    # private: the only way to map a read-only descriptor for writing, and torch warns of arrays
    # that cannot be written
    flags = mmap.MAP_PRIVATE if file else mmap.MAP_SHARED
    flags |= mmap.MAP_POPULATE if populate else 0
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise SharedMemoryError(nbytes, os.strerror(ctypes.get_errno()))
    if file:
        _mapped_files[int(address)] = MappedFile(int(address), nbytes, _tells_residency(fd))
    return int(address)


@dataclass
class MappedFile:
    """Mapping of a file on disk."""

    address: int
    nbytes: int
    tells_residency: bool
    """The kernel reports which pages are in memory only to users who may write to the file."""
    at_random: bool = False
    """Whether the kernel was told that it is read at random."""


_mapped_files: dict[int, MappedFile] = {}
"""By address; a process maps a few dozen."""


def _tells_residency(fd: int) -> bool:
    # the kernel's own condition since 5.2: for others, `mincore` reports every page as present
    return os.fstat(fd).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK)


def mapped_file_at(address: int) -> MappedFile | None:
    """Return the file on disk that `map_fd` mapped over ``address``, or None."""
    for file in mapped_files():
        if file.address <= address < file.address + file.nbytes:
            return file
    return None


def mapped_files() -> list[MappedFile]:
    """Return all mapped files on disk."""
    return list(_mapped_files.values())


def open_fd_of(pid: int, fd: int) -> int:
    """Return a descriptor of this process for descriptor ``fd`` of process ``pid``.

    Raises:
        OSError: The process or descriptor cannot be seen or opened from here, or belongs to
            another user (its contents are trusted).
    """
    path = f"/proc/{pid}/fd/{fd}"
    # for writing, too, since `map_fd` maps shared memory for both
    try:
        own_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # a mapped file that is read-only
        own_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # root may open everything, so the kernel's check alone is not enough
    if os.fstat(own_fd).st_uid != os.geteuid():
        os.close(own_fd)
        raise PermissionError(f"descriptor {fd} of process {pid} is another user's")
    return own_fd


def peek(pid: int, fd: int, nbytes: int, name: str) -> bytes | None:
    """Return the first bytes of memory of process ``pid``; None if they cannot be read from here.

    Args:
        pid: The process.
        fd: Its descriptor.
        nbytes: How many bytes.
        name: The name given to `create_memfd` there; nothing else is opened.
    """
    # checked before it is opened: in a wrong process, the descriptor may be anything, such as a
    # device that acts when it is opened
    try:
        if not os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"/memfd:{name} "):
            return None
        own_fd = open_fd_of(pid, fd)
    except OSError:
        return None
    try:
        return os.pread(own_fd, nbytes, 0)
    finally:
        os.close(own_fd)


def unmap(address: int, nbytes: int) -> None:
    """Undo `map_fd`."""
    # in this order: once it is unmapped, another thread may map a file to the same address
    _mapped_files.pop(address, None)
    _libc.munmap(address, nbytes)


def buffer_at(address: int, nbytes: int) -> Any:
    """Return an object with the buffer protocol over mapped memory, which it does not own.

    It takes weak references, and every array or tensor made of it keeps it alive.
    """
    return (ctypes.c_char * nbytes).from_address(address)


def storage_dtype(name: str) -> "np.dtype[Any]":
    """Return the numpy type that holds the bits of torch's type ``name`` (``"float32"``...).

    Types without a numpy equivalent, ``bfloat16`` and those of 8 bits, become unsigned integers.
    """
    return np.dtype(_UNKNOWN_TO_NUMPY.get(name, name))


_UNKNOWN_TO_NUMPY = {
    "bfloat16": "uint16",
    "complex32": "uint32",
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
        "uint8",
    ),
}


def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array."""
    return storage_dtype(dtype).itemsize * math.prod(shape)


Layout = list[tuple[str, str, tuple[int, ...], int]]
"""(key, name of the dtype, shape, offset in bytes) of each array in one piece of memory."""


def layout_of(arrays: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[Layout, int]:
    """Return the place of each array (key, name of the dtype, shape), and the total bytes."""
    layout: Layout = []
    at = 0
    for key, dtype, shape in arrays:
        layout.append((key, dtype, shape, at))
        at += align(storage_dtype(dtype).itemsize * math.prod(shape))
    return layout, at


def arrays_in(buffer: Any, layout: Layout) -> "list[Array]":
    """Return the arrays of a layout over ``buffer``, without a copy."""
    # all at once: a batch has a dozen, and each call counts
    return [
        np.ndarray(shape, storage_dtype(dtype), buffer, offset)
        for _, dtype, shape, offset in layout
    ]


def array_in(buffer: Any, dtype: str, shape: tuple[int, ...], offset: int) -> Array:
    """Return an array over part of ``buffer``, without a copy.

    Args:
        buffer: The memory.
        dtype: A type's name, as torch has it.
        shape: Shape of the array.
        offset: Offset of its first byte.
    """
    return np.ndarray(shape, storage_dtype(dtype), buffer, offset)


@dataclass(frozen=True)
class SharedPart:
    """Position of a pickled tensor, which `loads` needs to map it."""

    index: int | None
    """Index of the descriptor; None if the tensor is empty."""
    nbytes: int
    """Size of the shared memory behind the descriptor."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset of the first byte."""
    file: bool = False
    """Whether the descriptor is of a file on disk, open for reading."""


class PartMapper:
    """Maps parts of shared memory as arrays; each descriptor once.

    Args:
        fds: Descriptors of the shared memory; may be closed once all parts are mapped.
    """

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds
        self._mapped: dict[int, Any] = {}

    def array(self, part: SharedPart) -> Array:
        """Return ``part`` as an array, which keeps its memory mapped.

        Raises:
            SharedMemoryError: It cannot be mapped, or is smaller than stated.
        """
        if part.index is None:
            return np.empty(part.shape, storage_dtype(part.dtype))
        if part.index not in self._mapped:
            fd = self._fds[part.index]
            if os.fstat(fd).st_size < part.nbytes:  # touching missing bytes would be SIGBUS
                raise SharedMemoryError(part.nbytes, f"descriptor {fd} has fewer bytes")
            # not populated: a process touches only the rows of the graph that it samples
            address = map_fd(fd, part.nbytes, populate=False, file=part.file)
            buffer = self._mapped[part.index] = buffer_at(address, part.nbytes)
            weakref.finalize(buffer, unmap, address, part.nbytes).atexit = False
        return array_in(self._mapped[part.index], part.dtype, part.shape, part.offset)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, fds: list[int]) -> None:
        super().__init__(io.BytesIO(data))
        self._parts = PartMapper(fds)

    def persistent_load(self, pid: Any) -> Array:
        part: SharedPart = pid
        return self._parts.array(part)


def loads(data: bytes, fds: list[int]) -> Any:
    """Undo `gigl_loader.runtime.memory.tensors.dumps`, except that tensors come back as arrays.

    Only for bytes of this process or of the one that started it: a pickle can run any code.

    The caller has to close the descriptors.
    """
    return _Unpickler(data, fds).load()


_num_forks = 0


def _count_fork() -> None:
    global _num_forks
    _num_forks += 1


os.register_at_fork(before=_count_fork)


def num_forks() -> int:
    """Return how often this process has forked: a child has all memory that is shared then."""
    return _num_forks


def close_fds(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
