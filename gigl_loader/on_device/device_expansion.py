"""How a batch grows on a device: as `sampler.expansion`, with sizes known beforehand.

The host launches all hops of a batch and reads no result. Each array has the largest size that the
fan-outs allow; only the device knows which of its places are used. The counts come to the host at
the end, in one copy that nobody waits for; with them `Grown.sampled` cuts the arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.message import BatchTicket
from gigl_loader.on_device.device_graph import DeviceGraph, HopRequest
from gigl_loader.on_device.device_kernels import DeviceLabels, HopDrawn, TorchKernels
from gigl_loader.sampler.bounds import BatchBounds, batch_bounds
from gigl_loader.sampler.expansion import draw_of
from gigl_loader.sampler.plan import Draw, SamplingPlan
from gigl_loader.sampler.reader import ends_of, row_type

_MOST_PLACES = 1 << 28
"""Most neighbours that one hop over one edge type may reserve: 2 GiB for each array of them."""


@dataclass(frozen=True)
class DeviceRoots:
    """The roots of a batch, on the device."""

    keys: dict[NodeType, Tensor]
    """``[num_roots]`` int64, in the order of their labels, repeats too; see `DeviceLabels.keys`."""
    draws: list[Draw]
    """From `DeviceExpansion.draws`."""
    draw_keys: Tensor
    """``[num_draws]`` int64, the key of each draw, a uint64 of the same bits."""
    until: Tensor | None = None
    """``[num_trees]`` int64, the latest time of a neighbour in each tree."""
    since: Tensor | None = None
    """``[num_trees]`` int64, the earliest."""
    dropped: dict[EdgeType, Tensor] = field(default_factory=dict)
    """``[n]`` int64, ascending: pairs of nodes whose edges are left out, numbered by
    `pair_keys`."""


def pair_keys(expanded: Any, neighbors: Any, num_nodes: int) -> Any:
    """Return one int64 for each pair of a node and its neighbour, out of ``num_nodes`` nodes.

    With fewer than ``2 ** 31`` nodes of each type, the numbers are distinct.
    """
    return expanded * num_nodes + neighbors


@dataclass
class _Edges:
    """Edges of one type, in places of which some are used."""

    neighbors: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    offsets: list[Tensor] = field(default_factory=list)
    valid: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)
    """Edges of each hop, ``[]`` int64."""


@dataclass(frozen=True)
class SampledEdges:
    """Edges of one type, cut to those that exist."""

    edge_index: Tensor
    """``[2, count]`` int64: neighbours, and the nodes they were drawn for, by label."""
    offsets: Tensor
    """``[count]`` int64, as `HopDrawn.edges`."""
    per_hop: list[int]


class Grown:
    """A launched batch.

    Args:
        labels: Its nodes by type.
        edges: Its edges by type, hop after hop.
        stops: By type, the number of nodes after the roots and after each hop: numbers of the host
            for the roots, ``[]`` int64 of the device for the hops.
    """

    def __init__(
        self,
        labels: dict[NodeType, DeviceLabels],
        edges: dict[EdgeType, _Edges],
        stops: dict[NodeType, list[Tensor]],
    ) -> None:
        self._labels = labels
        self._stops = stops
        self._edges: dict[EdgeType, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._num_hops = len(next(iter(stops.values()), [None])) - 1
        counts = [count for name in sorted(stops) for count in stops[name]]
        for name, collected in edges.items():
            counts += collected.counts
            if collected.valid:
                self._edges[name] = _in_front(collected)
        self.counts = torch.stack(counts)
        """``[n]`` int64: all counts of the batch, for `sampled`."""

    def sampled(
        self, counts: list[int], edge_types: list[EdgeType]
    ) -> tuple[dict[NodeType, Tensor], dict[NodeType, list[int]], dict[EdgeType, SampledEdges]]:
        """Return keys of the nodes by type, nodes per hop by type, and edges by type.

        Args:
            counts: `counts`, on the host.
            edge_types: All types that the plan walks.
        """
        read = iter(counts)
        keys, per_hop = {}, {}
        for name in sorted(self._stops):
            stops = [next(read) for _ in self._stops[name]]
            keys[name] = self._labels[name].keys[: stops[-1]]
            # the roots, then the additions of each hop
            per_hop[name] = [b - a for a, b in zip([0, *stops], stops, strict=False)]
        edges = {}
        for edge_type in edge_types:
            hops = [next(read) for _ in range(self._num_hops)]
            edges[edge_type] = self._cut(edge_type, hops)
        return keys, per_hop, edges

    def _cut(self, name: EdgeType, per_hop: list[int]) -> SampledEdges:
        count = sum(per_hop)
        if name not in self._edges:
            empty = self.counts.new_empty(0)
            return SampledEdges(empty.new_empty(2, 0), empty, per_hop)
        order, neighbors, targets, offsets = self._edges[name]
        at = order[:count]
        index = torch.stack([neighbors[at], targets[at]])
        return SampledEdges(index, offsets[at], per_hop)


def _in_front(edges: _Edges) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (used places, in order, in front of others; neighbours; targets; offsets)."""
    valid = torch.cat(edges.valid)
    # each used place is written to its rank among these; all others to one place behind the end
    to = torch.where(valid, valid.cumsum(0) - 1, valid.numel())
    order = torch.zeros(valid.numel() + 1, dtype=torch.int64, device=valid.device)
    order.scatter_(0, to, torch.arange(valid.numel(), device=valid.device))
    return order, torch.cat(edges.neighbors), torch.cat(edges.targets), torch.cat(edges.offsets)


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
        self._ends = {name: ends_of(name, self._view.edge_dir) for name in plan.fanouts}

    def ends(self, edge_type: EdgeType) -> tuple[NodeType, NodeType]:
        """Return (type that is expanded, type of its neighbours)."""
        return self._ends[edge_type]

    def check(self, num_roots: Mapping[NodeType, int]) -> None:
        """Raise `ConfigError` if a batch of so many roots has no bound that fits into memory."""
        bounds = self._bounds(num_roots).edges_per_hop
        sizes = [(name, hop, size) for name in bounds for hop, size in enumerate(bounds[name])]
        for name, hop, size in sizes:
            if size > _MOST_PLACES:
                fanout = self._plan.fanouts[name][hop]
                raise ConfigError(
                    f"num_neighbors: hop {hop + 1} over {name} may draw {size:,} neighbours "
                    f"(fan-out {fanout}, largest degree {self._degrees[name]:,}): a device makes "
                    "room for all of them before it draws; give smaller fan-outs or batches, or "
                    "sample with workers"
                )

    def device_bytes(self, num_roots: Mapping[NodeType, int]) -> int:
        """Return the bytes that a batch of so many roots takes on the device, without its rows."""
        return self._bounds(num_roots).device_bytes

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
            widths, num_roots, self._view.num_nodes, edge_dir=self._view.edge_dir,
            disjoint=self._bits is not None,
        )  # fmt: skip

    def draws(self, ticket: BatchTicket) -> list[Draw]:
        """Return the draws of a batch, hop after hop, by edge type in the plan's order."""
        plan, view = self._plan, self._view
        return [
            draw_of(plan, ticket, hop, name, view)
            for hop in range(plan.num_hops)
            for name in plan.fanouts
        ]

    def run(self, roots: DeviceRoots) -> Grown:
        """Launch all hops of a batch; returns before they are done."""
        bounds = self._bounds({name: keys.numel() for name, keys in roots.keys.items()})
        new = bounds.nodes_per_hop
        labels = {name: self._labels(keys, bounds.nodes[name]) for name, keys in roots.keys.items()}
        edges = {name: _Edges() for name in self._plan.fanouts}
        # Begin and end of the labels of the nodes that the last hop found, known to the device.
        starts = {name: torch.zeros_like(type_labels.count) for name, type_labels in labels.items()}
        stops = {name: [type_labels.count.clone()] for name, type_labels in labels.items()}
        draws = iter(zip(roots.draws, roots.draw_keys.split(1), strict=True))
        for hop in range(self._plan.num_hops):
            frontiers, requests = [], []
            for name in self._plan.fanouts:
                expanded = self._ends[name][0]
                begin, size = starts[expanded], new[expanded][hop]
                at, keys, exist = self._frontier(labels[expanded], begin, size)
                frontiers.append((name, at, keys))
                requests.append(self._request(*next(draws), hop, keys, exist, roots))
            drawn = self._graph.draw(requests)
            for (name, at, keys), hop_drawn in zip(frontiers, drawn, strict=True):
                self._collect(name, at, keys, hop_drawn, labels, edges[name], roots)
            for node_type, type_labels in labels.items():
                starts[node_type] = stops[node_type][-1]
                stops[node_type].append(type_labels.count.clone())
        return Grown(labels, edges, stops)

    def _labels(self, roots: Tensor, capacity: int) -> DeviceLabels:
        labels = DeviceLabels(roots.new_full((capacity,), -1), roots.new_zeros(()))
        self._kernels.append(labels, roots)
        return labels

    def _frontier(
        self, labels: DeviceLabels, start: Tensor, size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (labels, keys, which of these exist) of the nodes from ``start`` on."""
        size = min(size, labels.keys.numel())
        at = start + torch.arange(size, device=labels.keys.device)
        exist = at < labels.count
        keys = labels.keys[at.clamp(max=max(0, labels.keys.numel() - 1))]
        return at, keys, exist

    def _request(
        self, draw: Draw, draw_key: Tensor, hop: int, keys: Tensor, exist: Tensor,
        roots: DeviceRoots,
    ) -> HopRequest:  # fmt: skip
        """Return the request for the neighbours of a frontier over one edge type."""
        name = draw.edge_type
        width = self.width(name, hop)
        if self._bits is None or not width or not keys.numel():
            return HopRequest(draw, width, keys, exist, keys, draw_key)
        bits = self._bits[self._ends[name][0]]
        trees = torch.where(exist, keys >> bits, 0)
        ids = keys & ((1 << bits) - 1)
        num_rows = self._view.num_nodes[row_type(name, self._view.edge_dir)]
        drawn_by = ids + trees * max(1, num_rows)
        if not draw.timed or roots.until is None:
            return HopRequest(draw, width, ids, exist, drawn_by, draw_key)
        since = None if roots.since is None else roots.since[trees]
        return HopRequest(draw, width, ids, exist, drawn_by, draw_key, roots.until[trees], since)

    def _collect(
        self, name: EdgeType, at: Tensor, keys: Tensor, drawn: HopDrawn | None,
        labels: dict[NodeType, DeviceLabels], edges: _Edges, roots: DeviceRoots,
    ) -> None:  # fmt: skip
        """Label the neighbours that one edge type found in one hop."""
        if drawn is None:
            edges.counts.append(at.new_zeros(()))
            return
        expanded, neighbor = self._ends[name]
        width = drawn.edges.shape[1]
        valid = torch.arange(width, device=at.device) < drawn.counts[:, None]
        neighbors = self._graph.neighbors(name, drawn)
        if name in roots.dropped:
            valid &= ~self._is_dropped(name, keys, neighbors, roots.dropped[name])
        if self._bits is not None:
            trees = keys[:, None] >> self._bits[expanded]
            neighbors = trees << self._bits[neighbor] | neighbors
        flat = valid.reshape(-1)
        reached = self._kernels.label(labels[neighbor], neighbors.reshape(-1), flat)
        edges.neighbors.append(reached)
        edges.targets.append(at[:, None].expand(-1, width).reshape(-1))
        edges.offsets.append(drawn.edges.reshape(-1))
        edges.valid.append(flat)
        edges.counts.append(flat.sum())

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
