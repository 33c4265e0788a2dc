"""No operation waits for its device: all of it runs on tensors that have no values.

A fake tensor has a device, a type and a shape. An operator whose shape depends on values raises
there, and so does what reads a value: both would make the host wait for the device. The device is
"meta", which is not the CPU either: a tensor made on the wrong device raises. ("cuda" would do
only in a torch that was built for it.)
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch._subclasses.fake_tensor import DynamicOutputShapeException as ShapeOfValues

from gigl_loader.dataset.partition.partition_view import Adjacency, TimeOrder
from gigl_loader.sampler.gpu.device_graph import edge_ids_at
from gigl_loader.sampler.gpu.device_kernels import (
    DeviceDraw,
    DeviceLabels,
    TorchKernels,
    TypedPlaces,
)
from gigl_loader.sampler.plan import Draw

DEVICE = torch.device("meta")
EDGE_TYPE = ("node", "to", "node")


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=DEVICE)


def _draw(draw: Draw, width: int) -> None:
    weights = torch.zeros(50, device=DEVICE) if draw.with_weight else None
    asked = DeviceDraw(
        draw,
        Adjacency(_ints(11), _ints(50), None, weights),
        _ints(8),
        _ints(8),
        _ints(1),
        width,
        largest_degree=30,
    )
    if draw.timed:
        order = TimeOrder(_ints(50), _ints(50), is_float=False)
        asked = DeviceDraw(
            draw,
            asked.adjacency,
            asked.rows,
            asked.ids,
            asked.keys,
            width,
            times=order,
            until=_ints(8),
            since=_ints(8),
        )
    drawn = TorchKernels(DEVICE).draw(asked)
    assert drawn.edges.shape == (8, width)
    assert drawn.edges.device == drawn.counts.device == DEVICE


@pytest.mark.parametrize("fanout", [-1, 0, 4])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"timed": True},
        {"timed": True, "last": True},
        {"with_weight": True},
        {"method": "labor"},
        {"method": "labor", "with_weight": True},
    ],
    ids=["uniform", "timed", "last", "weighted", "labor", "weighted labor"],
)
def test_no_draw_waits(fanout: int, replace: bool, how: dict[str, Any]) -> None:
    with FakeTensorMode():
        _draw(Draw(EDGE_TYPE, fanout, 2**64 - 1, replace=replace, **how), max(fanout, 0) or 30)


@pytest.mark.parametrize("how", [{}, {"method": "labor"}])
def test_edges_on_the_host_are_read_there(how: dict[str, Any]) -> None:
    """An operator that takes tensors of two devices raises."""
    with FakeTensorMode():
        ends = torch.zeros(50, dtype=torch.int64)
        view, kernels = Adjacency(_ints(11), ends, ends.clone(), None), TorchKernels(DEVICE)
        draw = Draw(EDGE_TYPE, 4, 2**64 - 1, **how)
        drawn = kernels.draw(
            DeviceDraw(draw, view, _ints(8), _ints(8), _ints(1), 4, largest_degree=30)
        )
        for found in (drawn.neighbors, edge_ids_at(view, drawn.edges, kernels)):
            assert (found.device, found.dtype, found.shape) == (DEVICE, torch.int64, (8, 4))


def test_no_label_waits() -> None:
    with FakeTensorMode():
        labels = DeviceLabels(_ints(40), _ints(2), [0, 25, 40], _ints(3))
        found = TorchKernels(DEVICE).label(labels, _ints(20), TypedPlaces([12, 8], _ints(2)))
        assert found.shape == (20,)
        assert labels.counts.shape == (2,)


@pytest.mark.parametrize(
    ("waits", "error"),
    [
        (lambda values: values.sum().item(), DataDependentOutputException),
        (lambda values: values[values > 0], ShapeOfValues),
        (lambda values: values.unique(), ShapeOfValues),
        (lambda values: values.repeat_interleave(values), ShapeOfValues),
        (lambda values: values + torch.arange(8), RuntimeError),
    ],
)
def test_what_waits_is_seen(
    waits: Callable[[torch.Tensor], object], error: type[Exception]
) -> None:
    with FakeTensorMode(), pytest.raises(error):
        waits(_ints(8))
