"""Ctrl-C anywhere in an epoch, by real signals: whoever catches it goes on with the same loader.

One in some hundred left a loader whose epochs waited for a batch that no worker had been given.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.multiprocess


@pytest.mark.parametrize(
    ("workers", "many"),
    [
        (0, 60),
        (1, 60),
        pytest.param(0, 1000, marks=[pytest.mark.wide, pytest.mark.longest]),
        pytest.param(1, 1000, marks=[pytest.mark.wide, pytest.mark.longest]),
        pytest.param(2, 1000, marks=[pytest.mark.wide, pytest.mark.longest]),
    ],
)
def test_a_loader_that_was_interrupted_goes_on(workers: int, many: int) -> None:
    command = [sys.executable, "-m", "tests.loader.interrupted_loop", str(workers), str(many), "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{many} interrupts" in done.stdout
