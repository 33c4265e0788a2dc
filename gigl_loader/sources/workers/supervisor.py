"""The process between a trainer and its workers: imports once, forks them, watches, cleans up.

Forking from a process that has loaded the compiled kernels costs milliseconds a worker, and the
workers share that memory. The supervisor reports how each worker ended, and forks another in its
position on request. When the trainer is gone, for whatever reason, the supervisor ends every
worker, stopped ones too, and the kernel continues it if it is stopped itself; when the supervisor
is killed, the kernel ends the workers (PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numba.core import event

from gigl_loader.errors import explained_limits
from gigl_loader.sampler.kernels.kernel_loaders import LOADERS
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sources.workers import pipe, worker

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
AT_WORK, AT_REST = "gigl-supervisor", "gigl-at-rest"
"""Names in ``/proc/<pid>/comm``, for who asks what this process is; at most 15 letters."""
_BLAS = "scipy.linalg"
KERNELS: dict[str, Callable[[], None]] = {**LOADERS, "cached": RowCache.load_kernels}
"""Loaders of kernels: those of samplers, and those of the row cache."""


def main(kernels: Sequence[str], *, users_code: bool = True) -> None:
    """Read the descriptor of the control socket from the command line, and serve it.

    Args:
        kernels: Names in `KERNELS` of those that workers need.
        users_code: Whether workers run a sampler or a function of the user.
    """
    control = pipe.Socket(fileno=int(sys.argv[1]))
    # A supervisor that is stopped when the trainer ends would never notice. Not SIGKILL: the signal
    # also comes at the end of the thread that started it, which may be before the trainer's end.
    _at_end_of_parent(signal.SIGCONT)
    wake_read, wake_write = os.pipe()
    # non-blocking, as a signal handler that waited for room in the pipe would wait for itself
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    with contextlib.nullcontext() if users_code else _without_blas():
        load_kernels(control, kernels)
    gc.collect()
    gc.freeze()  # the collector no longer writes to existing objects: forked pages stay shared
    # Python resumes a `poll` that a signal interrupted, so a byte has to end it, and Python writes
    # that byte only for signals that have a handler
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _TrainerWatch(control, [wake_read, wake_write]).run()
    # The trainer waits for this process, and the end of an interpreter with compiled kernels takes
    # seconds on a busy machine. There is nothing left to write or to release.
    os._exit(0)


def _at_end_of_parent(number: signal.Signals) -> None:
    """Make the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _take_name(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())


def _write_to(output: int, errors: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.dup2(output, 1)
    os.dup2(errors, 2)


class _TellsTrainer(event.Listener):
    """Tells the trainer of each compiled kernel, which counts as progress in a wait for workers."""

    def __init__(self, control: pipe.Socket) -> None:
        self._control = control

    def on_start(self, event: event.Event) -> None:
        """Do nothing: only finished work is progress."""

    def on_end(self, event: event.Event) -> None:
        """Report that one more kernel is done."""
        with contextlib.suppress(OSError):  # the trainer is gone, which the next check shows
            pipe.send(self._control, (pipe.COMPILED,))


def told_of_compiling(control: pipe.Socket) -> contextlib.AbstractContextManager[None]:
    """Tell the trainer, inside the block, of each kernel that Numba compiles."""
    listener: contextlib.AbstractContextManager[None] = event.install_listener(
        "numba:compile", _TellsTrainer(control)
    )
    return listener


def load_kernels(control: pipe.Socket, names: Sequence[str]) -> None:
    """Load kernels by their names in `KERNELS`; tell the trainer of compiled ones."""
    with told_of_compiling(control):
        for name in names:
            KERNELS[name]()  # loaded ones take well under a millisecond


@contextlib.contextmanager
def _without_blas() -> Iterator[None]:
    """Let Numba start as if scipy were not installed, which saves 0.2 s of CPU time.

    Numba imports ``scipy.linalg`` when it loads its first function, only to check for routines
    that ``np.dot`` and the like need in compiled functions. Our kernels use none of these; a
    user's function may.
    """
    if _BLAS in sys.modules:  # already imported: nothing to save
        yield
        return
    sys.modules[_BLAS] = None  # type: ignore[assignment]  # the import system's "not there"
    try:
        yield
    finally:
        del sys.modules[_BLAS]


class _TrainerWatch:
    """Forks workers, reports how they end, and ends them when the trainer is gone."""

    def __init__(self, control: pipe.Socket, wake: list[int]) -> None:
        self._control, self._wake = control, wake
        self._pids: dict[int, int] = {}
        """Worker numbers by pid."""
        self._rest_s: float | None = None
        """Seconds that it rests without a pool; None: it has one."""

    def run(self) -> None:
        """Return once the trainer has closed its end or is gone, or has left it at rest."""
        _take_name(AT_WORK)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake[0], select.POLLIN)
        while True:
            ready = poller.poll(None if self._rest_s is None else self._rest_s * 1000)
            if not ready:
                return
            for fd, _ in ready:
                if fd == self._wake[0]:
                    os.read(fd, 512)  # any number of bytes: `_reap` finds all that have ended
                elif not self._obey():
                    self._end_all()
                    return
            if not self._reap():
                self._end_all()
                return

    def _obey(self) -> bool:
        """Carry out the trainer's requests; return False if it is gone."""
        got = pipe.receive(self._control)
        if got is None:
            return False
        (kind, *rest), fds = got
        if kind == pipe.FORK:
            self._fork(rest[0], pipe.Socket(fileno=fds[0]))
        elif kind == pipe.KILL and rest[0] in self._pids:
            os.kill(rest[0], signal.SIGKILL)  # not reaped yet, so the pid is still the worker's
        elif kind == pipe.REST:
            self._rest(*rest)
        elif kind == pipe.SERVE:
            self._serve(fds, *rest)
        return True

    def _rest(self, rest_s: float) -> None:
        self._end_all()
        self._rest_s = rest_s
        _take_name(AT_REST)
        # it keeps no folder busy, and no pipe open that a reader waits for
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_WRONLY)
        _write_to(nothing, nothing)
        os.close(nothing)
        with contextlib.suppress(OSError):  # the trainer is gone: the next look says so
            pipe.send(self._control, (pipe.RESTING,))

    def _serve(
        self,
        fds: list[int],
        variables: dict[str, str],
        unset: list[str],
        path: list[str],
        kernels: list[str],
    ) -> None:
        """Become as one that the trainer would start now; see `resting`."""
        self._rest_s = None
        with contextlib.suppress(OSError):
            pipe.send(self._control, (pipe.SERVING,))  # first: kernels may have to be compiled
        _take_name(AT_WORK)
        # by os.environ, not as a new dict: C code reads the variables with getenv()
        os.environ.update(variables)
        for name in unset:
            os.environ.pop(name, None)
        os.fchdir(fds[0])
        _write_to(*fds[1:])
        for fd in fds:
            os.close(fd)
        sys.path[:] = path
        importlib.invalidate_caches()  # the user may have written modules meanwhile
        # what samplers draw from it would repeat that of the workers before
        np.random.seed()
        load_kernels(self._control, kernels)
        gc.freeze()

    def _fork(self, number: int, sock: pipe.Socket) -> None:
        try:
            with explained_limits("starting a sampling worker"):
                pid = os.fork()
        except OSError as error:  # no more processes: in the place of the worker's first message
            words = (pipe.FAILED, f"{type(error).__name__}: {error}", traceback.format_exc())
            with contextlib.suppress(OSError):
                pipe.send(sock, words)
            sock.close()
            return
        if pid == 0:
            self._become_worker(number, sock)
        sock.close()  # the worker has the only copy, so the socket ends with it
        self._pids[pid] = number
        with contextlib.suppress(OSError):  # the trainer is gone: the next look says so
            pipe.send(self._control, (pipe.FORKED, number, pid))

    def _become_worker(self, number: int, sock: pipe.Socket) -> None:
        code = 1
        try:
            parent = os.getppid()
            _take_name(f"gigl-worker-{number}"[:15])
            # before a signal can come, as the pipe is shared with the supervisor
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _at_end_of_parent(signal.SIGKILL)
            # else the trainer would not see a supervisor's end while its workers still end
            self._control.close()
            for fd in self._wake:
                os.close(fd)
            if os.getppid() == parent:  # else the supervisor ended before the line above
                worker.main(sock, number)
                code = 0
        except BaseException:  # `os._exit` below leaves Python no time to print it
            traceback.print_exc()
            sys.stderr.flush()
        finally:  # never return into the supervisor's loop, whatever the error
            os._exit(code)

    def _reap(self) -> bool:
        """Report ended workers; return False if the trainer is gone."""
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            number = self._pids.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                try:
                    pipe.send(self._control, (pipe.EXITED, number, pid, code))
                except OSError:
                    return False
        return True

    def _end_all(self) -> None:
        for pid in self._pids:  # kill all before waiting, so that they end at the same time
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._pids.clear()
