"""Tensors in shared memory: the trainer's side of `memory.segments`; pages of memory.

A batch reads rows all over gigabytes. With pages of 4 KiB, nearly every row needs a page table
entry that the processor does not have at hand; one huge page replaces 512 of them.

There are two kinds. Pages that an administrator has reserved (``vm.nr_hugepages``) are used if
enough are free. Else the kernel is asked to make some of its memory huge pages, which it does if
``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` is ``advise`` or more. The choice is not
reported, and nothing fails without huge pages.
"""

import contextlib
import ctypes
import functools
import io
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from gigl_loader.runtime.anonymous_files import new_memfd
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.memory.same_host import Description, Offer, OwnHostProof, Region
from gigl_loader.runtime.memory.segments import (
    Array,
    SharedPart,
    buffer_at,
    close_fds,
    loads,
    map_fd,
    nbytes_of,
    storage_dtype,
    unmap,
)
from gigl_loader.runtime.system import meminfo, number_in
from gigl_loader.runtime.transport.codec import ARRAY_EXTENSION

_LEAST_PAGES = 16
"""Smallest tensor: its last page is not full, and a small tensor stays in the cache anyway."""
_ROOT = ""
"""Parent of ``/proc`` and ``/sys``, if not ``/``."""
_SET_ASIDE = "/sys/kernel/mm/hugepages/hugepages-{}kB/{}_hugepages"
_MADE = "/sys/kernel/mm/transparent_hugepage/{}"
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``: enter pages as if written to, and report where that fails."""

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _memory_of_a_graph(nbytes: int, name: str) -> tuple[int, int]:
    """Return (descriptor, bytes) of a new anonymous file of ``nbytes``, with all its pages.

    It may be larger, up to the end of a huge page: map and unmap all of it.

    Args:
        nbytes: The least size.
        name: As `segments.create_memfd` takes it.

    Raises:
        SharedMemoryError: No memory of any kind is left for it.
    """
    with contextlib.suppress(OSError):
        if memory := _of_pages_set_aside(nbytes, name):
            return memory
    fd = new_memfd(name)
    try:
        # in this order: reserved memory gets small pages, which leaves no place for huge ones
        _ask_for_huge_pages(fd, nbytes)
        segments.reserve(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd, nbytes


def _of_pages_set_aside(nbytes: int, name: str) -> tuple[int, int] | None:
    """Do `_memory_of_a_graph` with pages set aside for this; None if too few are free.

    Raises:
        OSError: Others took them, or this container may not have them.
    """
    page = _size_set_aside(_ROOT)
    if page == 0 or nbytes < _LEAST_PAGES * page:
        return None
    # promised: reserved by others; they count as free until they are touched
    free, promised = (
        number_in(_ROOT + _SET_ASIDE.format(page // 1024, which)) or 0 for which in ("free", "resv")
    )
    reserved = -(-nbytes // page) * page
    if (free - promised) * page < reserved:
        return None
    fd = new_memfd(name, huge_pages=True)
    try:
        os.posix_fallocate(fd, 0, reserved)  # all of them now: a page that is missing is SIGBUS
    except OSError:
        os.close(fd)
        raise
    return fd, reserved


def _ask_for_huge_pages(fd: int, nbytes: int) -> None:
    """Fill an anonymous file that has no pages with huge ones, if the kernel makes any.

    It makes them for memory that is mapped and marked. A part that it does not fill is unchanged.
    """
    page = _size_made(_ROOT)
    if page is None or nbytes < _LEAST_PAGES * page or _has_no_huge_pages():
        return
    os.ftruncate(fd, nbytes)  # beyond the end of a file, a mapping has no pages to enter
    with contextlib.suppress(segments.SharedMemoryError):
        address = segments.map_fd(fd, nbytes, populate=False)
        _libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)
        # a kernel before 5.14 does not know it: then `segments.reserve` enters small pages
        _libc.madvise(address, nbytes, _POPULATE_WRITE)
        # the pages belong to the file, and stay; torch maps it itself
        segments.unmap(address, nbytes)


# of the kernel, the same until the next boot: a graph has hundreds of tensors, and each would read
# the files again
@functools.cache
def _size_set_aside(root: str) -> int:
    return meminfo("Hugepagesize", root)


@functools.cache
def _size_made(root: str) -> int | None:
    return number_in(root + _MADE.format("hpage_pmd_size"))


def _has_no_huge_pages() -> bool:
    """Return whether the kernel makes no huge pages for shared memory."""
    try:
        with open(_ROOT + _MADE.format("shmem_enabled")) as file:
            words = file.read()
    except OSError:
        return True
    return "[never]" in words or "[deny]" in words


def give_back_freed() -> None:
    """Let malloc return unused pages of all its heaps to the kernel.

    By itself glibc keeps tens of MiB: it shrinks a heap only from the top. After the first large
    block is freed, it also waits for twice that much to be free there. Takes a few milliseconds.
    Does nothing with another libc.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a type, ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """Undo `dtype_name`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def as_array(tensor: Tensor) -> Array:
    """Return the bits of a CPU tensor as an array over the same memory (a copy if not contiguous).

    The array is of `gigl_loader.runtime.memory.segments.storage_dtype`.
    """
    # numpy rejects tensors that need gradients, or that have a pending conjugation or negation
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    storage = storage_dtype(dtype_name(tensor.dtype))
    if storage.name != dtype_name(tensor.dtype):
        tensor = tensor.view(dtype_named(storage.name))
    return tensor.numpy()


def each_tensor(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return ``value`` with ``change`` applied to each tensor, in dicts and dataclasses."""
    # not a nested function: one that calls itself is a cycle, and would keep the tensors' memory
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each_tensor(item, change) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: each_tensor(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **changed)
    return value


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor as a view, not a copy."""
    flat = tensor.as_strided((tensor.numel(),), (1,))  # of one element, any stride is contiguous
    return flat.view(torch.uint8).numpy().data


def tensor_in(buffer: Any, dtype: str, shape: tuple[int, ...], offset: int) -> Tensor:
    """Return a tensor over part of ``buffer``: see `memory.segments.array_in`."""
    count = math.prod(shape)
    if count == 0:  # torch.frombuffer refuses empty tensors
        return torch.empty(shape, dtype=dtype_named(dtype), device="cpu")
    return torch.frombuffer(buffer, dtype=dtype_named(dtype), count=count, offset=offset).view(
        shape
    )


def tensors_in(buffer: Any, layout: segments.Layout) -> dict[str, Tensor]:
    """Return all tensors of a layout over ``buffer``, by key; see `tensor_in`."""
    found = {}
    for key, dtype, shape, offset in layout:
        count, kind = math.prod(shape), getattr(torch, dtype)
        if count == 0:  # torch.frombuffer refuses empty tensors
            found[key] = torch.empty(shape, dtype=kind, device="cpu")
        else:
            flat = torch.frombuffer(buffer, dtype=kind, count=count, offset=offset)
            found[key] = flat if len(shape) == 1 else flat.view(shape)
    return found


def share_tensor(tensor: Tensor) -> Tensor:
    """Return ``tensor`` (CPU) in memory that `dumps` can hand to another process.

    Copies once, unless it is in shared memory or a mapped file already, or is empty.
    """
    if can_be_offered(tensor):
        return tensor
    # not torch's own `Tensor.share_memory_`: that takes a file of /dev/shm, which containers
    # keep small, and does not reserve it, so that a full one ends the process with SIGBUS
    shared = empty_shared(tuple(tensor.shape), tensor.dtype)
    shared.copy_(tensor)
    return shared


def can_be_offered(tensor: Tensor) -> bool:
    """Return whether other processes can map ``tensor`` (CPU) as it is, without a copy."""
    return tensor.is_shared() or tensor.numel() == 0 or is_mapped_file(tensor)


def empty_shared(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor in shared memory, to be filled in place.

    It uses huge pages if there are some.

    Raises:
        SharedMemoryError: Too little memory is left.
    """
    nbytes = math.prod(shape) * torch.empty((), dtype=dtype, device="cpu").element_size()
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    fd, reserved = _memory_of_a_graph(nbytes, "gigl_loader.tensor")
    try:
        return map_shared_tensor(fd, reserved, dtype, shape)
    finally:
        os.close(fd)


def map_shared_tensor(fd: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the first ``nbytes`` bytes of ``fd`` as a contiguous tensor; ``fd`` may be closed.

    The storage is torch's own kind of shared one: GLT and torch.multiprocessing see it as shared.
    """
    storage: Any = torch.UntypedStorage
    storage = storage._new_shared_fd_cpu(fd, nbytes)
    # torch's copy of the descriptor: a program that this process starts would keep the memory
    os.set_inheritable(storage._share_fd_cpu_()[0], False)
    # contiguous, by torch's own rule; a tensor on "meta" has no memory
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


# --- files on disk --------------------------------------------------------------------------------

_mapped_files: dict[int, tuple[int, int, "weakref.ref[Any]"]] = {}
"""By address of a mapping that `map_file` made: (descriptor, bytes, the buffer over it)."""


def map_file(path: Path, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return a file of bare numbers as a tensor over the page cache; nothing is read yet.

    `dumps` hands it to other processes as the file's descriptor. Writes to the tensor stay in this
    process; the file does not change.

    Args:
        path: The file, of the tensor's size in bytes.
        dtype: A type's name, as torch has it.
        shape: Shape of the tensor.

    Raises:
        SharedMemoryError: The system does not map it.
    """
    nbytes = nbytes_of(dtype, shape)
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype_named(dtype), device="cpu")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        address = map_fd(fd, nbytes, populate=False, file=True)
    except BaseException:
        os.close(fd)
        raise
    buffer = buffer_at(address, nbytes)
    # the descriptor stays open: `dumps` hands it on
    _mapped_files[address] = (fd, nbytes, weakref.ref(buffer))
    weakref.finalize(buffer, _unmap_file, address).atexit = False
    return tensor_in(buffer, dtype, shape, 0)


def _unmap_file(address: int) -> None:
    # in this order: once it is unmapped, another thread may map a file to the same address
    fd, nbytes, _ = _mapped_files.pop(address)
    unmap(address, nbytes)
    os.close(fd)


def mapping_of(tensor: Tensor) -> tuple[int, Any]:
    """Return the descriptor of the file that `map_file` mapped, and what keeps it open.

    The tensor alone does not: torch moves its values to other memory when it sends them.
    """
    fd, _, buffer = _mapped_files[tensor.untyped_storage().data_ptr()]
    return fd, buffer()


def is_mapped_file(tensor: Tensor) -> bool:
    """Return whether `map_file` made the memory of ``tensor``."""
    return tensor.untyped_storage().data_ptr() in _mapped_files


class SharedTensors:
    """Tensors of one object in shared memory; those of one storage share a descriptor."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.tensors: list[Tensor] = []
        """Open as long as these tensors are kept."""
        self._index: dict[int, tuple[int, int]] = {}  # storage address -> (index in fds, bytes)

    def part_of(self, obj: Any) -> SharedPart:
        """Return where a tensor lies; it is copied to shared memory unless it is there already.

        Raises:
            TypeError: ``obj`` is no tensor.
        """
        if not isinstance(obj, Tensor):
            raise TypeError(f"a {type(obj).__name__} cannot be shared")
        shape, dtype = tuple(obj.shape), dtype_name(obj.dtype)
        if obj.numel() == 0:
            return SharedPart(None, 0, dtype, shape, 0)
        # a contiguous view of shared memory stays one: its whole storage is handed on, once for all
        # its views. A copy has its own storage
        tensor = share_tensor(obj.detach().resolve_conj().resolve_neg().contiguous())
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        file = is_mapped_file(tensor)
        if address not in self._index:
            fd, nbytes = _mapped_files[address][:2] if file else storage._share_fd_cpu_()
            self._index[address] = (len(self.fds), nbytes)
            self.fds.append(fd)
            self.tensors.append(tensor)
        index, nbytes = self._index[address]
        offset = int(tensor.storage_offset()) * tensor.element_size()
        return SharedPart(index, nbytes, dtype, shape, offset, file)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.shared = SharedTensors()

    def persistent_id(self, obj: Any) -> Any:
        return self.shared.part_of(obj) if isinstance(obj, Tensor) else None


def dumps(obj: Any) -> tuple[bytes, list[int]]:
    """Pickle ``obj`` for a process that this one started; its tensors become descriptors.

    `gigl_loader.runtime.memory.segments.loads` undoes it.

    Returns:
        (pickle, descriptors); the caller sends the descriptors along, then closes them.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(obj)
    # duplicates: the tensors that were copied to be shared end with the pickler, here, and close
    # their descriptors
    fds: list[int] = []
    try:
        for fd in pickler.shared.fds:
            fds.append(os.dup(fd))
    except OSError:
        close_fds(fds)
        raise
    return file.getvalue(), fds


def as_received(obj: Any) -> Any:
    """Return ``obj`` as a receiving process sees it: tensors are arrays, not copied."""
    # the full path, descriptors too, so that samplers get no second form
    data, fds = dumps(obj)
    try:
        return loads(data, fds)
    finally:
        close_fds(fds)


class Offered:
    """A value of this process for others of the machine to map, while this object is open.

    `gigl_loader.runtime.memory.same_host.read_offer` maps it.

    Args:
        value: A dataclass of types that the transport's codec takes, with tensors for arrays.
    """

    def __init__(self, value: Any) -> None:
        shared = SharedTensors()
        parts: list[SharedPart] = []

        def beside(tensor: Any) -> object:
            parts.append(shared.part_of(tensor))
            number = (len(parts) - 1).to_bytes(4, "little")
            return msgspec.msgpack.Ext(ARRAY_EXTENSION, number)

        # types that msgpack does not know are tensors: the body has a tensor's number, as the
        # transport writes arrays, and its place is kept beside it
        body = msgspec.msgpack.encode(value, enc_hook=beside)
        regions = tuple(Region.of(fd, os.fstat(fd).st_size) for fd in shared.fds)
        data = msgspec.msgpack.encode(Description(regions, tuple(parts), body))
        fd = segments.create_memfd(len(data), "gigl_loader.offer")
        os.pwrite(fd, data, 0)
        self._mark = OwnHostProof()
        self.offer = Offer(self._mark.mark, Region.of(fd, len(data)))
        self._release = weakref.finalize(self, _release_offer, fd, shared.tensors)

    def close(self) -> None:
        """Stop offering it; processes that have mapped it keep it. Idempotent."""
        self._release()
        self._mark.close()


def _release_offer(fd: int, tensors: list[Any]) -> None:
    os.close(fd)
    tensors.clear()  # closes their descriptors, which were offered, too
