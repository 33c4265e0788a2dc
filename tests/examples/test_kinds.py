"""The table of kinds and the charts of costs: ours is checked, and a missing peer is named."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

COLOCATED = Path(__file__).parents[2] / "examples" / "benchmarks" / "colocated"
SMALL = (
    *("--nodes", "400", "--edges", "4000", "--dim", "4", "--fanout", "3", "2"),
    *("--batch-size", "8", "--warmup", "1", "--batches", "2", "--rounds", "1"),
    *("--peer-workers", "1"),
)


@pytest.mark.multiprocess
def test_kinds_beside_peers_that_are_not_there(tmp_path: Path) -> None:
    command = [sys.executable, str(COLOCATED / "bench.py"), "--case", "kinds", *SMALL]
    command += ["--kinds", "typed", "labels", "--peers", str(tmp_path), "--cache", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    typed, labels = (
        line for line in done.stdout.splitlines() if line.startswith(("| nodes", "| anch"))
    )
    assert typed.split("|")[3].strip() == "not installed"
    assert labels.split("|")[3].strip() == "no peer"
    for line in (typed, labels):
        assert int(line.split("|")[2].split()[0].replace(",", "")) > 0


def test_an_environment_that_cannot_be_built_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(COLOCATED / "peers.py"), str(tmp_path), "--only", "pyglib"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stdout == "pyglib: give --pyg-lib, a clone with its submodules\n"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import a script of the folder by its name; other folders have modules of the same names."""
    monkeypatch.syspath_prepend(str(COLOCATED))
    yield importlib.import_module
    for name in ("bench", "growth", "picture", "page"):
        sys.modules.pop(name, None)


@pytest.mark.multiprocess
def test_charts_of_what_costs_grow_with(
    script: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench, growth = script("bench"), script("growth")
    few: dict[str, Any] = {
        "seeds a batch": {"4": {"batch_size": 4}, "8": {}},
        "node types": {"2": {"types": 2}},
    }
    few["node types"]["2"]["task"] = "typed"
    monkeypatch.setattr(growth, "AXES", few)
    summary, drawn = tmp_path / "growth.json", tmp_path / "growth.png"
    given = ["--case", "growth", "--cache", tmp_path, "--summary", summary, "--picture", drawn]
    assert bench.main([*SMALL, *map(str, given)]) == 0
    assert "seeds a batch: 4" in capsys.readouterr().out
    axes = json.loads(summary.read_text())["axes"]
    assert {axis: list(values) for axis, values in axes.items()} == {
        "seeds a batch": ["4", "8"],
        "node types": ["2"],
    }
    costs = [one for values in axes.values() for one in values.values()]
    assert all(one["wall_us"] > 0 for one in costs)
    assert all(one["cpu_us"] >= 0 for one in costs), "CPU time is counted in ticks of 10 ms"
    for picture in (drawn, tmp_path / "growth-dark.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_half_of_the_seeds_a_batch_are_twice_the_batches(script: Callable[[str], Any]) -> None:
    growth = script("growth")
    assert growth.work_of({"batch_size": 8}, 10, 16) == {"batches": 20, "batch_size": 8}
    assert growth.work_of({"dim": 4}, 10, 16) == {"batches": 10, "dim": 4}
    result = {"cpu_ms_per_batch": 4.0, "seeds_per_s": 500.0}
    assert growth.costs_of(result, 8) == {"cpu_us": 500.0, "wall_us": 2000.0}


def test_partitioning_is_measured_beside_a_peer_that_is_missing() -> None:
    script = COLOCATED.parent / "partitioning" / "bench_partitioning.py"
    small = ("--nodes", "100", "--edges", "900", "--dim", "3", "--rounds", "1")
    done = subprocess.run(
        [sys.executable, str(script), *small],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("| gigl_loader"))
    assert len(line.split("|")) == 6
    assert "graphlearn-torch /" not in done.stdout, "no ratio to what was not measured"
