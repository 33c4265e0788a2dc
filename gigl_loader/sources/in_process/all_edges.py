"""All edges on each device, rows in partitions: a `DeviceGraph` whose hops need no exchange.

A partition has only the edges that it owns, so those of all ranks are gathered when the first
loader is built, from device to device. Rows stay with their owners.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gigl_loader.dataset.partition.partition_view import Adjacency, Matrix, Owner, TimeOrder
from gigl_loader.dataset.placement import Placement
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.sampler.gpu.device_graph import LocalDeviceGraph
from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sources.in_process.partitioned_graph import PartitionedGraph


class AllEdgesGraph(LocalDeviceGraph):
    """Draws from all edges on this device; rows come from the devices of all ranks. Collective.

    Args:
        partitions: The partitions of all ranks.
        place: Keeps the edges for further loaders.
        edge_types: The walked edge types.
        kernels: Kernels of the device.

    Raises:
        ConfigError: Some rank has too little memory for the edges; no rank has allocated any.
    """

    def __init__(
        self,
        partitions: PartitionedGraph,
        place: Placement,
        edge_types: list[EdgeType],
        kernels: TorchKernels,
    ) -> None:
        view = partitions.view
        edges, times = dict(view.adjacency), dict(view.times)
        for name in edge_types:
            adjacency, order = view.adjacency[name], view.times.get(name)
            # the placement keeps both, so no other tensor gets their number
            known = id(adjacency.indices), id(None if order is None else order.order)
            if not partitions.all_ranks(known in place.all_edges):
                place.all_edges[known] = _gathered(adjacency, order, partitions)
            edges[name], of_all = place.all_edges[known]
            if of_all is not None:
                times[name] = of_all
        super().__init__(replace(view, adjacency=edges, times=times), edge_types, kernels)
        self._partitions = partitions

    def rows(self, ids: Mapping[Owner, Tensor], wanted: Sequence[Matrix]) -> dict[Matrix, Tensor]:
        """Return the rows of a batch on the device."""
        return self._partitions.rows(ids, wanted)


def _gathered(
    own: Adjacency[Tensor], order: TimeOrder[Tensor] | None, ranks: PartitionedGraph
) -> tuple[Adjacency[Tensor], TimeOrder[Tensor] | None]:
    """Return the edges of all ranks as one adjacency; see `AllEdgesGraph`."""
    places = torch.arange(own.indices.numel(), device=own.indices.device)
    more = [
        own.edge_ids_at(places) if own.has_edge_ids else None,
        own.weights,
        None if order is None else order.times,
    ]
    columns = [own.indptr, own.indices, *more]
    ranks.check_room(sum(column.nbytes for column in columns if column is not None))
    degrees = own.indptr.diff()
    used = degrees.nonzero().squeeze(1)
    rows, sizes = ranks.gathered(used + own.first_row), ranks.gathered(degrees[used])
    starts = sizes.cumsum(0) - sizes  # in the order of ranks
    by_row = rows.argsort()
    indptr = sizes.new_zeros(int(rows.max()) + 2 if rows.numel() else 1)
    indptr[1:].index_copy_(0, rows, sizes)
    indptr = indptr.cumsum(0)
    sizes = sizes[by_row]
    moved = (starts[by_row] - indptr[rows[by_row]]).repeat_interleave(sizes)
    at = moved + torch.arange(moved.numel(), device=moved.device)
    indices = ranks.gathered(own.indices)[at]
    edge_ids, weights, times = (
        None if column is None else ranks.gathered(column)[at] for column in more
    )
    adjacency = Adjacency(indptr, indices, edge_ids, weights)
    if order is None or times is None:
        return adjacency, None
    # positions count from the row's begin, which is another one here
    within = order.order - own.indptr[:-1].repeat_interleave(degrees)
    begins = indptr[rows[by_row]].repeat_interleave(sizes)
    return adjacency, TimeOrder(ranks.gathered(within)[at] + begins, times, order.is_float)
