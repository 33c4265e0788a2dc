"""The coordination of a job at any size: the package's own code, in one process.

::

    SimulatedJob(Size(ranks=64, servers=4)).run()        all batches of an epoch
    run_job(size, draw_faults(7, size))                  the same, with what seed 7 lets go wrong
    meet_colocated(64)                                   how colocated ranks find each other

See `support.simulation.cluster` for what is real and what is modelled. Needs greenlet.
"""

from tests.support.simulation.cluster import Rank, SimulatedJob, digest
from tests.support.simulation.colocated import Meeting, meet_colocated
from tests.support.simulation.faults import (
    LostRank,
    LostServers,
    Outcome,
    SlowRank,
    SlowServers,
    draw_faults,
    run_job,
)
from tests.support.simulation.rows import RowLaw
from tests.support.simulation.size import Held, Size
from tests.support.simulation.workers import WorkCosts
from tests.support.simulation.world import Deadlock

__all__ = [
    "Deadlock",
    "Held",
    "LostRank",
    "LostServers",
    "Meeting",
    "Outcome",
    "Rank",
    "RowLaw",
    "SimulatedJob",
    "Size",
    "SlowRank",
    "SlowServers",
    "WorkCosts",
    "digest",
    "draw_faults",
    "meet_colocated",
    "run_job",
]
