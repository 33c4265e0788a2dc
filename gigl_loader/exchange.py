"""Rows between ranks, by ``all_to_all`` of a process group.

All calls here are collective: every rank of the group has to make them, in the same order, with
whatever it has; a rank with nothing to send sends nothing.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.ranks import exchanged_on, gather_values, named_failures

T = TypeVar("T")

_FEW_RANKS = 8
"""Up to so many, a pass over the ids for each rank costs less than to sort them."""


class RankExchange:
    """``all_to_all`` over a process group; with one rank, or without a group, nothing is sent.

    Args:
        group: A process group; None: the default one where there is one.
        doing: What goes on, for errors.
    """

    def __init__(self, group: Any = None, doing: str = "rows were exchanged") -> None:
        # a torch built without distributed has no is_initialized()
        joined = dist.is_available() and dist.is_initialized()
        self._group, self._doing = group, doing
        self.size: int = dist.get_world_size(group) if joined else 1
        self.rank: int = dist.get_rank(group) if joined else 0

    def gather(self, value: T, kind: Any) -> list[T]:
        """Return a small ``value`` of every rank, by rank; ``kind``: see `gather_from_ranks`."""
        if self.size == 1:
            return [value]
        with named_failures(self._doing):
            return gather_values(value, self.size, kind, self._group)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks; differentiable."""
        if self.size == 1:
            return values
        summed: Tensor = _Total.apply(values, self)
        return summed

    def swap(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send rows to every rank and return those of every rank, by rank; differentiable.

        Args:
            rows: ``[sum(send), ...]``, those for rank 0 first.
            send: Rows for each rank.
            receive: Rows from each rank.
        """
        if self.size == 1:
            return rows
        # autograd.Function costs a node of the graph for each layer: without a gradient, none
        if rows.requires_grad:
            swapped: Tensor = _Swap.apply(rows, self, send, receive)
            return swapped
        return self.swap_values(rows, send, receive)

    def swap_values(
        self,
        rows: Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        out: Tensor | None = None,
    ) -> Tensor:
        """Do what `swap` does, without a gradient.

        Args:
            rows: As for `swap`.
            send: Rows for each rank.
            receive: Rows from each rank.
            out: ``[sum(receive), ...]``, memory for what comes; None: it is taken afresh.
        """
        device = exchanged_on(rows.device, self._group)
        came = out
        if came is None or came.device.type != device.type:
            # the group may not take tensors of this device, such as gloo those of a GPU
            came = torch.empty((sum(receive), *rows.shape[1:]), dtype=rows.dtype, device=device)
        with named_failures(self._doing):
            dist.all_to_all_single(
                # counts are of rows, which all_to_all_single cuts along the first dimension
                _bytes(came), _bytes(rows.detach().to(came.device).contiguous()),
                list(receive), list(send), group=self._group,
            )  # fmt: skip
        return came.to(rows.device) if out is None or out is came else out.copy_(came)

    def swap_counts(self, send: Sequence[int]) -> list[int]:
        """Return how many rows each rank sends here, given how many go to each."""
        if self.size == 1:
            return list(send)
        ones = [1] * self.size
        # one number for each rank, each way
        return [int(n) for n in self.swap_values(torch.tensor(list(send)), ones, ones)]

    def add_up(self, values: Tensor) -> Tensor:
        """Do what `total` does, without a gradient."""
        # all_reduce writes to what it is given
        out = values.detach().clone().to(exchanged_on(values.device, self._group))
        with named_failures(self._doing):
            dist.all_reduce(out, group=self._group)
        return out.to(values.device)


class AskedRanks:
    """Rows by id that the ranks which own them are asked for; a rank's own are not exchanged.

    Making one is collective, and so is `answers`.

    Args:
        exchange: The ranks.
        ids: ``[n]`` int64, what this rank needs.
        owner: ``[n]`` int64, the rank that has each.
    """

    def __init__(self, exchange: RankExchange, ids: Tensor, owner: Tensor) -> None:
        self._exchange, rank = exchange, exchange.rank
        owners: Any = owner.numpy()
        # all_to_all wants the ids of rank 0 first, then those of rank 1...
        if exchange.size <= _FEW_RANKS:
            order = np.concatenate([np.flatnonzero(owners == r) for r in range(exchange.size)])
        else:  # numpy sorts the 2 bytes of the narrow ones by radix, four times as fast
            narrow = owners.astype(np.int16) if exchange.size <= 1 << 15 else owners
            order = np.argsort(narrow, kind="stable")
        counts = np.bincount(owners, minlength=exchange.size)
        start, stop = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
        self.mine = order[start:stop]
        """Positions in ``ids`` of those that this rank has."""
        self.others = np.concatenate([order[:start], order[stop:]])
        """Positions in ``ids`` of the rest, in the order of `answers`."""
        counts[rank] = 0
        self._send: list[int] = counts.tolist()
        # sizes go first: a receiver has to allocate before values come
        self._receive = exchange.swap_counts(self._send)
        others = torch.from_numpy(ids.numpy()[self.others])
        self.theirs = exchange.swap_values(others, self._send, self._receive)
        """``[m]`` int64, the ids that other ranks need of this one."""

    def answers(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Send the rows of ``theirs``, and return those of the ids at ``others``.

        Args:
            rows: ``[m, ...]``.
            out: ``[len(others), ...]``, memory for what comes; None: it is taken afresh.
        """
        # rows go the opposite way of the ids that asked for them
        return self._exchange.swap_values(rows, self._receive, self._send, out)


def _bytes(rows: Tensor) -> Tensor:
    """Return contiguous rows as ``[n, bytes]``: gloo does not know every dtype."""
    width = rows.element_size()
    # not numel() // len(): there may be no rows, and width still has to be right
    for size in rows.shape[1:]:
        width *= size
    flat = rows.as_strided((rows.numel(),), (1,))  # of one element, any stride is contiguous
    return flat.view(torch.uint8).view(rows.shape[0], width)


class _Swap(torch.autograd.Function):
    # torch.distributed.nn has the same, and warns on each call that it is deprecated
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, exchange: RankExchange, send: Sequence[int], receive: Sequence[int]
    ) -> Tensor:
        ctx.way = exchange, send, receive
        return exchange.swap_values(rows, send, receive)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        exchange, send, receive = ctx.way
        # a gradient goes back the way its row came
        return exchange.swap_values(grads[0], receive, send), None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, exchange: RankExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.add_up(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Every rank has the sum, so every rank's gradient counts towards each summand.
        return ctx.exchange.add_up(grads[0]), None
