"""A model as a list of layers, each computed for some destination rows at a time."""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import add_remaining_self_loops, scatter

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.inference.chunks import Chunk
from gigl_loader.inference.rules import adds_self_loops, check_model, is_normalized

LayerFunction = Callable[[Tensor, Tensor, int], Tensor]
"""``(x_src, edge_index, num_dst) -> x_dst``; the destinations come first in ``x_src``."""

_PAIRS = ("EdgeConv", "GATConv", "GATv2Conv", "GINConv", "GraphConv", "SAGEConv")
"""Layers that take (sources, destinations) and so do nothing for sources that they need not."""

_SUMS = {"SAGEConv": ("mean", "sum", "add"), "GINConv": ("sum", "add")}
"""Layers, and aggregations of them, that a product with a sparse matrix computes."""


class Layer:
    """A function of a chunk. ``with_degrees`` says whether its edges are weighed by degrees."""

    with_degrees: bool = False
    self_loops: bool = False
    """Whether degrees count self-loops that the layer adds."""

    def __init__(self, function: LayerFunction) -> None:
        self._function = function

    def __call__(self, chunk: Chunk) -> Tensor:
        """Return ``[num_dst, width]``."""
        return self._function(chunk.x, chunk.edge_index, chunk.num_dst)


class _BasicLayer(Layer):
    """A layer of PyG's `BasicGNN`, with what follows it: norm, activation, the last linear."""

    def __init__(self, model: Any, index: int) -> None:
        self._model, self._index = model, index
        self._conv: Any = model.convs[index]
        self._name = type(self._conv).__name__
        self.with_degrees = is_normalized(self._conv)
        self.self_loops = self.with_degrees and adds_self_loops(self._conv)
        self._sums = getattr(self._conv, "aggr", None) in _SUMS.get(self._name, ())

    def __call__(self, chunk: Chunk) -> Tensor:
        x: Any = chunk.x
        edges: Any = chunk.edge_index
        if self._name in _PAIRS:
            x = (chunk.x, chunk.x[: chunk.num_dst])
        if self._sums:
            edges = _sparse(chunk)
        hook = self._conv.register_propagate_forward_pre_hook(
            lambda module, inputs: self._weigh(chunk, inputs) if self.with_degrees else None
        )
        try:
            out: Tensor = self._model.inference_per_layer(self._index, x, edges, chunk.num_dst)
        finally:
            hook.remove()
        return out

    def _weigh(self, chunk: Chunk, inputs: Any) -> Any:
        _, size, values = inputs
        edge_index, ones = with_loops(chunk.edge_index, len(chunk.x), loops=self.self_loops)
        scale = chunk.extra[0].pow(-0.5)
        scale = scale.masked_fill(scale == float("inf"), 0.0)
        weights = scale[edge_index[0]] * ones * scale[edge_index[1]]
        return edge_index, size, {**values, "edge_weight": weights}


def with_loops(edge_index: Tensor, num_nodes: int, *, loops: bool) -> tuple[Tensor, Tensor]:
    """Return edges and their weights, all 1, as ``gcn_norm`` of PyG makes them."""
    if loops:
        edge_index, _ = add_remaining_self_loops(edge_index, None, 1.0, num_nodes)
    return edge_index, torch.ones(edge_index.size(1), device=edge_index.device)


def degrees(edge_index: Tensor, num_nodes: int, num_dst: int, *, loops: bool) -> Tensor:
    """Return ``[num_dst]`` float32, the in-degrees that ``gcn_norm`` divides by."""
    edge_index, ones = with_loops(edge_index, num_nodes, loops=loops)
    found: Tensor = scatter(ones, edge_index[1], dim=0, dim_size=num_nodes, reduce="sum")
    return found[:num_dst]


_warned = threading.Lock()


def _sparse(chunk: Chunk) -> Tensor:
    """Return the chunk's edges as a matrix, destinations by sources."""
    ones = torch.ones(chunk.edge_index.size(1), dtype=chunk.x.dtype, device=chunk.x.device)
    shape = (chunk.num_dst, len(chunk.x))
    with _warned, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")  # torch's, once
        return torch.sparse_csr_tensor(
            chunk.indptr, chunk.edge_index[0], ones, shape, check_invariants=False
        )


def layers_of(model: torch.nn.Module | Sequence[LayerFunction]) -> list[Layer]:
    """Return the layers of a `BasicGNN`, or those of a list.

    Raises:
        ConfigError: The model cannot be computed layer by layer; says why.
        UsageError: The model is in training mode.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.nn.ModuleList):
        functions: list[Any] = list(model)
        if not functions or not all(callable(function) for function in functions):
            raise ConfigError(
                "give a BasicGNN of PyG, or a list of callables (x_src, edge_index, num_dst) -> "
                f"x_dst, got {model!r}"
            )
        return [Layer(function) for function in functions]
    if not isinstance(model, BasicGNN):
        raise ConfigError(
            f"{type(model).__name__} is no BasicGNN of PyG, so its layers are not known: give a "
            "list of callables (x_src, edge_index, num_dst) -> x_dst, or use full_graph()"
        )
    if model.jk_mode not in (None, "last"):
        raise ConfigError(
            f"jk={model.jk_mode!r} reads the outputs of all layers at the end: use full_graph()"
        )
    if model.training:
        raise UsageError("the model is in training mode, where it drops rows: call model.eval()")
    check_model(model)
    return [_BasicLayer(model, index) for index in range(model.num_layers)]
