"""k-hop neighbour sampling: seeds to the fields of one message."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType, reverse_edge_type
from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory.segments import Array
from gigl_loader.message import (
    ATTRIBUTE,
    BATCH,
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGES_PER_HOP,
    INPUT_ID,
    IS_HETERO,
    NODE,
    NODE_FEATURES,
    NODE_LABELS,
    NODES_PER_HOP,
    BatchTicket,
    key,
)
from gigl_loader.sampler import _kernels as kernels
from gigl_loader.sampler.plan import Field, SampleRequest, SamplingPlan, draw_key
from gigl_loader.sampler.store import Draw, Drawn, GraphStore, Peers, Split


class NodeLabels:
    """Local labels of one node type: 0, 1, 2... in order of first appearance.

    Memory is in proportion to the batch, never to the graph, and is kept for the next batch.
    """

    def __init__(self) -> None:
        self._nodes = np.zeros(1024, np.int64)
        self._table = np.zeros(4096, np.int64)
        self._mask = np.uint64(4095)
        self.count = 0

    @property
    def nodes(self) -> Array:
        """``[count]`` int64, global ids by label; a view that the next call may move."""
        return self._nodes[: self.count]

    def reset(self) -> None:
        """Forget all labels."""
        self._table.fill(0)
        self.count = 0

    def append(self, ids: Array) -> None:
        """Give each of ``ids`` a label of its own, repeats too; a repeat is found by its first."""
        start = self.count
        self._reserve(ids.size)
        self.count += ids.size
        self._nodes[start : self.count] = ids
        kernels.insert_nodes(self._table, self._mask, self._nodes, start, self.count)

    def label(self, ids: Array) -> Array:
        """Return the label of each of ``ids``; ids without one get the next free ones."""
        self._reserve(ids.size)
        labels = np.empty(ids.size, np.int64)
        self.count = int(
            kernels.relabel(self._table, self._mask, self._nodes, self.count, ids, labels)
        )
        return labels

    def find(self, ids: Array) -> Array:
        """Return the label of each of ``ids``, -1 where it has none (negative ids have none)."""
        labels = np.empty(ids.size, np.int64)
        kernels.look_up(self._table, self._mask, self._nodes, ids, labels)
        return labels

    def _reserve(self, more: int) -> None:
        need = self.count + more
        if need > self._nodes.size:
            self._nodes = np.resize(self._nodes, need + need // 4)
        if 2 * need > self._table.size:
            size = 1 << (2 * need - 1).bit_length()
            self._table = np.zeros(size, np.int64)
            self._mask = np.uint64(size - 1)
            kernels.insert_nodes(self._table, self._mask, self._nodes, 0, self.count)


class _EdgeCollector:
    """Sampled edges of one type, hop after hop."""

    def __init__(self) -> None:
        self.neighbors: list[Array] = []
        self.targets: list[Array] = []
        self.edge_ids: list[Array] = []
        self.per_hop: list[int] = []

    def add(self, neighbors: Array, targets: Array, edge_ids: Array | None) -> None:
        self.neighbors.append(neighbors)
        self.targets.append(targets)
        if edge_ids is not None:
            self.edge_ids.append(edge_ids)
        self.per_hop.append(neighbors.size)

    def write_edge_index(self, out: Array) -> None:
        if self.neighbors:
            np.concatenate(self.neighbors, out=out[0])
            np.concatenate(self.targets, out=out[1])


class NeighborSampler:
    """Samples fixed numbers of neighbours per hop, per edge type.

    A node is expanded once, in the hop after the one that found it, as in PyG's ``NeighborLoader``
    with ``disjoint=False``. Seeds keep their places, repeats too.
    """

    def __init__(self, view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None) -> None:
        self._view = view
        self._plan = plan
        self._store = GraphStore(view, peers)
        self._labels = {node_type: NodeLabels() for node_type in sorted(view.num_nodes)}
        self._attributes: dict[Any, list[str]] = {}
        if plan.collect_features:
            self._attributes = _names_by_type(view.node_attributes, view.edge_attributes)

    def sample(self, request: SampleRequest) -> Sequence[Field]:
        """Return the fields of the batch of ``request``."""
        for labels in self._labels.values():
            labels.reset()
        self.add_seeds(request)
        self.add_roots(request)
        nodes_per_hop = {name: [labels.count] for name, labels in self._labels.items()}
        edges = {name: _EdgeCollector() for name in self._plan.fanouts}
        frontier = {name: (0, labels.count) for name, labels in self._labels.items()}
        for hop in range(self._plan.num_hops):
            self._expand(request.ticket, hop, frontier, edges)
            for name, labels in self._labels.items():
                frontier[name] = (frontier[name][1], labels.count)
                nodes_per_hop[name].append(labels.count - frontier[name][0])
        return [
            *self.seed_fields(request),
            *self._node_fields(nodes_per_hop),
            *self._edge_fields(edges),
            *self.extra_fields(request),
        ]

    def add_seeds(self, request: SampleRequest) -> None:
        """Put the seeds first, repeats too; a hook for subclasses with other seeds."""
        self._labels[self._plan.input_type].append(request.seeds)

    def add_roots(self, request: SampleRequest) -> None:
        """Add further nodes to expand from; a hook for subclasses, run after the seeds are in."""

    def extra_fields(self, request: SampleRequest) -> Sequence[Field]:
        """Return further fields; a hook for subclasses."""
        return ()

    def keep_edges(self, edge_type: EdgeType, targets: Array, drawn: Drawn) -> tuple[Array, Drawn]:
        """Return the edges to keep of those drawn; a hook for subclasses.

        ``targets`` is ``[num_edges]`` int64: the local label of the node each was drawn for.
        """
        return targets, drawn

    def _ends(self, edge_type: EdgeType) -> tuple[NodeType, NodeType]:
        """Return (type that is expanded, type of its neighbours)."""
        src, _, dst = edge_type
        return (dst, src) if self._view.edge_dir == "in" else (src, dst)

    def _expand(
        self,
        ticket: BatchTicket,
        hop: int,
        frontier: dict[NodeType, tuple[int, int]],
        edges: dict[EdgeType, _EdgeCollector],
    ) -> None:
        pending = []
        for edge_type, fanout in self._plan.fanouts.items():
            start, stop = frontier[self._ends(edge_type)[0]]
            nodes = self._labels[self._ends(edge_type)[0]].nodes[start:stop].copy()
            draw = Draw(
                edge_type,
                fanout[hop],
                draw_key(self._plan, ticket, hop, edge_type),
                replace=self._plan.replace,
                with_weight=self._plan.with_weight,
                with_edge=self._plan.with_edge,
            )
            pending.append((edge_type, start, self._store.draw(draw, nodes)))
        for edge_type, start, drawn in pending:  # asked all before the first is waited for
            self._collect(edge_type, start, drawn(), edges[edge_type])

    def _collect(
        self, edge_type: EdgeType, first: int, drawn: Drawn, edges: _EdgeCollector
    ) -> None:
        targets = np.empty(drawn.neighbors.size, np.int64)
        kernels.repeat_rows(drawn.counts, first, targets)
        targets, drawn = self.keep_edges(edge_type, targets, drawn)
        labels = self._labels[self._ends(edge_type)[1]].label(drawn.neighbors)
        edges.add(labels, targets, drawn.edge_ids)

    def seed_fields(self, request: SampleRequest) -> list[Field]:
        """Return what says which seeds the batch is of; a hook for subclasses."""
        hetero = self._view.is_heterogeneous
        input_type = self._plan.input_type if hetero else None
        return [
            Field.of(IS_HETERO, np.uint8(hetero)),
            Field.of(key(BATCH, input_type), request.seeds),
            Field.of(key(INPUT_ID, input_type), request.extra.get(INPUT_ID, request.input_id)),
        ]

    def _node_fields(self, per_hop: dict[NodeType, list[int]]) -> list[Field]:
        fields = []
        for node_type, labels in self._labels.items():
            name = node_type if self._view.is_heterogeneous else None
            nodes = labels.nodes
            fields.append(Field.of(key(NODE, name), nodes))
            fields.append(Field.of(key(NODES_PER_HOP, name), np.array(per_hop[node_type])))
            split = self._store.split(self._view.node_books.get(node_type), nodes)
            if self._plan.collect_features and node_type in self._view.node_features:
                rows = self._store.fetch("node_features", node_type, nodes, split)
                fields.append(Field(key(NODE_FEATURES, name), *rows))
            if node_type in self._view.node_labels:
                rows = self._store.fetch("node_labels", node_type, nodes, split)
                fields.append(Field(key(NODE_LABELS, name), *rows))
            fields += self._attribute_fields("node_attributes", node_type, name, nodes, split)
        return fields

    def _attribute_fields(
        self, kind: str, owner: Any, name: Any, ids: Array, split: Split | None
    ) -> list[Field]:
        """Return further attributes of a type: ``owner`` in the dataset, ``name`` in a batch."""
        fields = []
        for attribute in self._attributes.get(owner, ()):
            rows = self._store.fetch(kind, (owner, attribute), ids, split)
            fields.append(Field(key(ATTRIBUTE + attribute, name), *rows))
        return fields

    def _edge_fields(self, edges: dict[EdgeType, _EdgeCollector]) -> list[Field]:
        fields = []
        for edge_type, collected in edges.items():
            name = None
            if self._view.is_heterogeneous:
                reverse = self._view.edge_dir == "out"
                name = reverse_edge_type(edge_type) if reverse else edge_type
            per_hop = np.array(collected.per_hop, np.int64)
            shape = (2, sum(collected.per_hop))
            fields.append(Field(key(EDGE_INDEX, name), "int64", shape, collected.write_edge_index))
            fields.append(Field.of(key(EDGES_PER_HOP, name), per_hop))
            if self._plan.with_edge:
                ids = np.concatenate(collected.edge_ids) if collected.edge_ids else per_hop[:0]
                fields.append(Field.of(key(EDGE, name), ids))
                has_features = self._plan.collect_features and edge_type in self._view.edge_features
                if not has_features and edge_type not in self._attributes:
                    continue
                split = self._store.split(self._view.edge_books.get(edge_type), ids)
                if has_features:
                    rows = self._store.fetch("edge_features", edge_type, ids, split)
                    fields.append(Field(key(EDGE_FEATURES, name), *rows))
                fields += self._attribute_fields("edge_attributes", edge_type, name, ids, split)
        return fields


def _names_by_type(*attributes: Iterable[tuple[Any, str]]) -> dict[Any, list[str]]:
    """Return the names of attributes by the type that has them, ascending."""
    names: dict[Any, list[str]] = {}
    for owner, name in sorted(chain(*attributes), key=str):
        names.setdefault(owner, []).append(name)
    return names
