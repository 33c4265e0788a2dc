"""The process between a trainer and its workers: imports once, forks them, watches, cleans up.

Forking from a process that has loaded the compiled kernels costs milliseconds a worker, and the
workers share that memory. The supervisor reports how each worker ended. When the trainer is gone,
however it went, the supervisor ends every worker, stopped ones too; when the supervisor itself is
killed, the kernel ends the workers (PR_SET_PDEATHSIG).
"""

import ctypes
import gc
import os
import select
import signal
import sys

from gigl_loader.sampler import _kernels, _packing_kernels
from gigl_loader.workers import messages, pipe, worker

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read descriptors from the command line: the control socket, then one per worker."""
    control, *sockets = [pipe.Socket(fileno=int(fd)) for fd in sys.argv[1:]]
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    _kernels.load()
    _packing_kernels.load()
    gc.collect()
    gc.freeze()  # what is there now is never written again: forked pages stay shared
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pids = {}
    for number, sock in enumerate(sockets):
        pid = os.fork()
        if pid == 0:
            _become_worker(number, sock, [control, *(s for s in sockets if s is not sock)])
        pids[pid] = number
    for sock in sockets:
        sock.close()
    pipe.send(control, (messages.READY, {number: pid for pid, number in pids.items()}))
    _Watch(control, pids).run(wake_read)


def _become_worker(number: int, sock: pipe.Socket, others: list[pipe.Socket]) -> None:
    code = 1
    try:
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for other in others:
            other.close()
        if os.getppid() == parent:  # else the supervisor went before the line above
            worker.main(sock, number)
            code = 0
    finally:
        os._exit(code)


class _Watch:
    """Reports how workers end, and ends them when the trainer is gone."""

    def __init__(self, control: pipe.Socket, pids: dict[int, int]) -> None:
        self._control, self._pids = control, pids

    def run(self, wake: int) -> None:
        """Return when no worker is left."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake, select.POLLIN)
        while self._pids:
            for fd, _ in poller.poll():
                if fd == wake:
                    os.read(wake, 512)
                elif pipe.receive(self._control) is None:  # closed, or the trainer is gone
                    _kill(self._pids)
                    return
            self._reap()

    def _reap(self) -> None:
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._pids.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                try:
                    pipe.send(self._control, (messages.EXITED, number, pid, code))
                except OSError:
                    _kill(self._pids)
                    return


def _kill(pids: dict[int, int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    pids.clear()


if __name__ == "__main__":
    main()
