"""Requests between samplers of different ranks, by ``all_to_all`` instead of connections.

`GraphReader` requests neighbours or rows when it needs them. Here its requests wait until a
response is needed, and then all ranks exchange their requests at once::

    rank 0   ask ask | wait()              rank 1   ask | wait()
                     +--- round: sizes, requests, sizes, responses --+

Ranks need different numbers of rounds. One whose batch is complete takes part in further rounds,
responding, until all are; so does one without further batches, or with an abandoned epoch.

Rows are gathered into the memory that is sent, and read where they were received. That memory is
kept for the next batch, and no other copy of the rows is made.
"""

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from gigl_loader.batch.message import Field
from gigl_loader.batch.slots import layout_of, write_fields
from gigl_loader.dataset.identity import holders_of
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.errors import (
    ConfigError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
)
from gigl_loader.runtime.memory.segments import Array, align, nbytes_of
from gigl_loader.runtime.ranks.collectives import backends_of
from gigl_loader.runtime.transport import codec
from gigl_loader.sampler.plan import Drawn, DrawRequest, RowsAnswer, RowsRequest
from gigl_loader.sampler.rows.reader import LocalReader, Scratch
from gigl_loader.sources.in_process.lost_ranks import RankWatch, own_place

logger = logging.getLogger(__name__)

WORKING, COMPLETE, BROKEN_OFF, FAILED = range(4)
"""State of a rank in a round: needs responses; has its batch; has no epoch any more; raised."""

# Arrays of int64 are sent and received.
_WORD = 8
_DRAW, _ROWS = "draw", "rows"

T = TypeVar("T")


class RankFailedError(PeerError):
    """Another rank raised, and batches of all ranks are sampled together."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank

    def __str__(self) -> str:
        return (
            f"rank {self.rank} could not sample its batch: see its error; batches of all ranks are "
            "sampled together"
        )


class AnswerFailedError(SamplingError):
    """This rank could not respond to another one; all ranks know."""


# -- message format --------------------------------------------------------------------------------


class Packing:
    """Arrays one after another, written once their total size is known."""

    def __init__(self) -> None:
        self._fields: list[Field] = []
        self.nbytes = 0

    def add(self, dtype: str, shape: tuple[int, ...], write: Callable[[Array], Any]) -> slice:
        """Return the bytes that an array will take."""
        self._fields.append(Field("", dtype, shape, write))
        start, nbytes = self.nbytes, nbytes_of(dtype, shape)
        self.nbytes += align(nbytes)  # as `layout_of`: an array is read as words of its own size
        return slice(start, start + nbytes)

    def add_packed(self, value: object, method: str = "") -> None:
        """Add a request or a response; `PieceReader.read` reads it."""
        # The header has the types and shapes of the arrays, so its own length goes before it.
        header, arrays = codec.encode(value, method)
        start = len(header).to_bytes(_WORD, "little") + header
        for array in (np.frombuffer(start, np.uint8), *arrays):
            self.add(array.dtype.name, array.shape, partial(np.copyto, src=array))

    def write(self, memory: Array) -> None:
        """Write all of them to ``[nbytes]`` uint8."""
        write_fields(self._fields, layout_of(self._fields)[0], memory)


class PieceReader:
    """Reads pieces, one after another; arrays are views."""

    def __init__(self, data: Array) -> None:
        self._data, self._at = data, 0

    def __iter__(self) -> Iterator[tuple[str, Any, list[Array]]]:
        while self._at < self._data.nbytes:
            yield self.read()

    def array(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        """Return an array that was sent as a separate piece."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        array: Array = self._take(nbytes, align(nbytes)).view(dtype).reshape(shape)
        return array

    def read(self) -> tuple[str, Any, list[Array]]:
        """Return (method, body, arrays) for `codec.decode`."""
        length = int.from_bytes(self._take(_WORD, _WORD).tobytes(), "little")
        header = self._take(length, align(length + _WORD) - _WORD).tobytes()
        method, body, specs = codec.read_header(header)
        return method, body, [self.array(spec.dtype, spec.shape) for spec in specs]

    def _take(self, nbytes: int, step: int) -> Array:
        piece: Array = self._data[self._at : self._at + nbytes]
        if piece.nbytes != nbytes:
            raise ProtocolError(
                f"{nbytes} bytes were expected of another rank, {piece.nbytes} are left of "
                f"{self._data.nbytes}: ranks differ in version, or in the types of their features"
            )
        self._at += step
        return piece


class CollectiveCall(Generic[T]):
    """A request; its response comes with the round that `wait` starts, or an earlier one."""

    def __init__(
        self,
        peers: "CollectivePeers",
        request: object,
        method: str,
        read: Callable[[PieceReader], T],
    ) -> None:
        self._peers, self.question, self._read = peers, (request, method), read
        self._answer: T | None = None

    def take(self, reader: PieceReader) -> None:
        """Take the response."""
        self._answer = self._read(reader)

    @property
    def has_come(self) -> bool:
        """Whether `wait` would return at once."""
        return self._answer is not None

    def wait(self) -> T:
        """Return the response, which is kept until the batch is finished.

        Collective, if there is none yet.
        """
        # One round responds to all earlier requests, so this ends after one. If another call began
        # a round, it has brought this response along, and no round is needed.
        while self._answer is None:
            self._peers.round(WORKING)
        return self._answer


def _read_drawn(reader: PieceReader) -> Drawn:
    _, body, arrays = reader.read()
    return codec.decode(body, arrays, Drawn[Array])


@dataclass(frozen=True)
class _Announcement:
    """Announcement of a rank at the beginning of a round."""

    nbytes: int
    """Bytes of its requests to this rank."""
    state: int
    total: int
    """Bytes of all its requests."""
    failed: int
    """The rank that raised, if ``state`` is `FAILED`."""
    words: list[int]
    """The words of `CollectivePeers.meet`."""


class CollectivePeers:
    """The other ranks' partitions, for one sampler in one thread.

    Args:
        view: This rank's partition, for responses.
        timeout_s: Seconds that a rank waits for the others.
        num_words: Numbers that `meet` exchanges.

    Raises:
        ConfigError: No rank holds some partition.
        PeerError: The process group broke. All ranks have to build theirs together.
    """

    rows_later = False

    def __init__(self, view: PartitionView[Array], timeout_s: float, num_words: int = 0) -> None:
        self.store = LocalReader(view)
        """This rank's partition, for the thread of this lane."""
        self.timeout_s, self._num_words = timeout_s, num_words
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._groups: list[Any] = []
        self._watch: RankWatch | None = None
        self.is_broken = False
        """Whether the group is broken: a rank ended or stopped."""
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        """Called with the reason why this rank cannot respond, before others know: their errors
        are then not the first one."""
        with self.named_failures():
            # a group of its own: the trainer's collectives go on in another thread meanwhile
            self.group = self.new_group(host_backend())
        # All ranks receive the same list, so all of them raise or none does.
        members = self._gather([view.partition_idx, *own_place()])
        held = [part for part, _, _ in members]
        places = [(pid, machine) for _, pid, machine in members]
        self._watch = RankWatch(self.group.group_name, places, self.rank)
        holders = holders_of(view.num_partitions, held)
        # If several ranks hold one partition, requests are spread over them.
        self._rank_of = [ranks[self.rank % len(ranks)] for ranks in holders]
        self.rounds = 0
        """Rounds that all ranks took part in: while it grows, they are alive."""
        self._scratch = Scratch()
        self._kept = 0
        """Rounds of this batch with responses for this rank: these stay in place."""
        self._asked = self._nothing()

    def new_group(self, backend: str, later_s: float = 0.0) -> Any:
        """Return a process group of all ranks, which `close` ends. Collective.

        Args:
            backend: Its backend.
            later_s: Seconds that its own deadline comes after that of this object's waits.
        """
        timeout = timedelta(seconds=max(self.timeout_s, 1.0) + later_s)
        self._groups.append(dist.new_group(backend=backend, timeout=timeout))
        return self._groups[-1]

    def draw(self, partition: int, request: DrawRequest) -> CollectiveCall[Drawn]:
        """Keep a request for neighbours for the next round."""
        return self._keep(partition, CollectiveCall(self, request, _DRAW, _read_drawn))

    def rows(self, partition: int, request: RowsRequest, out: Array) -> CollectiveCall[RowsAnswer]:
        """Keep a request for rows for the next round; ``out`` has their type and shape."""
        # Not `out` itself: the response is read where it was received, and nothing is copied to
        # `out`.
        dtype, shape = out.dtype, out.shape
        read = lambda reader: RowsAnswer(reader.array(dtype, shape))  # noqa: E731
        return self._keep(partition, CollectiveCall(self, request, _ROWS, read))

    def _keep(self, partition: int, call: CollectiveCall[T]) -> CollectiveCall[T]:
        self._asked[self._rank_of[partition]].append(call)
        return call

    def rank_of(self, partition: int) -> int:
        """Return the rank that receives requests for a partition."""
        return self._rank_of[partition]

    def trade(
        self, asked: list[list[RowsRequest]], expected: list[int]
    ) -> list[tuple[list[RowsRequest], int]]:
        """Tell each rank the rows requested from it, and the bytes of its response.

        Collective. Returns the same from each rank; ids are read before any other exchange.
        """
        sent, lengths = self._filled(
            [[(request, _ROWS) for request in requests] for requests in asked], _question
        )
        sizes = self._swap_words([list(pair) for pair in zip(lengths, expected, strict=True)])
        got = self._swap("questions", sent, [length for length, _ in sizes], lengths)
        read = [
            [
                codec.decode(body, arrays, RowsRequest[Array])
                for _, body, arrays in PieceReader(data)
            ]
            for data in got
        ]
        return [(requests, nbytes) for requests, (_, nbytes) in zip(read, sizes, strict=True)]

    def check(self, error: AnswerFailedError | None) -> None:
        """Tell the others whether this rank could respond. Collective.

        Raises:
            AnswerFailedError: ``error``.
            RankFailedError: Another rank could not.
        """
        failures = self._gather([int(error is not None)])
        if error is not None:
            raise error
        if failed := [rank for rank, (failed,) in enumerate(failures) if failed]:
            raise RankFailedError(failed[0])

    def agree(self, epoch: int, num_batches: int) -> int:
        """Return the steps of an epoch: the batches of the rank with most.

        Raises:
            ConfigError: Ranks start different epochs.
        """
        # Requests of an abandoned epoch, whose responses nobody reads.
        self._asked, self._kept = self._nothing(), 0
        known = self._gather([epoch, num_batches])
        epochs = [begun for begun, _ in known]
        if len(set(epochs)) > 1:
            raise ConfigError(
                f'exchange="collective" needs all ranks in the same epoch, they start {epochs}: '
                "begin and end epochs on all ranks alike, and call set_epoch() with one number"
            )
        return max(count for _, count in known)

    def least(self, number: int) -> int:
        """Return the least ``number`` of all ranks."""
        return min(count for (count,) in self._gather([number]))

    def most(self, numbers: list[int]) -> list[int]:
        """Return the largest of all ranks for each of ``numbers``; all have as many."""
        everyone = self._gather(numbers) if numbers else []
        return [max(column) for column in zip(*everyone, strict=True)]

    def meet(self, words: list[list[int]] | None = None) -> list[list[int]]:
        """Exchange ``num_words`` numbers with each rank, or only learn that all have come here.

        Collective, and a round of its own: a rank that called `fail` instead is named.

        Args:
            words: By rank, at most ``num_words`` int64 for it.

        Raises:
            RankFailedError: A rank raised.
            PeerError: A rank ended.
            PeerTimeoutError: A rank did not come in time.
        """
        return [answer.words for answer in self._meet([0] * self.size, WORKING, words=words)]

    def finish(self, state: int) -> bool:
        """Respond until every rank has its batch; return whether all abandoned the epoch."""
        self._kept = 0
        while True:
            # All ranks see the same states, so all leave after the same round.
            states = self.round(state)
            if WORKING not in states:
                return all(rank_state == BROKEN_OFF for rank_state in states)

    def fail(self, rank: int) -> None:
        """Tell the others that ``rank`` raised; their next round, or this one, is their last."""
        # This replaces the round that the others begin, and is the only exchange of it: they raise
        # once they have read the states.
        self._meet([0] * self.size, FAILED, rank)

    def round(self, state: int) -> list[int]:
        """Exchange requests and responses once; return the states of all ranks.

        Raises:
            RankFailedError: A rank raised.
            PeerError: A rank ended.
            PeerTimeoutError: A rank did not come in time.
        """
        # Taken before the exchange: calls made while responses are read belong to the next round.
        asked, self._asked = self._asked, self._nothing()
        questions = ((call.question for call in calls) for calls in asked)
        sent, lengths = self._filled(questions, _question)
        answers = self._meet(lengths, state)
        # By the totals, which are the same on all ranks: with its own requests only, one rank would
        # go on to the exchange, and another one not.
        if any(answer.total for answer in answers):
            self._exchange(asked, sent, lengths, [answer.nbytes for answer in answers])
        return [answer.state for answer in answers]

    def close(self) -> None:
        """Release its groups."""
        # Ending the default group ends all others with it.
        while self._groups and dist.is_initialized():
            dist.destroy_process_group(self._groups.pop())

    # -- parts -------------------------------------------------------------------------------------

    def _nothing(self) -> list[list[CollectiveCall[Any]]]:
        """Return an empty list of calls for each rank."""
        return [[] for _ in range(self.size)]

    def _meet(
        self, sizes: list[int], state: int, failed: int = 0, words: list[list[int]] | None = None
    ) -> list[_Announcement]:
        rows = [[size, state, sum(sizes), failed] for size in sizes]
        # of one length in every round: a rank that fails does not know which one it replaces
        for row, own in zip(rows, words or [[]] * self.size, strict=True):
            row += own + [0] * (self._num_words - len(own))
        answers = [
            _Announcement(nbytes, state_there, total, failed_rank, rest)
            for nbytes, state_there, total, failed_rank, *rest in self._swap_words(rows)
        ]
        self.rounds += 1
        if state != FAILED:
            for answer in answers:
                if answer.state == FAILED:
                    raise RankFailedError(answer.failed)
        return answers

    def _exchange(
        self,
        asked: list[list[CollectiveCall[Any]]],
        sent: Array,
        lengths: list[int],
        sizes: list[int],
    ) -> None:
        questions = self._swap("questions", sent, sizes, lengths)
        # The memory of the sent requests is free by now, and responses overwrite it.
        sent, lengths, error = self._answers(questions)
        # Lengths and failures in one exchange. A rank that failed sends 0 bytes to each, and still
        # takes part in this exchange: the others are waiting in it.
        sizes_and_failures = self._swap_words(
            [[length, int(error is not None)] for length in lengths]
        )
        if error is not None:
            raise error
        if failed := [rank for rank, (_, failed) in enumerate(sizes_and_failures) if failed]:
            raise RankFailedError(failed[0])
        # Responses to this rank are in the order of its requests, rank by rank.
        got = self._swap(
            f"answers {self._kept}", sent, [length for length, _ in sizes_and_failures], lengths
        )
        for data, calls in zip(got, asked, strict=True):
            reader = PieceReader(data)
            for call in calls:
                call.take(reader)
        # views of received data are read until the batch is finished: the next round's lie
        # elsewhere
        self._kept += any(asked)

    def _answers(self, questions: list[Array]) -> tuple[Array, list[int], AnswerFailedError | None]:
        """Return the responses and the bytes for each rank; and the error if there are none."""
        try:
            readers = [PieceReader(data) for data in questions]
            return *self._filled(readers, self._answer), None
        # Any exception: one that left here would leave the others waiting for this rank.
        except Exception as error:
            failed = self.failed("a response to another rank", error)
            return np.empty(0, np.uint8), [0] * self.size, failed

    def failed(self, what: str, error: Exception) -> AnswerFailedError:
        """Return the error of this rank's response; called in the ``except`` of ``error``."""
        cause = f"{type(error).__name__}: {error}"
        failed = AnswerFailedError(what, cause, traceback.format_exc())
        self.on_failure(failed)
        return failed

    def _answer(self, packing: Packing, question: tuple[str, Any, list[Array]]) -> None:
        method, body, arrays = question
        if method == _DRAW:
            drawn = self.store.answer_draw(codec.decode(body, arrays, DrawRequest[Array]))
            packing.add_packed(drawn)
        else:
            packing.add(*self.store.rows_asked(codec.decode(body, arrays, RowsRequest[Array])))

    def _filled(
        self, wanted: Iterable[Iterable[T]], add: Callable[[Packing, T], None]
    ) -> tuple[Array, list[int]]:
        """Return the data to send, rank after rank, and the bytes for each."""
        packing, lengths = Packing(), []
        for items in wanted:
            first = packing.nbytes
            for item in items:
                add(packing, item)
            lengths.append(packing.nbytes - first)
        sent = self._memory("sent", packing.nbytes)
        packing.write(sent)
        return sent, lengths

    def _swap(self, name: str, sent: Array, sizes: list[int], lengths: list[int]) -> list[Array]:
        """Send ``lengths`` bytes to each rank; return ``sizes`` bytes of each, in ``name``."""
        # Memory by name: the next exchange must not overwrite data that is read later.
        received = self._memory(name, sum(sizes))
        self._all_to_all(torch.from_numpy(received), torch.from_numpy(sent), sizes, lengths)
        return np.split(received, np.cumsum(sizes)[:-1])

    def _memory(self, name: str, nbytes: int) -> Array:
        words: Array = self._scratch.get(name, -(-nbytes // _WORD))
        return words.view(np.uint8)[:nbytes]

    def _swap_words(self, words: list[list[int]]) -> list[list[int]]:
        # A row for each rank, of one length on all: no sizes have to be sent first.
        send = torch.tensor(words, dtype=torch.int64, device="cpu")
        received = torch.empty_like(send)
        self._all_to_all(received, send)
        return received.tolist()

    def _all_to_all(
        self, received: torch.Tensor, send: torch.Tensor, sizes: Any = None, lengths: Any = None
    ) -> None:
        with self.named_failures():
            dist.all_to_all_single(received, send, sizes, lengths, group=self.group)

    def _gather(self, words: list[int]) -> list[list[int]]:
        return self._swap_words([words] * self.size)

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        """Turn errors of a group, which name no cause, into ours; the groups are then broken.

        Raises:
            PeerTimeoutError: A rank did not come in time.
            PeerError: A rank has ended.
        """
        try:
            yield
        except PeerError:
            self.is_broken = True
            raise
        except RuntimeError as error:
            self.is_broken = True
            raise self._named(error) from error

    def _named(self, error: RuntimeError) -> PeerError:
        """Return our error for one of the group, with the ranks that are missing."""
        missing = [] if self._watch is None else self._watch.missing()
        # torch has one class for all of them, and gloo gives the cause only in its text.
        is_late = "timed out" in str(error).lower()
        who = "; ".join(lost.text for lost in missing) or (
            "all ranks saw it, so that one of them has left this loader, or gave up before"
        )
        # A rank that gave up on a stopped one closes its connections to the others, too.
        if is_late or any(lost.is_stopped for lost in missing):
            return PeerTimeoutError(
                f"a rank did not take part in sampling for {self.timeout_s:.0f} s, or one gave up "
                f"after that time: {who} ({error}). If it computes for longer than that between "
                "batches, raise `timeout`"
            )
        return PeerError(
            f"sampling together broke: {who} ({error}); see the logs of the other ranks, and start "
            "the job again"
        )


def host_backend() -> str:
    """Return the backend by which ranks exchange CPU memory.

    The process group's own one. If that has none, as with NCCL, or is MPI, which lets one thread
    exchange at a time, gloo beside it.

    Raises:
        ConfigError: gloo is needed, and this torch was built without.
    """
    own = backends_of().get("cpu")
    if own is not None and own != "mpi":
        return own
    if not dist.is_gloo_available():
        raise ConfigError(
            'exchange="collective" sends requests between CPUs, and the process group '
            f"({dist.get_backend_config()}) has no backend for that; this torch was built without "
            'gloo: add one to init_process_group, as in "cpu:ucc,cuda:nccl"'
        )
    return "gloo"


def _question(packing: Packing, asked: tuple[object, str]) -> None:
    packing.add_packed(*asked)
