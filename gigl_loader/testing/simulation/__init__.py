"""The coordination of a job at any size: the package's own code, in one process.

::

    SimulatedJob(Size(ranks=64, servers=4)).run()        all batches of an epoch
    run_job(size, draw_faults(7, size))                  the same, with what seed 7 lets go wrong
    meet_colocated(64)                                   how colocated ranks find each other

See `gigl_loader.testing.simulation._cluster` for what is real and what is modelled. Needs greenlet:
``pip install gigl_loader[simulation]``.
"""

from gigl_loader.testing.simulation._cluster import Rank, SimulatedJob, digest
from gigl_loader.testing.simulation._colocated import Meeting, meet_colocated
from gigl_loader.testing.simulation._faults import (
    LostRank,
    LostServers,
    Outcome,
    SlowRank,
    SlowServers,
    draw_faults,
    run_job,
)
from gigl_loader.testing.simulation._rows import RowLaw
from gigl_loader.testing.simulation._size import Held, Size
from gigl_loader.testing.simulation._workers import WorkCosts
from gigl_loader.testing.simulation._world import Deadlock

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
