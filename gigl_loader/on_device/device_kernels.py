"""A device's computations for a batch: draws and labels, in tensors whose sizes the host knows.

A host that asked the device for the size of each result would wait for it at every hop. So a result
has its largest possible size, known from the fan-outs, and its unused places are marked.
Two implementations return the same bits as `sampler.compiled` on the CPU:
`torch_kernels` in plain operators, for any device, and `warp_kernels`, compiled, for CUDA (and, in
tests, for the CPU).
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gigl_loader.dataset.view import Adjacency, TimeOrder
from gigl_loader.sampler.plan import Draw


@dataclass(frozen=True)
class DeviceDraw:
    """A request for neighbours of some nodes, on one device except for the numbers."""

    draw: Draw
    adjacency: Adjacency[Tensor]
    rows: Tensor
    """``[n]`` int64, the row of each node in the adjacency; -1: no node, an unused place."""
    ids: Tensor
    """``[n]`` int64, the key of each row's draw: the node's id, in disjoint trees
    ``id + tree * nodes of the type``."""
    width: int
    """Most neighbours of a row: the fan-out or, if that is -1, the largest degree."""
    times: TimeOrder[Tensor] | None = None
    """Rows by time, if the draw is by time."""
    until: Tensor | None = None
    """``[n]`` int64, the latest time of a neighbour; None: any."""
    since: Tensor | None = None
    """``[n]`` int64, the earliest; None: any."""
    largest_degree: int | None = None
    """Most edges of a row of the adjacency. Only weighted draws and LABOR need it: they read whole
    rows, however few neighbours they draw."""


@dataclass(frozen=True)
class DeviceDrawn:
    """Positions of the drawn edges in the adjacency (canonical order, also where drawn by time)."""

    offsets: Tensor
    """``[n, width]`` int64; a row's draws are its first ``counts`` places, the rest is 0."""
    counts: Tensor
    """``[n]`` int64."""


@dataclass
class DeviceLabels:
    """The nodes of a batch of one type, by label: 0, 1, 2... in order of first appearance."""

    keys: Tensor
    """``[capacity]`` int64: ids, or ``tree << bits | id`` of disjoint trees; the first ``count``
    are nodes, the rest is -1."""
    count: Tensor
    """``[]`` int64, on the device."""


class Kernels(Protocol):
    """The operations on one device. One object per sampling thread: it may own scratch memory.

    None of them waits for the device, unless its docstring says so.
    """

    def draw(self, asked: DeviceDraw) -> DeviceDrawn:
        """Draw neighbours; the same ones, in the same order, as `LocalReader.draw`."""
        ...

    def append(self, labels: DeviceLabels, keys: Tensor) -> None:
        """Give each of ``keys`` (``[n]`` int64) a label of its own, repeats too."""
        ...

    def label(self, labels: DeviceLabels, keys: Tensor, valid: Tensor) -> Tensor:
        """Return the label of each of ``keys``; those without one get the next free ones.

        Args:
            labels: Labels of the type; new ones are added to it.
            keys: ``[n]`` int64.
            valid: ``[n]`` bool: whether the place is used. The capacity suffices for all of these.

        Returns:
            ``[n]`` int64; a repeated key has the label of its first place; -1 where not valid.
        """
        ...

    def gather(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``values[rows]`` on the device.

        Args:
            values: ``[num_rows, ...]``, on the device or in pinned memory of the host.
            rows: ``[n]`` int64, on the device.
        """
        ...
