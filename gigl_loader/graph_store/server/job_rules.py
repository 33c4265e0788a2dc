"""Which jobs begin, which wait, and which end: the rules, without sockets, threads or a clock.

::

    join, readmit, leave, stop      what happens to a client or a job; after each of them,
    settle                          what follows: jobs end, others begin

A caller holds one lock over both. The test drives these rules against a simple reference
(``tests/graph_store/test_job_rules.py``).
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from gigl_loader.errors import ConfigError, JoinRefusedError
from gigl_loader.graph_store.server.job_book import JobBook
from gigl_loader.graph_store.server.job_numbers import JobNumbers
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.server.waiting_texts import texts_for_waiting
from gigl_loader.graph_store.wire.membership import BookedJob, Join, proof_of
from gigl_loader.runtime.transport import EndReason


@dataclass(frozen=True)
class EndedJob:
    """A job that is over."""

    name: str
    number: int
    given_up: bool
    """Whether its last client was given up without a goodbye."""
    refused: tuple[tuple[Member, ConfigError], ...]
    """Clients that waited for the next job of this name and cannot be of it; they were told."""


@dataclass(frozen=True)
class BegunJob:
    """A job that begins."""

    name: str
    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Settled:
    """What followed from a change."""

    ended: tuple[EndedJob, ...] = ()
    begun: tuple[BegunJob, ...] = ()
    was_last: bool = False
    """Whether the last job has ended: as many are over as are to be served, and none runs."""


class JobRules:
    """The jobs of a storage cluster by name, each with a `JobBook`; on server 0 only.

    Jobs of different names gather, run and end independently of each other. At most ``max_jobs``
    run at a time: further complete ones begin in the order in which they arrived.

    Args:
        numbers: The numbers of jobs, as this server knows them.
        max_jobs: Most jobs that are served at a time.
    """

    def __init__(self, numbers: JobNumbers, max_jobs: int) -> None:
        self._numbers, self._max_jobs = numbers, max_jobs
        self._books: dict[str, JobBook] = {}
        self._places = itertools.count()

    # -- what happens -----------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Add a client that has no job number yet; raises as `JobBook.join`."""
        book = self._book(member.join.job_name)
        if book.is_empty:
            book.place = next(self._places)
        try:
            book.join(member)
        finally:
            self._forget_if_empty(book)

    def readmit(self, member: Member, others_until: float) -> None:
        """Add a client of a running job that has met an earlier server process, or was given up.

        Args:
            member: The new member.
            others_until: Until when members of its job that were not seen here may come.

        Raises:
            JoinRefusedError: Its job is over.
            ConfigError: Its job has another name.
        """
        join, book = member.join, self._book(member.join.job_name)
        assert join.job is not None, "it says which job"
        try:
            if book.number != join.job:
                self._resume(book, join, join.job)
            book.readmit(member, others_until)
            self._numbers.mark_used(join.job)
        finally:
            self._forget_if_empty(book)

    def _resume(self, book: JobBook, join: Join, number: int) -> None:
        # This server may have been suspended for longer than its clients wait: when it continues,
        # all of them have hung up, and come back just after it has given them up.
        ended_too_early = self._numbers.was_given_up(book.name, number) and not book.present
        if book.running or (self._numbers.is_over(number) and not ended_too_early):
            what = "was away for too long"
            if book.running:
                what = f"was away while the job was started again, as number {book.number}"
            raise JoinRefusedError(
                f"job {number} ({book.name!r}) of the storage cluster is over: compute process "
                f"{join.rank} {what}; start the job again",
                EndReason.JOB_OVER,
            )
        if ended_too_early:
            self._numbers.take_back_end(book.name, number)
        else:  # this server process has counted nothing before it
            self._numbers.learn_served(join.jobs_served)
        # a server that was started again takes the word of the first process of each job
        proof = proof_of(join.secret)
        self._numbers.book(BookedJob(number, book.name, join.world_size, proof))
        book.resume(number, join.world_size)

    def leave(self, member: Member) -> None:
        """Remove a client, which left or was given up; its job ends with the last of them."""
        book = self._books.get(member.join.job_name)
        if book is not None:
            book.leave(member)
            self._forget_if_empty(book)

    def stop(self, name: str) -> list[Member]:
        """Await nobody of a job; return its clients, which must leave.

        Those that wait under its name are among them.

        Raises:
            ConfigError: There is no such job.
        """
        book = self._books.get(name)
        if book is None:
            jobs = ", ".join(map(repr, self._books)) or "none"
            raise ConfigError(f"there is no job {name!r}; jobs that run or gather: {jobs}")
        clients = book.stop()
        self._forget_if_empty(book)
        if book.number is not None:
            self._numbers.stop(book.number)
        return clients

    # -- what follows -----------------------------------------------------------------------------

    def settle(self, now: float = -math.inf, *, may_begin: bool = True) -> Settled:
        """End the jobs that all clients have left; let complete ones begin while there is room.

        Args:
            now: The time, for ranks that a restarted server waits for; see `JobBook.is_over`.
            may_begin: Whether all storage servers are here.
        """
        over = [book for book in self._books.values() if book.is_over(now)]
        ended = tuple(self._end(book) for book in over)
        enough = self._numbers.are_all_served
        begun = tuple(self._begin()) if may_begin and not enough else ()
        # a job that runs beside the last one goes on to its end
        return Settled(ended, begun, bool(ended) and enough and self.num_running == 0)

    def _end(self, book: JobBook) -> EndedJob:
        assert book.number is not None, "it is over"
        number, given_up = book.number, book.given_up
        self._numbers.end(book.name, number, given_up=given_up)
        refused, book.place = tuple(book.end()), next(self._places)
        for member, error in refused:
            member.tell(refused=str(error))
        self._forget_if_empty(book)
        return EndedJob(book.name, number, given_up, refused)

    def _begin(self) -> list[BegunJob]:
        begun = []
        for book in self._ready[: max(0, self._max_jobs - self.num_running)]:
            assert book.world_size is not None, "it is complete"
            number, secret = self._numbers.give_next(book.name, book.world_size)
            book.begin(number, secret)
            begun.append(BegunJob(book.name, number, tuple(book.present)))
        return begun

    @property
    def _ready(self) -> list[JobBook]:
        """Jobs whose clients are all here and that do not run, as they arrived."""
        ready = [book for book in self._books.values() if not book.running and book.is_complete]
        return sorted(ready, key=lambda book: book.place)

    # -- what there is ----------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Number of jobs that are served."""
        return sum(book.running for book in self._books.values())

    @property
    def num_waiting(self) -> int:
        """Number of clients that wait to be admitted."""
        return sum(book.num_waiting for book in self._books.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the jobs that run or gather; an empty one is not remembered."""
        return tuple(self._books)

    def why_waiting(self, missing_servers: Iterable[int]) -> dict[str, str]:
        """Return by job name why clients without a job number wait."""
        return texts_for_waiting(
            [*self._books.values()], self._ready, sorted(missing_servers), self._max_jobs
        )

    def _book(self, name: str) -> JobBook:
        return self._books.setdefault(name, JobBook(name))

    def _forget_if_empty(self, book: JobBook) -> None:
        # names are as many as jobs, and a server serves them for months
        if book.is_empty:
            self._books.pop(book.name, None)
