"""A CPU in the place of each GPU, for scripts that have no words for a machine without one.

On ``PYTHONPATH``, Python imports this module in each process that a script starts.
"""

import sys
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn import parallel

_device, _init, _parallel = torch.device, dist.init_process_group, parallel.DistributedDataParallel


class _Devices(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _device)


class _Device(metaclass=_Devices):
    """``torch.device`` without GPUs."""

    def __new__(cls, *_: Any) -> Any:
        return _device("cpu")


def _init_process_group(backend: str, **how: Any) -> None:
    assert backend in ("nccl", "gloo")
    _init("gloo", **how)


def _in_parallel(model: Any, device_ids: list[None]) -> Any:
    assert device_ids == [None]
    return _parallel(model)


class _Evaluator:
    """``ogb.nodeproppred.Evaluator``: the share of right predictions."""

    def __init__(self, name: str) -> None:
        assert name == "ogbn-products"

    def eval(self, values: dict[str, torch.Tensor]) -> dict[str, float]:
        right = values["y_true"] == values["y_pred"]
        return {"acc": right.double().mean().item()}


def _one() -> int:
    return 1


def _set_device(*_: Any) -> None:
    """Do nothing: there is one."""


def _synchronize(*_: Any) -> None:
    """Do nothing: it is never busy."""


torch.cuda.device_count = _one
torch.cuda.set_device, torch.cuda.synchronize = _set_device, _synchronize  # type: ignore[assignment]
sys.modules["ogb"] = mock.MagicMock()
sys.modules["ogb.nodeproppred"] = mock.MagicMock(Evaluator=_Evaluator)
for name in ("gigl_loader.glt", "torch_geometric.nn", "torch.distributed.algorithms.join"):
    import_module(name)  # what asks for torch.device as it is imported
torch.device = _Device  # type: ignore[assignment,misc]
dist.init_process_group = _init_process_group  # type: ignore[assignment]
parallel.DistributedDataParallel = _in_parallel  # type: ignore[assignment,misc]
