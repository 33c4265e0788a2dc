"""Host memory that a GPU reads: pinned where it lies, by the CUDA runtime that torch uses.

torch pins memory that it allocates itself, and rounds sizes up to a power of two. This pins what is
mapped already, page by page and no more: the slots of a channel, or the features of a graph in
shared memory, which then needs no copy. Without CUDA nothing happens.
"""

import contextlib
import logging
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gigl_loader.errors import ConfigError, PeerError
from gigl_loader.runtime.sizes import size_in_words

_log = logging.getLogger(__name__)

# Values of ``cudaError_t``, as numbers: torch names hardly any of them.
_SUCCESS = 0
_ALREADY_REGISTERED = 712
_HINTS = {
    # not RLIMIT_MEMLOCK: CUDA's driver pins pages itself, and no limit of the process counts them
    2: "the host has too little memory that can stay in place: free some, or pin less, with a "
    "smaller channel_size or fewer features on the host",
    1: "the range is not mapped memory of this process, or was unmapped",
    _ALREADY_REGISTERED: "part of the range is pinned already: pin every mapping once",
    801: "this system cannot pin such memory",
}


class PinMemoryError(PeerError):
    """CUDA refused to pin a range of host memory. ``code`` is its ``cudaError_t``."""

    def __init__(self, address: int, nbytes: int, code: int, reason: str) -> None:
        super().__init__(address, nbytes, code, reason)
        self.address, self.nbytes, self.code, self.reason = address, nbytes, code, reason

    def __str__(self) -> str:
        hint = _HINTS.get(self.code, "see the log of the driver")
        return (
            f"could not pin {self.nbytes / 2**20:.1f} MiB of host memory at {self.address:#x}: "
            f"{self.reason} (cudaError {self.code}); {hint}"
        )


class CudaHostRegistry:
    """The two calls needed of the CUDA runtime that torch uses (``torch.cuda.cudart()``).

    Args:
        device: The device whose context does the registering. (Without it the runtime would open a
            context on device 0, some hundred MiB there, from every process.)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.init()
        self._runtime: Any = torch.cuda.cudart()

    def register(self, address: int, nbytes: int) -> int:
        """Pin the range; a failure does not stay behind as the runtime's "last error"."""
        with torch.cuda.device(self._device):
            code = int(self._runtime.cudaHostRegister(address, nbytes, 0))
            if code != _SUCCESS:
                self._clear_last_error()
        return code

    def unregister(self, address: int) -> int:
        """Unpin the range."""
        with torch.cuda.device(self._device):
            code = int(self._runtime.cudaHostUnregister(address))
            if code != _SUCCESS:
                self._clear_last_error()
        return code

    def describe(self, code: int) -> str:
        """Return the runtime's text for ``code``; it may know none."""
        try:
            return str(self._runtime.cudaGetErrorString(self._runtime.cudaError(code)))
        except (AttributeError, TypeError, ValueError):
            return "refused by the CUDA runtime"

    def _clear_last_error(self) -> None:
        # The runtime keeps the code for the next query: torch queries after each kernel launch, and
        # would blame the user's. torch does not expose cudaGetLastError, so launch a kernel here: a
        # sum, as torch may fill memory without one.
        with contextlib.suppress(RuntimeError):  # this is the error being cleared
            torch.empty(1, device=self._device).add_(1)


class PinnedRange:
    """A range of mapped host memory that is pinned until `release`.

    Release it before the memory is unmapped. It unpins exactly once, whether by `release`, by
    ``with``, or when it is collected, and never in a forked child, which does not own the pinning.

    Args:
        address: Start of the range, as the operating system mapped it.
        nbytes: Its length in bytes, > 0.
        device: The CUDA device that will read it; None for the current one.
        registry: The runtime to use; None picks CUDA where there is any, else nothing is done.

    Raises:
        ConfigError: ``address`` or ``nbytes`` is not positive.
        PinMemoryError: The runtime refused.
    """

    def __init__(
        self,
        address: int,
        nbytes: int,
        device: torch.device | None = None,
        *,
        registry: CudaHostRegistry | None = None,
    ) -> None:
        if address <= 0 or nbytes <= 0:
            raise ConfigError(
                f"a pinned range needs address > 0 and nbytes > 0, got {address} and {nbytes}"
            )
        self.address, self.nbytes = address, nbytes
        registry = registry or default_registry(device)
        self._unpin: weakref.finalize[..., PinnedRange] | None = None
        if registry is None:
            return
        code = registry.register(address, nbytes)
        if code != _SUCCESS:
            raise PinMemoryError(address, nbytes, code, registry.describe(code))
        # A finaliser and no ``__del__``: it runs once, also where the range is part of a cycle. It
        # knows the process, as a fork copies it: unregistering there would be a call into a runtime
        # that does not work in a child.
        self._unpin = weakref.finalize(self, _unpin, registry, address, os.getpid())
        self._unpin.atexit = False  # the runtime may be gone by then, and unpins by itself

    @property
    def is_pinned(self) -> bool:
        """Whether the range is pinned now; always False without CUDA."""
        return self._unpin is not None and self._unpin.alive

    def release(self) -> None:
        """Unpin. Any further call does nothing."""
        if self._unpin is not None:
            self._unpin()


def _unpin(registry: CudaHostRegistry, address: int, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        registry.unregister(address)


def default_registry(device: torch.device | None) -> CudaHostRegistry | None:
    """Return what pins memory for a device; None: there is no CUDA, or none for it."""
    if not torch.cuda.is_available() or (device is not None and device.type != "cuda"):
        return None
    index = device.index if device is not None else None
    current = torch.cuda.current_device() if index is None else index
    return CudaHostRegistry(torch.device("cuda", current))


def pinned_tensors(
    tensors: Sequence[Tensor], device: torch.device
) -> tuple[list[Tensor], list[PinnedRange]]:
    """Return tensors with equal values in pinned memory, and the ranges that keep it pinned.

    They are the given ones, pinned where they lie, or where the system refuses that, as for some
    mapped files, copies of the same size.

    Args:
        tensors: Contiguous, on the host.
        device: The CUDA device that will read them.

    Raises:
        PinMemoryError: A copy cannot be pinned either.
    """
    ranges: list[PinnedRange] = []
    results, copied = list(tensors), 0
    for first, last, members in _page_ranges(tensors):
        try:
            ranges.append(PinnedRange(first, last - first, device))
        except PinMemoryError as error:
            why = error.reason
            for at in members:
                copied += tensors[at].nbytes
                block = mmap.mmap(-1, tensors[at].nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                host = torch.frombuffer(block, dtype=torch.uint8)
                results[at] = host.view(tensors[at].dtype).view(tensors[at].shape)
                results[at].copy_(tensors[at])
                ranges.append(PinnedRange(host.data_ptr(), _up(host.nbytes), device))
    if copied:
        _log.warning(
            "%s of the host could not be pinned where it lies (%s): a pinned copy takes as much "
            "memory again",
            size_in_words(copied),
            why,
        )
    return results, ranges


def _page_ranges(tensors: Sequence[Tensor]) -> list[tuple[int, int, list[int]]]:
    """Return ranges of pages that have no page in common, and the tensors in each by number.

    A page can be pinned once only, and tensors may share one.
    """
    spans = sorted(
        (
            tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE,
            _up(tensor.data_ptr() + tensor.nbytes),
            at,
        )
        for at, tensor in enumerate(tensors)
        if tensor.nbytes
    )
    ranges: list[tuple[int, int, list[int]]] = []
    for first, last, at in spans:
        if ranges and first < ranges[-1][1]:
            begin, end, members = ranges[-1]
            ranges[-1] = begin, max(end, last), [*members, at]
        else:
            ranges.append((first, last, [at]))
    return ranges


def _up(address: int) -> int:
    """Return the end of the page before ``address``."""
    return -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
