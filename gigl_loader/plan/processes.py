"""What processes of a job have open, and how long they take until the first batch."""

from gigl_loader.plan.costs import Costs
from gigl_loader.plan.job import CONCURRENCY, Job
from gigl_loader.plan.memory import LANES, graph_bytes

_TO_A_SERVER = 4
"""Connections of a rank: questions and rows at once, a lease, and one that is being made."""
_OF_A_GROUP = 2
"""Connections of a rank to the store that its process group meets in."""
_FILES = {"training process": 18, "worker": 6, "storage server": 25}
"""Descriptors of a process that are no connections: pipes, libraries, memory. This and what is
below was counted of processes with 2 and 3 partitions and ranks, on 2026-11-22."""
_FILES_OF_A_RANK = 4
"""At a storage server: pipes and memory of the producer."""
_FILES_OF_A_SLOT = 1


def connections_of(job: Job) -> dict[str, int]:
    """Return by process how many TCP connections it has at most, to all others together.

    Every process of a process group is connected with every other one, by gloo.
    """
    ranks = job.machines * job.ranks_per_machine
    lanes = min(LANES, CONCURRENCY)
    found = {"training process": ranks - 1 + (_OF_A_GROUP if ranks > 1 else 0)}
    if job.is_store:
        found["training process"] += _TO_A_SERVER * job.servers
        found["storage server"] = _TO_A_SERVER * ranks + 2 * (job.servers - 1)
    found["worker"] = 2 * lanes * (job.parts - 1)  # it asks, and is asked
    return found


def descriptors_of(job: Job) -> dict[str, int]:
    """Return by process how many descriptors it has open: what ``ulimit -n`` has to allow."""
    found = {name: number + _FILES[name] for name, number in connections_of(job).items()}
    # Who reads batches has the memory of each slot open: the rank itself, or the server for it.
    slots = job.workers * CONCURRENCY * _FILES_OF_A_SLOT
    if job.is_store:
        ranks = job.machines * job.ranks_per_machine
        found["storage server"] += ranks * (_FILES_OF_A_RANK + slots)
    else:
        found["training process"] += slots
    return found


def start_of(job: Job, costs: Costs) -> dict[str, float]:
    """Return by step the seconds from the start of all processes to the first batches.

    A part is read at the speed of the disk, or of the memory that it is copied in where that is
    less; ranks of a machine start their workers one after another.
    """
    # CPU seconds are wall seconds until there are more processes than cores.
    part_gb = sum(graph_bytes(job).values()) / 1e9
    alone = job.ranks_per_machine
    workers_s = costs.supervisor_start_s + costs.worker_start_s * job.workers
    if job.is_store:  # a server starts those of all ranks at once
        ranks = job.machines * job.ranks_per_machine
        starting = max(workers_s, ranks * workers_s / job.cores)
    else:
        starting = alone * workers_s
    return {
        "processes": costs.process_start_s * max(1.0, alone / job.cores),
        "loading a part": part_gb * max(1 / job.disk_gb_per_s, costs.load_s_per_gb),
        "workers": starting,
    }
