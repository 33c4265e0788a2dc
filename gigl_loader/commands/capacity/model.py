"""Seeds per second, memory and connections of a job, from its description and the costs of work.

A seed costs bytes between machines and CPU seconds; links and cores limit the seeds per second.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gigl_loader.commands.capacity.expect import BatchSize, DegreeDistribution, expect
from gigl_loader.commands.capacity.needs import (
    CONCURRENCY,
    DTYPE_BYTES,
    Costs,
    Job,
    connections_of,
    cores_of_a_worker,
    descriptors_of,
    memory_of,
    start_of,
)
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.batch_bounds import BATCHES_HELD, batch_bounds

__all__ = ["DevicePlan", "Job", "Plan", "estimate", "plan_device"]

_GPU_SHARE = 0.9
"""Share of a GPU's memory that the graph and its batches may take: the model needs some, too."""


@dataclass(frozen=True)
class Plan:
    """Predicted needs and speed of a job."""

    job: Job
    batch: BatchSize
    memory: dict[str, float]
    """By part: bytes on the machine with most."""
    memory_machine: str
    """The kind of that machine: ``"training"`` or ``"storage"``."""
    network: dict[str, float]
    """By kind: bytes per seed between machines."""
    cpu: dict[str, float]
    """By process: CPU seconds per seed, of all machines together."""
    bounds: dict[str, float]
    """By limit: seeds/s of all ranks."""
    connections: dict[str, int]
    """By process: maximum number of TCP connections."""
    descriptors: dict[str, int]
    """By process: open files, including connections."""
    start: dict[str, float]
    """By step: seconds until the first batches."""
    spread: float
    enough: int | None = None
    """The smallest number of machines with which the graph fits; None: it fits already, or with no
    number."""
    changes: dict[str, float] = field(default_factory=dict)
    """Factor on seeds/s for each change, the best first."""

    @property
    def bottleneck(self) -> str:
        """Return the limit of seeds/s."""
        return min(self.bounds, key=lambda name: self.bounds[name])

    @property
    def seeds_per_second(self) -> float:
        """Return seeds/s of all ranks together, with all limits at once."""
        return together(self.job, self.bounds)

    @property
    def total_memory(self) -> float:
        """Return the bytes of the machine with the largest need."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Return whether that memory is available; None: not known."""
        have = self.job.memory_gb
        return None if have is None else self.total_memory <= have * 1e9


def estimate(job: Job, costs: Costs, degrees: DegreeDistribution | None = None) -> Plan:
    """Return the predicted needs and speed of a job.

    Args:
        job: The job.
        costs: Costs of the machines.
        degrees: The graph, if it is known better than by a distribution.

    Raises:
        ConfigError: Such batches are impossible.
    """
    plan = _estimate(job, costs, degrees)
    gains = {}
    for name, change in _CHANGES.items():
        changed = change(job)
        if changed is None or changed == job:
            continue
        # A gain below 1% is within the noise between runs. A change that does not fit is proposed
        # only if the job does not fit either, or memory is not known.
        changed_plan = _estimate(changed, costs, degrees)
        gain = changed_plan.seeds_per_second / plan.seeds_per_second
        if gain > 1.01 and not (plan.fits and not changed_plan.fits):
            gains[name] = gain
    enough = _fewest_machines(job, plan.batch, costs) if plan.fits is False else None
    return replace(
        plan, enough=enough, changes=dict(sorted(gains.items(), key=lambda item: -item[1]))
    )


_MOST_MACHINES = 1 << 20
"""An upper bound; a search without result up to here would not end."""


def _fewest_machines(job: Job, batch: BatchSize, costs: Costs) -> int | None:
    """Return the smallest number of machines that hold the graph with which it fits, or None."""

    def fits(parts: int) -> bool:
        changed = job.with_machines(*((job.machines, parts) if job.is_store else (parts, 0)))
        memory, _ = memory_of(changed, batch, costs)
        return sum(memory.values()) <= (job.memory_gb or 0.0) * 1e9

    # Double until it fits, then bisect: ``low`` does not fit, ``high`` does. Batches do not depend
    # on the machines, so they are passed in.
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
    batch = expect(degrees or job.degrees(), job.num_neighbors, job.batch_size, job.remote_cache)
    wire = bytes_per_seed(job, batch)
    cpu = cpu_per_seed(job, batch, wire, costs)
    memory, machine = memory_of(job, batch, costs)
    bounds = bounds_of(job, wire, cpu)
    return Plan(
        job,
        batch,
        memory,
        machine,
        wire,
        cpu,
        bounds,
        connections_of(job),
        descriptors_of(job),
        start_of(job, costs),
        costs.spread,
    )


def _smaller_dtype(job: Job) -> Job | None:
    return replace(job, dtype="float16") if DTYPE_BYTES[job.dtype] > 2 else None


def _on_machines(job: Job, machines: int, servers: int) -> Job | None:
    """Return the job with other machines; None: there are fewer nodes than machines."""
    return job.with_machines(machines, servers) if (servers or machines) <= job.nodes else None


_CHANGES: dict[str, Callable[[Job], Job | None]] = {
    "one more worker per rank": lambda job: replace(job, num_workers=job.num_workers + 1),
    "a cache of 20% of the remote rows": lambda job: replace(
        job, remote_cache=max(job.remote_cache, 0.2)
    ),
    "the edges of all partitions on each machine": lambda job: (
        replace(job, all_edges=True) if job.parts > 1 else None
    ),
    "features as float16": _smaller_dtype,
    "links 2.5 times as fast": lambda job: replace(job, link_gbit=2.5 * job.link_gbit),
    "twice the training machines": lambda job: _on_machines(job, 2 * job.machines, job.num_servers),
    "twice the storage machines": lambda job: (
        _on_machines(job, job.machines, 2 * job.num_servers) if job.num_servers else None
    ),
}
"""Changes by name, the cheapest first."""


# --- costs of a seed, and the limits --------------------------------------------------------------

_ID_BYTES = 4.0
"""On the wire, of a requested id; packed ids of the first billions of nodes."""
_EDGE_BYTES = 3.0
"""On the wire, of an edge; more where degrees are small."""
_LINK_SHARE = 0.9
"""Share of a link's bits that carry payload."""


def bytes_per_seed(job: Job, batch: BatchSize) -> dict[str, float]:
    """Return by kind the bytes between machines; for a graph store, including batches.

    Rows cross once. Colocated, half of them or more are local; a training machine of a graph store
    receives all of them, from the servers that own them.
    """
    # Requests have ids, and responses neighbours; with the rows of a node its id travels.
    remote, missed = job.share_elsewhere, 1 - batch.hit_rate
    drawn_there = remote if job.asks_for_neighbors else 0.0
    by_kind = {
        "requests": batch.requested * drawn_there * _ID_BYTES,
        "neighbours": batch.edges * drawn_there * _ID_BYTES,
    }
    rows = batch.nodes * missed * (job.row_bytes + _ID_BYTES) if job.row_bytes else 0.0
    if job.is_store:
        by_kind["ids and edges of batches"] = batch.nodes * _ID_BYTES + batch.edges * _EDGE_BYTES
        by_kind["rows of batches"] = rows
    else:
        by_kind["rows between partitions"] = rows * remote
    return {name: nbytes / batch.seeds for name, nbytes in by_kind.items()}


def cpu_per_seed(
    job: Job, batch: BatchSize, wire: dict[str, float], costs: Costs
) -> dict[str, float]:
    """Return by kind CPU seconds per seed, of all processes involved."""
    remote, rows = job.share_elsewhere, batch.nodes if job.row_bytes else 0.0
    width = job.row_bytes
    # The cost of plain bytes is in the costs of rows and edges, which were measured over plain
    # connections: encryption counts its additional cost.
    per_byte = (costs.tls_s_per_gb - costs.plain_s_per_gb) / 1e9 if job.encrypted else 0.0
    sampled = costs.batch_s + costs.edge_s * batch.edges + costs.node_s * batch.nodes
    asked = 0.0
    if remote and job.asks_for_neighbors:
        asked = costs.asked_batch_s + costs.asked_edge_s * batch.edges * remote
    cpu_s = {"sampling": sampled, "requesting neighbours": asked}
    # A rank of a graph store has no rows of its own, so it fetches all of them.
    wanted = rows * (1.0 if job.is_store else remote)
    missed = wanted * (1 - batch.hit_rate)
    if job.is_store:
        sent = costs.sent_batch_s + costs.sent_edge_s * batch.edges
        received = costs.received_batch_s + costs.received_edge_s * batch.edges
        if rows:
            sent, received = sent + costs.sent_rows_s, received + costs.received_rows_s
        cpu_s["sending batches"] = sent + missed * (costs.sent_row_s + costs.sent_byte_s * width)
        cpu_s["receiving batches"] = received + missed * (
            costs.received_row_s + costs.received_byte_s * width
        )
    else:
        cpu_s["reading rows"] = costs.row_byte_s * rows * width
        cpu_s["requesting rows"] = (costs.asked_rows_s if wanted else 0.0) + missed * (
            costs.asked_row_s + costs.asked_byte_s * width
        )
    if job.remote_cache and wanted:
        batch_s, row_s, byte_s = (
            (costs.kept_batch_s, costs.kept_row_s, costs.kept_byte_s)
            if job.is_store
            else (costs.cached_batch_s, costs.cached_row_s, costs.cached_byte_s)
        )
        cpu_s["keeping rows"] = batch_s + row_s * wanted + byte_s * (wanted - missed) * width
    cpu_s = {name: seconds / batch.seeds for name, seconds in cpu_s.items()}
    # From here on, costs of bytes, which are per seed already.
    between, delivered = _between_and_delivered(wire)
    if job.encrypted and job.is_store:
        cpu_s["encryption between servers"] = 2 * per_byte * between
        cpu_s["encryption at servers"] = per_byte * delivered
        cpu_s["encryption at training machines"] = per_byte * delivered
    elif job.encrypted:
        cpu_s["encryption"] = 2 * per_byte * between
    # This was measured for both ends together, encryption for one end: bytes between servers have
    # both ends there, delivered ones one on each side.
    per_byte = costs.link_s_per_gb / 1e9
    if job.is_store:
        cpu_s["packets of servers"] = per_byte * (between + delivered / 2)
        cpu_s["packets of training machines"] = per_byte * delivered / 2
    else:
        cpu_s["packets"] = per_byte * between
    return cpu_s


def _between_and_delivered(wire: dict[str, float]) -> tuple[float, float]:
    """Return bytes per seed between partitions, and to training machines of a graph store."""
    # By their names in `bytes_per_seed`: "... of batches" goes to training machines.
    delivered = sum(nbytes for name, nbytes in wire.items() if "batches" in name)
    return sum(wire.values()) - delivered, delivered


_OF_TRAINING_MACHINES = (
    "receiving batches",
    "keeping rows",
    "encryption at training machines",
    "packets of training machines",
)
"""Steps of a graph store's clients; all others are its servers'."""
_OF_SERVERS_THEMSELVES = ("sending batches", "encryption at servers", "packets of servers")
"""Steps of a storage server's own process; all others are its workers'."""


def bounds_of(job: Job, wire: dict[str, float], cpu: dict[str, float]) -> dict[str, float]:
    """Return seeds/s of all ranks for each limit."""
    ranks = job.machines * job.ranks_per_machine
    between, delivered = _between_and_delivered(wire)
    # One direction. Each machine receives what others send; with equal machines, both directions
    # have the same bytes, so the limit is the bytes over the links of all machines.
    link = job.link_gbit * 1e9 / 8 * _LINK_SHARE
    if job.is_store:
        training = sum(cpu.get(name, 0.0) for name in _OF_TRAINING_MACHINES)
        storage = sum(cpu.values()) - training
        sampled = storage - sum(cpu.get(name, 0.0) for name in _OF_SERVERS_THEMSELVES)
        bounds = {
            "workers": (
                job.num_servers * ranks * job.num_workers * cores_of_a_worker(job) / sampled
            ),
            # jobs take turns at the servers: each gets its share
            "cores of servers": job.num_servers * job.cores / storage / job.jobs,
            # Servers send both to each other and to ranks; ranks only receive.
            "links of servers": job.num_servers * link / (between + delivered) / job.jobs,
            "links of training machines": job.machines * link / delivered,
        }
        if training > 0:
            bounds["cores of training machines"] = job.machines * job.cores / training
    else:
        work = sum(cpu.values())
        bounds = {
            "workers": ranks * job.num_workers * cores_of_a_worker(job) / work,
            "cores": job.machines * job.cores / work,
        }
        if between > 0:
            bounds["links"] = job.machines * link / between
    if job.step_ms:
        bounds["the model's step"] = ranks * job.batch_size / (job.step_ms / 1e3)
    return bounds


def together(job: Job, bounds: dict[str, float]) -> float:
    """Return seeds/s of all ranks with all limits at once, which is below the least of them.

    A batch that waits for a link leaves cores idle if no other one is under way, and the reverse:
    near-limits also cost, more so with few batches under way. Steps without a queue, such as the
    model's step with its ready batches, only limit.

    Source:
        Mean value analysis of a closed queueing network: Reiser and Lavenberg, "Mean-Value Analysis
        of Closed Multichain Queuing Networks" (1980). With two equal stations it gives ``n / (n +
        1)``.
    """
    links = [1 / rate for name, rate in bounds.items() if name.startswith("links")]
    cores = [1 / rate for name, rate in bounds.items() if name.startswith("cores")]
    # bytes from one link arrive at the other at once: the slower one is the queue
    return min(*bounds.values(), throughput([*cores, *sorted(links)[-1:]], _batches_under_way(job)))


def throughput(demands: Sequence[float], under_way: int) -> float:
    """Return the throughput of stations with queues, each of which takes ``demands`` seconds.

    Args:
        demands: By station.
        under_way: Number of jobs in all of them together, at all times.
    """
    # Exact for such a network, one job more at a time: a new job finds as many waiting as there are
    # on average with one fewer, and waits for all of them.
    waiting, rate = [0.0] * len(demands), math.inf
    for number in range(1, under_way + 1):
        times = [demand * (1 + queue) for demand, queue in zip(demands, waiting, strict=True)]
        rate = number / sum(times)
        waiting = [rate * took for took in times]
    return rate


_MOST_UNDER_WAY = 100
"""More of them make no difference: with two equal stations, 100 give 100/101."""


def _batches_under_way(job: Job) -> int:
    """Return the batches under way for each machine that takes part in all of them."""
    a_machine = CONCURRENCY * job.ranks_per_machine * job.num_workers
    if job.is_store:  # of each rank, on each server
        a_machine *= min(job.num_servers, job.machines)
    return min(_MOST_UNDER_WAY, a_machine)


# --- a GPU that samples the graph itself; see `DistDataset.to` ------------------------------------


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of a GPU's memory by part."""

    gpu_gb: float
    """10**9 bytes of its memory."""
    structure: float
    """Edges with their ids, labels and the indexes of rows."""
    features: float
    """On the device, or in pinned memory of the host."""
    batches: float
    """Batches under way, with room for all neighbours that a draw may give and for their rows."""

    @property
    def where(self) -> str:
        """Return ``"device"``, ``"host"`` (features in pinned memory) or ``"workers"``."""
        have = _GPU_SHARE * self.gpu_gb * 1e9
        if self.structure + self.features + self.batches <= have:
            return "device"
        return "host" if self.structure + self.batches <= have else "workers"


def plan_device(job: Job, gpu_gb: float) -> DevicePlan:
    """Return the memory of a GPU to sample the whole graph of a job.

    Args:
        job: The job; its machines and workers do not matter here.
        gpu_gb: 10**9 bytes of the GPU's memory.

    Raises:
        ConfigError: A fan-out of -1 has no bound without the graph.
    """
    if any(fanout < 0 for fanout in job.num_neighbors):
        raise ConfigError(
            f"--gpu: num_neighbors {list(job.num_neighbors)} has -1, and a device makes room for "
            "all neighbours that it may draw: give a number for each hop"
        )
    nodes = round(job.nodes)
    bounds = batch_bounds(
        {EDGE: job.num_neighbors}, {NODE: job.batch_size}, {NODE: nodes}, edge_dir="in"
    )
    row_bytes = job.row_bytes
    batch_bytes = bounds.device_bytes + sum(bounds.nodes.values()) * row_bytes
    index = 4 if job.nodes < 2**31 else 8
    return DevicePlan(
        gpu_gb,
        # begins of rows and labels; neighbours and edge ids, as partitions have them
        structure=(8 + 8) * job.nodes + (index + 8) * job.edges,
        features=job.nodes * row_bytes,
        # and the CUDA graph that they are replayed by, which has no rows
        batches=(CONCURRENCY + BATCHES_HELD) * batch_bytes + bounds.device_bytes,
    )
