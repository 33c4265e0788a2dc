"""A batch that is too large for its shape, split by its seeds into smaller batches.

Nothing is sampled again. A part has the neighbourhood of its seeds in the whole batch: each node
that the part expands has exactly the neighbours that were drawn for it. So models with no more
layers than hops give its seeds the same outputs as in the whole batch.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gigl_loader.collate.padding import PadShape, edge_fields, node_fields
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.message import (
    BATCH,
    EDGE_INDEX,
    EDGE_INPUT_ID,
    EDGE_LABEL,
    EDGE_LABEL_INDEX,
    EDGE_TIME,
    EDGES_PER_HOP,
    INPUT_ID,
    LABEL_COUNTS,
    LABEL_LINKS,
    NEGATIVE,
    NODE,
    NODES_PER_HOP,
    POSITIVE,
    SEED_TIME,
    TREE,
    SampleMessage,
    key,
    label_column,
)


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
        name = EDGE_INPUT_ID if self.of_edges else key(INPUT_ID, self.input_type)
        return message[name].size(0)


_RootLabels = list[tuple[NodeType | None, Tensor]]
"""Type and local labels of roots, in the order in which a part has them, with repeats."""


def parts_of(
    message: SampleMessage, shape: PadShape, layout: SeedLayout, of_edges: Container[str] = ()
) -> list[SampleMessage]:
    """Return a batch as batches that fit ``shape``, in the order of its seeds; mostly itself.

    Args:
        message: From a sampler whose batches grow hop by hop.
        shape: The shape that each part has to fit.
        layout: Positions of its seeds.
        of_edges: Further attributes of edges, not nodes, in a homogeneous message.

    Raises:
        ConfigError: A seed alone does not fit.
    """
    if shape.fits(message):
        return [message]
    whole = _Whole(message, shape, layout, of_edges)
    return list(whole.fitting(0, layout.count(message)))


class _Whole:
    """A batch that is split, and the data that all its parts are made from."""

    def __init__(
        self, message: SampleMessage, shape: PadShape, layout: SeedLayout, of_edges: Container[str]
    ) -> None:
        self._message, self._shape, self._layout = message, shape, layout
        self._attributes_of_edges = of_edges
        self._links = {name: message[key(EDGE_INDEX, name)] for name in shape.edges}
        counts = next(message[key(NODES_PER_HOP, name)] for name in shape.nodes)
        self._num_hops = counts.numel() - 1

    def fitting(self, start: int, stop: int) -> Iterator[SampleMessage]:
        """Yield the parts of the seeds from ``start`` to ``stop``, halved until each fits."""
        part = self.part(start, stop)
        if self._shape.fits(part):
            yield part
            return
        if stop - start == 1:
            nodes = {name: part[key(NODE, name)].size(0) for name in self._shape.nodes}
            edges = {name: part[key(EDGE_INDEX, name)].size(1) for name in self._shape.edges}
            raise ConfigError(
                f"pad has no place for the neighbourhood of a single seed, which has {nodes} nodes "
                f"and {edges} edges; it says {self._shape.nodes} nodes, two of each type for dead "
                f"ones, and {self._shape.edges} edges: raise these sizes, or lower num_neighbors"
            )
        middle = (start + stop + 1) // 2
        yield from self.fitting(start, middle)
        yield from self.fitting(middle, stop)

    def part(self, start: int, stop: int) -> SampleMessage:
        """Return the batch of the seeds from ``start`` to ``stop`` alone."""
        part = dict(self._message)
        roots = (self._edges if self._layout.of_edges else self._nodes)(part, start, stop)
        labels = _PartLabels({name: self._message[key(NODE, name)] for name in self._shape.nodes})
        for node_type, old in roots:
            labels.add(node_type, old)
        nodes_per_hop, taken = self._grow(labels)
        for name, counts in nodes_per_hop.items():
            chosen = labels.chosen(name)
            for field in node_fields(self._message, name, self._attributes_of_edges):
                part[field] = self._message[field].index_select(0, chosen)
            part[key(NODES_PER_HOP, name)] = torch.tensor(counts)
            if (tree := key(TREE, name)) in part:
                part[tree] = self._trees(start, stop)[part[tree].index_select(0, chosen)]
        for edge_type, hops in taken.items():
            src, dst = _ends(edge_type)
            chosen = torch.cat(hops) if hops else self._links[edge_type].new_empty(0)
            links = self._links[edge_type][:, chosen]
            part[key(EDGE_INDEX, edge_type)] = torch.stack(
                [labels.new[src][links[0]], labels.new[dst][links[1]]]
            )
            for field in edge_fields(self._message, edge_type, self._attributes_of_edges):
                part[field] = self._message[field].index_select(0, chosen)
            part[key(EDGES_PER_HOP, edge_type)] = torch.tensor([hop.numel() for hop in hops])
        self._rename(part, labels.new)
        return part

    # -- the neighbourhood -------------------------------------------------------------------------

    def _grow(
        self, labels: "_PartLabels"
    ) -> tuple[dict[NodeType | None, list[int]], dict[EdgeType | None, list[Tensor]]]:
        """Walk the edges of the whole batch from the roots; return nodes and edges of each hop."""
        counts = {name: [labels.count(name)] for name in self._shape.nodes}
        frontier = {name: (0, labels.count(name)) for name in self._shape.nodes}
        taken: dict[EdgeType | None, list[Tensor]] = {name: [] for name in self._shape.edges}
        for _ in range(self._num_hops):
            # In the order in which the sampler expands edge types: the message's.
            for edge_type in self._in_order():
                src, dst = _ends(edge_type)
                start, stop = frontier[dst]
                targets = labels.new[dst][self._links[edge_type][1]]
                # By node, and within a node as drawn: the order of a separately sampled batch.
                chosen = torch.nonzero((targets >= start) & (targets < stop)).squeeze(1)
                chosen = chosen[targets[chosen].argsort(stable=True)]
                taken[edge_type].append(chosen)
                labels.add(src, self._links[edge_type][0, chosen])
            for name, (_, stop) in frontier.items():
                frontier[name] = (stop, labels.count(name))
                counts[name].append(labels.count(name) - stop)
        return counts, taken

    def _in_order(self) -> list[EdgeType | None]:
        positions = {name: place for place, name in enumerate(self._message)}
        return sorted(self._links, key=lambda name: positions[key(EDGE_INDEX, name)])

    def _trees(self, start: int, stop: int) -> Tensor:
        """Return the number of each tree in the part, by its number in the whole batch."""
        layout, message = self._layout, self._message
        whole = message[key(TREE, layout.input_type)]
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

    def _nodes(self, part: SampleMessage, start: int, stop: int) -> _RootLabels:
        """Cut the values of seeds that are nodes; return the roots of the part."""
        layout = self._layout
        for name in (BATCH, INPUT_ID, SEED_TIME):
            if (field := key(name, layout.input_type)) in part:
                part[field] = part[field][start:stop]
        seeds = self._message[key(NODE, layout.input_type)]
        roots: _RootLabels = [(layout.input_type, torch.arange(start, stop, device=seeds.device))]
        for name, edge_type in self._labels():
            links, counts = part[LABEL_LINKS + name], part[LABEL_COUNTS + name]
            is_kept = (links[0] >= start) & (links[0] < stop)
            part[LABEL_LINKS + name] = links[:, is_kept]
            part[LABEL_COUNTS + name] = counts[start:stop]
            roots.append((edge_type[2] if layout.typed else None, links[1, is_kept]))
        return roots

    def _labels(self) -> Iterator[tuple[str, EdgeType]]:
        for edge_type in self._layout.supervision:
            for sign in (POSITIVE, NEGATIVE):
                name = label_column(sign, edge_type)
                if LABEL_LINKS + name in self._message:
                    yield name, edge_type

    def _edges(self, part: SampleMessage, start: int, stop: int) -> _RootLabels:
        """Cut the values of seed edges and their negatives; return the roots of the part."""
        layout, links = self._layout, part[EDGE_LABEL_INDEX]
        count = layout.count(part)
        columns = self._columns(links, count, start, stop)
        for name in (EDGE_LABEL, EDGE_INPUT_ID, EDGE_TIME):
            if name in part:
                # Times of pairs include negatives; all else is for the seed edges alone.
                of_pairs = part[name].size(0) > count
                part[name] = part[name][columns if of_pairs else slice(start, stop)]
        part[EDGE_LABEL_INDEX] = links[..., columns]
        if layout.triplets:
            num = stop - start
            src, dst, negative = part[EDGE_LABEL_INDEX].tensor_split((num, 2 * num))
            return [(layout.input_type, src), (layout.other_type, dst),
                    (layout.other_type, negative)]  # fmt: skip
        src, dst = part[EDGE_LABEL_INDEX]
        num = stop - start
        return [
            (layout.input_type, src[:num]), (layout.other_type, dst[:num]),
            (layout.input_type, src[num:]), (layout.other_type, dst[num:]),
        ]  # fmt: skip

    def _columns(self, links: Tensor, count: int, start: int, stop: int) -> Tensor:
        """Return the columns of ``EDGE_LABEL_INDEX`` for the seed edges of the part."""
        seeds = torch.arange(start, stop, device=links.device)
        if self._layout.triplets:
            amount = links.size(0) // count - 2
            negatives = torch.arange(start * amount, stop * amount, device=links.device)
            return torch.cat([seeds, count + seeds, 2 * count + negatives])
        # Negative k belongs to seed edge k, counted cyclically.
        negatives = torch.arange(links.size(1) - count, device=links.device)
        owner = negatives % count
        return torch.cat([seeds, count + negatives[(owner >= start) & (owner < stop)]])

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
            anchors, others = part[LABEL_LINKS + name]
            end = edge_type[2] if layout.typed else None
            part[LABEL_LINKS + name] = torch.stack(
                [new[layout.input_type][anchors], new[end][others]]
            )


class _PartLabels:
    """Local labels of the nodes of a part: 0, 1, 2... in order of first appearance, by type."""

    def __init__(self, nodes: dict[NodeType | None, Tensor]) -> None:
        self.new = {name: torch.full_like(ids, -1) for name, ids in nodes.items()}
        """``[num_nodes]`` int64: by label in the whole batch the label in the part, or -1."""
        self._chosen = {name: [ids.new_empty(0)] for name, ids in nodes.items()}
        self._count = dict.fromkeys(nodes, 0)

    def count(self, name: NodeType | None) -> int:
        """Return how many labels a type has."""
        return self._count[name]

    def chosen(self, name: NodeType | None) -> Tensor:
        """Return ``[count]`` int64, the labels in the whole batch by label in the part."""
        return torch.cat(self._chosen[name])

    def add(self, name: NodeType | None, old: Tensor) -> None:
        """Give each of ``old``, labels in the whole batch, a label if it has none yet."""
        missing = old[self.new[name][old] < 0]
        labels, inverse = missing.unique(return_inverse=True)
        places = torch.arange(missing.numel(), device=old.device)
        first = places.new_full((labels.numel(),), missing.numel())
        first = first.scatter_reduce(0, inverse, places, "amin")
        labels = labels[first.argsort()]
        self.new[name][labels] = self._count[name] + torch.arange(labels.numel(), device=old.device)
        self._chosen[name].append(labels)
        self._count[name] += labels.numel()


def _ends(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])
