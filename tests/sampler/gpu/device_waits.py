"""A counter of the operators for which a host would wait, if all tensors were on a device."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gigl_loader.sampler.gpu.device_sampler import DeviceSampler

_READS = {Tensor.tolist, Tensor.numpy, Tensor.cpu}
_MAKES = {torch.arange, torch.empty, torch.full, torch.ones, torch.tensor, torch.zeros}


class _Reads(TorchFunctionMode):
    """Counts what reads values without an operator, and tensors made where no device is named.

    The first as the memory is the host's already; the others lie on the host, and come by a copy.
    """

    def __init__(self, counts: Counter[str], on_host: Iterable[Tensor]) -> None:
        super().__init__()
        self._counts, self._on_host = counts, {id(tensor) for tensor in on_host}

    def __torch_function__(self, job: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if job in _READS and id(args[0]) not in self._on_host:
            self._counts[job.__name__] += 1
        self._counts[job.__name__] += job in _MAKES and "device" not in (kwargs or {})
        return job(*args, **(kwargs or {}))


class _Waits(TorchDispatchMode):
    """Counts operators whose result, or its shape, depends on values."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, job: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
        waits = bool(kinds & set(job.tags))
        if job is torch.ops.aten.index.Tensor:  # its shape depends on masks alone
            waits = any(at is not None and at.dtype == torch.bool for at in args[1])
        self._counts[str(job)] += waits
        return job(*args, **(kwargs or {}))


@contextmanager
def waits_counted(on_host: Iterable[Tensor] = ()) -> Iterator[Counter[str]]:
    """Count waits inside the block, by operator; what is read of ``on_host`` waits for nothing."""
    counts: Counter[str] = Counter()
    with _Reads(counts, on_host), _Waits(counts):
        yield counts
    for name in [name for name, count in counts.items() if not count]:
        del counts[name]


@contextmanager
def no_launch_waits() -> Iterator[None]:
    """Make sure that loaders on devices wait for nothing when they launch and finish batches."""
    counts: Counter[str] = Counter()

    def counting(name: str) -> Any:
        step = getattr(DeviceSampler, name)

        def counted(*args: Any) -> Any:
            with waits_counted() as waits:
                result = step(*args)
            counts.update(waits)
            return result

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("launch", "finish"):
            patch.setattr(DeviceSampler, name, counting(name))
        yield
    assert not +counts, f"the host would wait for {+counts}"
