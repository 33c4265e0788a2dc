"""What a supervisor imports before it forks workers, and tells meanwhile."""

import errno
import os
import subprocess
import sys

import numba
import pytest

from gigl_loader.sources.workers import pipe, supervisor
from gigl_loader.sources.workers.supervisor import told_of_compiling
from tests.support.scripts import run_python

_LOADS = """
import sys
from gigl_loader.sources.workers import supervisor
without_blas = supervisor._without_blas
with without_blas():
    supervisor.KERNELS["uniform"]()
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


def test_a_worker_that_cannot_be_forked_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor lives on, and the trainer learns which limit it was."""
    trainer, control = pipe.pair()
    ours, workers = pipe.pair()

    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with trainer, control, ours:
        pipe.send(trainer, (pipe.FORK, 0), [workers.fileno()])
        workers.close()
        monkeypatch.setattr(os, "fork", refused)
        assert supervisor._TrainerWatch(control, [])._obey()
        got = pipe.receive(ours)
        assert got is not None
        kind, cause, text = got[0]
        assert kind == pipe.FAILED
        assert "may start no more processes and threads: raise the limit (ulimit -u" in cause
        assert "BlockingIOError" in text
        assert pipe.receive(ours) is None


_ENDS = """
import atexit, sys
atexit.register(print, "the interpreter ends")
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.supervisor import main
trainer, control = pipe.pair()
sys.argv = ["", str(control.detach())]
trainer.close()
print("it serves", flush=True)
main([])
"""


def test_a_supervisor_without_trainer_is_gone_without_the_end_of_its_interpreter() -> None:
    """Seen: 4 s of a server's 10 between SIGTERM and its end, at a load of 20."""
    done = run_python("-c", _ENDS)
    assert (done.returncode, done.stdout.strip()) == (0, "it serves"), done.stderr


_FAILS = """
import os
from gigl_loader.sources.workers import pipe, supervisor, worker

def fails(sock, number):
    raise ZeroDivisionError("in the loop of a worker")

worker.main = fails
trainer, control = pipe.pair()
ours, workers = pipe.pair()
pipe.send(trainer, (pipe.FORK, 0), [workers.fileno()])
watch = supervisor._TrainerWatch(control, list(os.pipe()))
assert watch._obey()
(pid,) = watch._pids
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
"""


def test_the_traceback_of_a_worker_is_in_its_stderr() -> None:
    """The error says so; the worker ended before Python printed anything."""
    done = subprocess.run(
        [sys.executable, "-c", _FAILS], check=True, timeout=120, capture_output=True, text=True
    )
    assert "ZeroDivisionError: in the loop of a worker" in done.stderr
    assert "in fails" in done.stderr
