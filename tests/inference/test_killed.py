"""A run of a heterogeneous graph to Parquet that is killed again and again gives the same bytes."""

import random
from pathlib import Path

import pytest

from gigl_loader.testing import run_ranks
from tests.inference import killed_jobs

pytestmark = pytest.mark.usefixtures("starts_no_workers")

WORLD, KILLS = 2, 4


def _bytes(folder: Path) -> dict[str, bytes]:
    """Return what users read: rows, ids and tables, by name."""
    kept = (".npy", ".parquet")
    files = sorted(path for path in folder.rglob("*") if path.suffix in kept)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _run(tmp_path: Path, name: str, out: Path, victim: int, moment: int) -> None:
    group = tmp_path / name
    group.mkdir()
    run_ranks(
        killed_jobs.infer, out, victim, moment, world_size=WORLD, tmp_path=group, may_die=[victim]
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("seed", [0])
def test_killed_at_drawn_moments(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    _run(tmp_path, "whole", tmp_path / "wanted", 0, 0)
    wanted = _bytes(tmp_path / "wanted")
    assert len(wanted) == 2 * WORLD, "two types, of two ranks"
    most = [int((tmp_path / f"wanted/moments-{rank}").read_text()) for rank in range(WORLD)]
    for number in range(KILLS):
        victim = draw.randrange(WORLD)
        moment = draw.randrange(1, most[victim] // 2)  # a run that goes on has less to do
        _run(tmp_path, f"killed-{number}", tmp_path / "out", victim, moment)
        assert not (tmp_path / f"out/moments-{victim}").exists(), "it was killed"
        (tmp_path / f"out/moments-{1 - victim}").unlink(missing_ok=True)
        found = _bytes(tmp_path / "out")
        assert found == {name: wanted[name] for name in found}, "what has its name is complete"
    _run(tmp_path, "last", tmp_path / "out", 0, 0)
    assert _bytes(tmp_path / "out") == wanted


@pytest.mark.multiprocess
def test_another_number_of_ranks_is_an_error_on_all_of_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    wanted: dict[str, bytes] = {}
    for number, (world, fits) in enumerate(((2, True), (1, False), (3, False), (2, True))):
        group = tmp_path / f"group-{number}"
        group.mkdir()
        run_ranks(killed_jobs.infer_on, out, fits, world_size=world, tmp_path=group)
        wanted = wanted or _bytes(out)
        assert _bytes(out) == wanted
