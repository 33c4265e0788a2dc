"""Questions between samplers of different ranks, by ``all_to_all`` instead of connections.

`GraphStore` asks when it needs neighbours or rows; here its questions wait until an answer is
needed, and then all ranks exchange what they have to ask, at once::

    rank 0   ask ask | wait()              rank 1   ask | wait()
                     +--- round: sizes, questions, sizes, answers ---+

Ranks need different numbers of rounds. One whose batch is complete takes part in further rounds,
answering, until all are; so does one that has run out of batches, or whose epoch was broken off.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError, PeerError, PeerTimeoutError
from gigl_loader.memory.segments import Array
from gigl_loader.sampler.questions import Drawn, DrawRequest, RowsAnswer, RowsRequest
from gigl_loader.sampler.store import LocalStore
from gigl_loader.transport import codec

logger = logging.getLogger(__name__)

WORKING, COMPLETE, BROKEN_OFF, FAILED = range(4)
"""What a rank is in a round: needs answers; has its batch; has no epoch any more; raised."""

_WORD = 8
_DRAW, _ROWS = "draw", "rows"

T = TypeVar("T")


def _packed(value: object, method: str = "") -> list[bytes]:
    """Return a question or an answer as parts of a multiple of 8 bytes."""
    header, arrays = codec.encode(value, method)
    parts = [len(header).to_bytes(_WORD, "little"), header, b"\0" * (-len(header) % _WORD)]
    for array in arrays:
        parts += [array.tobytes(), b"\0" * (-array.nbytes % _WORD)]
    return parts


class _Reader:
    """Reads what `_packed` wrote, one after another; arrays are views."""

    def __init__(self, data: Array) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < self._data.nbytes

    def _take(self, nbytes: int) -> Array:
        found: Array = self._data[self._at : self._at + nbytes]
        self._at += nbytes + -nbytes % _WORD
        return found

    def read(self) -> tuple[str, Any, list[Array]]:
        """Return (method, body, arrays) for `codec.decode`."""
        length = int.from_bytes(self._take(_WORD).tobytes(), "little")
        method, body, specs = codec.read_header(self._take(length).tobytes())
        arrays = [self._take(spec.nbytes).view(spec.dtype).reshape(spec.shape) for spec in specs]
        return method, body, arrays


class CollectiveCall(Generic[T]):
    """A question; its answer comes with the round that `wait` starts, or an earlier one."""

    def __init__(self, peers: "CollectivePeers", answer: type[T], out: Array | None) -> None:
        self._peers, self._type, self._out = peers, answer, out
        self._answer: T | None = None

    def take(self, body: Any, arrays: list[Array]) -> None:
        """Take the answer; its rows go to the memory that was given for them."""
        found = codec.decode(body, arrays, self._type)
        if self._out is not None and isinstance(found, RowsAnswer):
            np.copyto(self._out, found.values, casting="no")
        self._answer = found

    def wait(self) -> T:
        """Return the answer. Collective, where there is none yet."""
        while self._answer is None:
            self._peers.round(WORKING)
        return self._answer


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
        self._store = LocalStore(view)
        self._timeout_s = timeout_s
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        with self._named_failures():
            # a group of its own: the trainer's collectives go on in another thread meanwhile
            self.group: Any = dist.new_group(
                backend="gloo", timeout=timedelta(seconds=max(timeout_s, 1.0))
            )
        held = [part for (part,) in self._gather([view.partition_idx])]
        missing = sorted(set(range(view.num_partitions)) - set(held))
        if missing:
            raise ConfigError(
                f'exchange="collective": no rank holds partitions {missing} of '
                f"{view.num_partitions}; the {self.size} ranks hold {held}"
            )
        holders = [[r for r, p in enumerate(held) if p == q] for q in range(view.num_partitions)]
        self._rank_of = [ranks[self.rank % len(ranks)] for ranks in holders]
        self.rounds = 0
        """Rounds that all ranks took part in: as long as it grows, they live."""
        self._parts: list[list[bytes]] = []
        self._calls: list[list[CollectiveCall[Any]]] = []
        self._forget()

    def draw(self, partition: int, request: DrawRequest) -> CollectiveCall[Drawn]:
        """Keep a question for neighbours for the next round."""
        return self._keep(partition, _DRAW, request, CollectiveCall(self, Drawn, None))

    def rows(self, partition: int, request: RowsRequest, out: Array) -> CollectiveCall[RowsAnswer]:
        """Keep a question for rows for the next round; they come to lie in ``out``."""
        return self._keep(partition, _ROWS, request, CollectiveCall(self, RowsAnswer, out))

    def _keep(
        self, partition: int, method: str, request: object, call: CollectiveCall[T]
    ) -> CollectiveCall[T]:
        rank = self._rank_of[partition]
        self._parts[rank] += _packed(request, method)
        self._calls[rank].append(call)
        return call

    def agree(self, epoch: int, num_batches: int) -> int:
        """Return the steps of an epoch: the batches of the rank with most.

        Raises:
            ConfigError: Ranks start different epochs.
        """
        self._forget()
        known = self._gather([epoch, num_batches])
        epochs = [one for one, _ in known]
        if len(set(epochs)) > 1:
            raise ConfigError(
                f'exchange="collective" needs all ranks in the same epoch, they start {epochs}: '
                "begin and end epochs on all ranks alike, and call set_epoch() with one number"
            )
        return max(count for _, count in known)

    def finish(self, state: int) -> bool:
        """Answer until every rank has its batch; return whether all broke the epoch off."""
        while True:
            states = self.round(state)
            if WORKING not in states:
                return all(one == BROKEN_OFF for one in states)

    def round(self, state: int) -> list[int]:
        """Exchange questions and answers once; return the states of all ranks.

        Raises:
            PeerError: A rank raised, or ended.
            PeerTimeoutError: A rank did not come in time.
        """
        asked = [b"".join(parts) for parts in self._parts]
        calls = self._calls
        self._forget()
        total = sum(map(len, asked))
        sizes = self._swap_words([[len(data), state, total] for data in asked], 3)
        self.rounds += 1
        states = [state for _, state, _ in sizes]
        if state == FAILED:
            return states
        if FAILED in states:
            raise PeerError(
                f"rank {states.index(FAILED)} could not sample its batch: see its error; batches "
                "of all ranks are sampled together"
            )
        if any(total for _, _, total in sizes):
            questions = self._swap(asked, [size for size, _, _ in sizes])
            answers = [self._answer(data) for data in questions]
            lengths = self._swap_words([[len(data)] for data in answers], 1)
            for data, waiting in zip(
                self._swap(answers, [length for (length,) in lengths]), calls, strict=True
            ):
                reader = _Reader(data)
                for call in waiting:
                    _, body, arrays = reader.read()
                    call.take(body, arrays)
        return states

    def close(self) -> None:
        """Let the group go."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
        self.group = None

    # -- parts -------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._parts = [[] for _ in range(self.size)]
        self._calls = [[] for _ in range(self.size)]

    def _answer(self, questions: Array) -> bytes:
        reader, parts = _Reader(questions), []
        while reader:
            method, body, arrays = reader.read()
            # packed before the next is answered: both answers may lie in the same scratch memory
            if method == _DRAW:
                drawn = self._store.answer_draw(codec.decode(body, arrays, DrawRequest))
                parts += _packed(drawn)
            else:
                rows = self._store.answer_rows(codec.decode(body, arrays, RowsRequest))
                parts += _packed(rows)
        return b"".join(parts)

    def _swap(self, data: list[bytes], sizes: list[int]) -> list[Array]:
        send = torch.frombuffer(bytearray(b"".join(data)) or bytearray(1), dtype=torch.uint8)
        found = torch.empty(sum(sizes), dtype=torch.uint8)
        with self._named_failures():
            lengths = [len(part) for part in data]
            dist.all_to_all_single(
                found, send[: sum(lengths)], sizes, lengths, group=self.group
            )  # fmt: skip
        return np.split(found.numpy(), np.cumsum(sizes)[:-1])

    def _swap_words(self, words: list[list[int]], width: int) -> list[list[int]]:
        send = torch.tensor(words, dtype=torch.int64)
        found = torch.empty((self.size, width), dtype=torch.int64)
        with self._named_failures():
            dist.all_to_all_single(found, send, group=self.group)
        rows: list[list[int]] = found.tolist()
        return rows

    def _gather(self, words: list[int]) -> list[list[int]]:
        return self._swap_words([words] * self.size, len(words))

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
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
