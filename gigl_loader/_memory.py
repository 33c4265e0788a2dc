"""Shared memory that leaves nothing behind: anonymous files (``memfd``), never names in /dev/shm.

A ``memfd`` has no name, so it is gone with its last user, however that user ends; and it does not
count against the size of /dev/shm, which containers keep small.

Two uses. Long-lived tensors (graph, features, seeds) are shared as they are: `share_tensor` moves
one there, `dumps` pickles any object with its tensors replaced by file descriptors, `loads` maps
them in another process without a copy. Messages live in `Segment`: one mapping, recycled.
"""

import ctypes
import ctypes.util
import io
import mmap
import os
import pickle
from typing import Any

import torch
from torch import Tensor

from gigl_loader.errors import PeerError

ALIGNMENT = 64
"""Bytes to which every tensor inside a segment is aligned: one cache line."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class SharedMemoryError(PeerError, OSError):
    """The machine could not give the shared memory that was asked for."""

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
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, max(nbytes, 1))
    except OSError as error:
        os.close(fd)
        raise SharedMemoryError(nbytes, os.strerror(error.errno or 0)) from error
    return fd


def map_fd(fd: int, nbytes: int) -> int:
    """Map ``nbytes`` bytes of ``fd`` for reading and writing; return the address.

    The descriptor may be closed afterwards. (``mmap.mmap`` keeps a duplicate of it, and a loop that
    keeps many batches would run out of descriptors.)
    """
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise SharedMemoryError(nbytes, os.strerror(ctypes.get_errno()))
    return int(address)


def unmap(address: int, nbytes: int) -> None:
    """Undo `map_fd`."""
    _libc.munmap(address, nbytes)


def buffer_at(address: int, nbytes: int) -> Any:
    """Return an object with the buffer protocol over mapped memory; it owns nothing.

    It takes weak references, and every tensor made of it by ``torch.frombuffer`` keeps it alive.
    """
    return (ctypes.c_char * nbytes).from_address(address)


def tensor_in(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    """Return a tensor over part of ``buffer``, without a copy. ``offset`` is in bytes."""
    count = 1
    for size in shape:
        count *= size
    if count == 0:  # torch.frombuffer refuses empty tensors
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset).view(shape)


def share_tensor(tensor: Tensor) -> Tensor:
    """Return ``tensor`` (CPU) in memory that `dumps` can hand to another process.

    Copies once, unless it is in shared memory already or is empty.
    """
    if tensor.is_shared() or tensor.numel() == 0:
        return tensor
    nbytes = tensor.numel() * tensor.element_size()
    fd = create_memfd(nbytes, "gigl_loader.tensor")
    try:
        shared = _map_shared_tensor(fd, nbytes, tensor.dtype, tuple(tensor.shape))
    finally:
        os.close(fd)
    shared.copy_(tensor)
    return shared


def _map_shared_tensor(
    fd: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...], offset: int = 0
) -> Tensor:
    # torch's own shared storage, so that GLT and torch.multiprocessing see it as shared; it
    # duplicates the descriptor itself
    storage: Any = torch.UntypedStorage
    storage = storage._new_shared_fd_cpu(fd, nbytes)
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.fds: list[int] = []
        self._index: dict[int, tuple[int, int]] = {}  # storage address -> (index in fds, bytes)
        self._keep: list[Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        shape, dtype = tuple(obj.shape), obj.dtype
        if obj.numel() == 0:
            return (None, 0, dtype, shape, 0)
        tensor = share_tensor(obj.detach().contiguous())
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._index:
            fd, nbytes = storage._share_fd_cpu_()
            self._index[address] = (len(self.fds), nbytes)
            self.fds.append(os.dup(fd))  # the storage closes its own when it goes
            self._keep.append(tensor)
        index, nbytes = self._index[address]
        return (index, nbytes, dtype, shape, tensor.storage_offset())


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, fds: list[int]) -> None:
        super().__init__(io.BytesIO(data))
        self._fds = fds

    def persistent_load(self, pid: Any) -> Tensor:
        index, nbytes, dtype, shape, offset = pid
        if index is None:
            return torch.empty(shape, dtype=dtype)
        return _map_shared_tensor(self._fds[index], nbytes, dtype, shape, offset)


def dumps(obj: Any) -> tuple[bytes, list[int]]:
    """Pickle ``obj``; its tensors become descriptors that the caller sends along, then closes."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(obj)
    return file.getvalue(), pickler.fds


def loads(data: bytes, fds: list[int]) -> Any:
    """Undo `dumps`; the descriptors stay the caller's to close."""
    return _Unpickler(data, fds).load()


def close_fds(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
