"""What goes wrong on purpose, importable by sampling workers."""

import ctypes
import os
import resource
import signal
import threading
from pathlib import Path

from gigl_loader.sampler.neighbor import NeighborSampler


class Faulty(NeighborSampler):
    """A neighbour sampler that fails at one batch of one epoch, in the way ``how``.

    With ``once``, a path, no more after a file of that name exists, which it makes. Its pid is in
    there; where it hangs, also in a file of the folder ``hung``.
    """

    def __init__(
        self,
        view,
        plan,
        peers,
        *,
        how: str,
        epoch: int = 0,
        batch: int = 3,
        once: str = "",
        hung: str = "",
    ) -> None:
        super().__init__(view, plan, peers)
        self._how, self._at, self._once, self._hung = how, (epoch, batch), once, hung
        if how == "constructor":
            raise LookupError("no such table")

    def sample(self, request):
        if (request.ticket.epoch, request.ticket.batch) == self._at:
            self._fail()
        return super().sample(request)

    def _fail(self) -> None:
        if self._once:
            if Path(self._once).exists():
                return
            Path(self._once).write_text(str(os.getpid()))
        if self._how == "raise":
            raise ArithmeticError("this batch does not add up")
        if self._how == "exit":
            os._exit(3)
        if self._how == "segfault":
            ctypes.string_at(0)
        if self._how == "hang":
            if self._hung:
                (Path(self._hung) / str(os.getpid())).write_text(str(os.getpid()))
            threading.Event().wait()
        if self._how == "write":
            raise OSError(28, "No space left on device")


def raise_in_worker(number: int) -> None:
    raise PermissionError(f"worker {number} may not do this")


def end_supervisor(notes: str, times: int, number: int) -> None:
    """Kill the supervisor, so many times in all, and with it this process; for `partial`."""
    for turn in range(times if number == 1 else 0):
        note = Path(notes) / str(turn)
        if not note.exists():
            note.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            threading.Event().wait()


def block_worker(number: int) -> None:
    if number == 1:
        threading.Event().wait()


def limit_memory(number: int) -> None:
    """Let every segment above 128 KiB be refused: a stand-in for a machine without memory."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * 1024, 128 * 1024))
