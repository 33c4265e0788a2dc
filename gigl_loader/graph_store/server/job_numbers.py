"""The numbers of jobs: which are used, which are over, which were stopped.

Every server has them. Server 0 gives them out (`JobRules`); the others learn them from its news. By
number they know how each job began, so that nobody else can act as one of its processes.
"""

import hmac
import secrets

from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server.latest import Latest
from gigl_loader.graph_store.wire.membership import MOST_COUNTED, BookedJob, Join, proof_of

_MOST_REMEMBERED = 1 << 12
"""Most jobs that are over to remember, about 2 MB of them."""
_MOST_STOPPED = 100
"""Most stopped jobs to remember."""


class JobNumbers:
    """Numbers of the cluster's jobs; no number is used twice.

    Args:
        num_jobs: Number of jobs to serve; None: no limit.
    """

    def __init__(self, num_jobs: int | None = None) -> None:
        self._num_jobs, self._has_counted = num_jobs, False
        self.latest = -1
        """The latest number in use, or that was; a restarted server has given out none."""
        self.served = 0
        """Number of jobs that are over."""
        self.stopped: tuple[int, ...] = ()
        """Numbers of jobs that were stopped, the latest last."""
        self.running: dict[int, BookedJob] = {}
        """How the jobs that run began."""
        self._ended = Latest[int, BookedJob](_MOST_REMEMBERED)
        """How those began that are over, or of which server 0 tells no more: processes may still
        come back."""
        self._given_up = Latest[str, int](_MOST_REMEMBERED)
        """By name the last job, if its clients were given up: they may still come back."""

    def give_next(self, name: str, world_size: int) -> tuple[int, bytes]:
        """Return number and secret of a job of this name that begins."""
        self._given_up.pop(name, None)  # this one takes its place
        self._has_counted = True
        self.latest, secret = self.latest + 1, secrets.token_bytes(16)
        self.book(BookedJob(self.latest, name, world_size, proof_of(secret)))
        return self.latest, secret

    def book(self, job: BookedJob) -> None:
        """Note how a job began that runs; what was noted before stays."""
        self.running[job.number] = self.booked(job.number) or job
        self._ended.pop(job.number, None)

    def learn_running(self, jobs: tuple[BookedJob, ...]) -> None:
        """Take over server 0's list of the jobs that run."""
        for number in self.running.keys() - {job.number for job in jobs}:
            self._ended[number] = self.running.pop(number)
        for job in jobs:
            self.book(job)

    def booked(self, number: int | None) -> BookedJob | None:
        """Return how a job began; None: it is not known here."""
        return None if number is None else self.running.get(number) or self._ended.get(number)

    def check(self, join: Join) -> None:
        """Refuse a client that is not of the job that it names; a job that is not known passes.

        Raises:
            ConfigError: The job began with another name or number of processes, or the client does
                not know its secret.
        """
        job = self.booked(join.job)
        if job is None:
            return
        if job.name != join.job_name:
            raise ConfigError(
                f"job {job.number} has the name {job.name!r}, and compute process {join.rank} "
                f"says {join.job_name!r}: start the job again"
            )
        why = "does not know its secret, which those have that were there when it began"
        if job.world_size != join.world_size:
            why = f"says that it has {join.world_size}"
        elif hmac.compare_digest(job.proof, proof_of(join.secret)):
            return
        raise ConfigError(
            f"job {job.number} ({job.name!r}) began with {job.world_size} compute processes, and "
            f"compute process {join.rank} {why}: a process cannot be added to a job that runs; "
            "give another job a name of its own: job=, or GIGL_LOADER_JOB"
        )

    def mark_used(self, number: int | None) -> None:
        """Note a number that another process knows; None: it knows none."""
        if number is not None and number <= MOST_COUNTED:
            self.latest = max(self.latest, number)

    def learn_served(self, count: int) -> None:
        """Note how many jobs are over, as far as another process knows."""
        # only a server that was started again has something to learn; and whoever says it was not
        # the last one's end
        if not self._has_counted:
            most = MOST_COUNTED if self._num_jobs is None else self._num_jobs - 1
            self.served = max(self.served, min(count, most))

    @property
    def are_all_served(self) -> bool:
        """Whether as many jobs are over as are to be served."""
        return self._num_jobs is not None and self.served >= self._num_jobs

    def end(self, name: str, number: int, *, given_up: bool) -> None:
        """Note that a job is over; ``given_up``: its clients ended without a goodbye."""
        self._ended[number] = self.running.pop(number)
        if given_up:
            self._given_up[name] = number
        self.served, self._has_counted = self.served + 1, True

    def is_over(self, number: int) -> bool:
        """Return whether a job of that number has ended here."""
        return number in self._ended

    def was_given_up(self, name: str, number: int) -> bool:
        """Return whether the latest job of that name has that number, and was given up."""
        return self._given_up.get(name) == number

    def take_back_end(self, name: str, number: int) -> None:
        """Note that a job that was given up goes on."""
        del self._given_up[name]
        self.served -= 1  # it was counted too early

    def stop(self, number: int) -> None:
        """Note that a job was stopped."""
        # the latest are enough: a process does not come back after hours
        self.stopped = (*self.stopped, number)[-_MOST_STOPPED:]

    def learn_stopped(self, numbers: tuple[int, ...]) -> set[int]:
        """Take over server 0's numbers of stopped jobs; return those that are new."""
        fresh, self.stopped = {*numbers} - {*self.stopped}, numbers
        return fresh
