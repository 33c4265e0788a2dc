"""What goes wrong in a simulated job, drawn from a seed, and what has to hold all the same."""

import math
import random
from dataclasses import dataclass

from tests.support.simulation.cluster import SimulatedJob, digest
from tests.support.simulation.size import Size


@dataclass(frozen=True)
class SlowServers:
    """Some storage servers take longer for their work, from now on."""

    at_s: float
    servers: tuple[int, ...]
    factor: float = 10.0

    def happen(self, job: SimulatedJob) -> None:
        """Slow them down."""
        for number in self.servers:
            job.servers[number][0].slowness = self.factor


@dataclass(frozen=True)
class SlowRank:
    """A rank takes longer for its steps, from now on."""

    at_s: float
    rank: int
    factor: float = 10.0

    def happen(self, job: SimulatedJob) -> None:
        """Slow it down."""
        job.slow_rank(self.rank, self.factor)


@dataclass(frozen=True)
class LostServers:
    """Some storage servers are killed at once, as with a rack; others take their places later.

    After ``math.inf`` seconds: never; their replicas serve for them.
    """

    at_s: float
    servers: tuple[int, ...]
    down_s: float

    def happen(self, job: SimulatedJob) -> None:
        """Kill them."""
        for number in self.servers:
            job.lose_server(number, self.down_s)


@dataclass(frozen=True)
class LostRank:
    """A rank is killed: the job goes on from the last state, with another number of ranks."""

    at_s: float
    rank: int
    resumed_by: int = 0
    """How many ranks go on; 0: those that are left."""

    def happen(self, job: SimulatedJob) -> None:
        """Kill it."""
        job.lose_rank(self.rank, self.resumed_by)


Faults = list[SlowServers | SlowRank | LostServers | LostRank]


def draw_faults(seed: int, size: Size) -> Faults:
    """Return a schedule of one to four faults, within the time that an undisturbed job takes.

    Where servers have replicas, a rack is all first ones of the replicas, or all second ones; one
    without server 0 may be lost for good.
    """
    drawn = random.Random(seed)
    first = size.start_spread_s + size.costs.start_s  # loaders are there
    last = first + size.epochs * size.batches * size.costs.step_s
    found: Faults = []
    for _ in range(drawn.randint(1, 4)):
        at_s = drawn.uniform(first, last)
        kind = drawn.choice(("slow server", "slow rank", "restart", "rack", "rank"))
        server = drawn.randrange(size.servers)
        if kind == "slow server":
            found.append(SlowServers(at_s, (server,)))
        elif kind == "slow rank":
            found.append(SlowRank(at_s, drawn.randrange(size.ranks)))
        elif kind == "rank":
            # fewer, half, as many and more: shares of the seeds are cut anew each time
            resumed_by = drawn.choice((0, size.ranks // 2, size.ranks, size.ranks + 3))
            found.append(LostRank(at_s, drawn.randrange(size.ranks), resumed_by))
        elif kind == "rack" and size.partitions:
            # one rack at most is gone for good: the second one could take both of two replicas
            is_first = not any(isinstance(one, LostServers) for one in found)
            found.append(_lost_rack(drawn, at_s, server, size, may_stay=is_first))
        else:
            count = max(1, size.servers // (4 if kind == "rack" else 100))
            lost = tuple(sorted({(server + n) % size.servers for n in range(count)}))
            found.append(LostServers(at_s, lost, drawn.uniform(0.5, 10.0)))
    return found


def _lost_rack(
    drawn: random.Random, at_s: float, server: int, size: Size, *, may_stay: bool
) -> LostServers:
    first = server // size.partitions * size.partitions
    rack = tuple(range(first, min(first + size.partitions, size.servers)))
    down_s = drawn.uniform(0.5, 10.0)
    stays = may_stay and first > 0 and drawn.random() < 0.5  # at server 0 ranks meet again
    return LostServers(at_s, rack, math.inf if stays else down_s)


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    seconds: float
    """Of simulated time."""
    digest: str
    """Of all batches: epoch, position in the job's sequence, seeds."""
    trace: str
    """Of the same, to whom and when."""
    restarts: int
    """How often ranks were started again: one was lost, or a server while loaders were built."""
    wrong: str
    """What did not hold; nothing where all did."""


def run_job(size: Size, faults: Faults) -> Outcome:
    """Run a job.

    Raises:
        Deadlock: Somebody waited for ever.
    """
    job = SimulatedJob(size).run(faults)
    return Outcome(job.world.clock.now, digest(job), job.trace, job.restarts, _wrong(job))


def _wrong(job: SimulatedJob) -> str:
    """Return which batches were lost, or came twice; and errors of ranks that nobody killed."""
    positions = sorted(position for rank in job.ranks for position in rank.positions)
    total = job.size.ranks * job.size.batches
    # each position once, whichever rank has it: what was trained on after the last state is not
    # counted, see SimulatedJob._resume
    wanted = [(epoch, position) for epoch in range(job.size.epochs) for position in range(total)]
    if positions != wanted:
        lost, more = sorted(set(wanted) - set(positions)), len(positions) - len(set(positions))
        errors = [f"{rank.process.name}: {rank.error!r}" for rank in job.ranks if rank.error]
        return f"{len(lost)} batches lost {lost[:5]}, {more} twice; {errors[:3]}"
    wrong_rows = sum(rank.wrong_rows for rank in job.ranks)
    return f"{wrong_rows} batches came with rows of others" if wrong_rows else ""
