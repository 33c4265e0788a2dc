"""How a batch grows on a device: as `sampler.expansion`, with sizes known beforehand.

The host launches all hops of a batch and reads no result. Each array has the largest size that the
fan-outs allow; only the device knows which of its places are used. The counts come to the host at
the end, in one copy that nobody waits for; with them `Grown.sampled` cuts the arrays.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.partition.partition_view import Owner
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.batch_bounds import BatchBounds, batch_bounds
from gigl_loader.sampler.gpu.device_graph import DeviceGraph, HopRequest
from gigl_loader.sampler.gpu.device_kernels import DeviceLabels, HopEdges, TorchKernels, TypedPlaces
from gigl_loader.sampler.plan import Draw, SamplingPlan

_MOST_PLACES = 1 << 28
"""Most neighbours that one hop over one edge type may reserve: 2 GiB for each array of them."""
_MOST_LABELLED = 1 << 30
"""Most places that are labelled at once: Warp's indices have 32 bits, and its table two positions
for each place."""


@dataclass(frozen=True)
class Layout:
    """What the host knows of a batch before it is launched: draws, and the places that it needs."""

    draws: list[Draw]
    """Hop after hop, by edge type in the order of `DeviceExpansion`."""
    num_roots: list[int]
    """By node type."""
    begins: list[int]
    """``[num_types + 1]``, see `DeviceLabels.begins`."""
    frontiers: list[list[int]]
    """By hop and node type, the most nodes that are expanded."""
    reached: list[list[int]]
    """By hop and node type, the most neighbours that are drawn."""

    def numbers(self) -> Array:
        """Return what of it the device reads, for `read`; ``[n]`` int64."""
        keys = np.array([draw.key for draw in self.draws], np.uint64).view(np.int64)
        ends = np.cumsum(np.array(self.reached, np.int64).reshape(-1, len(self.num_roots)), 1)
        return np.concatenate([keys, self.num_roots, self.begins, ends.reshape(-1)])

    def read(self, numbers: Tensor) -> tuple[Sequence[Tensor], Tensor, Tensor, Sequence[Tensor]]:
        """Return (the key of each draw, roots by type, `begins`, ends of `reached` by hop).

        Args:
            numbers: `numbers`, on the device.
        """
        num_types = len(self.num_roots)
        sizes = [1] * len(self.draws) + [num_types, num_types + 1]
        parts = numbers.split(sizes + [num_types] * len(self.reached))
        num_draws = len(self.draws)
        roots, begins, *ends = parts[num_draws:]
        return parts[:num_draws], roots, begins, ends


@dataclass(frozen=True)
class DeviceRoots:
    """The roots of a batch, on the device."""

    layout: Layout
    flat: Tensor
    """``[n]`` int64: all arrays, one behind the other."""
    sizes: tuple[tuple[Any, int], ...]
    """Names and sizes of the arrays. Batches of equal ones differ in values alone."""

    @classmethod
    def flattened(cls, arrays: Mapping[Any, Array]) -> tuple[Array, tuple[tuple[Any, int], ...]]:
        """Return ``flat`` on the host, and ``sizes``, of int64 arrays.

        Args:
            arrays: ``"numbers"``, those of the layout; ``("roots", type)`` for all types of nodes;
                and what else there is of the other properties, ``("dropped", edge type)`` each.
        """
        sizes = tuple((name, array.size) for name, array in arrays.items())
        return np.concatenate(list(arrays.values())), sizes

    @cached_property
    def _parts(self) -> dict[Any, Tensor]:
        names, sizes = zip(*self.sizes, strict=True)
        return dict(zip(names, self.flat.split(sizes), strict=True))

    def _of_kind(self, kind: str) -> dict[Any, Tensor]:
        return {name[1]: part for name, part in self._parts.items() if name[0] == kind}

    @cached_property
    def keys(self) -> dict[NodeType, Tensor]:
        """``[num_roots]`` int64, in the order of labels, repeats too: see `DeviceLabels.keys`."""
        return self._of_kind("roots")

    @cached_property
    def dropped(self) -> dict[EdgeType, Tensor]:
        """``[n]`` int64, ascending: pairs whose edges are left out, numbered by `pair_keys`."""
        return self._of_kind("dropped")

    @property
    def numbers(self) -> Tensor:
        """Numbers of the layout."""
        return self._parts["numbers"]

    @property
    def until(self) -> Tensor | None:
        """``[num_trees]`` int64, the latest time of a neighbour in each tree."""
        return self._parts.get("until")

    @property
    def since(self) -> Tensor | None:
        """``[num_trees]`` int64, the earliest."""
        return self._parts.get("since")

    @property
    def places(self) -> Tensor | None:
        """``[num_trees]`` int64, numbers of trees in the keys of draws; None: their own."""
        return self._parts.get("places")

    @property
    def seeds(self) -> Tensor | None:
        """``[num_trees]`` int64, the seed of each tree."""
        return self._parts.get("seeds")

    def copied(self) -> "DeviceRoots":
        """Return the same roots in memory of their own."""
        return DeviceRoots(self.layout, self.flat.clone(), self.sizes)


def pair_keys(expanded: Any, neighbors: Any, num_nodes: int) -> Any:
    """Return one int64 for each pair of a node and its neighbour, out of ``num_nodes`` nodes.

    With fewer than ``2 ** 31`` nodes of each type, the numbers are distinct.
    """
    return expanded * num_nodes + neighbors


@dataclass(frozen=True)
class _Frontier:
    """The nodes of one type that a hop expands, in places of which some are used."""

    labels: Tensor
    """``[n]`` int64."""
    keys: Tensor
    """``[n]`` int64; -1 in unused places."""


@dataclass(frozen=True)
class _HopPlaces:
    """Places for the edges of one hop and type, of which some are used."""

    neighbors: Tensor
    """``[n]`` int64, labels; -1 in unused places."""
    targets: Tensor
    """``[n]`` int64, labels of the nodes that they were drawn for."""
    edges: Tensor
    """``[n]`` int64, as `HopEdges.edges`."""


@dataclass(frozen=True)
class SampledEdges:
    """Edges of one type, cut to those that exist."""

    edge_index: Tensor
    """``[2, count]`` int64: neighbours, and the nodes they were drawn for, by label."""
    offsets: Tensor
    """``[count]`` int64, as `HopEdges.edges`."""
    per_hop: list[int]


class Grown:
    """A launched batch.

    Args:
        labels: Its nodes.
        stops: ``[num_types]`` int64 each, the number of nodes after the roots and after each hop.
        hops: By edge type, the places of its edges by hop; None: nothing is drawn.
    """

    def __init__(
        self,
        labels: DeviceLabels,
        stops: list[Tensor],
        hops: dict[EdgeType, list[_HopPlaces | None]],
    ) -> None:
        self._labels, self._num_stops = labels, len(stops)
        # not the places themselves, whose memory is free once they are in one array
        self._has_places = {
            name: [hop is not None for hop in by_hop] for name, by_hop in hops.items()
        }
        # Edges of all types lie in one array, type after type.
        places = [hop for by_hop in hops.values() for hop in by_hop if hop is not None]
        counts = torch.cat(stops)
        if places:
            neighbors = [hop.neighbors for hop in places]
            self._ends = torch.cat(neighbors + [hop.targets for hop in places]).view(2, -1)
            self._edges = torch.cat([hop.edges for hop in places])
            before = (self._ends[0] >= 0).cumsum(0)
            self._order = _used_first(self._ends[0] >= 0, before)
            # The edges up to the end of each hop and type: slices, as the host knows the places.
            ends = accumulate(hop.neighbors.numel() for hop in places)
            counts = torch.cat([counts, *(before[end - 1 : end] for end in ends)])
        self.counts = counts
        """``[n]`` int64: all counts of the batch, for `sampled`."""

    def sampled(
        self, counts: list[int], node_types: Sequence[NodeType]
    ) -> tuple[dict[NodeType, Tensor], dict[NodeType, list[int]], dict[EdgeType, SampledEdges]]:
        """Return keys of the nodes by type, nodes per hop by type, and edges by type.

        Args:
            counts: `counts`, on the host.
            node_types: All types, in their order.
        """
        parts, per_hop, num_types = [], {}, len(node_types)
        for at, name in enumerate(node_types):
            stops = counts[at : num_types * self._num_stops : num_types]
            begin = self._labels.begins[at]
            parts.append(self._labels.keys[begin : begin + stops[-1]])
            # the roots, then the additions of each hop
            per_hop[name] = [b - a for a, b in zip([0, *stops], stops, strict=False)]
        # a copy: who keeps the ids of a batch would keep the unused places, too
        used = torch.cat(parts).split([part.numel() for part in parts])
        keys = dict(zip(node_types, used, strict=True))
        read = iter(counts[num_types * self._num_stops :])
        edges, begin = {}, 0
        for edge_type, hops in self._has_places.items():
            # a hop without places ends where the one before it does
            ends = list(
                accumulate(
                    hops, lambda end, has_places: next(read) if has_places else end, initial=begin
                )
            )
            hop_counts = [end - start for start, end in pairwise(ends)]
            edges[edge_type] = self._cut(begin, ends[-1], hop_counts)
            begin = ends[-1]
        return keys, per_hop, edges

    def copied(self) -> "Grown":
        """Return the same batch in memory of its own.

        All places, as only the device knows which are used, and the next batch is launched before
        the counts have come to the host: a copy of the used ones would wait for them.
        """
        other = copy.copy(self)
        other._labels = replace(self._labels, keys=self._labels.keys.clone())
        other.counts = self.counts.clone()
        if any(any(by_hop) for by_hop in self._has_places.values()):
            other._ends, other._edges = self._ends.clone(), self._edges.clone()
            other._order = self._order.clone()
        return other

    def _cut(self, begin: int, end: int, per_hop: list[int]) -> SampledEdges:
        if begin == end:
            empty = self.counts.new_empty(0)
            return SampledEdges(empty.new_empty(2, 0), empty, per_hop)
        at = self._order[begin:end]
        return SampledEdges(
            self._ends.index_select(1, at), self._edges.index_select(0, at), per_hop
        )


def _used_first(is_used: Tensor, before: Tensor) -> Tensor:
    """Return ``[n + 1]`` int32: the used places, ascending, and then filler; int64 of very many.

    ``before`` counts the used places up to each one.
    """
    # each used place is written to its rank among these; all others to one place behind the end
    size = is_used.numel()
    to = torch.where(is_used, before - 1, size)
    dtype = torch.int32 if size < 1 << 31 else torch.int64  # half as much to copy in `copied`
    order = to.new_zeros(size + 1, dtype=dtype)
    return order.scatter_(0, to, torch.arange(size, dtype=dtype, device=to.device))


class DeviceExpansion:
    """Expands each node once, in the hop after the one that found it.

    Args:
        graph: Draws the neighbours.
        plan: Fan-outs, and how to draw.
        kernels: Kernels of the device.
        bits: Bits of an id in a key, by type; None: nodes are merged, and a key is an id.

    Raises:
        ConfigError: A fan-out of -1 has no bound that fits into memory.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        plan: SamplingPlan,
        kernels: TorchKernels,
        bits: Mapping[NodeType, int] | None,
    ) -> None:
        self._graph, self._plan, self._kernels, self._bits = graph, plan, kernels, bits
        self._view, self._degrees = graph.view, graph.degrees
        self._ends = {name: self._view.ends_of(name) for name in plan.fanouts}
        self.node_types = sorted(self._view.num_nodes)
        """The order of types in all that has them behind each other."""
        self._at = {name: at for at, name in enumerate(self.node_types)}
        # Types that lead to one type of neighbours, behind each other; among these the plan's
        # order, in which nodes get their labels.
        self._edge_types = sorted(plan.fanouts, key=lambda name: self._at[self._ends[name][1]])

    def ends(self, edge_type: EdgeType) -> tuple[NodeType, NodeType]:
        """Return (type that is expanded, type of its neighbours)."""
        return self._ends[edge_type]

    def check(self, num_roots: Mapping[NodeType, int]) -> None:
        """Raise `ConfigError` if a batch of so many roots has no bound that fits into memory."""
        bounds = self._bounds(num_roots)
        by_type = bounds.edges_per_hop
        sizes = [(name, hop, size) for name in by_type for hop, size in enumerate(by_type[name])]
        for name, hop, size in sizes:
            if size > _MOST_PLACES:
                fanout = self._plan.fanouts[name][hop]
                raise ConfigError(
                    f"num_neighbors: hop {hop + 1} over {name} may draw {size:,} neighbours "
                    f"(fan-out {fanout}, largest degree {self._degrees[name]:,}): a device makes "
                    "room for all of them before it draws; give smaller fan-outs or batches, or "
                    "sample with workers"
                )
        for hop in range(self._plan.num_hops):
            total = sum(by_hop[hop] for by_hop in by_type.values())
            if total + sum(bounds.nodes.values()) > _MOST_LABELLED:
                raise ConfigError(
                    f"num_neighbors: hop {hop + 1} may draw {total:,} neighbours over all edge "
                    "types: a device labels all of them at once, and no more than "
                    f"{_MOST_LABELLED:,} with the nodes of the batch; give smaller fan-outs or "
                    "batches, or sample with workers"
                )

    def device_bytes(
        self, num_roots: Mapping[NodeType, int], row_bytes: Mapping[Owner, int]
    ) -> int:
        """Return the most bytes that a batch of so many roots takes on the device.

        Args:
            num_roots: By node type.
            row_bytes: Bytes of all rows of a node or an edge, by their owner.
        """
        bounds = self._bounds(num_roots)
        counts: dict[str, Mapping[Any, int]] = {"node": bounds.nodes, "edge": bounds.edges}
        rows = sum(counts[kind].get(name, 0) * size for (kind, name), size in row_bytes.items())
        return bounds.device_bytes + rows

    def captured_bytes(self, layout: Layout) -> int:
        """Return the most bytes that a graph of such a batch takes; it has no rows."""
        num_roots = dict(zip(self.node_types, layout.num_roots, strict=True))
        return self.device_bytes(num_roots, {}) + self.scratch_bytes

    @property
    def scratch_bytes(self) -> int:
        """Most bytes of a device that a draw takes besides its result, one draw at a time."""
        plan = self._plan
        is_labor = plan.expansion.sampling_method == "labor"
        if not is_labor and (plan.replace or not plan.with_weight):
            return 0
        return max(
            (
                self._kernels.scratch_bytes(self.width(name, hop), self._degrees[name])
                for name, hops in plan.fanouts.items()
                for hop, fanout in enumerate(hops)
                if fanout >= 0  # all neighbours are all: nothing is chosen
            ),
            default=0,
        )

    def width(self, edge_type: EdgeType, hop: int) -> int:
        """Return the most neighbours drawn for a node in a hop."""
        fanout, degree = self._plan.fanouts[edge_type][hop], self._degrees[edge_type]
        if fanout < 0:
            return degree
        # with replacement a node of one neighbour has as many draws as any other
        return fanout if self._plan.replace and degree else min(fanout, degree)

    def _bounds(self, num_roots: Mapping[NodeType, int]) -> BatchBounds:
        widths = {
            name: [self.width(name, hop) for hop in range(len(hops))]
            for name, hops in self._plan.fanouts.items()
        }
        return batch_bounds(
            widths,
            num_roots,
            self._view.num_nodes,
            edge_dir=self._view.edge_dir,
            disjoint=self._bits is not None,
        )

    def layout(self, ticket: BatchTicket, num_roots: Mapping[NodeType, int]) -> Layout:
        """Return the layout of a batch with so many roots."""
        plan, view, types = self._plan, self._view, self.node_types
        bounds, hops = self._bounds(num_roots), range(plan.num_hops)
        capacities = [bounds.nodes[name] for name in types]
        frontiers = [
            [min(bounds.nodes_per_hop[name][hop], bounds.nodes[name]) for name in types]
            for hop in hops
        ]
        reached = [[0] * len(types) for _ in hops]
        for hop in hops:
            for name in self._edge_types:
                expanded, neighbor = self._ends[name]
                places = frontiers[hop][self._at[expanded]] * self.width(name, hop)
                reached[hop][self._at[neighbor]] += places
        return Layout(
            [plan.draw_of(ticket, hop, name, view) for hop in hops for name in self._edge_types],
            [num_roots[name] for name in types],
            [0, *accumulate(capacities)],
            frontiers,
            reached,
        )

    def run(self, roots: DeviceRoots) -> Grown:
        """Launch all hops of a batch; returns before they are done."""
        layout = roots.layout
        keys, counts, begins, ends = layout.read(roots.numbers)
        draws = iter(zip(layout.draws, keys, strict=True))
        labels = self._labels(roots, counts, begins)
        # Begin and end of the labels of the nodes that the last hop found, known to the device.
        starts, stops = torch.zeros_like(counts), [labels.counts]
        hops: dict[EdgeType, list[_HopPlaces | None]] = {name: [] for name in self._plan.fanouts}
        for hop, sizes in enumerate(layout.frontiers):
            frontiers = self._frontiers(labels, starts, sizes)
            requests = [
                self._request(*next(draws), hop, frontiers[self._ends[name][0]], roots)
                for name in self._edge_types
            ]
            drawn = self._graph.draw(requests)
            places = TypedPlaces(layout.reached[hop], ends[hop])
            self._collect(frontiers, drawn, labels, places, hops, roots)
            starts = stops[-1]
            stops.append(labels.counts)
        return Grown(labels, stops, hops)

    def _labels(self, roots: DeviceRoots, counts: Tensor, begins: Tensor) -> DeviceLabels:
        layout = roots.layout
        keys = counts.new_full((layout.begins[-1],), -1)
        for at, name in enumerate(self.node_types):
            if number := layout.num_roots[at]:
                begin = layout.begins[at]
                keys[begin : begin + number] = roots.keys[name]
        return DeviceLabels(keys, counts, layout.begins, begins)

    def _frontiers(
        self, labels: DeviceLabels, starts: Tensor, sizes: Sequence[int]
    ) -> dict[NodeType, _Frontier]:
        """Return the nodes of each type from ``starts`` on, at most so many."""
        none, frontiers = starts.new_empty(0), {}
        places = torch.arange(max(sizes), device=starts.device)
        for at, name in enumerate(self.node_types):
            if not sizes[at]:
                frontiers[name] = _Frontier(none, none)
                continue
            known = labels.keys[labels.begins[at] : labels.begins[at + 1]]
            of_type = starts[at] + places[: sizes[at]]
            keys = known[of_type.clamp(max=known.numel() - 1)]
            keys = torch.where(of_type < labels.counts[at], keys, -1)
            frontiers[name] = _Frontier(of_type, keys)
        return frontiers

    def _request(
        self, draw: Draw, draw_key: Tensor, hop: int, frontier: _Frontier, roots: DeviceRoots
    ) -> HopRequest:
        """Return the request for the neighbours of a frontier over one edge type."""
        name, keys = draw.edge_type, frontier.keys
        width = self.width(name, hop)
        if self._bits is None or not width or not keys.numel():
            return HopRequest(draw, width, keys, keys, draw_key)
        bits = self._bits[self._ends[name][0]]
        trees = keys.clamp(min=0) >> bits
        ids = torch.where(keys < 0, -1, keys & ((1 << bits) - 1))
        num_rows = self._view.num_nodes[self._view.row_type(name)]
        places = trees if roots.places is None else roots.places[trees]
        drawn_by = ids + places * max(1, num_rows)
        if not draw.timed or roots.until is None:
            return HopRequest(draw, width, ids, drawn_by, draw_key)
        since = None if roots.since is None else roots.since[trees]
        return HopRequest(draw, width, ids, drawn_by, draw_key, roots.until[trees], since)

    def _collect(
        self,
        frontiers: Mapping[NodeType, _Frontier],
        drawn: Sequence[HopEdges | None],
        labels: DeviceLabels,
        places: TypedPlaces,
        hops: dict[EdgeType, list[_HopPlaces | None]],
        roots: DeviceRoots,
    ) -> None:
        """Label the neighbours that one hop found, of all types at once."""
        by_type = dict(zip(self._edge_types, drawn, strict=True))
        keys = [
            self._neighbor_keys(name, frontiers[self._ends[name][0]].keys, edges, roots)
            for name, edges in by_type.items()
            if edges is not None
        ]
        if not keys:
            for by_hop in hops.values():
                by_hop.append(None)
            return
        reached = self._kernels.label(labels, torch.cat(keys), places)
        parts = iter(reached.split([of_type.numel() for of_type in keys]))
        for name, edges in by_type.items():
            if edges is None:
                hops[name].append(None)
                continue
            at = frontiers[self._ends[name][0]].labels
            targets = at[:, None].expand_as(edges.edges).reshape(-1)
            hops[name].append(_HopPlaces(next(parts), targets, edges.edges.reshape(-1)))

    def _neighbor_keys(
        self, name: EdgeType, keys: Tensor, drawn: HopEdges, roots: DeviceRoots
    ) -> Tensor:
        """Return ``[n]`` int64, the keys of drawn neighbours; -1 in unused places."""
        expanded, neighbor = self._ends[name]
        neighbors = drawn.neighbors
        if name in roots.dropped:
            is_dropped = self._is_dropped(name, keys, neighbors, roots.dropped[name])
            neighbors = torch.where(is_dropped, -1, neighbors)
        if self._bits is not None:
            # -1 stays -1: it has all bits
            neighbors = (keys[:, None] >> self._bits[expanded]) << self._bits[neighbor] | neighbors
        return neighbors.reshape(-1)

    def _is_dropped(
        self, name: EdgeType, keys: Tensor, neighbors: Tensor, dropped: Tensor
    ) -> Tensor:
        """Return the edges to leave out: those between nodes that a link of the batch joins."""
        number = self._view.num_nodes[self._ends[name][1]]
        pairs = pair_keys(keys[:, None], neighbors, number)
        if not dropped.numel():
            return torch.zeros_like(pairs, dtype=torch.bool)
        place = torch.searchsorted(dropped, pairs).clamp(max=dropped.numel() - 1)
        is_dropped: Tensor = dropped[place] == pairs
        return is_dropped
