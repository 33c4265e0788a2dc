"""What a supervisor imports before it forks workers, and tells meanwhile."""

import subprocess
import sys

import numba

from gigl_loader.workers import pipe
from gigl_loader.workers.supervisor import told_of_compiling

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


def test_each_kernel_that_is_compiled_is_progress() -> None:
    """The first start on a machine compiles for longer than a wait may have no progress."""
    trainer, control = pipe.pair()
    with trainer, control:
        with told_of_compiling(control):
            assert numba.njit(lambda x: x + 1)(1) == 2
        got = pipe.receive(trainer)
        assert got is not None
        assert got[0] == (pipe.COMPILED,)
        numba.njit(lambda x: x + 2)(1)  # after the block nobody is told
        control.close()
        assert pipe.receive(trainer) is None
