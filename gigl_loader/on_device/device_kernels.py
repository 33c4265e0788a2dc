"""What a device computes for a batch: draws and labels, in tensors whose sizes the host knows.

A host that asked the device for the size of each result would wait for it at every hop. So a result
has the largest size that it can have, known from the fan-outs; what is not used of it is marked.
Two implementations answer with the same bits as `gigl_loader.sampler.compiled` on the CPU:
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
    """A question for neighbours of some nodes, all of it on one device but the numbers."""

    draw: Draw
    adjacency: Adjacency[Tensor]
    rows: Tensor
    """``[n]`` int64, the row of each node in the adjacency; -1: no node, a place that is unused."""
    ids: Tensor
    """``[n]`` int64, what the draw of each row is keyed by: the node's id, in disjoint trees
    ``id + tree * nodes of the type``."""
    width: int
    """Most neighbours of a row: the fan-out or, where that is -1, the largest degree."""
    times: TimeOrder[Tensor] | None = None
    """Rows by time, where the draw is by time."""
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
    """``[n, width]`` int64; a row's draws are its first ``counts`` places, 0 stands in the rest."""
    counts: Tensor
    """``[n]`` int64."""


@dataclass
class DeviceLabels:
    """The nodes of a batch of one type, by label: 0, 1, 2... in order of first appearance."""

    keys: Tensor
    """``[capacity]`` int64: ids, or ``tree << bits | id`` of disjoint trees; the first ``count``
    are nodes, -1 stands in the rest."""
    count: Tensor
    """``[]`` int64, on the device."""


class Kernels(Protocol):
    """The operations on one device. One object per sampling thread: it may own scratch memory.

    None of them waits for the device, except where their docstring says so.
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
            labels: Of the type; what is new is added to it.
            keys: ``[n]`` int64.
            valid: ``[n]`` bool: whether the place is used. The capacity suffices for all that are.

        Returns:
            ``[n]`` int64; of a repeated key the label of its first place; -1 where not valid.
        """
        ...

    def gather(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``values[rows]`` on the device.

        Args:
            values: ``[num_rows, ...]``, on the device or in pinned memory of the host.
            rows: ``[n]`` int64, on the device.
        """
        ...
