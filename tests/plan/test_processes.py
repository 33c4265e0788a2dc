"""Connections, open files and the start, by hand."""

from dataclasses import replace

import pytest
from jobs_by_hand import COSTS, JOB

from gigl_loader.plan.model import estimate


def test_what_processes_have_open_by_hand() -> None:
    plan = estimate(replace(JOB, machines=3), COSTS)
    assert plan.connections == {"training process": 4, "worker": 16}  # 16 were counted
    assert plan.descriptors["worker"] == 22  # as were these
    store = estimate(replace(JOB, machines=3, deployment="graph-store", servers=3), COSTS)
    assert store.connections == {"training process": 16, "storage server": 16, "worker": 16}
    assert store.descriptors["storage server"] >= 55


def test_the_start_by_hand() -> None:
    plan = estimate(replace(JOB, ranks_per_machine=32, workers=2, disk_gb_per_s=0.1), COSTS)
    part_gb = (plan.memory["rows and labels"] + plan.memory["edges"]) / 1e9
    assert plan.start == {
        "processes": 4.0 * 2,
        "loading a part": pytest.approx(part_gb / 0.1),
        "workers": 32 * 1.2,
    }
    store = replace(JOB, machines=40, deployment="graph-store", servers=2, disk_gb_per_s=100.0)
    start = estimate(store, COSTS).start
    assert start["loading a part"] == pytest.approx(part_gb / 2 * 0.5), "memory is slower"
    assert start["workers"] == pytest.approx(40 * 1.1 / 16)
