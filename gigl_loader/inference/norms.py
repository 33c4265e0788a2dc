"""The edge weights of ``gcn_norm`` with the degrees of the whole graph."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_remaining_self_loops, scatter

from gigl_loader.inference.plan import Level
from gigl_loader.inference.rules import adds_self_loops


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
        version = None if weight is None else weight._version
        key = (id(level), id(weight), version, fill, loops, dtype)
        if key in self._kept:
            return self._kept[key]
        degrees = _degrees(*_with_loops(whole, weight, fill, loops, dtype), whole.num_rows)
        degrees = level.extend(degrees[: whole.num_sources])
        picked = weight if weight is None or level.edges is None else weight[level.edges]
        edge_index, weights = _with_loops(level, picked, fill, loops, dtype)
        scale = degrees.pow(-0.5)
        scale = scale.masked_fill(scale == float("inf"), 0.0)
        found = edge_index, scale[edge_index[0]] * weights * scale[edge_index[1]]
        if weight is None or (id(weight) in self._fixed and not weight.requires_grad):
            self._kept[key] = found
        return found


def _degrees(edge_index: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    found: Tensor = scatter(weights, edge_index[1], dim=0, dim_size=num_rows, reduce="sum")
    return found


def _with_loops(
    level: Level, weight: Tensor | None, fill: float, loops: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    edge_index = level.edge_index
    if loops:
        edge_index, weight = add_remaining_self_loops(edge_index, weight, fill, level.num_rows)
    if weight is None:
        weight = torch.ones(edge_index.size(1), dtype=dtype, device=edge_index.device)
    return edge_index, weight
