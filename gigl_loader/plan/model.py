"""Seeds per second, memory and connections of a job, from what it is and what work costs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gigl_loader.plan.costs import Costs
from gigl_loader.plan.expect import BatchSize, DegreeDistribution, expect
from gigl_loader.plan.job import DTYPE_BYTES, Job
from gigl_loader.plan.memory import memory_of
from gigl_loader.plan.processes import connections_of, descriptors_of, start_of
from gigl_loader.plan.work import bounds_of, bytes_per_seed, cpu_per_seed, together

__all__ = ["Job", "Plan", "estimate"]


@dataclass(frozen=True)
class Plan:
    """Predicted needs and speed of a job."""

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
    connections: dict[str, int]
    """By process: TCP connections at most."""
    descriptors: dict[str, int]
    """By process: open files, connections among them."""
    start: dict[str, float]
    """By step: seconds until the first batches."""
    spread: float
    enough: int | None = None
    """Machines that hold the graph, the fewest with which it would fit; None: it does, or with none
    would."""
    changes: dict[str, float] = field(default_factory=dict)
    """Factor on seeds/s that each change would give, the best first."""

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


def estimate(job: Job, costs: Costs, degrees: DegreeDistribution | None = None) -> Plan:
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
        if changed is None or changed == job:
            continue
        # A gain below 1% is within what any two runs are apart. What does not fit is proposed only
        # where the job does not fit either, or memory is not known.
        changed_plan = _estimate(changed, costs, degrees)
        gain = changed_plan.seeds_per_second / plan.seeds_per_second
        if gain > 1.01 and not (plan.fits and not changed_plan.fits):
            found[name] = gain
    enough = _enough(job, plan.batch, costs) if plan.fits is False else None
    return replace(
        plan, enough=enough, changes=dict(sorted(found.items(), key=lambda item: -item[1]))
    )


_MOST_MACHINES = 1 << 20
"""More than anyone has; a search that has not found any by then would go on in vain."""


def _enough(job: Job, batch: BatchSize, costs: Costs) -> int | None:
    """Return the fewest machines that hold the graph, with which it fits; None: none do."""

    def fits(parts: int) -> bool:
        changed = job.with_machines(*((job.machines, parts) if job.is_store else (parts, 0)))
        memory, _ = memory_of(changed, batch, costs)
        return sum(memory.values()) <= (job.memory_gb or 0.0) * 1e9

    # Twice as many until it fits, then halve the gap: ``low`` does not fit, ``high`` does. Batches
    # are the same whatever the machines are, so they are passed in.
    most = int(min(_MOST_MACHINES, job.nodes))
    low, high = job.parts, job.parts
    while not fits(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _estimate(job: Job, costs: Costs, degrees: DegreeDistribution | None) -> Plan:
    batch = expect(degrees or job.degrees(), job.fanouts, job.batch_size, job.cache)
    wire = bytes_per_seed(job, batch)
    cpu = cpu_per_seed(job, batch, wire, costs)
    memory, machine = memory_of(job, batch, costs)
    bounds = bounds_of(job, wire, cpu)
    return Plan(
        job, batch, memory, machine, wire, cpu, bounds, connections_of(job), descriptors_of(job),
        start_of(job, costs), costs.spread,
    )  # fmt: skip


def _smaller_dtype(job: Job) -> Job | None:
    return replace(job, dtype="float16") if DTYPE_BYTES[job.dtype] > 2 else None


def _on_machines(job: Job, machines: int, servers: int) -> Job | None:
    """Return the job on others; None: there are fewer nodes than these."""
    return job.with_machines(machines, servers) if (servers or machines) <= job.nodes else None


_CHANGES: dict[str, Callable[[Job], Job | None]] = {
    "one more worker per rank": lambda job: replace(job, workers=job.workers + 1),
    "a cache of 20% of the remote rows": lambda job: replace(job, cache=max(job.cache, 0.2)),
    "features as float16": _smaller_dtype,
    "links 2.5 times as fast": lambda job: replace(job, link_gbit=2.5 * job.link_gbit),
    "twice the training machines": lambda job: _on_machines(job, 2 * job.machines, job.servers),
    "twice the storage machines": lambda job: (
        _on_machines(job, job.machines, 2 * job.servers) if job.servers else None
    ),
}
"""Changes by name, the cheapest first."""
