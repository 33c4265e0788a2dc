"""How the tests run an example: as its user does, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def environment() -> dict[str, str]:
    """Return the environment that examples run in."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}


def run_example(script: str, *args: str, ranks: int | None = None, timeout_s: float = 400) -> str:
    """Return what an example printed; ``ranks``: processes under torchrun (None: plain python)."""
    launcher = [sys.executable]
    if ranks is not None:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, str(EXAMPLES / script), *args],
        capture_output=True, text=True, timeout=timeout_s, check=False,
        env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout
