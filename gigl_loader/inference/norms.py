"""The edge weights of ``gcn_norm`` with the degrees of the whole graph."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, scatter

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.inference.plan import Level
from gigl_loader.inference.rules import adds_self_loops


@dataclass(frozen=True)
class Norm:
    """One way in which ``gcn_norm`` of PyG weighs the edges of a type.

    Attributes:
        edge_type: As messages go, between nodes of one type.
        loops: Whether self-loops are added where there are none.
        fill: Weight of these, where edges have weights.
        weighted: Whether edges have weights.
    """

    edge_type: EdgeType
    loops: bool
    fill: float
    weighted: bool

    @classmethod
    def of(cls, module: Any, edge_type: EdgeType, *, weighted: bool) -> "Norm":
        """Return that of a layer that normalises."""
        fill = 2.0 if getattr(module, "improved", False) else 1.0
        return cls(edge_type, adds_self_loops(module), fill, weighted)

    def degrees(
        self, edge_index: Tensor, weight: Tensor | None, num_rows: int, num_dst: int
    ) -> Tensor:
        """Return ``[num_dst]`` float32: of the destinations, to which all edges are here."""
        edge_index, weight = self._with_loops(edge_index, weight, num_rows, torch.float32)
        # of the other rows, which are sources only, a part of the edges is here
        return _degrees(edge_index, weight, num_rows)[:num_dst]

    def weigh(
        self, edge_index: Tensor, weight: Tensor | None, degrees: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return (edge index, weights), given the degrees of all rows."""
        # `degrees` were added up in float32, whatever the layer computes in: float16 stops counting
        # at 2048. A layer gets the weights in its own dtype.
        degrees = degrees.to(dtype)
        edge_index, weight = self._with_loops(edge_index, weight, degrees.numel(), dtype)
        return edge_index, _scaled(edge_index, weight, degrees)

    def _with_loops(
        self, edge_index: Tensor, weight: Tensor | None, num_rows: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        weight = None if weight is None or not self.weighted else weight.to(dtype)
        return with_loops(edge_index, weight, num_rows, self.fill, self.loops, dtype)


class WholeGraphNorms:
    """``gcn_norm`` for levels; what cannot change is worked out once.

    Source:
        torch_geometric 2.8, ``nn/conv/gcn_conv.py: gcn_norm``: the same operations in the same
        order, so that the bits are the same. The degree of a node is known where its in-edges are,
        at its owner; the degrees of the halo are fetched.

    Args:
        fixed: The graph's own edge weights; for others nothing is kept.
    """

    def __init__(self, fixed: list[Tensor]) -> None:
        # the graph's data holds these tensors as long as this is used, so none of them can be taken
        # by a new tensor
        self._fixed = [id(weight) for weight in fixed]
        self._kept: dict[Any, tuple[Tensor, Tensor]] = {}

    def of(
        self, module: Any, whole: Level, level: Level, weight: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return (edge index, weights) for ``level``. Collective, the first time.

        Args:
            module: A layer that normalises.
            whole: All own rows of the same edges.
            level: The rows that the layer computes.
            weight: ``[edges of whole]``; None: all are 1.
            dtype: Of the weights that are made, where there are none.
        """
        fill = 2.0 if getattr(module, "improved", False) else 1.0
        loops = adds_self_loops(module)
        # a weight that was changed in place is the same object with a higher version, and one that
        # needs a gradient from now on has the same version
        state = None if weight is None else (weight._version, weight.requires_grad)
        key = (id(level), id(weight), state, fill, loops, dtype)
        if key in self._kept:
            return self._kept[key]
        num_rows = whole.num_rows
        edges = with_loops(whole.edge_index, weight, num_rows, fill, loops, dtype)
        degrees = _degrees(*edges, num_rows)
        # the halo's in-edges are with its owners, so their degrees are fetched like rows of x
        degrees = level.extend(degrees[: whole.num_sources])
        picked = weight if weight is None or level.edges is None else weight[level.edges]
        edge_index, weights = with_loops(
            level.edge_index, picked, level.num_rows, fill, loops, dtype
        )
        found = edge_index, _scaled(edge_index, weights, degrees)
        # Weights that need a gradient are part of the forward's graph, which backward() frees. Of
        # others than the graph's own, the id may belong to another tensor by the next forward.
        if weight is None or (id(weight) in self._fixed and not weight.requires_grad):
            self._kept[key] = found
        return found


def _degrees(edge_index: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    found: Tensor = scatter(weights, edge_index[1], dim=0, dim_size=num_rows, reduce="sum")
    return found


def _scaled(edge_index: Tensor, weights: Tensor, degrees: Tensor) -> Tensor:
    scale = degrees.pow(-0.5)
    # a node without edges: 0 ** -0.5
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    return scale[edge_index[0]] * weights * scale[edge_index[1]]


def with_loops(
    edge_index: Tensor, weight: Tensor | None, num_rows: int, fill: float, loops: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return edges and their weights, with self-loops where ``loops``, as ``gcn_norm`` does.

    Without weights all are 1, those of added loops too, whatever ``fill`` is.
    """
    if loops:
        edge_index, weight = add_remaining_self_loops(edge_index, weight, fill, num_rows)
    if weight is None:
        weight = torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)
    return edge_index, weight
