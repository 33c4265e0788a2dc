"""The process between a trainer and its workers: imports once, forks them, watches, cleans up.

Forking from a process that has imported torch and loaded the compiled kernels costs milliseconds a
worker, and the workers share that memory. The steward reports how each worker ended. When the
trainer is gone, however it went, the steward ends every worker, stopped ones too; when the steward
itself is killed, the kernel ends the workers (PR_SET_PDEATHSIG).
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback

from gigl_loader.producer import setup as kinds
from gigl_loader.producer import wire

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read descriptors from the command line: the control socket, then one per worker."""
    control, *sockets = [socket.socket(fileno=int(fd)) for fd in sys.argv[1:]]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    try:
        from gigl_loader.producer import worker

        worker.warm_up()
    except BaseException as error:
        wire.send(
            control, (kinds.FAILED, f"{type(error).__name__}: {error}"[:8000],
                      traceback.format_exc()[-60_000:])
        )  # fmt: skip
        raise SystemExit(1) from None
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
    wire.send(control, (kinds.READY, {number: pid for pid, number in pids.items()}))
    _watch(control, wake_read, pids)


def _become_worker(number: int, sock: socket.socket, others: list[socket.socket]) -> None:
    code = 1
    try:
        parent = os.getppid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for other in others:
            other.close()
        if os.getppid() == parent:  # else the steward went before the line above
            from gigl_loader.producer import worker

            worker.main(sock, number)
            code = 0
    finally:
        os._exit(code)


def _watch(control: socket.socket, wake: int, pids: dict[int, int]) -> None:
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while pids:
        for fd, _ in poller.poll():
            if fd == wake:
                os.read(wake, 512)
            elif wire.receive(control) is None:  # the trainer closed it, or is gone
                _kill(pids)
                return
        _reap(control, pids)


def _reap(control: socket.socket, pids: dict[int, int]) -> None:
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        number = pids.pop(pid, None)
        if number is not None:
            try:
                wire.send(control, (kinds.EXITED, number, pid, os.waitstatus_to_exitcode(status)))
            except OSError:
                _kill(pids)
                return


def _kill(pids: dict[int, int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    pids.clear()


if __name__ == "__main__":
    main()
