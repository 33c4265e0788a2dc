"""Message passing over the neighbours of one rank at a time.

A layer's sum over in-neighbours is a sum over ranks. In step s, a rank reads rows of the rank that
is s places after it, adds their messages to its own rows, and drops them::

    step   0         1             2              ...  size-1
    rows   its own   of rank + 1   of rank + 2         of rank - 1

The backward pass goes through the steps in reverse; each fetches its rows again, computes its
messages again, and returns the gradients of the rows to their rank.

Source:
    Sequential aggregation and rematerialization (Mostafa, MLSys 2022), section 3.
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.nn.aggr import MeanAggregation

from gigl_loader.inference.local_graph import Level


class SequentialAggregation:
    """Runs ``propagate`` of a layer once for each rank's part of its edges, and adds up."""

    def __init__(self) -> None:
        # Layers share edges, and forwards do. Weak, as some layers make theirs in every forward.
        self._kept: Any = WeakTensorKeyDictionary()

    def own_edges(self, level: Level) -> Tensor:
        """Return the positions of the edges from own sources."""
        return self._parts(level, level.edge_index)[0]

    def propagate(
        self,
        module: Any,
        propagate: Callable[..., Tensor],
        level: Level,
        edge_index: Tensor,
        values: dict[str, Any],
    ) -> Tensor:
        """Return ``[num_targets, ...]``, what ``propagate`` returns over all rows. Collective.

        Args:
            module: The layer.
            propagate: Its own method.
            level: All own rows.
            edge_index: Edges in the numbers of ``level``; with self-loops, if the layer adds them.
            values: The method's keyword arguments, with own rows for those by node.
        """
        parts = self._parts(level, edge_index)
        total = None
        if isinstance(module.aggr_module, MeanAggregation):
            targets = edge_index[1, torch.cat(parts)]
            total = torch.bincount(targets, minlength=level.num_targets).clamp_(min=1)

        def of_step(step: int) -> Tensor:
            edges = edge_index[:, parts[step]]
            size = level.num_from(step), level.num_targets
            first_row = level.first_row_from(step)
            numbered = torch.stack([edges[0] - first_row, edges[1]])
            given = _values_of_step(module, level, step, parts[step], values)
            out = propagate(numbered, size=size, **given)
            if total is None:
                return out
            # the mean over a part counts by the part's share of the edges
            share = torch.bincount(edges[1], minlength=level.num_targets) / total
            return out * share.to(out.dtype).view(-1, *[1] * (out.dim() - 1))

        out = of_step(0)
        for step in range(1, level.exchange.size):
            # It keeps no tensor of the step: backward() runs the step again, exchange included. No
            # layer of SEQUENTIAL draws random numbers in its messages.
            out = out + checkpoint(of_step, step, use_reentrant=False, preserve_rng_state=False)
        return out

    def _parts(self, level: Level, edge_index: Tensor) -> list[Tensor]:
        """Return the positions of the edges of each step."""
        if edge_index not in self._kept:
            # gcn_norm() adds self-loops of other ranks' rows, too
            computed = edge_index[1] < level.num_targets
            self._kept[edge_index] = [
                (computed & _is_within(edge_index[0], level, step)).nonzero().view(-1)
                for step in range(level.exchange.size)
            ]
        return cast("list[Tensor]", self._kept[edge_index])


def _is_within(rows: Tensor, level: Level, step: int) -> Tensor:
    first = level.first_row_from(step)
    return (rows >= first) & (rows < first + level.num_from(step))


def _values_of_step(
    module: Any, level: Level, step: int, positions: Tensor, values: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``propagate`` for one step. Collective, except in step 0."""
    # PyG's convention: message() takes x_j for the sources' rows of x, x_i for the targets'
    taken = inspect.signature(module.message).parameters
    given: dict[str, Any] = {}
    for name, value in values.items():
        if f"{name}_j" in taken or f"{name}_i" in taken:
            is_pair = isinstance(value, tuple | list)
            sources, targets = (
                value if is_pair else (value, value if f"{name}_i" in taken else None)
            )
            reads_sources = f"{name}_j" in taken and sources is not None
            given[name] = level.fetch_from(sources, step) if reads_sources else None, targets
        else:
            given[name] = value[positions] if isinstance(value, Tensor) else value
    return given
