"""What a supervisor imports before it forks workers."""

import subprocess
import sys

_LOADS = """
import sys
from gigl_loader.workers import supervisor
without_blas = supervisor._without_blas
with without_blas():
    supervisor._load_kernels()
assert "scipy.linalg" not in sys.modules, "it cost its time"
import scipy.linalg  # who needs it has it
with without_blas():
    assert sys.modules["scipy.linalg"] is scipy.linalg
assert sys.modules["scipy.linalg"] is scipy.linalg
"""


def test_kernels_load_without_blas() -> None:
    subprocess.run([sys.executable, "-c", _LOADS], check=True, timeout=120)
