"""A stand-in for CUDA graphs on the CPU: what was launched once is launched again from a tape.

As with a CUDA graph, no Python of ours runs in a replay. Operators and Warp's programs read the
tensors that they were given, with the numbers that they were given, and write to the memory that
they wrote to. So a batch that needs anything else of the host comes out wrong.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.sampler.gpu.warp_kernels import WarpKernels

T = TypeVar("T")
_LAUNCH = WarpKernels._launch
"""Counters of launches, which tests put in its place, see no replay."""
_WITHOUT_VALUES = ("aten.empty", "aten.new_empty")
"""Operators that return memory: what is in it is what later ones wrote."""


class _Tape(TorchDispatchMode):
    """Records operators, with the tensors and numbers that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Callable[[], None]] = []

    def __torch_dispatch__(self, job: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = job(*args, **(kwargs or {}))
        if not job.is_view and not str(job).startswith(_WITHOUT_VALUES):
            self.launches.append(lambda: _again(job, args, kwargs or {}, result))
        return result


def _again(job: Any, args: Any, kwargs: Any, result: Any) -> None:
    once_more = job(*args, **kwargs)
    for old, new in zip(tree_leaves(result), tree_leaves(once_more), strict=True):
        if isinstance(old, Tensor) and old is not new:  # else it was written in place
            old.copy_(new)


class TapedMemory(DeviceMemory):
    """Memory of a device that replays what was launched."""

    num_captured: ClassVar[int] = 0
    num_launches: ClassVar[int] = 0
    """Operators and programs on the tapes."""

    @property
    def can_capture(self) -> bool:
        return True

    def uploaded(self, host: Tensor) -> Tensor:
        return host.clone()  # on the CPU `to` would return the same memory

    def captured(self, job: Callable[[], T], nbytes: int) -> tuple[T, Callable[[], None]]:
        tape = _Tape()

        def launched(*args: Any) -> None:
            with _disable_current_modes():
                _LAUNCH(*args)
            tape.launches.append(lambda: _LAUNCH(*args))

        with pytest.MonkeyPatch.context() as patch, tape:
            patch.setattr(WarpKernels, "_launch", launched)
            result = job()
        TapedMemory.num_captured += 1
        TapedMemory.num_launches += len(tape.launches)

        def replay() -> None:
            with _disable_current_modes():
                for again in tape.launches:
                    again()

        return result, replay
