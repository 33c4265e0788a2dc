"""Counters of what the host does for a batch on a device: operators, launches, waits, exchanges.

None of it needs a GPU: the host launches the same on the CPU, by the same code.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.runtime.ranks.collectives import RankExchange
from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sampler.gpu.device_sampler import DeviceSampler
from gigl_loader.sampler.gpu.warp_kernels import WarpKernels
from gigl_loader.sources.in_process import device_rows, device_source, partitioned_graph
from gigl_loader.sources.in_process.collective import CollectivePeers

STEPS = ("place", "launch", "cut", "tell", "finish")
"""Methods of `DeviceSampler` for a batch."""


_LAUNCH_NOTHING = {
    "aten._unsafe_view.default",
    "aten.empty.memory_format",
    "aten.new_empty.default",
    "aten.empty_like.default",
    "aten.scalar_tensor.default",
}
"""Views, memory, and numbers of the host."""


class _Operators(TorchDispatchMode):
    """Counts torch's operators, except for those that launch nothing on a device."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not operator.is_view and str(operator) not in _LAUNCH_NOTHING:
            self._counts["operators"] += 1
        return operator(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count, inside the block, what samplers on devices do for their batches, in any thread.

    The counts are ``operators`` of torch, ``launches`` of Warp, ``draws`` of all kernels,
    ``uploads`` and ``downloads``, ``waits`` of the host for its device, ``swaps`` between devices,
    the ``numbers`` that these send, and ``meetings`` of the ranks' hosts.
    """
    counts: Counter[str] = Counter()

    def noted(owner: Any, name: str, kind: str, size: Callable[..., int] = lambda *_: 1) -> None:
        job = getattr(owner, name)

        def counting(*args: Any, **keywords: Any) -> Any:
            counts[kind] += size(*args)
            return job(*args, **keywords)

        patch.setattr(owner, name, counting)

    def by_operator(name: str) -> None:
        job: Callable[..., Any] = getattr(DeviceSampler, name)

        def counting(*args: Any, **keywords: Any) -> Any:
            with _Operators(counts):  # a mode is one thread's, and lanes are threads
                return job(*args, **keywords)

        patch.setattr(DeviceSampler, name, counting)

    with pytest.MonkeyPatch.context() as patch:
        for step in STEPS:
            by_operator(step)
        noted(WarpKernels, "_launch", "launches")
        noted(WarpKernels, "draw", "draws")
        noted(TorchKernels, "draw", "draws")
        noted(DeviceMemory, "uploaded", "uploads")
        noted(DeviceMemory, "downloaded", "downloads")
        for owner in (device_rows, device_source, partitioned_graph):
            if hasattr(owner, "wait_for_ranks"):
                noted(owner, "wait_for_ranks", "waits")
        noted(DeviceSampler, "_wait", "waits")
        noted(RankExchange, "all_to_all_values", "swaps")
        noted(RankExchange, "all_to_all_values", "numbers", lambda ranks, sent, *_: sent.numel())
        noted(CollectivePeers, "meet", "meetings")
        yield counts
