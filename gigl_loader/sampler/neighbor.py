"""`NeighborSampler`: from seeds to the fields of a message, by roots, draw and expansion."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.batch.message import (
    EDGE,
    EDGE_INDEX,
    EDGE_ROWS,
    EDGES_PER_HOP,
    HOP,
    NODE,
    NODE_ROWS,
    NODES_PER_HOP,
    TREE,
    Axis,
    declared,
    key,
    keys_of_type,
)
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import reverse_edge_type
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.expansion import Expansion, Sampled
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Field, Peers, SampleRequest, SamplingPlan
from gigl_loader.sampler.roots import (
    DistinctRoots,
    MakeRoots,
    NodeRoots,
    RootFields,
    Roots,
    SeedTimes,
)
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.sampler.rows.row_exchange import FeatureRows, Split
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sampler.tokens import TokenMaker, TokenNodes, ticket_of_tokens


class NeighborSampler:
    """Samples fixed numbers of neighbours per hop, per edge type, around the roots of a batch.

    ::

        roots      the first nodes of a batch            nodes | edges and negatives | anchors
        draw       the neighbours that a node gets       decided by the plan, answered by owners
        expansion  growth and end of the batch           decided by the plan

    Args:
        view: The partition.
        plan: How to sample.
        peers: The other partitions; None if none is asked.
        roots: Makes the roots, given a reader; None: `NodeRoots`, the seeds themselves.
    """

    _in_trees = True
    """Whether tokens come from trees."""

    def __init__(
        self,
        view: PartitionView[Array],
        plan: SamplingPlan,
        peers: Peers | None,
        roots: MakeRoots | None = None,
    ) -> None:
        self._view, self._plan = view, plan
        self._reader = GraphReader(view, peers)
        self._roots: Roots = NodeRoots(self._reader, plan) if roots is None else roots(self._reader)
        how = plan.expansion
        self.grown = BatchNodes(view.num_nodes, disjoint=how.draws_in_trees, by_time=how.by_time)
        """The nodes that hops find; with tokens, those that become tokens are `nodes`."""
        self.times = SeedTimes(self._reader, plan)
        self.nodes: BatchNodes = self.grown
        """The nodes of the batch."""
        self.tokens: TokenMaker | None = None
        if how.tokens is not None:
            self.nodes = TokenNodes(view.num_nodes, self.grown if self._in_trees else None)
            self.tokens = TokenMaker(self._reader, plan, self.times)
        self._expansion = Expansion(self._reader, plan, self.grown, self.times)
        self._elsewhere: FeatureRows | None = None
        if plan.feature_store is not None:
            self._elsewhere = FeatureRows(plan.feature_store, view)
        self._rows: dict[str, dict[Any, Any]] = {
            kind: getattr(view, kind) if plan.has_rows(kind) else {}
            for kind in (*NODE_ROWS, *EDGE_ROWS)
        }
        names: dict[Any, list[str]] = view.attribute_names() if plan.collect_features else {}
        self.keys = {
            name: keys_of_type(self._in_batch(name)) for name in (*view.num_nodes, *plan.fanouts)
        }
        """Keys of all fields, by node and edge type."""
        self.attributes = {
            owner: [
                (name, key(declared(_axis_of(owner), name), self._in_batch(owner)))
                for name in found
            ]
            for owner, found in names.items()
        }
        """Further attributes of a type, and their keys."""

    @property
    def leaves_out_edges(self) -> bool:
        """Whether the roots filter drawn edges."""
        return bool(getattr(self._roots, "excludes", False))

    def _in_batch(self, graph_type: Any) -> Any:
        """Return a type as batches name it; None: homogeneous."""
        if not self._view.is_heterogeneous:
            return None
        # With "out" messages go against the walked edges: they are of the reverse type, as in GLT.
        if isinstance(graph_type, tuple) and self._view.edge_dir == "out":
            return reverse_edge_type(graph_type)
        return graph_type

    def sample(self, request: SampleRequest) -> Sequence[Field]:
        """Return the fields of the batch of ``request``."""
        placed = self.place(request)
        if self.tokens is not None:
            return self._with_tokens(request, placed, self.tokens)
        sampled = self._expansion.run(request.ticket, placed.keep_edges)
        # Fields are written after this returns, and before the next call: they may read the labels
        # and edges of this batch in place.
        return [*placed.fields, *self._node_fields(sampled), *self._edge_fields(sampled)]

    def _with_tokens(
        self, request: SampleRequest, placed: RootFields, maker: TokenMaker
    ) -> Sequence[Field]:
        assert isinstance(self.nodes, TokenNodes)
        grown = self._expansion.run(ticket_of_tokens(request.ticket), placed.keep_edges)
        sampled, tokens = maker.of_trees(request, self.nodes, grown)
        return [*placed.fields, *self._node_fields(sampled), *self._edge_fields(sampled), *tokens]

    def place(self, request: SampleRequest) -> RootFields:
        """Put the roots of a batch into `nodes`, which forgets the previous batch."""
        times = self.times.of(request)
        self.nodes.reset(times, self.times.starts(request, times))
        placed = self._roots.place(request, self.nodes)
        if self.tokens is not None and self._in_trees:
            # By the positions of seeds in the input, not in the batch: whatever else is in it,
            # trees are the same.
            self.grown.places = request.input_id[self.grown.seeds]
        return placed

    def _node_fields(self, sampled: Sampled) -> list[Field]:
        fields = []
        per_hop, elsewhere = sampled.nodes_per_hop, self._elsewhere
        for node_type in self.nodes.types:
            keys, nodes = self.keys[node_type], self.nodes.ids(node_type)
            seeds = partial(self.nodes.write_seeds, node_type) if self.nodes.disjoint else None
            found = sampled.found_per_hop.get(node_type, [])
            fields += [
                Field(name, "int64", nodes.shape, value)
                if callable(value)
                else Field.of(name, value)
                for name, value in values_of_nodes(self._plan, keys, nodes, seeds, found)
            ]
            if per_hop:
                fields.append(Field.of(keys[NODES_PER_HOP], np.array(per_hop[node_type])))
            # One split for features, labels and attributes: the owners of ids are looked up once.
            split = self._reader.split(self._view.node_books.get(node_type), nodes)
            for kind, field in NODE_ROWS.items():
                if node_type in self._rows[kind]:
                    rows = self._reader.fetch(kind, node_type, nodes, split)
                    fields.append(Field(keys[field], *rows))
                elif kind == "node_features" and elsewhere is not None and node_type in elsewhere:
                    fields.append(Field.of(keys[field], elsewhere.fetch(node_type, nodes)))
            fields += self._attribute_fields("node_attributes", node_type, nodes, split)
        return fields

    def _attribute_fields(
        self, kind: str, owner: Any, ids: Array, split: Split | None
    ) -> list[Field]:
        """Return further attributes of a type."""
        fields = []
        for attribute, attribute_key in self.attributes.get(owner, ()):
            known = None
            if self.tokens is not None and attribute == self._plan.expansion.time_attr:
                known = self.tokens.known_times(owner, ids)
            if known is None:
                rows = self._reader.fetch(kind, (owner, attribute), ids, split)
                fields.append(Field(attribute_key, *rows))
            else:
                fields.append(Field.of(attribute_key, known))
        return fields

    def _edge_fields(self, sampled: Sampled) -> list[Field]:
        fields = []
        for edge_type, collected in sampled.edges.items():
            keys, shape = self.keys[edge_type], (2, collected.count)
            fields.append(Field(keys[EDGE_INDEX], "int64", shape, collected.write_edge_index))
            if sampled.nodes_per_hop:
                per_hop = np.array(collected.per_hop, np.int64)
                fields.append(Field.of(keys[EDGES_PER_HOP], per_hop))
            if self._plan.with_edge and collected.has_ids:
                ids = collected.ids()
                fields.append(Field.of(keys[EDGE], ids))
                fields += self._edge_row_fields(edge_type, ids)
        return fields

    def _edge_row_fields(self, edge_type: Any, ids: Array) -> list[Field]:
        """Return features and further attributes of the edges ``ids``."""
        kinds = [kind for kind in EDGE_ROWS if edge_type in self._rows[kind]]
        # Before the split, which costs a pass over all edges.
        if not kinds and edge_type not in self.attributes:
            return []
        split = self._reader.split(self._view.edge_books.get(edge_type), ids)
        fields = []
        for kind in kinds:
            rows = self._reader.fetch(kind, edge_type, ids, split)
            fields.append(Field(self.keys[edge_type][EDGE_ROWS[kind]], *rows))
        return fields + self._attribute_fields("edge_attributes", edge_type, ids, split)


def values_of_nodes(
    plan: SamplingPlan, keys: Mapping[str, str], ids: Any, seeds: Any, found_per_hop: Sequence[int]
) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each field that ids, seeds and hops of a type's nodes decide.

    The sampler of a device has the same fields: a new one is written here, for both.

    Args:
        plan: How to sample.
        keys: Keys of the type, by field.
        ids: ``[n]`` int64, an array, or a tensor of a device.
        seeds: ``[n]`` int64, the seed of each node's tree, likewise, or a function that writes
            them; None: nodes are merged.
        found_per_hop: How many nodes each hop found, in their order.
    """
    yield keys[NODE], ids
    if seeds is not None:
        yield keys[TREE], seeds
    if plan.expansion.with_hop:
        yield keys[HOP], np.repeat(np.arange(len(found_per_hop)), found_per_hop)


def _axis_of(graph_type: Any) -> Axis:
    return "edge" if isinstance(graph_type, tuple) else "node"


def subgraph_sampler(
    view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None
) -> NeighborSampler:
    """Return a sampler whose batches hold each seed once; see `DistinctRoots`."""
    return NeighborSampler(view, plan, peers, lambda reader: DistinctRoots(reader, plan))


NEIGHBOR_KIND = SamplerKind("gigl_loader.sampler.neighbor.NeighborSampler", can_pad=True)
SUBGRAPH_KIND = SamplerKind(
    "gigl_loader.sampler.neighbor.subgraph_sampler", roots=DistinctRoots, merges_roots=True
)
