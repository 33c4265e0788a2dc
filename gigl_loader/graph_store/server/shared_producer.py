"""One producer on a storage server and the compute processes that take its batches."""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gigl_loader.batch.leases import ServerMemory
from gigl_loader.batch.message import AT_ONCE_STREAM, Received
from gigl_loader.errors import (
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
    UsageError,
)
from gigl_loader.graph_store.wire.batch_shares import share_of_batches
from gigl_loader.graph_store.wire.requests import EpochRequest, FetchRequest, ProducerRequest, Runs
from gigl_loader.runtime.threads import new_thread
from gigl_loader.sources.workers.producer import DistSamplingProducer

_log = logging.getLogger(__name__)

# Seconds: a batch wakes the thread at once; this is how late it notices that it has to end, or that
# workers stall.
_POLL_S = 0.25
_STALL_SHARE = 0.8
"""Share of consumers' deadline after which workers without progress are replaced, so that another
worker's batch comes in time."""
_MOST_WAITING = 256
"""Most fetches of one consumer that may wait at once; more mean a broken client."""
THIS_PROCESS = "this process"
"""Client that may fetch any batch: the server itself."""
Fetched = tuple[Received | None, bool]
"""(a batch or None, whether the consumer's epoch is over)."""
Pack = Callable[[Received | None, bool], Any]
"""Makes the response to a fetch from these two."""
_STALE: Fetched = (None, False)


def as_it_is(received: Received | None, is_over: bool) -> Fetched:
    """Return both unchanged, for a fetch within this process."""
    return received, is_over


@dataclass(frozen=True, eq=False)
class _Fetch:
    """A fetch that waits for its response."""

    answer: "Future[Any]"
    pack: Pack = as_it_is


_Answers = list[tuple[_Fetch, Fetched | GiglLoaderError]]


@dataclass
class _Consumer:
    """The fetches of one compute process; its epoch is its stream in the producer."""

    waiting: deque[_Fetch] = field(default_factory=deque)
    connection: int = 0
    """Number of the connection of the last fetch; older connections are ignored."""

    def take_waiting(self) -> list[_Fetch]:
        """Remove and return the waiting fetches."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting


@dataclass(frozen=True)
class Clients(Sequence[Hashable]):
    """The compute processes of one job that share a producer, by consumer number.

    Each is ``(job, rank)``. A server has one such sequence per producer, perhaps with thousands.
    """

    job: Hashable
    ranks: Runs

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, number: Any) -> Any:
        return self.job, self.ranks[number]

    def __contains__(self, client: object) -> bool:
        if not isinstance(client, tuple) or len(client) != 2:
            return False
        job, rank = client
        return job == self.job and rank in self.ranks

    def index(self, client: Any, *_: Any) -> int:
        """Return the number of a client, which must be one of these."""
        return self.ranks.index(client[1])


class SharedProducer:
    """Feeds each consumer from its own stream. Only the pumping thread waits in here.

    ::

        fetch() --taken at once, or--> waiting --> pump thread: worker's batch arrived --> Future

    A consumer has at most ``limit`` batches started and not fetched, fewer if those would
    take more than ``limit_bytes``; so a slow one delays only itself. ``count`` gets
    the measurements of each batch that is handed out.
    """

    def __init__(
        self,
        key: str,
        producer: DistSamplingProducer,
        memory: ServerMemory,
        request: ProducerRequest,
        clients: Sequence[Hashable],
        limit_bytes: int,
        count: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.key, self.producer = key, producer
        self._memory, self._request, self._limit_bytes = memory, request, limit_bytes
        self._limit, self._count = memory.capacity, count
        # Guards all of the consumers. Taken before the producer's lock, whose holder never takes
        # this one. Re-entrant, as a failure may be found while batches are served; see
        # `_serve_all`.
        self._lock = threading.RLock()
        self.clients = clients
        """Processes that take batches, by consumer number, including those that released it."""
        self._consumers: dict[int, _Consumer] = {}
        """Consumers that came: of thousands that might, few send requests to a server."""
        self._released: set[int] = set()
        self._hungry: dict[int, None] = {}
        """Consumers whose fetches wait."""
        self._limited = self._limit
        # held for a whole batch, before `_lock`: the producer has one such batch at a time, while
        # pumping continues
        self._one_at_once = threading.Lock()
        self._fatal: GiglLoaderError | None = None
        self._closing = False
        self._thread = new_thread(
            target=self._pump_all,
            name=f"pump {key}",
            on_death=lambda error: self._fail(
                PeerError(
                    f"producer {key!r}: the thread that takes its workers' batches ended by "
                    f"{type(error).__name__}: {error}; see the server's log, and build a new loader"
                )
            ),
        )
        self._thread.start()

    # -- consumers ------------------------------------------------------------------------------

    def start_epoch(self, epoch: int, request: EpochRequest) -> bool:
        """Begin a consumer's epoch; the rest of the previous one is dropped.

        Repeated requests begin it only once for each attempt.

        Returns:
            Whether its batches come without rows.

        Raises:
            PeerError: A worker is gone.
            ProtocolError: There are not as many positions as batches.
            UsageError: There is no such consumer.
        """
        with self._lock:
            consumer = self._get(request.consumer)
            self._check()
            attempt = request.attempt
            if attempt is not None and attempt == self.producer.stream(request.consumer).attempt:
                return self.producer.rows_apart  # repeated after a lost connection
            batches: Sequence[int]
            if request.batches is None:
                total = self.producer.num_batches
                batches = share_of_batches(total, self._request, request.consumer)
            else:
                batches = request.batches.tolist()
            positions = None if request.positions is None else request.positions.tolist()
            if positions is not None and len(positions) != len(batches):
                raise ProtocolError(
                    f"producer {self.key!r}: consumer {request.consumer} sent {len(positions)} "
                    f"positions for {len(batches)} batches"
                )
            # removed before the next epoch begins, or its first batches would go to fetches of
            # the last one
            stale = consumer.take_waiting()
            try:
                self.producer.start_epoch(
                    attempt or epoch, batches, positions, stream=request.consumer
                )
            finally:
                # nothing is packed for these, so the lock may be held
                _answer([(fetch, _STALE) for fetch in stale])
            return self.producer.rows_apart

    def cancel_epoch(self, request: EpochRequest) -> None:
        """Cancel a consumer's epoch if its attempt is still ``request.attempt``."""
        with self._lock:
            consumer = self._get(request.consumer)
            # a late request, for an epoch that the next one has replaced already
            if request.attempt not in (None, self.producer.stream(request.consumer).attempt):
                return
            self.producer.cancel_epoch(stream=request.consumer)
            _answer([(fetch, _STALE) for fetch in consumer.take_waiting()])

    def fetch(
        self, request: FetchRequest, connection: int = 0, pack: Pack = as_it_is
    ) -> "Future[Any]":
        """Return a future of a consumer's next batch; never waits.

        A fetch that comes again means that responses were lost: the consumer's stream starts again
        there. Batches are functions of seed, epoch and index, so that sampling them again gives the
        same bits.

        Args:
            request: The batch to fetch. One of another attempt than the current one gets none.
            connection: Number of the request's connection. One older than the last is
                ignored.
            pack: Makes the response; called without a lock.
        """
        fetch = _Fetch(Future(), pack)
        with self._lock:
            consumer = self._get(request.consumer)
            self._check()
            stream = self.producer.stream(request.consumer)
            if stream.attempt is None:
                raise UsageError(f"producer {self.key!r}: fetch before start_new_epoch_sampling")
            is_counted = request.fetches_before is not None
            current = not is_counted or request.attempt == stream.attempt
            # no error: the client sent this before it cancelled the epoch, and drops the response
            if stream.is_broken_off or not current or connection < consumer.connection:
                _answer([(fetch, _STALE)])
                return fetch.answer
            if len(consumer.waiting) >= _MOST_WAITING:
                raise UsageError(f"producer {self.key!r}: {_MOST_WAITING} fetches wait already")
            if connection > consumer.connection:  # nobody reads responses on the former one
                consumer.connection = connection
                _answer([(waiting, _STALE) for waiting in consumer.take_waiting()])
            # Read the number first: the pumping thread may file a failure now, beginning with
            # the error. A failed epoch is not sampled again, so these fetches get its error.
            taken = stream.taken
            if request.fetches_before is not None and stream.error is None:
                self._go_to(request.consumer, consumer, request.fetches_before, taken)
            consumer.waiting.append(fetch)
            self._hungry[request.consumer] = None
            # takes arrived batches at once, without waking the other thread
            done = self._serve(request.consumer, consumer)
        # without the lock, as whole batches are packed
        _answer(done)
        return fetch.answer

    def sample(self, index: Tensor, seed: int | None = None) -> Received:
        """Return the batch of the seeds at ``index`` (``[n]`` int64), beside all epochs.

        Several concurrent requests are served one after another.

        Raises:
            PeerError: A worker died, stalled or raised.
            UsageError: The producer was destroyed.
        """
        limit = self.producer.source_options.timeout_s
        with self._one_at_once:
            fetch = _Fetch(Future())
            with self._lock:
                self._check()
                self.producer.start_at_once(index, seed)
                # in place of a batch that was given up
                self._consumers[AT_ONCE_STREAM] = _Consumer(deque([fetch]))
                self._hungry[AT_ONCE_STREAM] = None
            try:
                fetched: Fetched = fetch.answer.result(limit)
            except TimeoutError as error:
                raise PeerTimeoutError(
                    f"producer {self.key!r}: no batch of {index.numel()} seeds within "
                    f"{limit:.0f} s: {self.producer.describe_workers()}"
                ) from error
        assert fetched[0] is not None, "only batches and errors end such a wait"
        return fetched[0]

    def has_seeds(self, index: Tensor) -> bool:
        """Return whether all of ``index`` are positions in the input."""
        return bool(((index >= 0) & (index < self.producer.input_len)).all())

    def _go_to(self, number: int, consumer: _Consumer, fetches: int, taken: int) -> None:
        """Let the next batch be the one after ``fetches``; it is, unless responses were lost."""
        # fetches are sent ahead of the batches handed out
        if fetches > taken + len(consumer.waiting):
            raise ProtocolError(
                f"producer {self.key!r}: consumer {number} says that it sent {fetches} fetches "
                f"before, but {taken} were answered and {len(consumer.waiting)} wait"
            )
        # handed out does not mean received: batches on a lost connection come again
        if fetches < taken:
            _log.info(
                "producer %r: answers to consumer %d were lost; its batches after the first %d "
                "come again",
                *(self.key, number, fetches),
            )
            self.producer.put_back(number, fetches)

    def check_client(self, client: Hashable, number: int | None = None) -> None:
        """Refuse a client that is not consumer ``number``; None: that is no consumer at all.

        Raises:
            UsageError: It is not; or there never was such a consumer.
        """
        if number is not None and not 0 <= number < len(self.clients):
            raise UsageError(f"producer {self.key!r} has no consumer {number}")
        is_consumer = client in self.clients if number is None else self.clients[number] == client
        if client != THIS_PROCESS and not is_consumer:
            who = "" if number is None else f"consumer {number} of "
            raise UsageError(f"client {client} asked for what is {who}producer {self.key!r}'s")

    def release(self, number: int) -> bool:
        """Remove a consumer and cancel its epoch; return whether it was the last. Idempotent.

        Raises:
            UsageError: There never was such a consumer.
        """
        with self._lock:
            if not 0 <= number < len(self.clients):
                raise UsageError(f"producer {self.key!r} has no consumer {number}")
            if number in self._released:  # repeated after a lost connection
                return False
            self._released.add(number)
            consumer = self._consumers.get(number)
            if consumer is None:  # it never came
                return self._all_released
            with contextlib.suppress(GiglLoaderError):  # workers that are gone sample nothing
                self.producer.cancel_epoch(stream=number)
            # drops its batches in progress, which makes room at workers for other consumers
            self.producer.remove_stream(number)
            _answer([(fetch, _STALE) for fetch in consumer.take_waiting()])
            return self._all_released

    @property
    def _all_released(self) -> bool:
        return len(self._released) == len(self.clients)

    def consumers_of(self, client: Hashable) -> list[int]:
        """Return the consumers that a client has not released."""
        if client not in self.clients:
            return []
        number = self.clients.index(client)
        return [] if number in self._released else [number]

    def _get(self, number: int) -> _Consumer:
        if not 0 <= number < len(self.clients) or number in self._released:
            raise UsageError(f"producer {self.key!r} has no consumer {number}, or released it")
        # a stream for each consumer that comes, not for thousands that take no batch here
        if number not in self._consumers:
            self._consumers[number] = _Consumer()
            if number > 0:  # a producer has one stream from the start
                self.producer.add_stream(number, self._limited)
        return self._consumers[number]

    def _check(self) -> None:
        if self._closing:
            raise UsageError(f"producer {self.key!r} was destroyed")
        if self._fatal is not None:
            raise self._fatal

    # -- batches --------------------------------------------------------------------------------

    def _serve(self, number: int, consumer: _Consumer) -> _Answers:
        """Take arrived batches for the waiting fetches."""
        done: _Answers = []
        while consumer.waiting:
            if consumer.waiting[0].answer.cancelled():  # its connection is over
                consumer.waiting.popleft()
                continue
            try:
                received, is_over = self.producer.take(number)
            except SamplingError as error:
                _log.error("producer %r: %s", self.key, error)
                return done + [(fetch, error) for fetch in consumer.take_waiting()]
            # the end continues below: it is the response to the client's last fetch of the epoch
            if received is None and not is_over:
                break
            if received is not None and self._count is not None and number != AT_ONCE_STREAM:
                self._count(received.stats)
            done.append((consumer.waiting.popleft(), (received, is_over)))
        return done

    def _pump_all(self) -> None:
        while not self._closing:
            try:
                # without the lock, so that fetches get responses and epochs begin during this
                # wait
                self.producer.pump(_POLL_S)
            except GiglLoaderError as error:
                # if workers end because they were told to while being pumped, that is no failure
                if not self._closing:
                    self._fail(error)
                return
            self.producer.replace_stalled(_STALL_SHARE * self.producer.source_options.timeout_s)
            self._serve_all()

    def _serve_all(self) -> None:
        done: _Answers = []
        with self._lock:
            # slots grow with the batches; at least one, or a consumer with large batches would get
            # none
            largest = max(self._memory.largest, 1)
            self._limit_all(max(1, min(self._limit, self._limit_bytes // largest)))
            # A list, since served consumers leave. Not all consumers, as thousands may share a
            # producer, and few of them wait.
            for number in list(self._hungry):
                consumer = self._consumers[number]
                try:
                    done += self._serve(number, consumer)
                except GiglLoaderError as error:
                    self._fail(error)
                if not consumer.waiting:
                    del self._hungry[number]
        _answer(done)

    def _limit_all(self, limit: int) -> None:
        if limit != self._limited:
            self._limited = limit
            for number in self._consumers.keys() - self._released - {AT_ONCE_STREAM}:
                self.producer.limit_stream(number, limit)

    def _fail(self, error: GiglLoaderError) -> None:
        """Give up: all consumers get an error, now and later."""
        failed: list[_Fetch] = []
        with self._lock:
            # first, under the lock: later fetches find it, and earlier ones are
            # in `waiting`
            self._fatal = error
            for consumer in self._consumers.values():
                failed += consumer.take_waiting()
        _log.error("producer %r failed: %s", self.key, error)
        _answer([(fetch, error) for fetch in failed])
        self.producer.leave_turns()

    # -- state ----------------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Return the public state."""
        with self._lock:  # consumers, and with them the producer's streams, come and go
            return {
                "key": self.key,
                "consumers": [
                    str(client) for n, client in enumerate(self.clients) if n not in self._released
                ],
                "worker_pids": [pid for pid in self.producer.pids if pid is not None],
                "queued_batches": self.producer.queue_depth,
                "queued_bytes": self._memory.leased_bytes,
                "failed": None if self._fatal is None else str(self._fatal),
            }

    def close(self, linger_s: float | None = None) -> None:
        """End the workers. Fetches that wait fail. Idempotent."""
        # before the workers end, or the thread would take their end for a failure
        self._closing = True
        # long enough for one turn, and for the start of a replacement worker. No longer, as
        # `shutdown` ends both
        self._thread.join(2 * _POLL_S + 5.0)
        self.producer.shutdown(linger_s)
        with self._lock:
            waiting = [f for consumer in self._consumers.values() for f in consumer.take_waiting()]
        destroyed = UsageError(f"producer {self.key!r} was destroyed")
        _answer([(fetch, destroyed) for fetch in waiting])


def _answer(answers: _Answers) -> None:
    for fetch, outcome in answers:
        # else it was cancelled: its connection is over, and the fetch comes again on the next one
        if fetch.answer.set_running_or_notify_cancel():
            try:
                if isinstance(outcome, GiglLoaderError):
                    fetch.answer.set_exception(outcome)
                else:
                    fetch.answer.set_result(fetch.pack(*outcome))
            except Exception as error:  # sent, as raising it here would leave fetches waiting
                fetch.answer.set_exception(error)
