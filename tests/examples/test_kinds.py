"""The table of kinds: what ours delivers is checked, and a peer that is missing is named."""

import subprocess
import sys
from pathlib import Path

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
