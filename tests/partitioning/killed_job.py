"""Partitions tables, and kills itself at the moment that it is told: a step half done."""

import json
import os
import signal
import sys

from gigl_loader import EdgeTable, NodeTable, partition_tables
from gigl_loader.dataset.format.mapped_writer import PartFiles
from gigl_loader.partitioning import resumable
from gigl_loader.partitioning.stages import communities, degree_order, pipeline


def _die_after(count: int) -> None:
    """Let this process die at the ``count``-th of the moments at which files are half written."""
    moments = [count]

    def moment(function):
        def wrapped(*args, **kwargs):
            moments[0] -= 1
            if moments[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    moments_of: list[tuple[object, str]] = [
        (resumable, "_write_whole"),  # a step is done, and not yet noted
        (PartFiles, "write"),  # rows are written in part
        (degree_order, "_write_bucket"),
        (pipeline, "seal"),
        (os, "rename"),
        (os, "replace"),  # what is complete takes its name
    ]
    for owner, name in moments_of:
        setattr(owner, name, moment(getattr(owner, name)))


def _log_steps(path: str) -> None:
    """Write the name of each step that begins to a file: what is noted as done does not begin."""
    step = resumable.ResumableJob.step

    def logged(self, name, make):
        def begin():
            with open(path, "a") as file:
                file.write(name + "\n")
            return make()

        return step(self, name, begin)

    resumable.ResumableJob.step = logged


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    _log_steps(given["log"])
    communities._CLUSTERS_A_PART = 2  # so that this small graph has levels
    _die_after(given["moment"])
    partition_tables(
        NodeTable(given["nodes"], features="x", label="y", split="s"),
        EdgeTable(given["edges"], weight="w"),
        2,
        given["root"],
        method=given["method"],
        order=given["order"],
        communities=given["communities"],
        threads=1,
        progress=False,
    )
