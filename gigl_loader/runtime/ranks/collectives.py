"""Values and rows that ranks of the process group exchange, and the end of the group.

The group's own errors name neither the operation nor a remedy; the usual cause is a rank that is
gone. Waits last as long as the group's ``timeout`` (an argument of ``init_process_group``) allows;
they end at once if a process on the other side ends. After a worker of another rank did not
respond, they last `SUSPECTED_S` at most: that timeout is often half an hour, and a machine that was
cut off does not come back.

Values travel as msgpack, not by torch's ``*_object`` collectives: those unpickle received data.

Each exchange of values begins with one ``all_reduce`` of sizes. A rank that cannot go on takes part
in the next one with a mark in place of a size, whichever exchange that is
(`report_failure_to_ranks`); all ranks see the mark, and raise instead of waiting for it.

Rows travel by ``all_to_all``. Its calls are collective: every rank of the group has to make them,
in the same order, even with nothing to send.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]  # torch does not declare it
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
)

from gigl_loader.errors import ConfigError, GiglLoaderError, PeerError, PeerTimeoutError
from gigl_loader.runtime.decoding import analysed

T = TypeVar("T")
R = TypeVar("R")
SUSPECTED_S = 30.0
"""Longest wait for ranks after one did not respond: they may still be in their own epoch."""
TELL_S = 10.0
"""Longest wait of a rank that failed for the others, to tell them why: they may never come."""
_FAILED = 1 << 62
"""Given in place of a size by a rank that failed; no value is as long."""
_MOST_WORDS = 2000
"""Bytes of a reason that other ranks learn; all of them print it."""
# gloo's threads want microseconds; 50 ms is nothing at the end of a job
_MOMENT_S = 0.05
# appending and clearing are atomic, in any thread
_unheard: list[str] = []
"""Reasons to suspect that a rank is cut off; empty once all have come again."""
_AGREEING = "its ranks agreed on how to load"
COULD_NOT_BUILD = "could not build its loader"
"""Words of `report_failure_to_ranks` for a rank whose constructor raised."""


class RankGaveUpError(PeerError):
    """Another rank failed before an exchange, and said why; all ranks know."""

    is_told = True


@contextmanager
def report_failure_to_ranks(what: str, group: Any = None) -> Iterator[None]:
    """Tell the other ranks of an error of the block, so that they do not wait for this one.

    They learn it in the next exchange of values, where all of them have to come, or fail as well.
    If they do not come within `TELL_S`, the error is raised all the same.

    Args:
        what: The failed operation, as in "could not build its loader".
        group: Process group of the ranks; None: the default one.
    """
    try:
        yield
    except Exception as error:  # not KeyboardInterrupt: it comes to all ranks
        if not getattr(error, "is_told", False):
            named = isinstance(error, GiglLoaderError)
            text = str(error) if named else f"{type(error).__name__}: {error}"
            _tell_failure(f"{what}: {text}", group)
            # a block around this one must not tell it again: the others are gone by then
            with contextlib.suppress(AttributeError):
                error.is_told = True  # type: ignore[attr-defined]  # read by the blocks around this one
        raise


def _tell_failure(words: str, group: Any = None) -> None:
    """Take part in the other ranks' next exchange with an error in place of a value."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return
    # The group may be broken, which can be why this rank failed; or the others may not come.
    with contextlib.suppress(PeerError, ConfigError), named_failures(_AGREEING):
        _max_over_ranks(_FAILED, group, TELL_S)
        _failures(words, group, TELL_S)


def _failures(words: str, group: Any, limit_s: float | None = None) -> dict[int, str]:
    """Return the reasons of the ranks that failed; ``words`` is this rank's, or empty."""
    data = words.encode(errors="replace")[:_MOST_WORDS]
    padded = _padded(data, _MOST_WORDS).to(_device(group))
    rows = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
    _run_collective(
        _group_or_world(group).allgather, [rows], [padded], AllgatherOptions(), limit_s=limit_s
    )
    texts = [row.cpu().numpy().tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    return {rank: text for rank, text in enumerate(texts) if text}


def _max_over_ranks(own_size: int, group: Any, limit_s: float | None = None) -> int:
    """Return the largest size of all ranks.

    Raises:
        RankGaveUpError: A rank failed; unless this one did, too.
    """
    most = torch.tensor([own_size], device=_device(group))
    options: Any = AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    _run_collective(_group_or_world(group).allreduce, [most], options, limit_s=limit_s)
    size = int(most)
    if size == _FAILED != own_size:
        reasons = _failures("", group)
        raise RankGaveUpError("; ".join(f"rank {r} {why}" for r, why in reasons.items())[:4000])
    return size


def _group_or_world(group: Any) -> Any:
    return group or dist.group.WORLD


def suspect_ranks(why: str) -> None:
    """Note that a worker of another rank has not responded in time."""
    _unheard.append(why)


def end_group() -> None:
    """End the process group.

    Up to torch 2.6 at least, gloo's group holds the interpreter's lock while it waits for its own
    threads. A thread that needs the lock, to drop the tensors of the last collective, never gets
    it: a collective and then `destroy_process_group` hangs. So the threads get a moment first.
    """
    # waiting for an event releases the interpreter's lock
    threading.Event().wait(_MOMENT_S)
    dist.destroy_process_group()


def gather_from_ranks(value: T, world_size: int, kind: Any) -> list[T]:
    """Return ``value`` of every rank, by rank. All ranks have to call it.

    Args:
        value: A dataclass, or None, numbers, strings, bytes, tuples, lists and dicts of these.
        world_size: Number of ranks.
        kind: Type of the value, such as ``tuple[bytes, str | None]``; the same on all ranks.

    Raises:
        PeerError: The process group broke.
        PeerTimeoutError: A suspected rank did not come.
    """
    if world_size == 1:
        return [value]
    with named_failures(_AGREEING):
        return gather_values(value, world_size, kind)


def gather_values(value: T, world_size: int, kind: Any, group: Any = None) -> list[T]:
    """Do what `gather_from_ranks` does, over any group; its errors are torch's own."""
    encoded = _gathered(msgspec.msgpack.encode(value), world_size, group)
    return [msgspec.msgpack.decode(item, type=analysed(kind)) for item in encoded]


def decide_with_ranks(
    value: T, world_size: int, kind: Any, decide: Callable[[list[T]], R], outcome_kind: Any
) -> R:
    """Let rank 0 decide for all; return its decision. All ranks have to call it.

    Only rank 0 has the values of all: the data of the other ranks does not grow with their number,
    unlike with a gather on each.

    Args:
        value: As for `gather_from_ranks`.
        world_size: Number of ranks.
        kind: Type of the value.
        decide: Called on rank 0 with the values by rank. Must not raise: the others would wait.
        outcome_kind: Type of its result.

    Raises:
        PeerError: The process group broke.
        PeerTimeoutError: A suspected rank did not come.
    """
    if world_size == 1:
        return decide([value])
    with named_failures(_AGREEING):
        data = msgspec.msgpack.encode(value)
        encoded = _gathered(data, world_size, None, on_first_alone=True)
    outcome: Any = None
    if encoded:
        outcome = decide([msgspec.msgpack.decode(item, type=analysed(kind)) for item in encoded])
    return cast("R", broadcast_value(outcome, world_size, outcome_kind))


def _gathered(
    data: bytes, world_size: int, group: Any, on_first_alone: bool = False
) -> list[bytes]:
    """Return the data of all ranks; or only on rank 0, and nothing elsewhere."""
    whole = _group_or_world(group)
    # gathered data has one length on all ranks, so the maximum is agreed on first
    most = _max_over_ranks(len(data), group)
    # the size goes before the data
    own_size = torch.tensor([len(data)], device="cpu")
    padded = torch.cat([own_size.view(torch.uint8), _padded(data, most)]).to(_device(group))
    is_left_out = on_first_alone and dist.get_rank(group) != 0
    buffers = [] if is_left_out else [torch.empty_like(padded) for _ in range(world_size)]
    if on_first_alone:
        _run_collective(whole.gather, [buffers] if buffers else [], [padded], GatherOptions())
    else:
        _run_collective(whole.allgather, [buffers], [padded], AllgatherOptions())
    rows = [buffer.cpu().numpy().tobytes() for buffer in buffers]
    # 8 bytes of int64, in this machine's order: all ranks of a job have the same order
    size, order = own_size.element_size(), sys.byteorder
    return [row[size:][: int.from_bytes(row[:size], order)] for row in rows]


def broadcast_value(value: T, world_size: int, kind: Any) -> T:
    """Return rank 0's ``value``, on all ranks. All ranks have to call it.

    Args:
        value: As for `gather_from_ranks`; of rank 0 only it counts.
        world_size: Number of ranks.
        kind: Type of the value.

    Raises:
        PeerError: The process group broke.
        PeerTimeoutError: A suspected rank did not come.
    """
    if world_size == 1:
        return value
    data = msgspec.msgpack.encode(value)
    with named_failures(_AGREEING):
        # the other ranks' own value does not count, nor does its length
        is_first = dist.get_rank() == 0
        most = _max_over_ranks(len(data) if is_first else 0, None)
        buffer = _padded(data if is_first else b"", most).to(_device())
        _run_collective(_group_or_world(None).broadcast, [buffer], BroadcastOptions())
    decoded: T = msgspec.msgpack.decode(buffer[:most].cpu().numpy().tobytes(), type=analysed(kind))
    return decoded


def _run_collective(collective: Any, *args: Any, limit_s: float | None = None) -> None:
    """Run a collective: as long as the group allows, or `SUSPECTED_S` if a rank is suspected.

    Its last argument is the collective's options. Their timeout ends gloo's own wait, so that the
    process can end, too; with an older gloo that ignores it, the wait for the result still ends.
    ``limit_s`` is another limit.
    """
    if limit_s is None and not _unheard:
        collective(*args).wait()
        return
    seconds = SUSPECTED_S if limit_s is None else limit_s
    # per call, not for the group: the user's timeout stays unchanged for the rest
    args[-1].timeout = timedelta(seconds=seconds)
    try:
        # one second more, so that gloo's own timeout comes first and its error gives the reason
        collective(*args).wait(timedelta(seconds=seconds + 1.0))
    except RuntimeError as error:
        if limit_s is not None:
            raise
        raise PeerTimeoutError(
            f"the ranks did not come together within {SUSPECTED_S:g} s ({error}), and before that "
            f"one was not heard: {_unheard[-1]}"
        ) from error
    # all have come: the suspected rank was only slow
    _unheard.clear()


def check_same_options(everyone: Sequence[dict[str, str]], why: str) -> None:
    """Raise `ConfigError` if ranks were given different values: names them, and the ranks.

    Args:
        everyone: Values by option, of each rank.
        why: The feature that requires equal values, for the error.
    """
    # in the order of the first rank's options: the same text on all ranks
    for name in dict.fromkeys(name for options in everyone for name in options):
        by_value: dict[str | None, list[int]] = {}
        for rank, options in enumerate(everyone):
            by_value.setdefault(options.get(name), []).append(rank)
        if len(by_value) > 1:
            texts = [f"{value} on ranks {ranks}" for value, ranks in by_value.items()]
            raise ConfigError(
                f"{why} takes the same {name} on all ranks, got {'; '.join(texts)}"[:2000]
            )


def backends_of(group: Any = None) -> dict[str, str]:
    """Return the backend of a process group by device type of the exchanged tensors.

    A group made with ``"nccl"`` has ``{"cuda": "nccl"}``, one with ``"cpu:gloo,cuda:nccl"`` or
    without a name has both. gloo is left out except for the CPU: torch lists it for CUDA, too, but
    it has no ``all_to_all`` there.
    """
    pairs = [pair.split(":") for pair in dist.get_backend_config(group).split(",")]
    return {device: name for device, name in pairs if device == "cpu" or name != "gloo"}


def exchanged_on(device: torch.device, group: Any = None) -> torch.device:
    """Return the device that tensors of ``device`` must be on while ``group`` exchanges them.

    That is their own device, if the backends accept it; else the CPU; else, as with NCCL alone, the
    current device of the accepted type.

    Raises:
        ConfigError: The group only has gloo, and not for CPU tensors.
    """
    known = backends_of(group)
    if device.type in known:
        return device
    if "cpu" in known:
        return torch.device("cpu")
    if not known:
        raise ConfigError(
            f"the process group ({dist.get_backend_config(group)}) has no backend for tensors of "
            f"{device}, nor for the CPU's: add one, as in init_process_group("
            '"cpu:gloo,cuda:nccl")'
        )
    # NCCL's group has one type of device
    kind = next(iter(known))
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _device(group: Any = None) -> torch.device:
    """Return the device of values exchanged between ranks: the CPU, if the group accepts it."""
    return exchanged_on(torch.device("cpu"), group)


def _padded(data: bytes, size: int) -> Tensor:
    """Return ``data`` as bytes of a tensor, padded with zeros.

    Its memory is torch's own: a thread of gloo may be the last to drop the tensor, even while the
    interpreter is ending, and freeing memory of a Python object needs the interpreter.
    """
    padded = torch.zeros(max(size, 1), dtype=torch.uint8, device="cpu")
    # copied, not torch.frombuffer(data): see above
    padded[: len(data)].numpy()[:] = np.frombuffer(data, np.uint8)
    return padded


@contextmanager
def named_failures(doing: str) -> Iterator[None]:
    """Replace the process group's errors, which name no cause, by ours.

    Raises:
        PeerTimeoutError: A rank did not come within the group's timeout.
        PeerError: A rank has ended.
    """
    try:
        yield
    except PeerError:  # ours already, of a wait within
        raise
    except RuntimeError as error:  # the base class of all torch.distributed errors
        # gloo and NCCL raise the same class for both; only the text tells them apart
        stalled = "timed out" in str(error).lower()
        why = (
            "a rank did not come within the process group's timeout"
            if stalled
            else ("a rank has ended, or raised an error")
        )
        kind = PeerTimeoutError if stalled else PeerError
        raise kind(
            f"the process group broke while {doing}: {error}; {why}: see the logs of the other "
            "ranks. Nothing can be resumed on this group: start the job again"
        ) from error


# --- rows -----------------------------------------------------------------------------------------

_FEW_RANKS = 8
"""Up to this number, a pass over the ids for each rank costs less than a sort."""


class RankExchange:
    """``all_to_all`` over a process group; with one rank, or without a group, nothing is sent.

    Args:
        group: A process group; None: the default one where there is one.
        doing: The current operation, for errors.
        failures: Context manager that names the group's errors, instead of `named_failures`.
    """

    def __init__(
        self,
        group: Any = None,
        doing: str = "rows were exchanged",
        failures: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        # a torch built without distributed has no is_initialized()
        joined = dist.is_available() and dist.is_initialized()
        self._group, self._failures = group, failures or partial(named_failures, doing)
        self.size: int = dist.get_world_size(group) if joined else 1
        self.rank: int = dist.get_rank(group) if joined else 0

    def gather(self, value: T, kind: Any) -> list[T]:
        """Return a small ``value`` of every rank, by rank; ``kind``: see `gather_from_ranks`."""
        if self.size == 1:
            return [value]
        with self._failures():
            return gather_values(value, self.size, kind, self._group)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks; differentiable."""
        if self.size == 1:
            return values
        return cast("Tensor", _Total.apply(values, self))

    def all_to_all(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send rows to every rank and return those of every rank, by rank; differentiable.

        Args:
            rows: ``[sum(send), ...]``, those for rank 0 first.
            send: Number of rows for each rank.
            receive: Number of rows from each rank.
        """
        if self.size == 1:
            return rows
        # autograd.Function costs a graph node per layer: without a gradient, none
        if rows.requires_grad:
            return cast("Tensor", _Swap.apply(rows, self, send, receive))
        return self.all_to_all_values(rows, send, receive)

    def all_to_all_values(
        self, rows: Tensor, send: Sequence[int], receive: Sequence[int], out: Tensor | None = None
    ) -> Tensor:
        """Do the work of `all_to_all`, without a gradient.

        Args:
            rows: As for `all_to_all`.
            send: Number of rows for each rank.
            receive: Number of rows from each rank.
            out: ``[sum(receive), ...]``, memory for the result; None: new memory.
        """
        device = exchanged_on(rows.device, self._group)
        came = out
        if came is None or came.device.type != device.type:
            # the group may not accept tensors of this device, as gloo with a GPU's
            came = torch.empty((sum(receive), *rows.shape[1:]), dtype=rows.dtype, device=device)
        with self._failures():
            dist.all_to_all_single(
                # counts are of rows, which all_to_all_single cuts along the first dimension
                _bytes(came),
                _bytes(rows.detach().to(came.device).contiguous()),
                list(receive),
                list(send),
                group=self._group,
            )
        return came.to(rows.device) if out is None or out is came else out.copy_(came)

    def all_to_all_counts(self, send: Sequence[int]) -> list[int]:
        """Return the number of rows from each rank, given the number to each."""
        if self.size == 1:
            return list(send)
        ones = [1] * self.size
        # one number per rank and direction
        return [
            int(n)
            for n in self.all_to_all_values(torch.tensor(list(send), device="cpu"), ones, ones)
        ]

    def sum_values(self, values: Tensor) -> Tensor:
        """Do the work of `total`, without a gradient."""
        # all_reduce writes to its argument
        out = values.detach().clone().to(exchanged_on(values.device, self._group))
        with self._failures():
            dist.all_reduce(out, group=self._group)
        return out.to(values.device)


def order_by_rank(owner: Tensor, num_ranks: int) -> tuple[Any, Any]:
    """Return the positions of the ids of rank 0, then rank 1..., and the number of ids of each.

    Args:
        owner: ``[n]`` int64, the rank of each id.
        num_ranks: The ranks.
    """
    owners: Any = owner.numpy()
    if num_ranks <= _FEW_RANKS:
        order = np.concatenate([np.flatnonzero(owners == r) for r in range(num_ranks)])
    else:  # numpy sorts the 2 bytes of the narrow ones by radix, four times as fast
        narrow = owners.astype(np.int16) if num_ranks <= 1 << 15 else owners
        order = np.argsort(narrow, kind="stable")
    return order, np.bincount(owners, minlength=num_ranks)


class RowsFromRanks:
    """Rows by id, requested from their owner ranks; a rank's own rows are not exchanged.

    The constructor is collective, and so is `answers`.

    Args:
        exchange: The ranks.
        ids: ``[n]`` int64, the ids that this rank needs.
        owner: ``[n]`` int64, the rank that has each.
    """

    def __init__(self, exchange: RankExchange, ids: Tensor, owner: Tensor) -> None:
        self._exchange, rank = exchange, exchange.rank
        order, counts = order_by_rank(owner, exchange.size)
        start, stop = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
        self.mine = order[start:stop]
        """Positions in ``ids`` of this rank's own."""
        self.others = np.concatenate([order[:start], order[stop:]])
        """Positions in ``ids`` of the rest, in the order of `answers`."""
        counts[rank] = 0
        self._send: list[int] = counts.tolist()
        # sizes go first: a receiver has to allocate before values come
        self._receive = exchange.all_to_all_counts(self._send)
        others = torch.from_numpy(ids.numpy()[self.others])
        self.theirs = exchange.all_to_all_values(others, self._send, self._receive)
        """``[m]`` int64, the ids that other ranks request from this one."""

    def answers(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Send the rows of ``theirs``, and return those of the ids at ``others``.

        Args:
            rows: ``[m, ...]``.
            out: ``[len(others), ...]``, memory for the result; None: new memory.
        """
        # rows go in the opposite direction of their ids
        return self._exchange.all_to_all_values(rows, self._receive, self._send, out)


def _bytes(rows: Tensor) -> Tensor:
    """Return contiguous rows as ``[n, bytes]``: gloo does not know every dtype."""
    width = rows.element_size()
    # not numel() // len(): there may be no rows, and the width must still be right
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
        return exchange.all_to_all_values(rows, send, receive)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        exchange, send, receive = ctx.way
        # a gradient goes back the way of its row
        return exchange.all_to_all_values(grads[0], receive, send), None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, exchange: RankExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.sum_values(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Every rank has the sum, so every rank's gradient counts towards each summand.
        return ctx.exchange.sum_values(grads[0]), None
