"""The graph as a batch on a device reads it: draws and rows, from wherever they lie.

`DeviceExpansion` and `DeviceSampler` read a `DeviceGraph`. `LocalDeviceGraph` is whole on the
device; that of partitions on the devices of several ranks is
`sources.in_process.partitioned_graph.PartitionedGraph`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gigl_loader.dataset.partition.partition_view import (
    Adjacency,
    Matrix,
    Owner,
    PartitionView,
    Rows,
    owner_of,
)
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.sampler.gpu.device_kernels import DeviceDraw, HopDrawn, HopEdges, TorchKernels
from gigl_loader.sampler.plan import Draw


@dataclass(frozen=True)
class HopRequest:
    """A request for neighbours over one edge type in one hop, for places that may be unused."""

    draw: Draw
    width: int
    """Most neighbours of a node; 0: none are drawn."""
    ids: Tensor
    """``[n]`` int64, global ids; -1 in unused places."""
    drawn_by: Tensor
    """``[n]`` int64, the key of each node's draw; see `DeviceDraw.ids`."""
    keys: Tensor
    """``[1]`` or ``[n]`` int64, as `DeviceDraw.keys`."""
    until: Tensor | None = None
    """``[n]`` int64, the latest time of a neighbour; None: any."""
    since: Tensor | None = None
    """``[n]`` int64, the earliest; None: any."""


class DeviceGraph(Protocol):
    """A graph for draws and rows on a device. Called by one thread, in the order of its batches."""

    @property
    def view(self) -> PartitionView[Tensor]:
        """This rank's partition on its device, which tells the types and sizes of the graph."""
        ...

    @property
    def degrees(self) -> Mapping[EdgeType, int]:
        """Largest degree of the expanded nodes by walked edge type."""
        ...

    def draw(self, request: Sequence[HopRequest]) -> Sequence[HopEdges | None]:
        """Draw neighbours of one hop, of all edge types; None: nothing is drawn."""
        ...

    def edge_ids(self, edge_type: EdgeType, edges: Tensor) -> Tensor:
        """Return the id of each edge, of `HopDrawn.edges`, as int64."""
        ...

    def rows(self, ids: Mapping[Owner, Tensor], wanted: Sequence[Matrix]) -> dict[Matrix, Tensor]:
        """Return the rows of a batch on the device.

        Args:
            ids: By owner of rows ``[n]`` int64, the global ids in the batch.
            wanted: Matrices whose rows are wanted.
        """
        ...


class LocalDeviceGraph:
    """A `DeviceGraph` in one partition, placed. No call waits for the device.

    Args:
        view: The graph, with its tensors in their places.
        edge_types: The walked edge types.
        kernels: Kernels of the device.
    """

    def __init__(
        self, view: PartitionView[Tensor], edge_types: Sequence[EdgeType], kernels: TorchKernels
    ) -> None:
        self._kernels, self.view = kernels, view
        # once, when the loader is built: the only time that the host waits for the device
        self.degrees: Mapping[EdgeType, int] = {
            name: max_degree(view.adjacency[name].indptr) for name in edge_types
        }

    def draw(self, request: Sequence[HopRequest]) -> Sequence[HopEdges | None]:
        """Draw neighbours of one hop; see `DeviceGraph`."""
        return [self._hop(one) if one.width and one.ids.numel() else None for one in request]

    def _hop(self, request: HopRequest) -> HopDrawn:
        edge_type = request.draw.edge_type
        rows = self.view.adjacency[edge_type].locate(request.ids)
        return drawn_from(self.view, self._kernels, request, rows, self.degrees[edge_type])

    def edge_ids(self, edge_type: EdgeType, edges: Tensor) -> Tensor:
        """Return the id of each edge as int64."""
        return edge_ids_at(self.view.adjacency[edge_type], edges, self._kernels)

    def rows(self, ids: Mapping[Owner, Tensor], wanted: Sequence[Matrix]) -> dict[Matrix, Tensor]:
        """Return the rows of a batch on the device."""
        return read_rows(self.view, self._kernels, ids, wanted)


def drawn_from(
    view: PartitionView[Tensor],
    kernels: TorchKernels,
    request: HopRequest,
    rows: Tensor,
    degree: int,
) -> HopDrawn:
    """Draw neighbours in a partition.

    Args:
        view: The partition, placed.
        kernels: Kernels of its device.
        request: The nodes, all of which have their edges in this partition.
        rows: ``[n]`` int64, the row of each in the adjacency; below 0: an unused place.
        degree: Largest degree of the nodes.
    """
    draw, name = request.draw, request.draw.edge_type
    times = view.times[name] if draw.timed else None
    device_draw = DeviceDraw(
        draw,
        view.adjacency[name],
        rows,
        request.drawn_by,
        request.keys,
        request.width,
        times,
        request.until,
        request.since,
        degree,
    )
    return kernels.draw(device_draw)


def read_rows(
    view: PartitionView[Tensor],
    kernels: TorchKernels,
    ids: Mapping[Owner, Tensor],
    wanted: Sequence[Matrix],
) -> dict[Matrix, Tensor]:
    """Return rows of a partition; see `DeviceGraph.rows`."""
    by_matrix = {}
    for matrix in wanted:
        rows = rows_of(view, matrix)
        by_matrix[matrix] = kernels.gather(rows.values, rows.locate(ids[owner_of(*matrix)]))
    return by_matrix


def edge_ids_at(adjacency: Adjacency[Tensor], positions: Tensor, kernels: TorchKernels) -> Tensor:
    """Return the ids of the edges at ``positions`` as int64."""
    if adjacency.edge_ids is not None:
        return kernels.items(adjacency.edge_ids, positions)
    ids: Tensor = adjacency.edge_ids_at(positions)
    return ids


def rows_of(view: PartitionView[Tensor], matrix: Matrix) -> Rows[Tensor]:
    """Return a matrix by kind and name."""
    kind, name = matrix
    rows: Rows[Tensor] = getattr(view, kind)[name]
    return rows


def max_degree(indptr: Any) -> int:
    """Return the largest degree; the host waits for it."""
    degrees = indptr[1:] - indptr[:-1]
    return int(degrees.max()) if degrees.numel() else 0
