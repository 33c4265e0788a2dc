"""Counters of what the host does for a batch on a device: operators, launches, waits, exchanges.

None of it needs a GPU: the host launches the same on the CPU, by the same code.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from gigl_loader.device.memory import DeviceMemory
from gigl_loader.in_process.collective import CollectivePeers
from gigl_loader.on_device.sampler import DeviceSampler
from gigl_loader.on_device.warp_kernels import WarpKernels
from gigl_loader.ranks import RankExchange

STEPS = ("place", "launch", "cut", "tell", "finish")
"""Methods of `DeviceSampler` for a batch."""


class _Operators(TorchDispatchMode):
    """Counts torch's operators, views apart: these launch nothing on a device."""

    def __init__(self, counts: Counter[str], names: Counter[str]) -> None:
        super().__init__()
        self._counts, self._names = counts, names

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kind = "views" if operator.is_view or "empty" in str(operator) else "operators"
        self._counts[kind] += 1
        if kind == "operators":
            self._names[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


@contextmanager
def counted(names: Counter[str] | None = None) -> Iterator[Counter[str]]:
    """Count, inside the block, what samplers on devices do for their batches, in any thread.

    The counts are ``operators`` and ``views`` of torch, ``launches`` of Warp, ``waits`` of the host
    for its device, ``swaps`` between devices and ``meetings`` of the ranks' hosts.
    """
    counts: Counter[str] = Counter()
    names = Counter() if names is None else names

    def noted(owner: Any, name: str, kind: str) -> None:
        job = getattr(owner, name)

        def counting(*args: Any, **keywords: Any) -> Any:
            counts[kind] += 1
            return job(*args, **keywords)

        patch.setattr(owner, name, counting)

    def by_operator(name: str) -> None:
        job: Callable[..., Any] = getattr(DeviceSampler, name)

        def counting(*args: Any, **keywords: Any) -> Any:
            with _Operators(counts, names):  # a mode is one thread's, and lanes are threads
                return job(*args, **keywords)

        patch.setattr(DeviceSampler, name, counting)

    with pytest.MonkeyPatch.context() as patch:
        for step in STEPS:
            by_operator(step)
        noted(WarpKernels, "_launch", "launches")
        noted(DeviceMemory, "wait", "waits")
        noted(RankExchange, "swap_values", "swaps")
        noted(CollectivePeers, "meet", "meetings")
        yield counts
