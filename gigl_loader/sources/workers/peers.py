"""Requests between sampling workers of different partitions, over the transport.

A worker serves its partition with `PartitionServer`, and sends requests to other ones through
`PeerClient`::

    worker A, partition 0                             worker B, partition 1
    sampling thread --draw, rows--> Asking  --------> Answering --> LocalReader, a thread per caller
                    <-- responses, in given arrays -----

In each other partition a worker sends its requests to one fixed worker. Which one follows from the
numbers of both (`assignments`), so that both ends know it without talking. A worker whose trainer
is done goes on serving until the workers that send it requests are done, too.
"""

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    PeerTimeoutError,
)
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.transport import (
    SILENCE_S,
    Caller,
    EndReason,
    Listener,
    Method,
    Peer,
    Reply,
    Security,
    into_array,
)
from gigl_loader.sampler.plan import Drawn, DrawRequest, RowsAnswer, RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.sampler.rows.reader import ReaderOfThread

_log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_ASK_BYTES = 1 << 32
"""Most ids in one request: 512 million; a batch with more would not fit into memory either."""
_MAX_REASON = 4000
RETURN_S = 10.0
"""Seconds within which a caller whose connection was lost may come back."""
_DRAW, _DRAWN, _ROWS = DrawRequest[PackedInts], Drawn[PackedInts], RowsRequest[PackedInts]
"""The packed forms of requests and responses."""


@dataclass(frozen=True)
class Access:
    """How the workers of one job listen to and authenticate each other."""

    host: str
    """Address that this rank's workers listen on."""
    security: Security
    job: str
    """Tells this job's workers from those of another one, since a port may be used again; not a
    secret."""

    @property
    def incarnation(self) -> int:
        """Incarnation shared by all workers of the job, so that a replacement gets requests too."""
        return int.from_bytes(hashlib.sha256(self.job.encode()).digest()[:7], "big")


@dataclass(frozen=True)
class WorkerAddress:
    """Address of a worker that serves a partition, and its name for errors."""

    host: str
    port: int
    name: str


@dataclass(frozen=True)
class Assignment:
    """Workers that one worker sends requests to, and those that send requests to it."""

    asked: dict[int, WorkerAddress]
    """The worker to send requests to, by partition; its own is not among them."""
    askers: tuple[str, ...]
    """Names of the workers of other partitions that send requests to this one."""


def assignments(
    workers: Mapping[int, Sequence[WorkerAddress]], partition: int
) -> dict[str, Assignment]:
    """Return the peers of each worker of ``partition`` by worker's name.

    Worker ``i`` sends its requests to worker ``i % n`` of each other partition, which has ``n``. So
    requests spread evenly, and a machine has as many connections as workers times other
    partitions.

    Args:
        workers: Workers by partition, in an order that is the same everywhere.
        partition: The workers' partition.

    Raises:
        ConfigError: A partition has no workers.
    """
    if empty := sorted(index for index, addresses in workers.items() if not addresses):
        raise ConfigError(f"partitions {empty} have no sampling workers to ask")
    own = workers[partition]
    others = {index: addresses for index, addresses in workers.items() if index != partition}
    return {
        worker.name: Assignment(
            {index: addresses[number % len(addresses)] for index, addresses in others.items()},
            tuple(
                asker.name
                for addresses in others.values()
                for position, asker in enumerate(addresses)
                if position % len(own) == number
            ),
        )
        for number, worker in enumerate(own)
    }


class _OfAsker(threading.local):
    """State of each thread that sends requests, so that none of them takes a lock."""

    def __init__(self) -> None:
        self.lane: int | None = None
        self.traffic = Traffic()
        """The thread's requests since its last batch."""


class PartitionServer:
    """Serves one partition, each caller in a thread of its own.

    Args:
        access: Address to listen on, and authentication.
        view: The partition.
        name: Name of this worker, for logs.
        listener: Descriptor of the socket that the former worker listened on; None: a fresh one.
        awaits_s: How many seconds to expect callers of the former worker; None: there was none.
        patience_s: How many seconds a caller that was silent may take to come back.
        return_s: How many seconds any other caller whose connection was lost may take to come back.
        silence_s: After how many seconds a caller that leaves a request unfinished counts as
            silent.

    Raises:
        ConfigError: The worker cannot listen there, or would be open to strangers.
    """

    def __init__(
        self,
        access: Access,
        view: PartitionView[Array],
        name: str,
        listener: int | None = None,
        awaits_s: float | None = None,
        patience_s: float = SILENCE_S,
        return_s: float = RETURN_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._awaits_s, self._patience_s, self.return_s = awaits_s, patience_s, return_s
        self._of_thread = ReaderOfThread(view)
        self._changed = threading.Condition()  # guards the next three attributes
        self._open: Counter[str] = Counter()
        self._done: set[str] = set()
        self._lost: dict[str, tuple[float, EndReason]] = {}
        self.last_asked = time.monotonic()
        """Time of the last request (`time.monotonic`)."""
        self._born = self.last_asked
        table = {
            "draw": Method(_DRAW, _DRAWN, self._draw),
            "rows": Method(_ROWS, RowsAnswer, self._rows),
        }
        self._listener = Listener(
            access.host,
            0,
            access.security,
            table,
            name,
            on_peer=self._came,
            on_end=self._left,
            max_ask_bytes=_MAX_ASK_BYTES,
            inherits=listener,
            incarnation=access.incarnation,
            silence_s=silence_s,
        )
        self.address: tuple[str, int] = self._listener.address
        self._listener.start()  # last, as a caller may come at once

    def wait_for_askers(self, names: Iterable[str], timeout_s: float) -> set[str]:
        """Wait until each of ``names`` has said goodbye, or was cut off and did not come back.

        Returns:
            The names that may still send requests after ``timeout_s`` seconds.
        """
        expected, deadline = set(names), time.monotonic() + timeout_s
        with self._changed:
            while True:
                missing = {name for name in expected if not self._is_done(name)}
                left = deadline - time.monotonic()
                if not missing or left <= 0:
                    return missing
                # no notification comes when a lost caller's time is over: the next call sees it,
                # and calls come every second
                self._changed.wait(left)

    def fileno(self) -> int:
        """Return the descriptor of the listening socket."""
        return self._listener.fileno()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._listener.close()

    def _is_done(self, name: str) -> bool:
        if self._open[name]:
            return False
        # Cut off. A silent caller may be suspended, or its link cut, so it gets longer than one
        # whose connection was closed: a live worker would open that again at once.
        now = time.monotonic()
        if name in self._lost:
            lost, end = self._lost[name]
            returns_s = self.return_s
            if end is EndReason.SILENT:
                returns_s = max(returns_s, self._patience_s)
            return name in self._done or now - lost > returns_s
        # Never seen. At the start the caller is still to come; after a restart of this worker it
        # may have said goodbye to the former one, which this one cannot know.
        awaited = self._awaits_s is None or now - self._born <= self._awaits_s
        return name in self._done or not awaited

    def _came(self, peer: Peer) -> None:
        with self._changed:
            # counted: a caller has several lanes, and may be back before its old connection ends
            self._open[peer.name] += 1
            self._lost.pop(peer.name, None)

    def _left(self, peer: Peer, end: EndReason) -> None:
        with self._changed:
            self._open[peer.name] -= 1
            if end in (EndReason.SHUTDOWN, EndReason.JOB_OVER):
                self._done.add(peer.name)
            elif (
                end is not EndReason.REPLACED
            ):  # not replaced by a fresh connection of the same caller
                self._lost[peer.name] = (time.monotonic(), end)
            self._changed.notify_all()

    def _draw(self, question: DrawRequest[PackedInts], peer: Peer) -> Drawn[PackedInts]:
        self.last_asked = time.monotonic()
        drawn = self._of_thread.reader.answer_draw(question.map(PackedInts.unpack))
        return drawn.map(PackedInts.of)

    def _rows(self, question: RowsRequest[PackedInts], peer: Peer) -> RowsAnswer:
        self.last_asked = time.monotonic()
        # in scratch memory of this thread, which sends the rows before its next request
        return self._of_thread.reader.answer_rows(question.map(PackedInts.unpack))


class LostWorkerAnswers:
    """Responds in place of a worker that is lost for good, from the process that started it.

    That process knows the reason and sends it; a refused connection would tell nothing.

    Args:
        access: The same as the worker's.
        name: Name of the worker.
        listener: Descriptor of the worker's listening socket; this object owns it from here on.
        error: The error that ended the sampling.
    """

    def __init__(self, access: Access, name: str, listener: int, error: BaseException) -> None:
        words = f"{name} was lost, and none takes its place: {error}"[:_MAX_REASON]

        def refuse(question: Any, peer: Peer) -> Any:
            raise PeerError(words)

        table = {"draw": Method(_DRAW, _DRAWN, refuse), "rows": Method(_ROWS, RowsAnswer, refuse)}
        self._listener = Listener(
            access.host,
            0,
            access.security,
            table,
            name,
            max_ask_bytes=_MAX_ASK_BYTES,
            inherits=listener,
            incarnation=access.incarnation,
        ).start()

    def close(self) -> None:
        """Stop responding. Idempotent."""
        self._listener.close(EndReason.SHUTDOWN, "its job is over")


@dataclass
class Traffic:
    """One thread's requests to other machines since `PeerClient.take_traffic`."""

    rows: Counter[int] = field(default_factory=Counter)
    """Number of rows by partition."""
    row_bytes: int = 0
    structure_bytes: int = 0
    """Number of ids sent and of neighbours received."""
    waited_s: float = 0.0
    """Seconds in which the thread waited for responses."""

    def stats(self) -> dict[str, Any]:
        """Return the counts as part of a batch's measurements."""
        return {
            "rows_from": dict(self.rows),
            "network_s": self.waited_s,
            "received": {"rows": self.row_bytes, "structure": self.structure_bytes},
        }


@dataclass(eq=False)
class Answer(Generic[T]):
    """A pending response; `gigl_loader.sampler.plan.PendingAnswer`.

    Args:
        reply: The transport's pending response.
        who: Description of the called worker, for errors.
        timeout_s: Longest wait, in seconds.
        read: Makes the result from the response.
        waited: Told how long `wait` took, in seconds.
    """

    reply: Reply[Any]
    who: str
    timeout_s: float
    read: Callable[[Any], T]
    waited: Callable[[float], None]

    @property
    def has_come(self) -> bool:
        """Whether `wait` would return at once."""
        return self.reply.done

    def wait(self) -> T:
        """Return the result.

        Raises:
            PeerTimeoutError: The response did not come in time.
            JoinRefusedError: The other worker belongs to another job.
            PeerError: The other worker is gone, or its handler raised.
            ProtocolError: The received value is no response.
        """
        started = time.perf_counter()
        try:
            return self.read(self.reply.wait(self.timeout_s))
        except PeerTimeoutError as error:
            raise PeerTimeoutError(
                f"{self.who} did not answer for {self.timeout_s:g} s: it is stopped, overloaded "
                "or cut off; look at that process, or raise the timeout"
            ) from error
        except JoinRefusedError:  # also a PeerLostError, but its message gives the remedy
            raise
        except PeerLostError as error:
            if error.end == EndReason.SILENT:
                raise PeerTimeoutError(
                    f"{error}; {self.who} is stopped, or its machine is cut off: look at that "
                    "process, and start the job again"
                ) from error
            raise PeerError(
                f"{error}; that worker was killed, ran out of memory, or its job is over: see its "
                "log, and start the job again"
            ) from error
        finally:
            self.waited(time.perf_counter() - started)


class PeerClient:
    """Sends requests to the workers of other partitions; `gigl_loader.sampler.plan.Peers`.

    Args:
        asked: Workers to call, by partition.
        access: The same as the called workers'.
        name: Name by which this worker introduces itself.
        timeout_s: Longest wait for one response, in seconds.
        lanes: Number of connections to each worker; sampling threads are spread over them.
        patience_s: How many seconds a called worker may be silent: cut off, or suspended until its
            rank has replaced it.
    """

    rows_later = False

    def __init__(
        self,
        asked: Mapping[int, WorkerAddress],
        access: Access,
        name: str,
        timeout_s: float,
        lanes: int,
        patience_s: float = SILENCE_S,
    ) -> None:
        self._name, self._timeout_s, self._lanes = name, timeout_s, lanes
        self._whom = {p: f"{worker.name} (partition {p})" for p, worker in asked.items()}
        # no caller connects before its first request or `connect`
        self._callers = {
            (partition, lane): Caller(
                worker.host,
                worker.port,
                access.security,
                name,
                what=self._whom[partition],
                patience_s=patience_s,
                incarnation=access.incarnation,
            )
            for partition, worker in asked.items()
            for lane in range(lanes)
        }
        self._of_thread = _OfAsker()
        self._joining = threading.Lock()  # guards the next attribute
        self._joined = 0

    def draw(self, partition: int, request: DrawRequest) -> Answer[Drawn]:
        """Request neighbours; see `gigl_loader.sampler.plan.Peers`."""
        question, traffic = request.map(PackedInts.of), self._of_thread.traffic
        traffic.structure_bytes += question.nodes.nbytes

        # called in `Answer.wait` by the thread that sent the request, so this is its own traffic
        def read(answer: Drawn[PackedInts]) -> Drawn:
            parts = (answer.counts, answer.neighbors, answer.edge_ids)
            traffic.structure_bytes += sum(part.nbytes for part in parts if part is not None)
            return answer.map(PackedInts.unpack)

        reply = self._caller(partition).ask("draw", question, _DRAWN)
        return self._answer(reply, partition, read)

    def rows(self, partition: int, request: RowsRequest, out: Array) -> Answer[RowsAnswer]:
        """Request rows, to be received into ``out``."""
        question, traffic = request.map(PackedInts.of), self._of_thread.traffic
        traffic.structure_bytes += question.ids.words.nbytes
        traffic.row_bytes += out.nbytes
        traffic.rows[partition] += request.ids.size
        reply = self._caller(partition).ask("rows", question, RowsAnswer, into=into_array(out))
        return self._answer(reply, partition, lambda answer: answer)

    def take_traffic(self) -> Traffic:
        """Return counts of this thread's requests since the last call."""
        traffic, self._of_thread.traffic = self._of_thread.traffic, Traffic()
        return traffic

    def _answer(self, reply: Reply[Any], partition: int, read: Callable[[Any], T]) -> Answer[T]:
        def waited(seconds: float) -> None:
            self._of_thread.traffic.waited_s += seconds

        return Answer(reply, self._whom[partition], self._timeout_s, read, waited)

    def connect(self) -> None:
        """Connect to all, so that they know this caller; the first request retries a failure."""
        deadline = time.monotonic() + self._timeout_s  # one for all, as all may be slow
        for caller in self._callers.values():
            try:
                caller.connect(deadline)
            except GiglLoaderError as error:
                _log.info("%s could not connect: %s", self._name, error)

    def close(self) -> None:
        """Tell all called workers that this one sends no more requests. Idempotent."""
        for caller in self._callers.values():
            caller.close(EndReason.JOB_OVER)

    def _caller(self, partition: int) -> Caller:
        if partition not in self._whom:
            raise ConfigError(
                f"no worker is known for partition {partition}, only for {sorted(self._whom)}"
            )
        lane = self._of_thread.lane
        if lane is None:
            with self._joining:
                lane = self._of_thread.lane = self._joined % self._lanes
                self._joined += 1
        return self._callers[partition, lane]


def worker_name(rank: int, worker: int) -> str:
    """Return a worker's name in errors of other ranks."""
    return f"rank {rank} worker {worker}"
