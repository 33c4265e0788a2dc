"""What goes wrong in a simulated job, drawn from a seed, and what has to hold all the same."""

import random
from dataclasses import dataclass

from gigl_loader.testing.simulation._cluster import SimulatedJob, Size, digest


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
    """Some storage servers are killed at once, as with a rack; others take their places later."""

    at_s: float
    servers: tuple[int, ...]
    down_s: float

    def happen(self, job: SimulatedJob) -> None:
        """Kill them."""
        for number in self.servers:
            job.lose_server(number, self.down_s)


@dataclass(frozen=True)
class LostRank:
    """A rank is killed: the others go on without it, from the last state."""

    at_s: float
    rank: int

    def happen(self, job: SimulatedJob) -> None:
        """Kill it."""
        job.lose_rank(self.rank)


Faults = list[SlowServers | SlowRank | LostServers | LostRank]


def draw_faults(seed: int, size: Size) -> Faults:
    """Return a schedule of one to four faults, within the time that an undisturbed job takes."""
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
            found.append(LostRank(at_s, drawn.randrange(size.ranks)))
        else:
            count = max(1, size.servers // (4 if kind == "rack" else 100))
            lost = tuple(sorted({(server + n) % size.servers for n in range(count)}))
            found.append(LostServers(at_s, lost, drawn.uniform(0.5, 10.0)))
    return found


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    seconds: float
    """Of simulated time."""
    digest: str
    """Of all batches: epoch, place in the job's sequence, seeds."""
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
    places = sorted(place for rank in job.ranks for place in rank.places)
    total = job.size.ranks * job.size.batches
    wanted = [(epoch, place) for epoch in range(job.size.epochs) for place in range(total)]
    if places != wanted:
        lost, more = sorted(set(wanted) - set(places)), len(places) - len(set(places))
        errors = [f"{rank.process.name}: {rank.error!r}" for rank in job.ranks if rank.error]
        return f"{len(lost)} batches lost {lost[:5]}, {more} twice; {errors[:3]}"
    return ""
