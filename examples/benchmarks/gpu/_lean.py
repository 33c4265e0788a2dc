"""GATConv with fewer products and no stored messages, and a step of training as one CUDA graph.

PyG's layer transforms the rows of both ends of a relation, ``x W``, but those of the targets for
their attention alone: ``(x W) a = x (W a)``, which takes a vector for each head in place of a
matrix. And it keeps a message for each edge until the way back, where these are made again, a few
at a time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu
from torch_geometric.nn import GATConv
from torch_geometric.utils import softmax

EDGES = 1 << 15
"""Messages at once: with 512 bfloat16 each, they stay in the cache of a large GPU."""
WARM_UP = 3
"""Steps before the captured one: kernels are chosen and the optimizer's memory is there."""


class WeightedSum(torch.autograd.Function):
    """For each target, the sum of its sources' rows, weighted by edge and head."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor, num_targets: int) -> Tensor:
        """Return ``[num_targets, heads, width]``.

        Args:
            ctx: What the way back needs.
            rows: ``[n, heads, width]``, of the sources.
            weights: ``[edges, heads]``.
            ends: ``[2, edges]``, sources and targets.
            num_targets: Rows of the result.
        """
        ctx.save_for_backward(rows, weights, ends)
        out = rows.new_zeros(num_targets, *rows.shape[1:])
        for (source, target), part in zip(ends.split(EDGES, 1), weights.split(EDGES), strict=True):
            out.index_add_(0, target, rows[source] * part.unsqueeze(-1))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of rows and weights."""
        rows, weights, ends = ctx.saved_tensors
        of_rows, of_weights = torch.zeros_like(rows), torch.empty_like(weights)
        parts = zip(
            ends.split(EDGES, 1), weights.split(EDGES), of_weights.split(EDGES), strict=True
        )
        for (source, target), part, of_part in parts:
            grad = grads[0][target]
            of_part.copy_((grad * rows[source]).sum(-1))
            of_rows.index_add_(0, source, grad * part.unsqueeze(-1))
        return of_rows, of_weights, None, None


class LeanGATConv(GATConv):
    """`GATConv` with weights for each end, as between two types: the same parameters and result."""

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        """Return ``[targets, heads * out_channels]``."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        shape = self.heads, self.out_channels
        rows = self.lin_src(sources).view(-1, *shape)
        to_target = (self.lin_dst.weight.view(*shape, -1) * self.att_dst.view(*shape, 1)).sum(1)
        source, target = edge_index
        scores = (rows * self.att_src).sum(-1)[source] + (targets @ to_target.t())[target]
        scores = leaky_relu(scores, self.negative_slope)
        weights = softmax(scores, target, num_nodes=targets.size(0))
        out = WeightedSum.apply(rows, weights, edge_index, targets.size(0)).flatten(1)
        return out if self.bias is None else out + self.bias


class WholeStep:
    """A step of training on batches of one shape; on CUDA, from the fourth on, one launch.

    Args:
        model: Takes what `HopPlaces.placed` returns, and ``hops``.
        optimizer: Of its parameters; ``capturable`` on CUDA.
        hops: `HopPlaces.hops`.
        size: Seeds of a batch.
    """

    def __init__(self, model: Any, optimizer: Any, hops: Any, size: int) -> None:
        self._model, self._optimizer, self._hops, self._size = model, optimizer, hops, size
        self._count = 0
        self._kept: list[Tensor] = []
        self._graph: Any = None
        self._loss: Any = None

    def __call__(self, x: dict[str, Tensor], edges: dict[Any, Tensor], labels: Tensor) -> Tensor:
        """Train on a batch; return its loss, which the next step may overwrite."""
        self._count += 1
        if not labels.is_cuda:
            return self.launch(x, edges, labels)
        if self._count <= WARM_UP:  # as a graph, it must not wait for the stream of the default
            current, side = torch.cuda.current_stream(), torch.cuda.Stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                loss = self.launch(x, edges, labels)
            current.wait_stream(side)
            return loss
        if self._graph is None:
            self._capture(x, edges, labels)
        for kept, given in zip(self._kept, (*x.values(), *edges.values(), labels), strict=True):
            kept.copy_(given)
        self._graph.replay()
        return self._loss

    def launch(self, x: dict[str, Tensor], edges: dict[Any, Tensor], labels: Tensor) -> Tensor:
        """Train on a batch, kernel by kernel."""
        self._optimizer.zero_grad()
        scores = self._model(x, edges, self._hops)[: self._size].float()
        loss = cross_entropy(scores, labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def _capture(self, x: dict[str, Tensor], edges: dict[Any, Tensor], labels: Tensor) -> None:
        rows, ends = ({name: one.clone() for name, one in of.items()} for of in (x, edges))
        kept = labels.clone()
        self._kept = [*rows.values(), *ends.values(), kept]
        self._graph = torch.cuda.CUDAGraph()
        # the loader's threads may ask for events meanwhile
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._loss = self.launch(rows, ends, kept)
