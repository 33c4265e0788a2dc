"""The process between a trainer and its workers: imports once, forks them, watches, cleans up.

Forking from a process that has loaded the compiled kernels costs milliseconds a worker, and the
workers share that memory. The supervisor reports how each worker ended, and forks another in its
position when it is asked to. When the trainer is gone, however it went, the supervisor ends every
worker, stopped ones too, and is itself continued if it is stopped; when the supervisor itself is
killed, the kernel ends the workers (PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
from collections.abc import Iterator

from numba.core import event

from gigl_loader.rowcache import cache
from gigl_loader.sampler import compiled, packing_kernels, tree_kernels, weighted_kernels
from gigl_loader.workers import pipe, worker

_PR_SET_PDEATHSIG = 1
_BLAS = "scipy.linalg"


def main(*, users_code: bool = True) -> None:
    """Read the descriptor of the control socket from the command line, and serve it.

    Args:
        users_code: Whether workers run a sampler or a function of the user.
    """
    control = pipe.Socket(fileno=int(sys.argv[1]))
    # one that is stopped when the trainer goes would never read that it is gone. Not SIGKILL: this
    # comes as well at the end of the thread that started it, which may be before the trainer's
    _at_end_of_parent(signal.SIGCONT)
    wake_read, wake_write = os.pipe()
    # a signal handler that waited for room in the pipe would wait for its own reader
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    with contextlib.nullcontext() if users_code else _without_blas(), told_of_compiling(control):
        _load_kernels()
    gc.collect()
    gc.freeze()  # existing objects are never written again: forked pages stay shared
    # Python goes on with a `poll` that a signal interrupts, so that a byte has to end it; and it
    # writes that byte for signals that have a handler alone
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _Watch(control, [wake_read, wake_write]).run()


def _at_end_of_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


class _TellsTrainer(event.Listener):
    """Tells the trainer of each kernel that was compiled: a wait for workers has progress then."""

    def __init__(self, control: pipe.Socket) -> None:
        self._control = control

    def on_start(self, event: event.Event) -> None:
        """Do nothing: only finished work is progress."""

    def on_end(self, event: event.Event) -> None:
        """Say that one more is done."""
        with contextlib.suppress(OSError):  # the trainer is gone: the next look says so
            pipe.send(self._control, (pipe.COMPILED,))


def told_of_compiling(control: pipe.Socket) -> contextlib.AbstractContextManager[None]:
    """Tell the trainer, inside the block, of each kernel that Numba compiles."""
    found: contextlib.AbstractContextManager[None] = event.install_listener(
        "numba:compile", _TellsTrainer(control)
    )
    return found


def _load_kernels() -> None:
    compiled.load()
    packing_kernels.load()
    cache.load()
    tree_kernels.load()
    weighted_kernels.load()


@contextlib.contextmanager
def _without_blas() -> Iterator[None]:
    """Let Numba start as where scipy is not installed: 0.2 s of CPU time less.

    Numba imports ``scipy.linalg`` when it loads its first function, only to see whether there are
    routines for ``np.dot`` and its like in compiled functions. Our kernels have none of these, a
    user's function may.
    """
    if _BLAS in sys.modules:  # it costs nothing any more
        yield
        return
    sys.modules[_BLAS] = None  # type: ignore[assignment]  # the import system's "not there"
    try:
        yield
    finally:
        del sys.modules[_BLAS]


class _Watch:
    """Forks workers, reports how they end, and ends them when the trainer is gone."""

    def __init__(self, control: pipe.Socket, wake: list[int]) -> None:
        self._control, self._wake = control, wake
        self._pids: dict[int, int] = {}
        """Numbers of workers by pid."""

    def run(self) -> None:
        """Return when the trainer has closed its end, or is gone."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake[0], select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._wake[0]:
                    os.read(fd, 512)  # however many have ended: `_reap` asks for all of them
                elif not self._obey():
                    self._end_all()
                    return
            if not self._reap():
                self._end_all()
                return

    def _obey(self) -> bool:
        """Carry out the trainer's requests; False: it is gone."""
        got = pipe.receive(self._control)
        if got is None:
            return False
        (kind, *rest), fds = got
        if kind == pipe.FORK:
            self._fork(rest[0], pipe.Socket(fileno=fds[0]))
        elif kind == pipe.KILL and rest[0] in self._pids:
            os.kill(rest[0], signal.SIGKILL)  # not reaped yet, so the pid is still its own
        return True

    def _fork(self, number: int, sock: pipe.Socket) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(number, sock)
        sock.close()  # the worker's copy is the only one: its end is the end of the socket
        self._pids[pid] = number
        with contextlib.suppress(OSError):  # the trainer is gone: the next look says so
            pipe.send(self._control, (pipe.FORKED, number, pid))

    def _become_worker(self, number: int, sock: pipe.Socket) -> None:
        code = 1
        try:
            parent = os.getppid()
            # before a signal can come: the pipe is the supervisor's, too
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _at_end_of_parent(signal.SIGKILL)
            # else the trainer would not see the end of a supervisor whose workers still end
            self._control.close()
            for fd in self._wake:
                os.close(fd)
            if os.getppid() == parent:  # else the supervisor went before the line above
                worker.main(sock, number)
                code = 0
        finally:  # never back into the supervisor's loop, after any error
            os._exit(code)

    def _reap(self) -> bool:
        """Report ended workers; False: the trainer is gone."""
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
        for pid in self._pids:  # all of them first: they end at the same time
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._pids.clear()


if __name__ == "__main__":
    main()
