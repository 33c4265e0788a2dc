"""Neighbourhoods of anchors and of their labels, for anchor-based link prediction."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.batch.message import label_column, label_keys
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import LABEL_TYPES, NEGATIVE, POSITIVE, EdgeType, NodeType
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Draw, Drawn, Field, Peers, SampleRequest, SamplingPlan
from gigl_loader.sampler.roots import NodeRoots, RootFields
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sampler.tokens import TokenNodes


@dataclass(frozen=True)
class _Labels:
    """The labels of a batch's anchors, of one sign and supervision edge type."""

    edge_type: EdgeType
    sign: str
    counts: Array
    """``[batch_size]`` int64, labels of each anchor."""
    links: Array
    """``[2, counts.sum()]`` int64: positions of anchors in the batch, local labels of label
    nodes."""


class AnchorRoots:
    """Anchors, their positives and their negatives, in one batch.

    ::

        nodes of the anchors' type   [ anchors, as given | label nodes | 1st hop | 2nd hop ... ]
        nodes of another label type                      [ label nodes | 1st hop | 2nd hop ... ]
        num_sampled_nodes            [        first entry              , second  , third  ... ]

    Labels are read from the label edges, at the anchor's owner, or come with the seeds
    (`gigl_loader.batch.message.label_column`). Label edges are never walked.

    Args:
        reader: Reader of all partitions.
        plan: How to sample; seeds are the anchors.
        supervision: Edge types that are predicted, anchors first.
        exclude: Message-passing edge types without the copies of the batch's positives.
        labels_in_input: Labels come with the seeds; label edges of the graph are not read.
        max_labels: Most labels read per anchor and sign; None: all.
    """

    def __init__(
        self,
        reader: GraphReader,
        plan: SamplingPlan,
        *,
        supervision: Sequence[EdgeType],
        exclude: Sequence[EdgeType] = (),
        labels_in_input: bool = False,
        max_labels: int | None = None,
    ) -> None:
        self._reader, self._plan = reader, plan
        self._seeds = NodeRoots(reader, plan)
        self._supervision = [_as_type(edge_type) for edge_type in supervision]
        self._exclude = [_as_type(edge_type) for edge_type in exclude]
        self._labels_in_input = labels_in_input
        self._max_labels = max_labels

    def place(self, request: SampleRequest, nodes: BatchNodes) -> RootFields:
        """Put anchors first, then labels, type after type, positives before negatives."""
        fields = list(self._seeds.place(request, nodes).fields)
        pending = []
        for edge_type in self._supervision:
            for sign in (POSITIVE, NEGATIVE):
                ask = self._ask_input if self._labels_in_input else self._ask_graph
                answer = ask(edge_type, sign, request)
                if answer is not None:
                    pending.append((edge_type, sign, answer))
        label_sets = []
        for edge_type, sign, answer in pending:  # all are requested before the first wait
            counts, ids = answer()
            anchors = np.repeat(np.arange(counts.size), counts)
            links = np.stack([anchors, nodes.label(edge_type[2], ids, anchors)])
            label_sets.append(_Labels(edge_type, sign, counts, links))
            keys = label_keys(label_column(sign, edge_type))
            fields += map(Field.of, keys, (links, counts))
        if not self._exclude:
            return RootFields(fields)
        copies = self._without_copies(request.seeds, nodes, label_sets)
        return RootFields(fields, copies.keep_edges, copies.dropped)

    @property
    def excludes(self) -> bool:
        """Whether edges of batches are left out."""
        return bool(self._exclude)

    def _ask_input(
        self, edge_type: EdgeType, sign: str, request: SampleRequest
    ) -> Callable[[], tuple[Array, Array]] | None:
        """Return (labels per anchor, label ids) of a column of the input, or None without one."""
        column = request.extra.get(label_column(sign, edge_type))
        if column is None:
            return None
        is_label = column >= 0
        # Row after row, as a boolean mask reads: labels stay with their anchors.
        return lambda: (is_label.sum(1), column[is_label])

    def _ask_graph(
        self, edge_type: EdgeType, sign: str, request: SampleRequest
    ) -> Callable[[], tuple[Array, Array]] | None:
        """Return a reader of the label edges, which may be on another partition."""
        label_type = LABEL_TYPES[sign](edge_type)
        if label_type not in self._reader.view.adjacency:
            # Negatives are optional; without positives there is nothing to predict.
            if sign == NEGATIVE:
                return None
            raise ProtocolError(f"the graph has no label edges {label_type}")
        answer = self._reader.draw(Draw(label_type, fanout=-1, key=0), request.seeds)

        def read() -> tuple[Array, Array]:
            drawn = answer()
            return _at_most(self._max_labels, drawn.counts, drawn.neighbors)

        return read

    def _without_copies(
        self, seeds: Array, nodes: BatchNodes, label_sets: list[_Labels]
    ) -> "_WithoutCopies":
        """Return a filter for the positives of this batch, as edges that could be their copies."""
        roots = {name: nodes.count(name) for name in nodes.types}
        # Links name positions in the batch. A repeated anchor has two positions, and
        # `_WithoutCopies` knows it by the label of its first one.
        firsts = nodes.find(self._plan.input_type, seeds)
        forest = nodes.forest if isinstance(nodes, TokenNodes) else None
        # In trees, a positive is removed from those of its own anchor and of its label node: no
        # tree depends on other anchors.
        positives = [
            (
                labels.edge_type,
                np.stack([firsts[labels.links[0]], labels.links[1]]),
                labels.links[0] * (forest is not None),
            )
            for labels in label_sets
            if labels.sign == POSITIVE
        ]
        keys = {}
        for copy_type in self._exclude:
            expanded, neighbor = self._reader.ends(copy_type)
            ends = [
                np.concatenate([directed, anchors[None]])
                for edge_type, links, anchors in positives
                for directed in _as_edges_of(copy_type, edge_type, links)
            ]
            src, dst, anchor = np.concatenate([np.empty((3, 0), np.int64), *ends], axis=1)
            by_target = self._reader.view.edge_dir == "in"
            own, other = (dst, src) if by_target else (src, dst)
            # one number for a pair of roots, as the other label is below ``roots[neighbor]``
            keys[copy_type] = (anchor * roots[expanded] + own) * roots[neighbor] + other
        return _WithoutCopies(self._reader, nodes, keys, roots, forest)


@dataclass(frozen=True)
class _WithoutCopies:
    """Removes the edges between some roots from a batch."""

    reader: GraphReader
    nodes: BatchNodes
    keys: dict[EdgeType, Array]
    """``[num_links]`` int64: label of the expanded node * roots of the other type + other label; in
    trees, the anchor * roots of the expanded type is added to the first label."""
    roots: dict[NodeType, int]
    """Roots of each type."""
    forest: BatchNodes | None = None
    """Trees that are grown in place of ``nodes``, which has their roots."""

    def dropped(self) -> dict[EdgeType, tuple[Array, Array]]:
        """Return the copies by ids: the nodes that are expanded, and their neighbours."""
        copies = {}
        for edge_type, keys in self.keys.items():
            expanded, neighbor = self.reader.ends(edge_type)
            own, others = np.divmod(keys, max(1, self.roots[neighbor]))
            copies[edge_type] = self.nodes.ids(expanded)[own], self.nodes.ids(neighbor)[others]
        return copies

    def keep_edges(self, edge_type: EdgeType, targets: Array, drawn: Drawn) -> tuple[Array, Drawn]:
        """Return the edges that are no copy of a positive."""
        if edge_type not in self.keys:
            return targets, drawn
        expanded, neighbor = self.reader.ends(edge_type)
        labels = targets
        if self.forest is not None:
            labels = self.nodes.find(expanded, self.forest.ids(expanded)[targets])
        # both ends of a link are roots
        positions = np.flatnonzero((labels >= 0) & (labels < self.roots[expanded]))
        # After the first hop no root is expanded: most calls end here.
        if positions.size == 0:
            return targets, drawn
        others = self.nodes.find(neighbor, drawn.neighbors[positions])
        is_root = (others >= 0) & (others < self.roots[neighbor])
        positions, others = positions[is_root], others[is_root]
        own = self.nodes.ids(expanded)[labels[positions]]
        firsts = self.nodes.find(expanded, own)  # a repeated anchor counts as its first
        if self.forest is not None:
            anchors = self.forest.seeds[self.forest.trees(expanded)[targets[positions]]]
            firsts = anchors * self.roots[expanded] + firsts
        keys = firsts * self.roots[neighbor] + others
        gone = positions[np.isin(keys, self.keys[edge_type])]
        if gone.size == 0:
            return targets, drawn
        return _without(gone, targets, drawn)


def anchor_sampler(
    view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None, **keywords: Any
) -> NeighborSampler:
    """Return a sampler around anchors and labels; ``keywords`` are those of `AnchorRoots`."""
    return NeighborSampler(view, plan, peers, lambda reader: AnchorRoots(reader, plan, **keywords))


class AnchorKind(SamplerKind):
    """The sampler around anchors and labels; its keywords are those of `AnchorRoots`."""

    @property
    def supervision(self) -> tuple[EdgeType, ...]:
        """Edge types that are predicted."""
        return tuple(_as_type(edge_type) for edge_type in self.keywords["supervision"])

    def most_roots(
        self,
        input_type: NodeType,
        num_seeds: int,
        known: Collection[EdgeType],
        widths: Mapping[str, int],
    ) -> dict[NodeType, int]:
        """Return the most anchors and labels, by type."""
        most = {input_type: num_seeds}
        for edge_type in self.supervision:
            for sign in (POSITIVE, NEGATIVE):
                labels = num_seeds * self._most_labels(edge_type, sign, known, widths)
                most[edge_type[2]] = most.get(edge_type[2], 0) + labels
        return most

    def _most_labels(
        self, edge_type: EdgeType, sign: str, known: Collection[EdgeType], widths: Mapping[str, int]
    ) -> int:
        """Return the most labels of an anchor, of one sign."""
        if self.keywords.get("labels_in_input", False):
            return widths.get(label_column(sign, edge_type), 0)
        if sign == NEGATIVE and LABEL_TYPES[sign](edge_type) not in known:
            return 0
        most: int | None = self.keywords.get("max_labels")
        if most is None:
            raise ConfigError(
                f"anchors may have any number of labels of {edge_type} (set "
                "max_labels_per_anchor_node of the dataset)"
            )
        return most


ANCHOR_KIND = AnchorKind(
    "gigl_loader.sampler.anchors.anchor_sampler", roots=AnchorRoots, can_pad=True
)


def _as_edges_of(copy_type: EdgeType, edge_type: EdgeType, links: Array) -> list[Array]:
    """Return ``links`` (``[2, n]``, anchors first) as edges of ``copy_type``, in all directions."""
    ends, turned = (edge_type[0], edge_type[2]), (edge_type[2], edge_type[0])
    copy_ends = (copy_type[0], copy_type[2])
    edges = [links] if copy_ends == ends else []
    return [*edges, links[::-1]] if copy_ends == turned else edges


def _without(gone: Array, targets: Array, drawn: Drawn) -> tuple[Array, Drawn]:
    """Return the edges except those at the positions ``gone``."""
    keep = np.ones(targets.size, bool)
    keep[gone] = False
    # Edges were drawn first and are left out now: a node may get fewer than its fanout.
    rows = np.repeat(np.arange(drawn.counts.size), drawn.counts)
    counts = np.bincount(rows[keep], minlength=drawn.counts.size)
    edge_ids = None if drawn.edge_ids is None else drawn.edge_ids[keep]
    return targets[keep], Drawn(counts, drawn.neighbors[keep], edge_ids)


def _at_most(most: int | None, counts: Array, ids: Array) -> tuple[Array, Array]:
    """Return the first ``most`` of each row's ``ids``, and how many there are."""
    if most is None:
        return counts, ids
    # The start of each id's row: the position less that start is the position in the row.
    starts = np.repeat(counts.cumsum() - counts, counts)
    kept = np.arange(ids.size) - starts < most
    return np.minimum(counts, most), ids[kept]


def _as_type(edge_type: Sequence[str]) -> EdgeType:
    src, relation, dst = edge_type
    return (src, relation, dst)
