"""How the tests run an example: as its user does, in processes of its own."""

import os
import re
import subprocess
from pathlib import Path

from tests.support.scripts import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"


def environment() -> dict[str, str]:
    """Return the environment that examples run in."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}


def run_example(script: str, *args: str, ranks: int | None = None, timeout_s: float = 400) -> str:
    """Return what an example printed; ``ranks``: processes with torchrun's environment."""
    done = run_python(
        str(EXAMPLES / script), *args, ranks=ranks, environment=environment(), timeout_s=timeout_s
    )
    return _printed(done)


def torchrun_example(script: str, *args: str, ranks: int, timeout_s: float = 400) -> str:
    """Return what an example printed that torchrun starts, as its user does."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = run_python(
        *launcher, str(EXAMPLES / script), *args, environment=environment(), timeout_s=timeout_s
    )
    return _printed(done)


def number_after(words: str, printed: str) -> float:
    """Return the number that an example printed behind ``words``."""
    found = re.search(re.escape(words) + r"(\d+(?:\.\d+)?)", printed)
    assert found, printed
    return float(found[1])


def _printed(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout
