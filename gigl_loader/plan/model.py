"""Seeds per second, memory and connections of a job, from what it is and what work costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gigl_loader.plan.costs import Costs
from gigl_loader.plan.expect import BatchSize, Degrees, expect
from gigl_loader.plan.job import DTYPE_BYTES, Job
from gigl_loader.plan.memory import memory_of
from gigl_loader.plan.work import bounds_of, bytes_per_seed, cpu_per_seed, together

__all__ = ["Job", "Plan", "estimate"]


@dataclass(frozen=True)
class Plan:
    """What a job will need and give."""

    job: Job
    batch: BatchSize
    memory: dict[str, float]
    """By part: bytes on the machine that has most."""
    memory_machine: str
    """Which one that is: ``"training"`` or ``"storage"``."""
    wire: dict[str, float]
    """By kind: bytes per seed that cross between machines."""
    cpu: dict[str, float]
    """By process: CPU seconds per seed, of all machines together."""
    bounds: dict[str, float]
    """By what limits it: seeds/s of all ranks."""
    connections: int
    """Of the process that has most."""
    spread: float
    changes: dict[str, float] = field(default_factory=dict)
    """What a change would multiply seeds/s by, the best first."""

    @property
    def bottleneck(self) -> str:
        """Return what limits seeds/s."""
        return min(self.bounds, key=lambda name: self.bounds[name])

    @property
    def seeds_per_second(self) -> float:
        """Return seeds/s of all ranks together: no more than what limits leave, all at once."""
        return together(self.job, self.bounds)

    @property
    def total_memory(self) -> float:
        """Return the bytes of the machine that needs most."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Return whether that is there; None: not known."""
        have = self.job.memory_gb
        return None if have is None else self.total_memory <= have * 1e9


def estimate(job: Job, costs: Costs, degrees: Degrees | None = None) -> Plan:
    """Return what a job will need and give.

    Args:
        job: The job.
        costs: Of the machines.
        degrees: The graph, where it is known better than by a law.

    Raises:
        ConfigError: The batches cannot be.
    """
    plan = _estimate(job, costs, degrees)
    found = {}
    for name, change in _CHANGES.items():
        changed = change(job)
        if changed is not None and changed != job:
            gain = _estimate(changed, costs, degrees).seeds_per_second / plan.seeds_per_second
            if gain > 1.01:
                found[name] = gain
    return replace(plan, changes=dict(sorted(found.items(), key=lambda item: -item[1])))


def _estimate(job: Job, costs: Costs, degrees: Degrees | None) -> Plan:
    batch = expect(degrees or job.degrees(), job.fanouts, job.batch_size, job.cache)
    wire = bytes_per_seed(job, batch)
    cpu = cpu_per_seed(job, batch, wire, costs)
    memory, machine = memory_of(job, batch, costs)
    bounds = bounds_of(job, wire, cpu)
    return Plan(job, batch, memory, machine, wire, cpu, bounds, _connections(job), costs.spread)


def _connections(job: Job) -> int:
    ranks = job.machines * job.ranks_per_machine
    if job.deployment == "graph-store":
        return max(job.servers, ranks + (job.servers - 1) * 2)
    return (job.machines - 1) * job.ranks_per_machine


def _smaller_dtype(job: Job) -> Job | None:
    return replace(job, dtype="float16") if DTYPE_BYTES[job.dtype] > 2 else None


_CHANGES: dict[str, Callable[[Job], Job | None]] = {
    "one more worker per rank": lambda job: replace(job, workers=job.workers + 1),
    "a cache of 20% of the remote rows": lambda job: replace(job, cache=max(job.cache, 0.2)),
    "features as float16": _smaller_dtype,
    "links 2.5 times as fast": lambda job: replace(job, link_gbit=2.5 * job.link_gbit),
    "twice the training machines": lambda job: replace(job, machines=2 * job.machines),
    "twice the storage machines": lambda job: (
        replace(job, servers=2 * job.servers) if job.servers else None
    ),
}
"""Changes by name, the cheapest first."""
