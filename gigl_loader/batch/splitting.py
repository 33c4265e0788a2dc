"""A batch that is too large for its shape, split by its seeds into smaller batches.

Nothing is sampled again. A part has the neighbourhood of its seeds in the whole batch: each node
that the part expands has exactly the neighbours that were drawn for it. So models with no more
layers than hops give its seeds the same outputs as in the whole batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from gigl_loader.batch.message import (
    EDGE_INDEX,
    EDGE_INPUT_ID,
    EDGE_LABEL_INDEX,
    EDGE_TIME,
    EDGES_PER_HOP,
    META,
    NODE,
    NODES_PER_HOP,
    SampleMessage,
    fields_of,
    key,
    label_columns,
    label_keys,
    num_seeds,
    spec_of,
)
from gigl_loader.batch.padding import PadShape, hops_of
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SeedLayout:
    """Positions of the seeds of a batch, by kind of loader; types as a batch names them."""

    input_type: NodeType | None
    """Type of the seeds, or of the sources of seed edges; None: homogeneous."""
    other_type: NodeType | None = None
    """Type of the destinations of seed edges."""
    of_edges: bool = False
    """Seeds are edges."""
    triplets: bool = False
    """Seed edges have negatives as triplets."""
    supervision: tuple[EdgeType, ...] = ()
    """Supervision edge types of anchors; empty: seeds are no anchors."""
    typed: bool = False

    def count(self, message: SampleMessage) -> int:
        """Return the seeds of a batch."""
        if self.of_edges:
            return message[EDGE_INPUT_ID].size(0)
        return num_seeds(message, self.input_type) or 0


_RootLabels = list[tuple[NodeType | None, Tensor]]
"""Type and local labels of roots, in the order in which a part has them, with repeats."""


def split_to_fit(
    message: SampleMessage, shape: PadShape, layout: SeedLayout
) -> list[SampleMessage]:
    """Return a batch as batches that fit ``shape``, in the order of its seeds; mostly itself.

    Args:
        message: From a sampler whose batches grow hop by hop.
        shape: The shape that each part has to fit.
        layout: Positions of its seeds.

    Raises:
        ConfigError: A seed alone does not fit; or a sampler does not say what a value is for.
    """
    if shape.fits(message):
        return [message]
    if whole := [name for name in message if name.startswith(META)]:
        raise ConfigError(
            f"the batch does not fit pad= and would be split, and it has {whole}, of which nobody "
            'knows what belongs to a part: let the sampler name such a value by declared("node", '
            '...), or "edge", "seed", or "batch" if it holds for each part; or raise pad='
        )
    return _BatchToSplit(message, shape, layout).parts()


class _BatchToSplit:
    """A batch that is split, and the data that all its parts are made from.

    Each array has a size that the host knows, and its unused places are marked, as in
    `sampler.gpu.device_expansion`: with the batch on a GPU, the host waits only for the counts.
    """

    def __init__(self, message: SampleMessage, shape: PadShape, layout: SeedLayout) -> None:
        self._message, self._shape, self._layout = message, shape, layout
        self._num_nodes = {name: message[key(NODE, name)].size(0) for name in shape.nodes}
        counts = next(message[key(NODES_PER_HOP, name)] for name in shape.nodes)
        self._num_hops = counts.numel() - 1
        self._edges = {
            name: _WholeEdges(
                message[key(EDGE_INDEX, name)],
                message[key(EDGES_PER_HOP, name)].tolist(),
                self._num_nodes[_ends(name)[1]],
            )
            for name in self._in_order()
        }

    def parts(self) -> list[SampleMessage]:
        """Return the parts, in the order of their seeds: halves, until each of them fits."""
        count = self._layout.count(self._message)
        ranges, fitting = _halves(0, count) if count > 1 else [(0, count)], {}
        while ranges:
            grown = [self._grow(start, stop) for start, stop in ranges]
            # the one wait for all halves of one size
            counts = iter(torch.stack([count for part in grown for count in part.counts]).tolist())
            ranges = []
            for part in grown:
                part.read(counts)
                if self._shape.covers(part.num_nodes, part.num_edges):
                    fitting[part.start] = self._cut(part)
                elif part.stop - part.start > 1:
                    ranges += _halves(part.start, part.stop)
                else:
                    raise ConfigError(
                        "pad has no place for the neighbourhood of a single seed, which has "
                        f"{part.num_nodes} nodes and {part.num_edges} edges; it says "
                        f"{self._shape.nodes} nodes, two of each type for dead ones, and "
                        f"{self._shape.edges} edges: raise these sizes, or lower num_neighbors"
                    )
        return [fitting[start] for start in sorted(fitting)]

    def _cut(self, grown: "_PartGraph") -> SampleMessage:
        """Return the batch of the seeds of a part, whose counts were read."""
        part, start, stop = dict(self._message), grown.start, grown.stop
        if self._layout.of_edges:
            self._cut_edges(part, start, stop)
        else:
            self._cut_nodes(part, grown)
        for name in self._num_nodes:
            chosen = grown.chosen[name][: grown.num_nodes[name]]
            stops = grown.stops[name]
            per_hop = [after - before for before, after in zip([0, *stops], stops, strict=False)]
            part[key(NODES_PER_HOP, name)] = torch.tensor(per_hop, device="cpu")
            for field in fields_of(self._message, "node", name):
                spec = spec_of(field)[1]
                values = self._message[field].index_select(0, chosen)
                if spec.of_trees:
                    values = self._trees(spec.name, start, stop)[values]
                if spec.of_hops:
                    values = hops_of(per_hop).to(values.device)
                part[field] = values
        for edge_type, per_hop in grown.edges_per_hop.items():
            src, dst = _ends(edge_type)
            links = self._message[key(EDGE_INDEX, edge_type)]
            hops = [at[:count] for at, count in zip(grown.taken[edge_type], per_hop, strict=True)]
            chosen = torch.cat(hops) if hops else links.new_empty(0)
            part[key(EDGE_INDEX, edge_type)] = torch.stack(
                [grown.new[src][links[0][chosen]], grown.new[dst][links[1][chosen]]]
            )
            for field in fields_of(self._message, "edge", edge_type):
                if field != key(EDGE_INDEX, edge_type):
                    part[field] = self._message[field].index_select(0, chosen)
            part[key(EDGES_PER_HOP, edge_type)] = torch.tensor(
                per_hop, dtype=torch.int64, device="cpu"
            )
        self._rename(part, grown.new)
        return part

    # -- the neighbourhood -------------------------------------------------------------------------

    def _grow(self, start: int, stop: int) -> "_PartGraph":
        """Walk the edges of the whole batch from the roots of a part; waits for nothing."""
        nodes = {name: self._message[key(NODE, name)] for name in self._num_nodes}
        part = _PartGraph(start, stop, nodes, list(self._edges))
        self._add_roots(part)
        part.end_hop()
        begins = {name: count.new_zeros(()) for name, count in part.count.items()}
        for hop in range(self._num_hops):
            ends = dict(part.count)
            # In the order in which the sampler expands edge types: the message's.
            for edge_type, edges in self._edges.items():
                src, dst = _ends(edge_type)
                size = edges.through[hop]
                taken, count = edges.of_frontier(part, dst, begins[dst], ends[dst], size)
                part.taken[edge_type].append(edges.order[taken])
                part.edge_counts[edge_type].append(count)
                used = torch.arange(size, device=taken.device) < count
                part.add(src, edges.sources[taken], used)
            begins = ends
            part.end_hop()
        return part

    def _add_roots(self, part: "_PartGraph") -> None:
        layout, start, stop = self._layout, part.start, part.stop
        if layout.of_edges:
            for node_type, old in self._cut_edges(dict(self._message), start, stop):
                part.add(node_type, old)
            return
        seeds = self._message[key(NODE, layout.input_type)]
        part.add(layout.input_type, torch.arange(start, stop, device=seeds.device))
        for name, edge_type in self._labels():
            links = self._message[label_keys(name)[0]]
            is_kept = (links[0] >= start) & (links[0] < stop)
            at, count = _used_first(is_kept), is_kept.sum()
            part.labels[name] = (at, count)
            used = torch.arange(at.numel(), device=at.device) < count
            part.add(edge_type[2] if layout.typed else None, links[1][at], used)

    def _in_order(self) -> list[EdgeType | None]:
        positions = {name: place for place, name in enumerate(self._message)}
        return sorted(self._shape.edges, key=lambda name: positions[key(EDGE_INDEX, name)])

    def _trees(self, name: str, start: int, stop: int) -> Tensor:
        """Return the number of each tree in the part, by its number in the whole batch."""
        layout, message = self._layout, self._message
        whole = message[key(name, layout.input_type)]
        if layout.of_edges:
            links = message[EDGE_LABEL_INDEX]
            trees = whole[(links[0] if links.dim() == 2 else links)[start:stop]]
        else:
            trees = whole[start:stop]  # seeds are the first nodes of their type
        numbers = trees.new_full((layout.count(message),), stop - start)
        # A tree of several seeds has the number of its first one.
        places = torch.arange(stop - start, device=trees.device)
        return numbers.scatter_reduce(0, trees, places, "amin")

    # -- values of seeds ---------------------------------------------------------------------------

    def _cut_nodes(self, part: SampleMessage, grown: "_PartGraph") -> None:
        """Cut the values of seeds that are nodes."""
        layout, start, stop = self._layout, grown.start, grown.stop
        for field in fields_of(part, "seed", layout.input_type):
            part[field] = part[field][start:stop]
        for name, _ in self._labels():
            at, count = grown.labels[name][0], grown.label_counts[name]
            links, counts = label_keys(name)
            part[links] = part[links][:, at[:count]]
            part[counts] = part[counts][start:stop]

    def _labels(self) -> Iterator[tuple[str, EdgeType]]:
        for _, edge_type, name in label_columns(self._layout.supervision):
            if label_keys(name)[0] in self._message:
                yield name, edge_type

    def _cut_edges(self, part: SampleMessage, start: int, stop: int) -> _RootLabels:
        """Cut the values of seed edges and their negatives; return the roots of the part."""
        layout, links = self._layout, part[EDGE_LABEL_INDEX]
        count = layout.count(part)
        columns = self._pair_positions(links, count, start, stop)
        for name in [name for name in part if spec_of(name)[1].axis == "seed"]:
            part[name] = part[name][start:stop]
        if EDGE_TIME in part:
            # Times of pairs include negatives.
            of_pairs = part[EDGE_TIME].size(0) > count
            part[EDGE_TIME] = part[EDGE_TIME][columns if of_pairs else slice(start, stop)]
        part[EDGE_LABEL_INDEX] = links[..., columns]
        if layout.triplets:
            num = stop - start
            src, dst, negative = part[EDGE_LABEL_INDEX].tensor_split((num, 2 * num))
            return [
                (layout.input_type, src),
                (layout.other_type, dst),
                (layout.other_type, negative),
            ]
        src, dst = part[EDGE_LABEL_INDEX]
        num = stop - start
        return [
            (layout.input_type, src[:num]),
            (layout.other_type, dst[:num]),
            (layout.input_type, src[num:]),
            (layout.other_type, dst[num:]),
        ]

    def _pair_positions(self, links: Tensor, count: int, start: int, stop: int) -> Tensor:
        """Return the positions in ``EDGE_LABEL_INDEX`` of the part's seed edges and negatives."""
        seeds = torch.arange(start, stop, device=links.device)
        if self._layout.triplets:
            amount = links.size(0) // count - 2
            negatives = torch.arange(start * amount, stop * amount, device=links.device)
            return torch.cat([seeds, count + seeds, 2 * count + negatives])
        # Negative k belongs to seed edge k, counted cyclically: whole rounds, then a part of one.
        amount = links.size(1) - count
        rounds = torch.arange(amount // count, device=links.device)[:, None] * count
        last = amount - amount % count
        rest = torch.arange(
            last + start, max(last + start, min(last + stop, amount)), device=links.device
        )
        return torch.cat([seeds, count + (rounds + seeds).reshape(-1), count + rest])

    def _rename(self, part: SampleMessage, new: dict[NodeType | None, Tensor]) -> None:
        """Let seeds, edges to predict and labels name nodes of the part."""
        layout = self._layout
        if layout.of_edges:
            links = part[EDGE_LABEL_INDEX]
            src, dst = new[layout.input_type], new[layout.other_type]
            if layout.triplets:
                num = part[EDGE_INPUT_ID].size(0)
                part[EDGE_LABEL_INDEX] = torch.cat([src[links[:num]], dst[links[num:]]])
            else:
                part[EDGE_LABEL_INDEX] = torch.stack([src[links[0]], dst[links[1]]])
        for name, edge_type in self._labels():
            of_links, _ = label_keys(name)
            anchors, others = part[of_links]
            end = edge_type[2] if layout.typed else None
            part[of_links] = torch.stack([new[layout.input_type][anchors], new[end][others]])


class _WholeEdges:
    """Edges of one type in the whole batch, by the nodes that they were drawn for.

    Args:
        links: ``[2, n]`` int64.
        per_hop: Edges of each hop.
        num_targets: Nodes of the type that they were drawn for.
    """

    def __init__(self, links: Tensor, per_hop: list[int], num_targets: int) -> None:
        self.order = links[1].argsort(stable=True)
        """``[n]`` int64: position in the batch, sorted by node and, within a node, as drawn."""
        self.sources, self._targets = links[0][self.order], links[1][self.order]
        self._degrees = links.new_zeros(num_targets + 1)
        self._degrees.scatter_add_(0, links[1], torch.ones_like(links[1]))
        begins = self._degrees.cumsum(0) - self._degrees
        places = torch.arange(links.size(1), device=links.device)
        self._draws = places - begins[self._targets]
        """``[n]`` int64: 0, 1, 2... within a node."""
        self.through = list(accumulate(per_hop))
        """By hop, the first edges by node that a part may walk until then: a node is expanded in
        no earlier hop of the part than of the whole batch, and later nodes have higher labels."""

    def of_frontier(
        self, part: "_PartGraph", name: NodeType | None, begin: Tensor, end: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """Return (``[size]`` places of edges by the part's order of nodes, ``[]`` their number).

        Args:
            part: Has labels of the nodes so far.
            name: Type of the nodes that are expanded.
            begin: ``[]`` int64, the part's first label of these nodes.
            end: ``[]`` int64, the label behind the last one.
            size: Edges that come into question, the first ones by node.
        """
        labels = part.new[name][self._targets[:size]]
        is_taken = (labels >= begin) & (labels < end)
        # before those of a node come the edges of the frontier's earlier nodes
        chosen = part.chosen[name]
        every = torch.arange(chosen.numel(), device=chosen.device)
        degrees = torch.where((every >= begin) & (every < end), self._degrees[chosen], 0)
        before = degrees.cumsum(0) - degrees
        to = torch.where(is_taken, before[labels] + self._draws[:size], size)
        return _inverse(to), is_taken.sum()


class _PartGraph:
    """Nodes and edges of a part: labels 0, 1, 2... in order of first appearance, by type.

    Args:
        start: First seed.
        stop: The seed behind the last one.
        nodes: Nodes of the whole batch by type.
        edge_types: Its edge types.
    """

    def __init__(
        self,
        start: int,
        stop: int,
        nodes: dict[NodeType | None, Tensor],
        edge_types: list[EdgeType | None],
    ) -> None:
        self.start, self.stop = start, stop
        # the last place is for what is not used
        self.new = {name: ids.new_full((ids.numel() + 1,), -1) for name, ids in nodes.items()}
        """``[num_nodes + 1]`` int64: by label in the whole batch the label in the part, or -1."""
        self.chosen = {name: torch.zeros_like(labels) for name, labels in self.new.items()}
        """``[num_nodes + 1]`` int64: by label in the part the label in the whole batch."""
        self.count = {name: ids.new_zeros(()) for name, ids in nodes.items()}
        """``[]`` int64: how many labels a type has."""
        self.node_counts: dict[NodeType | None, list[Tensor]] = {name: [] for name in nodes}
        self.taken: dict[EdgeType | None, list[Tensor]] = {name: [] for name in edge_types}
        """By hop, positions of edges in the whole batch, the used ones in front."""
        self.edge_counts: dict[EdgeType | None, list[Tensor]] = {name: [] for name in edge_types}
        self.labels: dict[str, tuple[Tensor, Tensor]] = {}
        """Positions of labels of the part's anchors in the whole batch, and their number."""

    def add(self, name: NodeType | None, old: Tensor, used: Tensor | None = None) -> None:
        """Give each of ``old``, labels in the whole batch, a label if it has none yet.

        Args:
            name: Their type.
            old: ``[n]`` int64.
            used: ``[n]`` bool, whether a place is used; None: all are.
        """
        new, num_places = self.new[name], old.numel()
        behind = new.numel() - 1
        places = torch.arange(num_places, device=old.device)
        node = old if used is None else torch.where(used, old, behind)
        first = places.new_full((behind + 1,), num_places)
        first = first.scatter_reduce(0, node, places, "amin")
        is_first = (new[node] < 0) & (first[node] == places)
        if used is not None:
            is_first &= used
        labels = self.count[name] + is_first.cumsum(0) - 1
        new.scatter_(0, torch.where(is_first, node, behind), labels)
        self.chosen[name].scatter_(0, torch.where(is_first, labels, behind), old)
        self.count[name] = self.count[name] + is_first.sum()

    def end_hop(self) -> None:
        """Note the nodes so far."""
        for name, count in self.count.items():
            self.node_counts[name].append(count)

    @property
    def counts(self) -> list[Tensor]:
        """All counts, for `read`."""
        by_type = [*self.node_counts.values(), *self.edge_counts.values()]
        return [count for counts in by_type for count in counts] + [
            count for _, count in self.labels.values()
        ]

    def read(self, counts: Iterator[int]) -> None:
        """Take the numbers of `counts`, read by the host."""
        self.stops = {name: [next(counts) for _ in of] for name, of in self.node_counts.items()}
        self.edges_per_hop = {
            name: [next(counts) for _ in of] for name, of in self.edge_counts.items()
        }
        self.label_counts = {name: next(counts) for name in self.labels}
        self.num_nodes = {name: stops[-1] for name, stops in self.stops.items()}
        self.num_edges = {name: sum(per_hop) for name, per_hop in self.edges_per_hop.items()}


def _halves(start: int, stop: int) -> list[tuple[int, int]]:
    middle = (start + stop + 1) // 2
    return [(start, middle), (middle, stop)]


def _inverse(to: Tensor) -> Tensor:
    """Return ``[n]`` int64, which place of ``[n]`` ``to`` leads to each; n leads nowhere."""
    size = to.numel()
    places = torch.arange(size, device=to.device)
    return to.new_zeros(size + 1).scatter_(0, to, places)[:size]


def _used_first(is_used: Tensor) -> Tensor:
    """Return ``[n]`` int64: the used places of ``[n]`` bool, in order, in front of any others."""
    return _inverse(torch.where(is_used, is_used.cumsum(0) - 1, is_used.numel()))


def _ends(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])
