"""Promise 8: training that is killed at any step and resumed sees what an undisturbed run sees."""

import json
from pathlib import Path

import pytest

from tests.engine import killed_training as killed
from tests.graph_store.store_cluster import info_of, processes, serve

pytestmark = pytest.mark.multiprocess


def _check(folder: Path, num_ranks: int, steps: int) -> None:
    """Compare the runs in ``whole`` and ``killed``: every batch once, in order, bit by bit."""
    for rank in range(num_ranks):
        whole = killed.checkpoint(folder / "whole", rank)
        found = killed.checkpoint(folder / "killed", rank)
        assert len(whole) == killed.EPOCHS * steps
        assert [position for position, _ in found] == [position for position, _ in whole]
        assert found == whole
        epochs = [whole[i : i + steps] for i in range(0, len(whole), steps)]
        assert all(one != other for one in epochs for other in epochs if one is not other)


def test_two_ranks_that_are_killed_together(tmp_path: Path) -> None:
    kills = killed.kills_of(5, 8)
    with processes(tmp_path) as started:
        started.join([started.start(killed.supervise, killed.colocated, tmp_path, kills, 2, 2)])
    _check(tmp_path, 2, 8)


def test_a_client_of_a_graph_store_that_stays_up(tmp_path: Path) -> None:
    kills, info = killed.kills_of(1, killed.STEPS), info_of(2, 1)
    with processes(tmp_path) as started:
        roles = [started.start(serve, info, rank, len(kills) + 2) for rank in range(2)]
        trainer = started.start(killed.supervise, killed.from_a_store, tmp_path, kills, 1, info)
        started.join([*roles, trainer])
    _check(tmp_path, 1, killed.STEPS)
    _check_rows((tmp_path / "whole" / "trace.json").read_text())


def _check_rows(text: str) -> None:
    """The servers' workers, too, say what they did."""
    events = json.loads(text)["traceEvents"]
    rows = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert {"server 0 worker 0", "server 1 worker 0"} <= set(rows)
    for name in ("sample", "gather"):
        found = [e for e in events if e["name"] == f"gigl_loader.{name}"]
        assert len(found) == killed.EPOCHS * killed.STEPS


def test_the_kills_are_of_every_kind() -> None:
    for seed, steps in ((5, 8), (1, killed.STEPS)):
        kills = killed.kills_of(seed, steps)
        assert {kill.moment for kill in kills} == set(killed.MOMENTS)
        assert any(kill.step % steps == 0 for kill in kills)
