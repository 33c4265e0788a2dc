"""What differs by rank in training, made equal: dropout by global id, statistics over all ranks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gigl_loader.errors import ConfigError
from gigl_loader.inference.graph import LocalGraph
from gigl_loader.inference.plan import EdgePlan, Level

_CHUNK = 1 << 20
"""Numbers drawn at a time: they are 64 bits wide."""


class WholeGraphStatistics(TorchFunctionMode):
    """Catches ``dropout`` and ``batch_norm`` in training; everything else passes.

    A mask's bits are a hash of (seed, forward, call of dropout in it, global id, column); for
    messages the id is that of the edge: source, target, and which of their edges it is.

    Args:
        graph: This rank's part.
        seed: Of the masks.
        rows_missing: Rows are left out, so that statistics over nodes mean nothing.
    """

    def __init__(self, graph: LocalGraph, seed: int, *, rows_missing: bool) -> None:
        super().__init__()
        self._graph, self._seed, self._rows_missing = graph, seed, rows_missing
        # With types, one id stands for a node of each: which type a tensor is of cannot be told
        # from its number of rows, so dropout is torch's own there.
        own = list(graph.shares.own.values())
        self._own = own[0] if len(own) == 1 and len(graph.plans) == 1 else None
        self._forward = self._call = 0
        self._edges: tuple[EdgePlan, Level, Tensor] | None = None

    def begin(self) -> None:
        """Start a forward: its masks are its own."""
        self._forward, self._call, self._edges = self._forward + 1, 0, None

    def edges(self, plan: EdgePlan, level: Level, edge_index: Tensor) -> None:
        """Note the edges that messages run along from now on."""
        self._edges = plan, level, edge_index

    def layer_ended(self) -> None:
        """Rows are those of nodes again."""
        self._edges = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the two functions."""
        kwargs = kwargs or {}
        if func is F.dropout and self._own is not None:
            # torch takes the mode off while it handles a call: F.dropout inside is torch's
            return self._dropout(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    # -- dropout -----------------------------------------------------------------------------------

    def _dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return x
        keys = self._keys(x.size(0))
        self._call += 1
        # p=1 would divide by 0; torch's draws nothing for it, and so needs no keys
        if keys is None or p == 1.0:
            return F.dropout(x, p, training, inplace)
        # below 2**62: it fits an int64, with keys of either sign
        salt = ((self._seed * 1_000_003 + self._forward) * 1_000_003 + self._call) % 2**62
        # a new tensor where `inplace` too: callers use what is returned
        kept = _draw(_mix(keys ^ salt), x[0].numel() if len(x) else 1, 1.0 - p)
        return x * kept.view_as(x).to(x.dtype) / (1.0 - p)

    def _keys(self, count: int) -> Tensor | None:
        """Return ``[count]`` int64, what names each row of a tensor; None: it is of neither."""
        assert self._own is not None
        # inside of a layer: what has a row for each of its edges is messages
        if self._edges is not None and self._edges[2].size(1) == count:
            return self._edge_keys(*self._edges)
        if count == self._own.numel():
            return _mix(self._graph.data.n_id)
        return None

    def _edge_keys(self, plan: EdgePlan, level: Level, edge_index: Tensor) -> Tensor:
        own = self._graph.data.n_id
        ids = torch.cat(
            [own if level.sources is None else own[level.sources], self._halo(plan, level)]
        )
        # not symmetric: the edge back has another key
        keys = _mix(_mix(ids[edge_index[0]]) + ids[edge_index[1]])
        order = torch.argsort(keys, stable=True)
        ordered = keys[order]
        # Edges that have both ends in common have one key. They are counted from 0 in canonical
        # order, which does not depend on ranks: all edges into a node are on its rank.
        first = torch.searchsorted(ordered, ordered)
        which = torch.empty_like(order)
        which[order] = torch.arange(order.numel(), device=order.device) - first
        return _mix(keys + which)

    def _halo(self, plan: EdgePlan, level: Level) -> Tensor:
        if level.sources is None:
            return plan.halo.to(self._graph.data.n_id.device)
        return level.fetch(self._graph.data.n_id)

    # -- batch norm --------------------------------------------------------------------------------

    def _batch_norm(
        self, x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if not training:
            return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
        if self._rows_missing:
            raise ConfigError(
                "BatchNorm in training needs all rows, of which nodes= leaves some out: call "
                "model.eval(), or leave nodes= out"
            )
        total, given = self._graph.exchange.total, x
        # As torch does: in float16 a count of nodes ends at 65,504, and sums lose their digits
        # long before.
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        # Three sums over ranks: squares around the mean lose no digits, as sums of squares less the
        # square of the sum would. All are part of the graph of gradients.
        count = total(torch.tensor(float(x.size(0)), dtype=x.dtype, device=x.device))
        centre = total(x.sum(0)) / count
        spread = total((x - centre).square().sum(0)) / count
        with torch.no_grad():
            if mean is not None and var is not None:
                mean.lerp_(centre.to(mean.dtype), momentum)
                # torch keeps the unbiased variance for evaluation, and normalises by the biased one
                var.lerp_((spread * count / (count - 1)).to(var.dtype), momentum)
        out = (x - centre) * torch.rsqrt(spread + eps)
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(given.dtype)


def _mix(keys: Tensor) -> Tensor:
    """Return a 64-bit hash of each key.

    Source:
        The finaliser of SplitMix64 (Steele, Lea, Flood 2014); int64 wraps as uint64 does, and a
        mask makes its shifts logical.
    """
    keys = keys + -7046029254386353131
    keys = (keys ^ ((keys >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    keys = (keys ^ ((keys >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return keys ^ ((keys >> 31) & 0x1FFFFFFFF)


def _draw(keys: Tensor, width: int, keep: float) -> Tensor:
    """Return ``[n, width]`` bool, true with probability ``keep``."""
    # an odd factor: no two columns get the same number
    columns = torch.arange(width, device=keys.device) * 0x632BE59BD9B4E019
    # 24 bits of the hash: a probability is exact to 6e-8, like a float32
    limit = int(keep * (1 << 24))
    parts = [
        (_mix(part[:, None] + columns) & 0xFFFFFF) < limit
        for part in keys.split(max(_CHUNK // max(width, 1), 1))
    ]
    return torch.cat(parts) if parts else torch.empty((0, width), dtype=torch.bool)
