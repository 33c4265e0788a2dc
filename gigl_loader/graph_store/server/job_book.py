"""The clients of one job name, start after start."""

import math
from dataclasses import dataclass, field

from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.wire.membership import Join


@dataclass(eq=False)
class JobBook:
    """Which clients of one job name are here, job after job; on server 0 only.

    The first client of a job tells how many compute processes it has. A job that is started again
    waits until its former self has left.

    ::

        gathering: clients join ---all are here, `begin`---> running: clients leave ---all left--->
    """

    name: str
    number: int | None = None
    """Number of the job that is served, which no other has or had; None: clients gather."""
    world_size: int | None = None
    """Number of compute processes of the job that gathers or runs; None: nobody told it yet."""
    present: dict[int, Member] = field(default_factory=dict)
    """Clients by compute rank."""
    queued: list[Member] = field(default_factory=list)
    """Clients of the next job of this name, which came while this one runs."""
    unseen: set[int] = field(default_factory=set)
    """Compute ranks of the running job not seen since this server was started."""
    unseen_until: float = 0.0
    """When these count as gone, if nobody of the job is here then (`time.monotonic`)."""
    given_up: bool = False
    """Whether the last client to leave was given up without a goodbye: its job may still live."""
    place: int = 0
    """Place of the gathering job in the order in which jobs arrived."""

    @property
    def running(self) -> bool:
        """Whether a job of this name is served."""
        return self.number is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it has to be remembered."""
        return not (self.running or self.present or self.queued)

    @property
    def is_complete(self) -> bool:
        """Whether all clients of the job are here, none of them gone without a goodbye."""
        if len(self.present) != self.world_size:
            return False
        return all(member.give_up_at is None for member in self.present.values())

    @property
    def num_waiting(self) -> int:
        """Number of clients that wait to be admitted."""
        return len(self.queued if self.running else self.present)

    # -- gathering --------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Add a client, or put it in the queue.

        Raises:
            ConfigError: It counts other compute processes than the others, or its rank is taken.
        """
        if self.running:
            self.queued.append(member)
            return
        rank, world_size = member.join.rank, member.join.world_size
        if not 0 <= rank < world_size:
            raise ConfigError(f"compute rank {rank} is not in [0, {world_size})")
        # a client that is away for a moment keeps its place, unless nobody else is in the way
        in_the_way = self._in_the_way_of(member.join)
        if all(other.give_up_at is not None for other in in_the_way):
            self._replace(in_the_way)
        another = "if it is another job, give it a name of its own: job=, or GIGL_LOADER_JOB"
        if self.present and world_size != self.world_size:
            raise ConfigError(
                f"compute process {rank} says that job {self.name!r} has {world_size} processes, "
                f"the others say {self.world_size}: give all the same GraphStoreInfo; {another}"
            )
        if rank in self.present:
            raise ConfigError(
                f"two processes joined as compute rank {rank} of job {self.name!r}: check RANK and "
                f"local_rank; {another}"
            )
        self.world_size = world_size
        self.present[rank] = member

    def _in_the_way_of(self, join: Join) -> list[Member]:
        """Return the clients with which a newcomer cannot be of one job."""
        if join.world_size != self.world_size:
            return [*self.present.values()]
        return [self.present[join.rank]] if join.rank in self.present else []

    def _replace(self, killed: list[Member]) -> None:
        """Forget clients that left without a goodbye.

        Clients of a restarted job come before the killed ones are given up.
        """
        for member in killed:
            del self.present[member.join.rank]
            # it was not killed if it hears this
            member.tell(
                refused=f"job {self.name!r} was started again while this process was out of reach"
            )

    def begin(self, number: int, secret: bytes) -> None:
        """Let the complete job begin; its clients learn the secret."""
        self.number, self.given_up = number, False
        for member in self.present.values():
            member.job, member.secret = number, secret

    # -- running ----------------------------------------------------------------------------------

    def resume(self, number: int, world_size: int) -> None:
        """Run a job again that an earlier server process knew, or that was given up here."""
        # those who gather now are of the next job of this name
        self.queued += self.present.values()
        self.number, self.world_size, self.present = number, world_size, {}
        # nobody knows which of them have left meanwhile
        self.unseen, self.given_up = set(range(world_size)), False

    def readmit(self, member: Member, others_until: float) -> None:
        """Add a client of the running job; others not seen here may come until ``others_until``."""
        self.unseen.discard(member.join.rank)
        self.unseen_until = others_until
        self.present[member.join.rank] = member

    def leave(self, member: Member) -> None:
        """Remove a client."""
        self.queued = [queued for queued in self.queued if queued is not member]
        if self.present.get(member.join.rank) is member:
            del self.present[member.join.rank]
            self.given_up = member.give_up_at is not None

    def stop(self) -> list[Member]:
        """Await nobody any more; return all clients, which must leave."""
        clients = [*self.present.values(), *self.queued]
        self.unseen, self.queued = set(), []
        # those that run are its members until they have left
        self.present = self.present if self.running else {}
        return clients

    def is_over(self, now: float = -math.inf) -> bool:
        """Return whether all members of the running job have left.

        Ranks not seen since this server was started may have left before. They are waited for
        until `unseen_until`, or until all of the next job are here and nobody of this one: then
        the job was restarted, and they are gone.
        """
        awaited = self.unseen and now < self.unseen_until and not self._next_job_is_complete
        return self.running and not self.present and not awaited

    def end(self) -> list[tuple[Member, ConfigError]]:
        """End the running job; those that were queued gather. Return the clients refused by it."""
        self.number, self.world_size, self.unseen = None, None, set()
        queued, self.queued = self.queued, []
        refused = []
        for member in queued:
            try:
                self.join(member)
            except ConfigError as error:
                refused.append((member, error))
        return refused

    @property
    def _next_job_is_complete(self) -> bool:
        """Whether all ranks of the next job wait in the queue."""
        joins = [member.join for member in self.queued if member.give_up_at is None]
        # ranks, not clients: one that was killed in the queue and came again is there twice. The
        # last to come tells their number, as it belongs to the latest start of that job.
        return bool(joins) and {join.rank for join in joins} >= {*range(joins[-1].world_size)}
