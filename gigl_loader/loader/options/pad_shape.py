"""``pad=``: its check, and the shape that it gives the batches of a loader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from gigl_loader.batch.message import SampleMessage, columns_of
from gigl_loader.batch.padding import LEAST_DEAD, PadShape, padded
from gigl_loader.batch.splitting import SeedLayout, split_to_fit
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    reverse_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.options.glt_config import BOUND, LARGER
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.runtime.system import meminfo, memory_limit
from gigl_loader.sampler.batch_bounds import BatchBounds, batch_bounds
from gigl_loader.sampler.options import CustomSamplerOptions, ExpansionOptions, PPRSamplerOptions
from gigl_loader.sampler.sampler_kinds import SamplerKind

_NODE_BYTES, _EDGE_BYTES = 8 + 1, 2 * 8 + 1
"""Bytes of an id, of the two ends of an edge, and of a mask."""


@dataclass(frozen=True, kw_only=True)
class Padding:
    """How the batches of one loader get their shape."""

    shape: PadShape
    larger: PadShape | None
    """Shape of batches that do not fit ``shape``; None: they are split."""
    may_split: bool
    layout: SeedLayout
    batch_size: int

    def split(self, message: SampleMessage) -> list[SampleMessage]:
        """Return the batches that a batch is handed out as: mostly the batch itself."""
        return split_to_fit(message, self.shape, self.layout)

    def padded(self, message: SampleMessage) -> SampleMessage:
        """Return a batch with dead nodes and edges.

        Raises:
            ConfigError: It is too large, which is possible only for a batch requested by its seeds.
        """
        for shape in (self.shape, self.larger):
            if shape is not None and shape.fits(message):
                return padded(message, shape, self.batch_size)
        raise ConfigError(
            f"a batch of {self.layout.count(message)} seeds has no place in {self.shape}: with "
            f"pad=, one that is asked for by its seeds has {self.batch_size} at most, and sizes "
            "that are given have to be enough for all of them at once"
        )

    def __str__(self) -> str:
        """Return the values that decide the parts of a batch."""
        return f"nodes {self.shape.nodes}, edges {self.shape.edges}"


def make_padding(
    given: LoaderOptions,
    fanouts: Any,
    schema: DatasetSchema,
    num_nodes: Mapping[NodeType, int],
    num_edges: Mapping[EdgeType, int],
    inputs: Sequence[Any],
    sampler: SamplerKind,
    world_size: int,
) -> Padding | None:
    """Return how batches are padded, as far as the user's options decide it; None: they are not.

    Args:
        given: The user's options; `check_pad` has passed its ``pad``.
        fanouts: From the sampling config: by message-passing edge type, or a list.
        schema: Types and widths of the dataset.
        num_nodes: Nodes of the whole graph, by type.
        num_edges: Edges of the whole graph, by type; a type whose number is not known is left out.
        inputs: The sampler's inputs, all of one type; those of anchors with their columns.
        sampler: The loader's own sampler.
        world_size: Ranks of the job.

    Raises:
        ConfigError: There is no bound, or the sizes do not fit the graph or the loader.
    """
    pad = given.pad
    if pad is False:
        return None
    _check_sampler(sampler, given)
    # an edge may be drawn any number of times with replacement
    limits = {} if given.replace else num_edges
    graph = _PaddedGraph(fanouts, schema, num_nodes, limits, given.expansion)
    roots = _Seeds(sampler, inputs, schema)
    bound = _bound(pad, graph, roots, given.batch_size)
    layout = roots.layout(typed=graph.typed)
    shape = bound if pad is True else graph.read(pad)
    assert shape is not None, "without sizes a missing bound was raised"
    enough = bound is not None and shape.covers(
        {name: size - LEAST_DEAD for name, size in bound.nodes.items()}, bound.edges
    )
    larger = None if enough or pad is True or pad.get(LARGER) != BOUND else bound
    for one in (shape, larger):
        if one is not None:
            _check_memory(one, pad, schema)
    may_split = not enough and larger is None
    if may_split and given.expansion.tokens is not None:
        raise ConfigError(
            f"pad={pad!r} may split batches, and tokens of a batch are not split: add "
            '"larger": "bound", or give pad=True'
        )
    if may_split:
        _check_least(shape, graph, roots, bound)
    in_step = given.even_ranks is not None or given.shard == "world"
    if may_split and in_step and world_size > 1:
        raise ConfigError(
            f"pad={pad!r} may split batches, and the ranks of this job take the same number of "
            'steps: add "larger": "bound", by which a batch that does not fit has the shape of '
            "the bound, or give pad=True"
        )
    return Padding(
        shape=shape, larger=larger, may_split=may_split, layout=layout, batch_size=given.batch_size
    )


def _bound(pad: Any, graph: "_PaddedGraph", roots: "_Seeds", batch_size: int) -> PadShape | None:
    """Return the shape that any batch fits; None: batches have no bound, and sizes are given."""
    try:
        return graph.shape(graph.bounds(roots.most(batch_size), repeat=roots.repeat))
    except ConfigError as error:
        if pad is True or pad.get(LARGER) == BOUND:
            raise ConfigError(
                f"pad has no bound: {error}; give sizes, as gigl_loader.padding_sizes measures them"
            ) from None
        return None


def _check_memory(shape: PadShape, pad: Any, schema: DatasetSchema) -> None:
    """Raise `ConfigError` if one batch of a shape is larger than the memory of this machine."""
    nbytes = _bytes_of(shape.nodes, _NODE_BYTES, schema.node_feature_info)
    nbytes += _bytes_of(shape.edges, _EDGE_BYTES, schema.edge_feature_info)
    memory, limit = meminfo("MemTotal"), memory_limit()
    memory = memory if limit is None else min(memory, limit[0])
    if nbytes > memory:
        raise ConfigError(
            f"pad={pad!r} makes batches of {sum(shape.nodes.values()):,} nodes and "
            f"{sum(shape.edges.values()):,} edges, {size_in_words(nbytes)} each, and this machine "
            f"has {size_in_words(memory)} of memory: lower num_neighbors or batch_size, or give "
            "sizes, as gigl_loader.padding_sizes measures them"
        )


def _bytes_of(sizes: Mapping[Any, int], each: int, features: Any) -> int:
    """Return the least bytes of nodes or edges: ``each`` for one, and its row of features."""
    return sum(
        count * (each + (0 if info is None else info.dim * info.dtype.itemsize))
        for name, count in sizes.items()
        for info in [features.get(name) if isinstance(features, Mapping) else features]
    )


def _check_sampler(sampler: SamplerKind, given: LoaderOptions) -> None:
    chosen, subgraph_type = given.sampler_options, given.expansion.subgraph_type
    if isinstance(chosen, PPRSamplerOptions | CustomSamplerOptions):
        raise ConfigError(
            f"pad does not go with {type(chosen).__name__}: fan-outs do not bound its batches"
        )
    if subgraph_type != "directional":
        raise ConfigError(
            f'pad does not go with subgraph_type="{subgraph_type}": edges are added '
            "to those that fan-outs bound; leave one of them out"
        )
    if not sampler.can_pad:
        raise ConfigError(
            f"pad does not go with the sampler {sampler.name!r}, whose batches need not grow hop "
            "by hop from seeds; DistNeighborLoader, DistLinkNeighborLoader and DistABLPLoader "
            "can pad"
        )


def _check_least(
    shape: PadShape, graph: "_PaddedGraph", roots: "_Seeds", bound: PadShape | None
) -> None:
    """Raise `ConfigError` if one seed may not fit, in which case no split would help."""
    try:
        least = graph.shape(graph.bounds(roots.most(1), repeat=roots.repeat, widest=True))
    except ConfigError:  # fan-outs of -1 give no bound: then a batch will show it
        return
    # A seed may find itself once more: a repeated node has two labels, and others find only one of
    # them.
    again = {name: min(count, 1) if roots.repeat else 0 for name, count in roots.most(1).items()}
    nodes = {n: c + again.get(graph.type_of(n), 0) for n, c in least.nodes.items()}
    edges = dict(least.edges)
    if bound is not None:  # a part of a batch is no larger than the batch
        nodes = {name: min(size, bound.nodes[name]) for name, size in nodes.items()}
        edges = {name: min(size, bound.edges[name]) for name, size in edges.items()}
    for names, given, needed in (("nodes", shape.nodes, nodes), ("edges", shape.edges, edges)):
        small = {name: needed[name] for name, size in given.items() if size < needed[name]}  # type: ignore[index]  # both are of one kind
        if small:
            raise ConfigError(
                f'pad["{names}"]={_plain(given)} may have no place for a single seed, and such a '
                f"batch cannot be split: give at least {_plain(small)}"
            )


def _plain(sizes: Mapping[Any, int]) -> Any:
    return sizes[None] if None in sizes else dict(sizes)


class _PaddedGraph:
    """Types of a graph as batches name them, and the graph's bounds."""

    def __init__(
        self,
        fanouts: Any,
        schema: DatasetSchema,
        num_nodes: Mapping[NodeType, int],
        num_edges: Mapping[EdgeType, int],
        expansion: ExpansionOptions,
    ) -> None:
        labeled = schema.is_homogeneous_with_labeled_edge_type
        self.typed = schema.edge_types is not None and not labeled
        by_type = (
            fanouts if isinstance(fanouts, Mapping) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: fanouts}
        )
        self._fanouts: dict[EdgeType, tuple[int, ...]] = {
            name: tuple(hops) for name, hops in by_type.items()
        }
        self._num_nodes, self._edge_dir = num_nodes, schema.edge_dir
        self._num_edges, self._disjoint = num_edges, expansion.draws_in_trees
        self._tokens = expansion.tokens

    def bounds(
        self, roots: Mapping[NodeType, int], *, repeat: bool, widest: bool = False
    ) -> BatchBounds:
        """Return the bounds of a batch of ``roots``.

        Args:
            roots: Roots by type.
            repeat: Whether a node may be a root more than once.
            widest: For a part of a batch: its nodes may have been found in an earlier hop of the
                whole batch, with as many neighbours as that hop draws. The graph's edges limit
                nothing then: a root of another part may be a node of this one, too.
        """
        fanouts, num_edges = self._fanouts, self._num_edges
        if widest:
            num_edges = {}
            fanouts = {name: tuple(accumulate(hops, max)) for name, hops in fanouts.items()}
        bounds = batch_bounds(
            fanouts,
            roots,
            self._num_nodes,
            edge_dir=self._edge_dir,
            disjoint=self._disjoint,
            roots_repeat=repeat,
            num_edges=num_edges,
        )
        if self._tokens is None:
            return bounds
        # Nodes that are tokens, each once, and edges between them, each once.
        most = sum(roots.values()) * self._tokens.max_tokens
        return replace(
            bounds,
            nodes={n: min(c, most, self._num_nodes[n]) for n, c in bounds.nodes.items()},
            edges={n: min(c, num_edges.get(n, c)) for n, c in bounds.edges.items()},
        )

    def shape(self, bounds: BatchBounds) -> PadShape:
        """Return the shape that fits everything within ``bounds``."""
        nodes: dict[NodeType | None, int] = {}
        edges: dict[EdgeType | None, int] = {}
        for node_type, count in bounds.nodes.items():
            nodes[node_type if self.typed else None] = count + LEAST_DEAD
        for edge_type, count in bounds.edges.items():
            edges[self._in_batch(edge_type) if self.typed else None] = count
        return PadShape(nodes, edges)

    def read(self, pad: Mapping[str, Any]) -> PadShape:
        """Return the shape given by the user."""
        nodes: list[NodeType | None] = [None]
        edges: list[EdgeType | None] = [None]
        if self.typed:
            nodes = [*sorted(self._num_nodes)]
            edges = [self._in_batch(name) for name in self._fanouts]
        return PadShape(self._sizes(pad, "nodes", nodes), self._sizes(pad, "edges", edges))

    def _sizes(self, pad: Mapping[str, Any], name: str, known: list[Any]) -> dict[Any, int]:
        given = pad[name]
        if not self.typed:
            if isinstance(given, Mapping):
                raise ConfigError(
                    f'pad["{name}"]={dict(given)} is by type, but the graph is homogeneous: give '
                    "one integer"
                )
            return {None: given}
        if not isinstance(given, Mapping) or set(given) != set(known):
            raise ConfigError(
                f'pad["{name}"] must name exactly the types of a batch, {known}, got {given!r}'
            )
        return {one: given[one] for one in known}

    def _in_batch(self, edge_type: EdgeType) -> EdgeType:
        return reverse_edge_type(edge_type) if self._edge_dir == "out" else edge_type

    def type_of(self, name: NodeType | None) -> NodeType:
        """Return the graph's type for a name in batches."""
        return next(iter(self._num_nodes)) if name is None else name


class _Seeds:
    """The roots of a loader's batches."""

    def __init__(self, sampler: SamplerKind, inputs: Sequence[Any], schema: DatasetSchema) -> None:
        self._sampler, self._known = sampler, schema.edge_types or ()
        self._type: NodeType = inputs[0].input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
        self.repeat = not sampler.merges_roots
        self._widths: dict[str, int] = {}
        for given in inputs:
            for name, column in columns_of(given).items():
                width = column.shape[1] if column.dim() > 1 else 1
                self._widths[name] = max(width, self._widths.get(name, 0))

    def most(self, num_seeds: int) -> dict[NodeType, int]:
        """Return the most roots of a batch of so many seeds, by type.

        Raises:
            ConfigError: Labels of anchors are not bounded.
        """
        return self._sampler.most_roots(self._type, num_seeds, self._known, self._widths)

    def layout(self, *, typed: bool) -> SeedLayout:
        """Return the positions of the seeds of a batch."""
        sampler, edge_type = self._sampler, self._sampler.edge_type
        if edge_type is None:
            return SeedLayout(
                input_type=self._type if typed else None,
                supervision=sampler.supervision,
                typed=typed,
            )
        src, _, dst = edge_type
        return SeedLayout(
            input_type=src if typed else None,
            other_type=dst if typed else None,
            of_edges=True,
            triplets=sampler.has_triplets,
            typed=typed,
        )
