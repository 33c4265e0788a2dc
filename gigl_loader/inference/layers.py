"""A model as a list of layers, each computed for some destination rows at a time.

A `Chunk` has such rows of a rank, with the rows of all their in-neighbours. Unless ranks read each
other's rows in place, they work in step: in each step, a rank requests the rows for its own chunk,
and responds to the others; a rank without a chunk, or with a finished one, only responds.
"""

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import HeteroConv, MessagePassing
from torch_geometric.nn.conv.hetero_conv import group
from torch_geometric.nn.models.basic_gnn import BasicGNN

from gigl_loader.dataset.partition.adjacency import EdgeBlock
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.inference.graph_sources import GraphSource
from gigl_loader.inference.modules import Norm, check_model, is_normalized
from gigl_loader.inference.rank_rows import RowFetcher, RowSource
from gigl_loader.runtime.ranks.collectives import RankExchange
from gigl_loader.runtime.user_functions import returned
from gigl_loader.sampler.nodes import NodeLabels


@dataclass(frozen=True)
class Chunk:
    """Rows ``start`` to ``stop`` of a rank's own nodes of a type, ready to be computed."""

    index: int
    start: int
    stop: int
    node_type: NodeType
    """Type of the destination nodes."""
    x: dict[NodeType, Tensor]
    """``[num_src, width]`` by type; in ``node_type`` the destinations come first."""
    edges: dict[EdgeType, EdgeBlock]
    """Those into ``node_type``, from types that have rows, in local numbers."""
    n_id: dict[NodeType, Tensor]
    """``[num_src]`` int64, global ids by type."""
    degrees: dict[Norm, Tensor]
    """``[num_src]`` float32, the divisor of a norm."""

    @property
    def num_dst(self) -> int:
        """Rows to compute."""
        return self.stop - self.start


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a layer.

    Attributes:
        rows: By node type.
        weight: Whether the layer takes edge weights.
        attr: Whether it takes edge features.
        degrees: By norm, the degrees of own nodes.
    """

    rows: Mapping[NodeType, RowSource]
    weight: bool = False
    attr: bool = False
    degrees: Mapping[Norm, RowSource] | None = None


class ChunkReader:
    """Cuts a rank's own nodes of a type into chunks and fetches the inputs of each.

    Args:
        graph: The structure.
        node_type: Type of the destinations.
        exchange: The ranks.
        batch_size: Destination rows of a chunk.
    """

    def __init__(
        self, graph: GraphSource, node_type: NodeType, exchange: RankExchange, batch_size: int
    ) -> None:
        self._graph, self._node_type, self._exchange = graph, node_type, exchange
        self._batch_size = batch_size
        self._fetcher = RowFetcher(graph.owners, exchange)
        self.own_ids: Tensor = graph.owners.own_ids[node_type]
        self._edge_types = [name for name in graph.edge_types if name[2] == node_type]

    @property
    def num_chunks(self) -> int:
        """Chunks of this rank."""
        return -(-self.own_ids.numel() // self._batch_size)

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first row of a chunk, and one past its last."""
        start = min(index * self._batch_size, self.own_ids.numel())
        return start, min(start + self._batch_size, self.own_ids.numel())

    def read(self, reads: LayerInputs, done: set[int]) -> Iterator[Chunk]:
        """Yield the chunks that are not ``done``; each is read while the previous one is computed.

        All ranks read together, whether or not their chunks are done.
        """
        # A chunk may be done on one rank and open on another, which then needs rows of the first: a
        # step is skipped only if no rank computes in it. Ranks may cut their nodes into chunks of
        # different sizes; a step is just a number that all of them count up to.
        everyone = self._exchange.gather((self.num_chunks, done), tuple[int, set[int]])
        steps = [
            step
            for step in range(max(count for count, _ in everyone))
            if any(step < count and step not in them for count, them in everyone)
        ]
        # One thread: from here on only it makes collective calls, in the same order on all ranks.
        # The iterating thread computes, and makes none before the last step was read.
        with ThreadPoolExecutor(1, "gigl_loader reads chunks") as pool:
            ahead: Future[Chunk | None] | None = None
            due: Future[Chunk | None] | None
            for step in [*steps, None]:
                # a future keeps its result, which would outlive the caller's chunk
                due, ahead = ahead, None
                # before the next read starts: after a failed read no collective call may follow
                chunk = None if due is None else due.result()
                if step is not None:
                    ahead = pool.submit(self._read, step, reads, step in done)
                if chunk is not None:
                    yield chunk
                del chunk  # frees its memory before the read after next

    def _read(self, index: int, reads: LayerInputs, done: bool) -> Chunk | None:
        start, stop = self.bounds(index)
        nothing_to_do = done or start >= stop
        if nothing_to_do:  # but other ranks may request rows
            stop = start
        chunk = self.structure(index, start, stop, reads)
        degrees = reads.degrees or {}
        x: dict[NodeType, Tensor] = {}
        scales: dict[Norm, Tensor] = {}
        # get() is collective: n_id is in the order of sorted types, which is the same on all ranks
        for name, nodes in chunk.n_id.items():
            # norms are of edges between nodes of one type (check_conv), so only that type has
            # degrees
            norms = [norm for norm in degrees if norm.edge_type[2] == self._node_type == name]
            sources = [reads.rows[name]] if name in reads.rows else []
            rows = self._fetcher.get(name, nodes, [*sources, *(degrees[norm] for norm in norms)])
            if sources:
                x[name] = rows.pop(0)
            scales.update(zip(norms, rows, strict=True))
        return None if nothing_to_do else replace(chunk, x=x, degrees=scales)

    def structure(self, index: int, start: int, stop: int, reads: LayerInputs) -> Chunk:
        """Return a chunk without rows: own nodes ``start`` to ``stop`` and the edges into them."""
        targets = self.own_ids[start:stop]
        names = [name for name in self._edge_types if name[0] in reads.rows]
        labels = {name: NodeLabels() for name in sorted({self._node_type, *(t[0] for t in names)})}
        # first of all, so that the destinations have the numbers 0 to num_dst - 1
        labels[self._node_type].append(targets.numpy())
        edges = {}
        for name in names:
            block = self._graph.edges(name, targets, weight=reads.weight, attr=reads.attr)
            # in place: only this chunk uses the block
            block.sources.copy_(torch.from_numpy(labels[name[0]].label(block.sources.numpy())))
            edges[name] = EdgeBlock(block.edge_index, block.indptr, block.weights, block.attr)
        # a copy: `nodes` is a view of a table with room for many more
        n_id = {name: torch.from_numpy(numbered.nodes.copy()) for name, numbered in labels.items()}
        return Chunk(index, start, stop, self._node_type, {}, edges, n_id, {})


LayerFunction = Callable[..., Any]
"""``(x_src, edge_index, num_dst) -> x_dst``; the destinations come first in ``x_src``. On a
heterogeneous graph all four are dicts by type. Parameters named ``edge_weight``, ``edge_attr`` and
``n_id`` are given too."""

_PAIRS = ("EdgeConv", "GATConv", "GATv2Conv", "GINConv", "GraphConv", "SAGEConv")
"""Layers that take (sources, destinations) and so compute nothing for other sources."""

_SUMS = {"SAGEConv": ("mean", "sum", "add"), "GINConv": ("sum", "add")}
"""Layers, and their aggregations, that a product with a sparse matrix can compute."""

_EXTRAS = ("edge_weight", "edge_attr", "n_id")


class Layer:
    """Computes the destinations of a chunk.

    Attributes:
        name: For errors.
        weight: Whether it reads edge weights.
        attr: Whether it reads edge features.
        ids: Whether it reads global ids.
        norms: By module that weighs edges by degrees.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = self.attr = self.ids = False
        self.norms: dict[Any, Norm] = {}

    def __call__(self, chunk: Chunk) -> Any:
        """Return ``[num_dst, width]``; None if the layer computes nothing for the type."""
        with self._weighed(chunk):
            return self._compute(chunk)

    def _compute(self, chunk: Chunk) -> Any:
        raise NotImplementedError

    def _find_norms(self, module: torch.nn.Module, edge_type: EdgeType) -> None:
        for submodule in module.modules():
            if is_normalized(submodule) and submodule not in self.norms:
                self.norms[submodule] = Norm.of(submodule, edge_type, weighted=self.weight)

    @contextmanager
    def _weighed(self, chunk: Chunk) -> Iterator[None]:
        """Give the modules of ``norms`` the weights of the whole graph while they run."""
        with ExitStack() as stack:
            for module, norm in self.norms.items():
                if norm.edge_type in chunk.edges:
                    # The layer first makes weights by the chunk's degrees. These replace them at
                    # the last point before messages are made, and the hook is removed again: the
                    # model is the user's.
                    weigh = partial(_weigh, norm, chunk)
                    stack.callback(module.register_propagate_forward_pre_hook(weigh).remove)
            yield


def _weigh(norm: Norm, chunk: Chunk, module: Any, inputs: Any) -> Any:
    _, size, values = inputs
    # not the edge_index of `inputs`, to which the layer may have added self-loops already
    edges = chunk.edges[norm.edge_type]
    edge_index, weights = norm.weigh(
        edges.edge_index, edges.weights, chunk.degrees[norm], values["x"].dtype
    )
    return edge_index, size, {**values, "edge_weight": weights}


class _Convolutions(Layer):
    """PyG's layers by edge type, and the aggregation of their outputs."""

    def __init__(
        self, name: str, convs: dict[EdgeType, Any], options: tuple[bool, bool], combine: Any = None
    ) -> None:
        super().__init__(name)
        self._convs, self._combine = convs, combine
        self.weight, self.attr = options
        for edge_type, conv in convs.items():
            check_conv(conv, edge_type, attr=self.attr)
            self._find_norms(conv, edge_type)

    def _compute(self, chunk: Chunk) -> Any:
        outputs = [
            self._convolve(conv, chunk, edge_type)
            for edge_type, conv in self._convs.items()
            if edge_type in chunk.edges
        ]
        return self._combine(outputs) if outputs else None

    def _convolve(self, conv: Any, chunk: Chunk, edge_type: EdgeType) -> Tensor:
        extra = extra_of(conv, chunk.edges[edge_type])
        x, edges = convolution_input(conv, chunk, edge_type, sparse=not extra)
        out: Tensor = conv(x, edges, **extra)
        # a layer that takes one tensor computes a row for every source
        return out[: chunk.num_dst]


class _BasicLayer(_Convolutions):
    """A layer of PyG's `BasicGNN`, with its norm, activation, and the last linear layer."""

    def __init__(
        self, model: Any, index: int, edge_type: EdgeType, options: tuple[bool, bool]
    ) -> None:
        super().__init__(f"layer {index}", {edge_type: model.convs[index]}, options)
        self._model, self._index = model, index

    def _compute(self, chunk: Chunk) -> Any:
        ((edge_type, conv),) = self._convs.items()
        extra = extra_of(conv, chunk.edges[edge_type])
        x, edges = convolution_input(conv, chunk, edge_type, sparse=not extra)
        # for one call: the next chunk has other edges
        hook = conv.register_forward_pre_hook(  # `inference_per_layer` passes no more on
            lambda module, args, kwargs: (args, {**kwargs, **extra}), with_kwargs=True
        )
        try:
            return self._model.inference_per_layer(self._index, x, edges, chunk.num_dst)
        finally:
            hook.remove()


class _FunctionLayer(Layer):
    """A function of the user's, or a module that is one."""

    def __init__(self, function: Any, index: int, graph: GraphSource) -> None:
        super().__init__(f"layer {index}")
        self._function, self._is_typed = function, graph.is_heterogeneous
        is_module = isinstance(function, torch.nn.Module)
        taken = _parameters(function.forward if is_module else function)
        self._names = [name for name in _EXTRAS if name in taken]
        self.weight, self.attr, self.ids = (name in taken for name in _EXTRAS)
        _check_held(self.name, taken, graph)
        if is_module:
            check_model(function)
            self._find_all_norms(function, graph)

    def _find_all_norms(self, module: torch.nn.Module, graph: GraphSource) -> None:
        for submodule in module.modules():
            if isinstance(submodule, HeteroConv):
                for edge_type, conv in submodule.convs.items():
                    self._find_norms(conv, edge_type)
        if not graph.is_heterogeneous:
            # on a typed graph only HeteroConv tells the edges of a layer inside a module
            self._find_norms(module, graph.edge_types[0])

    def _compute(self, chunk: Chunk) -> Any:
        x, edges, num_dst, extra = self._typed(chunk) if self._is_typed else _plain(chunk)
        with _no_local_norms(self.norms):
            out = self._function(x, edges, num_dst, **{name: extra[name] for name in self._names})
        if not self._is_typed:
            return out
        out = returned(out, "the layer", self._function, "a dict of rows by node type")
        rows = out.get(chunk.node_type)
        sources = chunk.x.get(chunk.node_type)
        if rows is not None and sources is not None and len(rows) == len(sources):
            rows = rows[: chunk.num_dst]  # the destinations come first
        return rows

    @staticmethod
    def _typed(chunk: Chunk) -> tuple[Any, Any, Any, dict[str, Any]]:
        extra = {
            "edge_weight": {t: e.weights for t, e in chunk.edges.items() if e.weights is not None},
            "edge_attr": {t: e.attr for t, e in chunk.edges.items() if e.attr is not None},
            "n_id": chunk.n_id,
        }
        edges = {name: block.edge_index for name, block in chunk.edges.items()}
        return dict(chunk.x), edges, {chunk.node_type: chunk.num_dst}, extra


def _plain(chunk: Chunk) -> tuple[Any, Any, Any, dict[str, Any]]:
    (edges,), (x,) = chunk.edges.values(), chunk.x.values()
    ids = chunk.n_id.get(chunk.node_type)
    extra = {"edge_weight": edges.weights, "edge_attr": edges.attr, "n_id": ids}
    return x, edges.edge_index, chunk.num_dst, extra


@contextmanager
def _no_local_norms(known: Any) -> Iterator[None]:
    """Refuse layers that would use the degrees of a chunk: inside a function they are hidden.

    Raises:
        ConfigError: In the ``with`` block, from a module that is not ``known``.
    """
    # The hook is on all modules of the process, also those that other threads run meanwhile.
    thread = threading.get_ident()

    def check(module: torch.nn.Module, args: Any) -> None:
        if is_normalized(module) and module not in known and threading.get_ident() == thread:
            raise ConfigError(
                f"a function runs {type(module).__name__}, which divides by the degrees of the "
                "whole graph, of which a chunk has a part: give the module itself in the list, or "
                "a torch.nn.Module around it"
            )

    handle = torch.nn.modules.module.register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        handle.remove()


def convolution_input(
    conv: Any, chunk: Chunk, edge_type: EdgeType, *, sparse: bool
) -> tuple[Any, Any]:
    """Return the inputs of a PyG layer: rows, or (sources, destinations), and edges."""
    src, _, dst = edge_type
    name, edges = type(conv).__name__, chunk.edges[edge_type]
    x: Any = chunk.x[src]
    # the destinations are the first rows of their type, see `Chunk.x`
    if src != dst or name in _PAIRS:
        x_dst = chunk.x.get(dst)
        x = (x, None if x_dst is None else x_dst[: chunk.num_dst])
    # The product adds up without a row in memory for each edge, as gathering would make.
    if sparse and getattr(conv, "aggr", None) in _SUMS.get(name, ()):
        return x, _sparse(edges, chunk.x[src], chunk.num_dst)
    return x, edges.edge_index


def extra_of(conv: Any, edges: EdgeBlock) -> dict[str, Tensor]:
    """Return weights and features of edges, if they were read and a layer takes them."""
    given = {"edge_weight": edges.weights, "edge_attr": edges.attr}
    taken = inspect.signature(conv.forward).parameters
    return {k: value for k, value in given.items() if value is not None and k in taken}


def check_conv(conv: Any, edge_type: EdgeType, *, attr: bool) -> None:
    """Refuse a layer with wrong values in chunks, or with inputs that it will not get."""
    name = type(conv).__name__
    if getattr(conv, "edge_dim", None) is not None and not attr:
        raise ConfigError(f"{name} was built with edge_dim={conv.edge_dim}: give edge_attr=True")
    if is_normalized(conv) and edge_type[0] != edge_type[2]:
        raise ConfigError(f"{name} has no degrees for {edge_type}, whose ends are of two types")


_warned = threading.Lock()


def _sparse(edges: EdgeBlock, x: Tensor, num_dst: int) -> Tensor:
    """Return the chunk's edges as a matrix, destinations by sources."""
    # edges with weights do not come here: convolution_input() is called with sparse=False
    ones = torch.ones(edges.edge_index.size(1), dtype=x.dtype, device=x.device)
    # catch_warnings() changes filters of the whole process: two threads in it could leave the wrong
    # ones
    with _warned, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")  # torch's, once
        # checking would read all edges again: `indptr` and the numbers of nodes are ours
        return torch.sparse_csr_tensor(
            edges.indptr,
            edges.edge_index[0],
            ones,
            (num_dst, len(x)),
            check_invariants=False,
            device=x.device,
        )


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin has no signature
        return {}


def _check_held(name: str, taken: dict[str, inspect.Parameter], graph: GraphSource) -> None:
    for key, is_held in (("edge_weight", graph.weighted), ("edge_attr", graph.with_attr)):
        wanted = key in taken and taken[key].default is inspect.Parameter.empty
        if wanted and not is_held:
            raise ConfigError(f"{name} takes {key}, and the graph's edges have none")


def layers_of(
    model: torch.nn.Module | Sequence[LayerFunction], graph: GraphSource, options: tuple[bool, bool]
) -> list[Layer]:
    """Return the layers of a `BasicGNN`, or those of a list.

    Args:
        model: See `full_graph_inference`.
        graph: Its input.
        options: Whether PyG's layers get edge weights and edge features.

    Raises:
        ConfigError: The model cannot be computed layer by layer; gives the reason.
        UsageError: The model is in training mode.
    """
    if isinstance(model, torch.nn.Module) and not isinstance(model, torch.nn.ModuleList):
        return _layers_of_basic_gnn(model, graph, options)
    functions: list[Any] = list(model)
    if not functions or not all(callable(function) for function in functions):
        raise ConfigError(
            "give a BasicGNN of PyG, or a list of callables (x_src, edge_index, num_dst) -> "
            f"x_dst, got {model!r}"
        )
    return [_layer(function, index, graph, options) for index, function in enumerate(functions)]


def _layer(function: Any, index: int, graph: GraphSource, options: tuple[bool, bool]) -> Layer:
    if isinstance(function, torch.nn.Module) and function.training:
        raise UsageError(f"layer {index} is in training mode, where it may drop rows: call eval()")
    # no subclass, whose forward may do more: a subclass counts as a function
    if type(function) is HeteroConv:
        check_model(function)
        combine = partial(group, aggr=function.aggr)
        return _Convolutions(f"layer {index}", dict(function.convs.items()), options, combine)
    if isinstance(function, MessagePassing) and not graph.is_heterogeneous:
        check_model(function)
        convs = {graph.edge_types[0]: function}
        return _Convolutions(f"layer {index}", convs, options, lambda outputs: outputs[0])
    return _FunctionLayer(function, index, graph)


def _layers_of_basic_gnn(model: Any, graph: GraphSource, options: tuple[bool, bool]) -> list[Layer]:
    if not isinstance(model, BasicGNN):
        raise ConfigError(
            f"{type(model).__name__} is no BasicGNN of PyG, so its layers are not known: give a "
            "list of callables (x_src, edge_index, num_dst) -> x_dst, or use full_graph()"
        )
    # Layers are computed as `BasicGNN.forward` does: what another forward adds would be left out.
    if type(model).forward is not BasicGNN.forward or "forward" in vars(model):
        raise ConfigError(
            f"{type(model).__name__} has a forward() of its own (a skip connection, another head), "
            "which cannot be computed layer by layer: give a list of callables (x_src, edge_index, "
            "num_dst) -> x_dst, or use full_graph()"
        )
    if graph.is_heterogeneous:
        raise ConfigError(
            f"{type(model).__name__} computes homogeneous graphs, and this one has types: give a "
            "list of HeteroConv layers or of callables, or use full_graph()"
        )
    # only one layer's rows are stored at a time
    if model.jk_mode not in (None, "last"):
        raise ConfigError(
            f"jk={model.jk_mode!r} reads the outputs of all layers at the end: use full_graph()"
        )
    if model.training:
        raise UsageError(
            "the model is in training mode, where dropout drops values: call model.eval()"
        )
    check_model(model)
    for wanted, name in zip(options, ("edge_weight", "edge_attr"), strict=True):
        if wanted and not getattr(model, f"supports_{name}"):
            raise ConfigError(f"{type(model).__name__} takes no {name}")
    # a homogeneous graph has one: label edges carry no messages
    (edge_type,) = graph.edge_types
    return [_BasicLayer(model, index, edge_type, options) for index in range(model.num_layers)]
