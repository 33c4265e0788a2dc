"""Questions between samplers of different ranks, by ``all_to_all`` instead of connections.

`GraphReader` asks when it needs neighbours or rows; here its questions wait until an answer is
needed, and then all ranks exchange what they have to ask, at once::

    rank 0   ask ask | wait()              rank 1   ask | wait()
                     +--- round: sizes, questions, sizes, answers ---+

Ranks need different numbers of rounds. One whose batch is complete takes part in further rounds,
answering, until all are; so does one that has run out of batches, or whose epoch was broken off.

Rows are gathered into the memory that is sent, and read where they were received: that memory is
kept for the next batch, and no other copy is made of them.
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

from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import (
    ConfigError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
)
from gigl_loader.memory.segments import Array, align, nbytes_of
from gigl_loader.memory.slots import layout_of, write_fields
from gigl_loader.message import Field
from gigl_loader.ranks import backends_of
from gigl_loader.sampler.plan import Drawn, DrawRequest, RowsAnswer, RowsRequest
from gigl_loader.sampler.reader import LocalReader, Scratch
from gigl_loader.transport import codec

logger = logging.getLogger(__name__)

WORKING, COMPLETE, BROKEN_OFF, FAILED = range(4)
"""What a rank is in a round: needs answers; has its batch; has no epoch any more; raised."""

# What is sent and received lies in arrays of int64.
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
    """This rank could not answer another one; all ranks know."""


# -- what is sent ----------------------------------------------------------------------------------


class Packing:
    """Arrays one after another, written once it is known how much memory all of them take."""

    def __init__(self) -> None:
        self._fields: list[Field] = []
        self.nbytes = 0

    def add(self, dtype: str, shape: tuple[int, ...], write: Callable[[Array], Any]) -> slice:
        """Return the bytes that an array is going to take."""
        self._fields.append(Field("", dtype, shape, write))
        start, nbytes = self.nbytes, nbytes_of(dtype, shape)
        self.nbytes += align(nbytes)  # as `layout_of`: an array is read as words of its own size
        return slice(start, start + nbytes)

    def add_packed(self, value: object, method: str = "") -> None:
        """Add a question or an answer; `PieceReader.read` reads it."""
        # The header says of which type and shape the arrays are, so its own length goes before it.
        header, arrays = codec.encode(value, method)
        start = len(header).to_bytes(_WORD, "little") + header
        for one in (np.frombuffer(start, np.uint8), *arrays):
            self.add(one.dtype.name, one.shape, partial(np.copyto, src=one))

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
        """Return an array that was sent as a piece of its own."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        found: Array = self._take(nbytes, align(nbytes)).view(dtype).reshape(shape)
        return found

    def read(self) -> tuple[str, Any, list[Array]]:
        """Return (method, body, arrays) for `codec.decode`."""
        length = int.from_bytes(self._take(_WORD, _WORD).tobytes(), "little")
        header = self._take(length, align(length + _WORD) - _WORD).tobytes()
        method, body, specs = codec.read_header(header)
        return method, body, [self.array(spec.dtype, spec.shape) for spec in specs]

    def _take(self, nbytes: int, step: int) -> Array:
        found: Array = self._data[self._at : self._at + nbytes]
        if found.nbytes != nbytes:
            raise ProtocolError(
                f"{nbytes} bytes were expected of another rank, {found.nbytes} are left of "
                f"{self._data.nbytes}: ranks differ in version, or in the types of their features"
            )
        self._at += step
        return found


class CollectiveCall(Generic[T]):
    """A question; its answer comes with the round that `wait` starts, or an earlier one."""

    def __init__(
        self, peers: "CollectivePeers", request: object, method: str,
        read: Callable[[PieceReader], T],
    ) -> None:  # fmt: skip
        self._peers, self.question, self._read = peers, (request, method), read
        self._answer: T | None = None

    def take(self, reader: PieceReader) -> None:
        """Take the answer."""
        self._answer = self._read(reader)

    @property
    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        return self._answer is not None

    def wait(self) -> T:
        """Return the answer, which is kept until the batch is finished.

        Collective, where there is none yet.
        """
        # One round answers what was asked before it, so this ends after one; a round that another
        # call began has brought this answer along, and then it needs none.
        while self._answer is None:
            self._peers.round(WORKING)
        return self._answer


def _read_drawn(reader: PieceReader) -> Drawn:
    _, body, arrays = reader.read()
    return codec.decode(body, arrays, Drawn)


@dataclass(frozen=True)
class _Told:
    """Announcement of a rank at the beginning of a round."""

    nbytes: int
    """Bytes of its requests to this rank."""
    state: int
    total: int
    """Bytes of all its questions."""
    failed: int
    """The rank that raised, where ``state`` is `FAILED`."""


class CollectivePeers:
    """The other ranks' partitions, for one sampler in one thread.

    Args:
        view: This rank's partition; answers questions.
        timeout_s: Seconds that a rank waits for the others.

    Raises:
        ConfigError: No rank holds some partition.
        PeerError: The process group broke. All ranks have to build theirs together.
    """

    def __init__(self, view: PartitionView[Array], timeout_s: float) -> None:
        self.store = LocalReader(view)
        """This rank's partition, for the thread of this lane."""
        self._timeout_s = timeout_s
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_broken = False
        """Whether the group is: a rank ended or stopped."""
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        """Called with why this rank cannot answer, before others know: what they then say of it
        is not the first error."""
        with self.named_failures():
            # a group of its own: the trainer's collectives go on in another thread meanwhile
            self.group: Any = dist.new_group(
                backend=host_backend(), timeout=timedelta(seconds=max(timeout_s, 1.0))
            )
        # All ranks hear the same list, so all of them raise or none does.
        held = [part for (part,) in self._gather([view.partition_idx])]
        missing = sorted(set(range(view.num_partitions)) - set(held))
        if missing:
            raise ConfigError(
                f'exchange="collective": no rank holds partitions {missing} of '
                f"{view.num_partitions}; the {self.size} ranks hold {held}"
            )
        holders = [[r for r, p in enumerate(held) if p == q] for q in range(view.num_partitions)]
        # Where several ranks hold one partition, those that ask are spread over them.
        self._rank_of = [ranks[self.rank % len(ranks)] for ranks in holders]
        self.rounds = 0
        """Rounds that all ranks took part in: as long as it grows, they live."""
        self._scratch = Scratch()
        self._kept = 0
        """Rounds of this batch that had answers for this rank: they stay where they are."""
        self._asked = self._nothing()

    def draw(self, partition: int, request: DrawRequest) -> CollectiveCall[Drawn]:
        """Keep a question for neighbours for the next round."""
        return self._keep(partition, CollectiveCall(self, request, _DRAW, _read_drawn))

    def rows(self, partition: int, request: RowsRequest, out: Array) -> CollectiveCall[RowsAnswer]:
        """Keep a question for rows for the next round; ``out`` says of which type they are."""
        # Not `out` itself: the answer is read where it was received, and nothing is copied to
        # `out`.
        dtype, shape = out.dtype, out.shape
        read = lambda reader: RowsAnswer(reader.array(dtype, shape))  # noqa: E731
        return self._keep(partition, CollectiveCall(self, request, _ROWS, read))

    def _keep(self, partition: int, call: CollectiveCall[T]) -> CollectiveCall[T]:
        self._asked[self._rank_of[partition]].append(call)
        return call

    def rank_of(self, partition: int) -> int:
        """Return the rank that is asked for what a partition has."""
        return self._rank_of[partition]

    def trade(
        self, asked: list[list[RowsRequest]], expected: list[int]
    ) -> list[tuple[list[RowsRequest], int]]:
        """Tell each rank which rows are wanted of it, and the bytes of its answers.

        Collective. Returns the same of each rank; ids are read before anything else is exchanged.
        """
        sent, lengths = self._filled([[(one, _ROWS) for one in some] for some in asked], _question)
        told = self._swap_words([list(pair) for pair in zip(lengths, expected, strict=True)])
        got = self._swap("questions", sent, [length for length, _ in told], lengths)
        read = [
            [codec.decode(body, arrays, RowsRequest) for _, body, arrays in PieceReader(data)]
            for data in got
        ]
        return [(some, nbytes) for some, (_, nbytes) in zip(read, told, strict=True)]

    def check(self, error: AnswerFailedError | None) -> None:
        """Tell the others whether this rank could answer them. Collective.

        Raises:
            AnswerFailedError: ``error``.
            RankFailedError: Another rank could not.
        """
        told = self._gather([int(error is not None)])
        if error is not None:
            raise error
        if failed := [rank for rank, (failed,) in enumerate(told) if failed]:
            raise RankFailedError(failed[0])

    def agree(self, epoch: int, num_batches: int) -> int:
        """Return the steps of an epoch: the batches of the rank with most.

        Raises:
            ConfigError: Ranks start different epochs.
        """
        # Questions of an epoch that was broken off, whose answers nobody reads.
        self._asked, self._kept = self._nothing(), 0
        known = self._gather([epoch, num_batches])
        epochs = [one for one, _ in known]
        if len(set(epochs)) > 1:
            raise ConfigError(
                f'exchange="collective" needs all ranks in the same epoch, they start {epochs}: '
                "begin and end epochs on all ranks alike, and call set_epoch() with one number"
            )
        return max(count for _, count in known)

    def least(self, number: int) -> int:
        """Return the least ``number`` of all ranks."""
        return min(one for (one,) in self._gather([number]))

    def finish(self, state: int) -> bool:
        """Answer until every rank has its batch; return whether all broke the epoch off."""
        self._kept = 0
        while True:
            # All ranks see the same states, so all leave after the same round.
            states = self.round(state)
            if WORKING not in states:
                return all(one == BROKEN_OFF for one in states)

    def fail(self, rank: int) -> None:
        """Tell the others that ``rank`` raised; their next round, or this one, is their last."""
        # This stands in for the round that the others begin, and is the only exchange of it: they
        # raise when they have read the states.
        self._meet([0] * self.size, FAILED, rank)

    def round(self, state: int) -> list[int]:
        """Exchange questions and answers once; return the states of all ranks.

        Raises:
            RankFailedError: A rank raised.
            PeerError: A rank ended.
            PeerTimeoutError: A rank did not come in time.
        """
        # Taken before the exchange: calls that come while answers are read belong to the next
        # round.
        asked, self._asked = self._asked, self._nothing()
        questions = ((call.question for call in calls) for calls in asked)
        sent, lengths = self._filled(questions, _question)
        told = self._meet(lengths, state)
        for one in told:
            if one.state == FAILED:
                raise RankFailedError(one.failed)
        # By the totals, which all ranks see alike: by what it is asked itself, one rank would go on
        # to the exchange, and another one not.
        if any(one.total for one in told):
            self._exchange(asked, sent, lengths, [one.nbytes for one in told])
        return [one.state for one in told]

    def close(self) -> None:
        """Let the group go."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None

    # -- parts -------------------------------------------------------------------------------------

    def _nothing(self) -> list[list[CollectiveCall[Any]]]:
        """Return by rank the calls of a round that was not asked anything yet."""
        return [[] for _ in range(self.size)]

    def _meet(self, sizes: list[int], state: int, failed: int = 0) -> list[_Told]:
        words = self._swap_words([[size, state, sum(sizes), failed] for size in sizes])
        self.rounds += 1
        return [_Told(*row) for row in words]

    def _exchange(
        self, asked: list[list[CollectiveCall[Any]]], sent: Array, lengths: list[int],
        sizes: list[int],
    ) -> None:  # fmt: skip
        questions = self._swap("questions", sent, sizes, lengths)
        # The memory of the questions that were sent is free by now, and is written over by the
        # answers.
        sent, lengths, error = self._answers(questions)
        # Lengths and failures in one exchange. A rank that failed says 0 bytes to each, and takes
        # part in this one anyway: the others are waiting in it.
        told = self._swap_words([[length, int(error is not None)] for length in lengths])
        if error is not None:
            raise error
        if failed := [rank for rank, (_, failed) in enumerate(told) if failed]:
            raise RankFailedError(failed[0])
        # Answers to this rank are in the order of its questions, rank by rank.
        got = self._swap(f"answers {self._kept}", sent, [length for length, _ in told], lengths)
        for data, calls in zip(got, asked, strict=True):
            reader = PieceReader(data)
            for call in calls:
                call.take(reader)
        # views of what came are read until the batch is finished: the next round's lies elsewhere
        self._kept += any(asked)

    def _answers(self, questions: list[Array]) -> tuple[Array, list[int], AnswerFailedError | None]:
        """Return the answers and the bytes for each rank; and why there are none."""
        try:
            readers = [PieceReader(data) for data in questions]
            return *self._filled(readers, self._answer), None
        # Whatever it was: an exception that left here would leave the others waiting for this rank.
        except Exception as error:
            failed = self.failed("an answer to another rank", error)
            return np.empty(0, np.uint8), [0] * self.size, failed

    def failed(self, what: str, error: Exception) -> AnswerFailedError:
        """Return why this rank cannot answer; called in the ``except`` of ``error``."""
        cause = f"{type(error).__name__}: {error}"
        failed = AnswerFailedError(what, cause, traceback.format_exc())
        self.on_failure(failed)
        return failed

    def _answer(self, packing: Packing, question: tuple[str, Any, list[Array]]) -> None:
        method, body, arrays = question
        if method == _DRAW:
            drawn = self.store.answer_draw(codec.decode(body, arrays, DrawRequest))
            packing.add_packed(drawn)
        else:
            packing.add(*self.store.rows_asked(codec.decode(body, arrays, RowsRequest)))

    def _filled(
        self, wanted: Iterable[Iterable[T]], add: Callable[[Packing, T], None]
    ) -> tuple[Array, list[int]]:
        """Return what is sent, rank after rank, and the bytes for each."""
        packing, lengths = Packing(), []
        for some in wanted:
            first = packing.nbytes
            for one in some:
                add(packing, one)
            lengths.append(packing.nbytes - first)
        sent = self._memory("sent", packing.nbytes)
        packing.write(sent)
        return sent, lengths

    def _swap(self, name: str, sent: Array, sizes: list[int], lengths: list[int]) -> list[Array]:
        """Send ``lengths`` bytes to each rank; return ``sizes`` bytes of each, in ``name``."""
        # Memory by name: what is read later must not be what the next exchange receives into.
        found = self._memory(name, sum(sizes))
        self._all_to_all(torch.from_numpy(found), torch.from_numpy(sent), sizes, lengths)
        return np.split(found, np.cumsum(sizes)[:-1])

    def _memory(self, name: str, nbytes: int) -> Array:
        words: Array = self._scratch.get(name, -(-nbytes // _WORD))
        found: Array = words.view(np.uint8)[:nbytes]
        return found

    def _swap_words(self, words: list[list[int]]) -> list[list[int]]:
        # A row for each rank, of one length on all: no sizes have to be told first.
        send = torch.tensor(words, dtype=torch.int64)
        found = torch.empty_like(send)
        self._all_to_all(found, send)
        rows: list[list[int]] = found.tolist()
        return rows

    def _all_to_all(
        self, found: torch.Tensor, send: torch.Tensor, sizes: Any = None, lengths: Any = None
    ) -> None:
        with self.named_failures():
            dist.all_to_all_single(found, send, sizes, lengths, group=self.group)

    def _gather(self, words: list[int]) -> list[list[int]]:
        return self._swap_words([words] * self.size)

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        """Turn errors of a group, which name no cause, into ours; the groups are broken then.

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
            # torch has one class for all of it, and gloo says what happened in its text alone.
            if "timed out" in str(error).lower():
                raise PeerTimeoutError(
                    f"a rank did not take part in sampling for {self._timeout_s:.0f} s: {error}; "
                    "it has stopped, or computes for longer than that between batches: then raise "
                    "`timeout`"
                ) from error
            raise PeerError(
                f"a rank has ended while batches were sampled together: {error}; see the logs of "
                "the other ranks, and start the job again"
            ) from error


def host_backend() -> str:
    """Return the backend by which ranks exchange memory of the CPU.

    The process group's own one; where it has none, as with NCCL, or MPI, which lets one thread
    exchange at a time, gloo beside it.

    Raises:
        ConfigError: gloo is needed, and this torch was built without.
    """
    own = backends_of().get("cpu")
    if own is not None and own != "mpi":
        return own
    if not dist.is_gloo_available():
        raise ConfigError(
            'exchange="collective" sends questions between CPUs, and the process group '
            f"({dist.get_backend_config()}) has no backend for that; this torch was built without "
            'gloo: add one to init_process_group, as in "cpu:ucc,cuda:nccl"'
        )
    return "gloo"


def _question(packing: Packing, asked: tuple[object, str]) -> None:
    packing.add_packed(*asked)
