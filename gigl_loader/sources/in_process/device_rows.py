"""Rows of a batch from device to device, if the process group has a backend for that.

Sampling, and the requests for rows, stay on the host. Rows are read into one piece of pinned
memory, those of this rank's own batch behind those that others requested, and copied to the device
at once. There the ranks exchange them, and each puts them into the order of its batch::

    requests   host   --all_to_all-->  host of the owner
    rows       host of the owner --copy--> its device --all_to_all--> device of the batch

All lanes share one group, and one stream. They use it in the order of their steps
(`ExchangeTurns`), which is the same on all ranks: NCCL waits for ever if ranks exchange in
different orders.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.batch.device.device_memory import DeviceMemory, LentTensors
from gigl_loader.batch.message import Field
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.errors import ConfigError, PeerError, PeerTimeoutError, ProtocolError
from gigl_loader.runtime.memory.segments import Array, align, nbytes_of
from gigl_loader.runtime.ranks.collectives import backends_of
from gigl_loader.sampler.plan import RowsRequest
from gigl_loader.sampler.rows.reader import LocalReader
from gigl_loader.sampler.rows.row_exchange import LaterRows
from gigl_loader.sources.in_process.collective import AnswerFailedError, CollectivePeers, Packing

# The types by which rows of features are copied, whatever their own type: bits stay bits.
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}

WATCHDOG_LATER_S = 60.0
"""NCCL's watchdog ends the process at the deadline of its group: our own waits, whose errors name
what is missing, have to end before that."""


def backend_for(device: torch.device) -> str | None:
    """Return the process group's backend that exchanges tensors of ``device``.

    None: batches go to the CPU, or the group has none, as with gloo alone.
    """
    return None if device.type == "cpu" else backends_of().get(device.type)


def device_rows(
    peers: CollectivePeers, view: PartitionView[Array], device: torch.device
) -> "DeviceRows | None":
    """Return the exchange of rows between devices; None if some rank has no backend for that.

    Collective.

    Raises:
        ConfigError: There is a backend, but its exchange fails.
    """
    memory = DeviceMemory(device)
    group = device_group(peers, memory)
    return None if group is None else DeviceRows(view, memory, group)


class _Part:
    """Rows of a batch that one partition has, at some of its positions; None: all, in order."""

    def __init__(self, partition: int, at: Array | None) -> None:
        self.partition, self.at = partition, at
        self.positions = slice(0)
        """Position of this part in the memory that is uploaded."""
        self.rows = slice(0)
        """Place of the rows: in the same memory for this partition, else in the memory received."""


class _BatchMatrix:
    """One matrix of a batch.

    Args:
        field: A field with rows that are read later.
        partition: This rank's partition.
    """

    def __init__(self, field: Field, partition: int) -> None:
        assert isinstance(field.write, LaterRows), "other fields write themselves"
        self.key, self.dtype, self.shape = field.key, field.dtype, field.shape
        self._rows = field.write
        self.row_bytes = nbytes_of(field.dtype, field.shape[1:])
        # Not split: all rows are in this partition, or there is only one partition.
        split: Any = {partition: None} if self._rows.split is None else self._rows.split
        self.parts = [_Part(partition, at) for partition, at in split.items()]

    def request(self, part: _Part) -> RowsRequest:
        """Return the request for the rows of a part."""
        ids = self._rows.ids if part.at is None else self._rows.ids.take(part.at)
        return RowsRequest.of(self._rows.kind, self._rows.name, ids)

    def placed(self, load: "_RowUpload", out: Tensor, partition: int) -> Tensor:
        """Write the rows of all parts to ``out``, bytes of the device; return them typed."""
        if out.numel():
            # The largest word that divides a row. Rows begin at multiples of the row's size behind
            # an aligned start, so words of that size are aligned, too.
            word = math.gcd(self.row_bytes, 8)  # a copy goes word by word
            rows = out.view(_WORDS[word]).view(-1, self.row_bytes // word)
            for part in self.parts:
                # Own rows came up with those for the others; they skip the exchange.
                source = (load.uploaded if part.partition == partition else load.came)[part.rows]
                source = source.view(_WORDS[word]).view(-1, self.row_bytes // word)
                if part.at is None:
                    rows.copy_(source)
                else:
                    rows.index_copy_(0, load.uploaded[part.positions].view(torch.int64), source)
        return out.view(getattr(torch, self.dtype)).view(self.shape)


@dataclass
class _RowUpload:
    """Memory of one exchange. All of it is taken before ranks agree: after that none may fail."""

    uploaded: Tensor
    """Rows for the others, rows of this rank's batch, and positions."""
    send: list[int]
    receive: list[int]
    """Bytes for each rank, and of each."""
    came: Tensor
    out: list[Tensor]
    """Memory for each matrix of the batch."""


class DeviceRows:
    """Exchanges rows between the devices of all ranks; shared by the lanes of a loader.

    Args:
        view: This rank's partition.
        memory: Memory of the batches' device.
        group: From `device_group`.
    """

    def __init__(self, view: PartitionView[Array], memory: DeviceMemory, group: Any) -> None:
        self._view, self._memory, self._group = view, memory, group

    def fetch(
        self,
        peers: CollectivePeers,
        fields: Sequence[Field],
        turn: Callable[[], bool],
        passed: Callable[[], None],
    ) -> LentTensors | None:
        """Return the rows of a batch; None if `turn` returned False. Collective.

        Args:
            peers: The lane's.
            fields: Those with rows that are read later; none if this rank has no batch.
            turn: Waits until earlier steps have exchanged theirs; returns whether they have.
            passed: Called once this step's exchange was launched.

        Raises:
            PeerError: Another rank raised, or ended.
            AnswerFailedError: This rank could not read the requested rows.
        """
        partition = self._view.partition_idx
        wanted = [_BatchMatrix(field, partition) for field in fields]
        # A rank without a batch requests nothing, but takes part in every exchange.
        requests, receive = self._questions(peers, wanted)
        questions = peers.trade(requests, receive)
        load: _RowUpload | None = None
        error: AnswerFailedError | None = None
        try:
            with self._memory.in_use():
                load = self._loaded(peers.store, wanted, questions, receive)
        # Out of memory, most likely. Raised once all ranks know, and before any of them has begun
        # an exchange on the device, which could not be cancelled.
        except Exception as cause:
            error = peers.failed("rows for the ranks", cause)
        peers.check(error)
        # `check` raised if there is no load; the order of steps is that of the ranks' exchanges.
        if load is None or not turn():
            return None
        with peers.named_failures(), self._memory.in_use():
            dist.all_to_all_single(
                # Rows for others lie first, rank by rank, so that they are sent from there.
                load.came,
                load.uploaded[: sum(load.send)],
                load.receive,
                load.send,
                group=self._group,
            )
            passed()
            # On the stream of the exchange: it comes after it without a wait of the host.
            pairs = zip(wanted, load.out, strict=True)
            tensors = {matrix.key: matrix.placed(load, out, partition) for matrix, out in pairs}
            event = self._memory.mark()
        peers.check(None)  # a dead rank is known at once here; a device waits for it
        with peers.named_failures():
            wait_for_ranks(self._memory, event, peers.timeout_s)
        return LentTensors(tensors, self._memory, event)

    # -- parts -------------------------------------------------------------------------------------

    def _questions(
        self, peers: CollectivePeers, wanted: Sequence[_BatchMatrix]
    ) -> tuple[list[list[RowsRequest]], list[int]]:
        """Return the requests for each rank, and its response's bytes, which parts then know."""
        by_rank: list[list[tuple[_BatchMatrix, _Part]]] = [[] for _ in range(peers.size)]
        for matrix in wanted:
            for part in matrix.parts:
                if part.partition != self._view.partition_idx:
                    by_rank[peers.rank_of(part.partition)].append((matrix, part))
        by_rank_requests, receive, end = [], [], 0
        for of_rank in by_rank:
            requests, first = [matrix.request(part) for matrix, part in of_rank], end
            for (matrix, part), request in zip(of_rank, requests, strict=True):
                nbytes = request.ids.size * matrix.row_bytes
                part.rows = slice(end, end + nbytes)
                end += align(nbytes)
            by_rank_requests.append(requests)
            receive.append(end - first)
        return by_rank_requests, receive

    def _loaded(
        self,
        store: LocalReader,
        wanted: Sequence[_BatchMatrix],
        questions: list[tuple[list[RowsRequest], int]],
        receive: list[int],
    ) -> _RowUpload:
        """Read the rows for this rank and for others, and start the copy to the device."""
        packing, send = Packing(), []
        for requests, expected in questions:
            first = packing.nbytes
            for request in requests:
                packing.add(*store.rows_asked(request))
            # Both sides count the padding between arrays, as both align with `align`.
            send.append(packing.nbytes - first)
            if send[-1] != expected:
                raise ProtocolError(
                    f"a rank expects {expected} bytes of rows, they are {send[-1]} here: ranks "
                    "differ in the types of their features"
                )
        for matrix in wanted:
            for part in matrix.parts:
                if part.partition == self._view.partition_idx:
                    part.rows = packing.add(*store.rows_asked(matrix.request(part)))
                if part.at is not None:
                    part.positions = packing.add(
                        "int64", part.at.shape, partial(np.copyto, src=part.at)
                    )
        # All sizes are known by now, so they share one piece of memory and one copy.
        host = self._memory.on_host(packing.nbytes)
        packing.write(host.numpy())
        out = [self._memory.empty(nbytes_of(matrix.dtype, matrix.shape)) for matrix in wanted]
        came = self._memory.empty(sum(receive))
        return _RowUpload(self._memory.uploaded(host), send, receive, came, out)


def device_group(peers: CollectivePeers, memory: DeviceMemory) -> Any:
    """Return a process group of all ranks that exchanges memory of their devices. Collective.

    None: some rank has no backend for its device.

    Args:
        peers: The other ranks; they own the group.
        memory: Memory of this rank's device.

    Raises:
        ConfigError: The exchange of the backend fails.
        PeerTimeoutError: Another rank's device did not respond.
    """
    backend = backend_for(memory.device)
    # All ranks take the same path: one that exchanged on the host would wait for the others.
    if not peers.least(int(backend is not None)):
        return None
    assert backend is not None, "the least of all ranks is at most this one's"
    try:
        group = peers.new_group(backend, WATCHDOG_LATER_S)
        # A byte each: NCCL connects devices with the first exchange, and may fail.
        size = peers.size
        with memory.in_use():
            # Zeroed, and a byte for each rank: only its arrival matters, not its value.
            sent, came = (memory.empty(size).zero_() for _ in range(2))
            dist.all_to_all_single(came, sent, [1] * size, [1] * size, group=group)
            event = memory.mark()
        wait_for_ranks(memory, event, peers.timeout_s)
    # Ours, from the wait: it names its cause already, and is a RuntimeError as torch's are.
    except PeerError:
        raise
    except RuntimeError as error:  # the base of all of torch.distributed's errors
        raise ConfigError(
            f'exchange="collective": backend {backend!r} of the process group exchanges no '
            f"bytes of {memory.device}: {error}; each rank needs a device of its own. With a "
            'process group made by "gloo" rows go through the memory of the CPU'
        ) from error
    return group


def wait_for_ranks(memory: DeviceMemory, event: Any, timeout_s: float) -> None:
    """Wait until the device has passed ``event``, behind an exchange with other ranks.

    Raises:
        PeerTimeoutError: It has not in time.
    """
    if not memory.wait(event, timeout_s):
        raise PeerTimeoutError(
            f"nothing came from the devices of other ranks within {timeout_s:g} s: one has stopped "
            "or ended; see the logs of the other ranks, and start the job again"
        )
