"""Worker processes: start, talk to, watch, stop. Knows nothing of epochs or graphs."""

import atexit
import contextlib
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigl_loader.errors import PeerTimeoutError, SamplingError, UsageError, WorkerDiedError
from gigl_loader.memory import segments
from gigl_loader.workers import messages, pipe
from gigl_loader.workers.setup import WorkerSetup

logger = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 30.0
_PROGRESS_S = 10.0
_EXIT_REPORT_S = 2.0
"""How long the supervisor may take to say how a worker ended."""
_STATES = {
    "T": "stopped by a signal (SIGSTOP or SIGTSTP)", "t": "stopped by a debugger",
    "D": "waiting for a disk or device", "R": "running", "S": "sleeping", "Z": "dead",
}  # fmt: skip

_live_pools: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


def in_new_interpreter(script: str, fds: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Run ``script`` in a new Python interpreter, with ``fds`` kept open, as its arguments."""
    command = [sys.executable, "-c", script, *map(str, fds)]
    return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)


start_supervisor = in_new_interpreter
"""How a pool starts its supervisor; `gigl_loader.testing` has a way that is faster."""


@dataclass
class _Worker:
    number: int
    sock: pipe.Socket
    pid: int = -1
    ready: bool = False
    address: tuple[str, int] | None = None
    exitcode: int | None = None
    exited: bool = False
    eof: bool = False


@dataclass(frozen=True)
class Event:
    """One message of a worker."""

    worker: int
    message: tuple[Any, ...]
    fds: tuple[int, ...]


class WorkerPool:
    """The workers of one producer.

    ::

        trainer --socket--> supervisor (forks, watches)    trainer gone: supervisor kills workers
           `-----socket per worker------> worker, worker   supervisor gone: the kernel kills them
    """

    def __init__(self, num_workers: int) -> None:
        self._workers: list[_Worker] = []
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._control: pipe.Socket | None = None
        self._selector = selectors.DefaultSelector()
        self._events: deque[Event] = deque()
        self._reading = threading.RLock()  # one thread at a time waits for the workers
        self._sending = threading.Lock()  # sending never waits for a reader
        self._ending = threading.Lock()
        self._stopped = False
        self.num_workers = num_workers

    # -- start ----------------------------------------------------------------------------------

    def start(self, setup: WorkerSetup, timeout_s: float) -> None:
        """Start the workers and wait until each is ready.

        Raises:
            SamplingError: A worker raised while it started; carries its traceback.
            WorkerDiedError: A worker ended.
            PeerTimeoutError: One was not ready in ``timeout_s`` seconds. None is left, ever.
        """
        if self._supervisor is not None or self._stopped:
            raise UsageError("a worker pool starts once")
        _live_pools.add(self)
        try:
            self._spawn(setup.main_path)
            self._await_ready(setup, time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.stop(0.0)
            raise

    def _spawn(self, main_path: str | None) -> None:
        pairs = [pipe.pair() for _ in range(self.num_workers + 1)]
        ours, theirs = zip(*pairs, strict=True)
        self._control = ours[0]
        self._workers = [_Worker(number, sock) for number, sock in enumerate(ours[1:])]
        fds = [sock.fileno() for sock in theirs]
        script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # the trainer's
        script += f"import sys; sys.path[:] = {sys.path!r}\n"
        if main_path is not None:
            script += f"import multiprocessing.spawn as s; s.import_main_path({main_path!r})\n"
        script += "from gigl_loader.workers.supervisor import main; main()"
        try:
            self._supervisor = start_supervisor(script, fds)
        finally:
            for sock in theirs:
                sock.close()
        for worker in self._workers:
            worker.sock.settimeout(_SEND_TIMEOUT_S)
            self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        self._selector.register(self._control, selectors.EVENT_READ, None)

    def _await_ready(self, setup: WorkerSetup, deadline: float, timeout_s: float) -> None:
        for worker in self._workers:
            pipe.send_object(worker.sock, setup)
        while not all(worker.ready for worker in self._workers):
            left = deadline - time.monotonic()
            if left <= 0:
                late = [worker.number for worker in self._workers if not worker.ready]
                raise PeerTimeoutError(
                    f"sampling workers {late} were not ready {timeout_s:.0f} s after their start: "
                    f"{self.describe(late)}; raise `timeout` if this machine is that slow"
                )
            for event in self._collect(min(left, 1.0)):
                if event.message[0] != messages.READY:
                    raise SamplingError(
                        f"start of sampling worker {event.worker}", *event.message[1:3]
                    )

    @property
    def addresses(self) -> list[tuple[str, int] | None]:
        """Where each worker answers other partitions."""
        return [worker.address for worker in self._workers]

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    # -- talk -----------------------------------------------------------------------------------

    def send(self, number: int, message: tuple[Any, ...], obj: Any = None) -> None:
        """Send ``message`` to a worker, followed by ``obj`` where one is given.

        Raises:
            WorkerDiedError: The worker is gone.
            PeerTimeoutError: It does not read.
        """
        worker = self._workers[number]
        with self._sending:
            try:
                pipe.send(worker.sock, message)
                if obj is not None:
                    pipe.send_object(worker.sock, obj)
            except TimeoutError as error:
                raise PeerTimeoutError(
                    f"sampling {self.describe([number])} did not take a message for "
                    f"{_SEND_TIMEOUT_S:.0f} s"
                ) from error
            except OSError:
                worker.eof = True
        if worker.eof:
            with self._reading:
                self._raise_died(worker)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return what workers sent, waiting up to ``timeout_s`` seconds for the first.

        Raises:
            WorkerDiedError: A worker ended. What it had sent before comes first.
        """
        return self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> list[Event]:
        with self._reading:
            if self._stopped:
                raise UsageError("the workers were stopped")
            self._raise_if_any(lambda worker: worker.eof)  # all that it sent was returned before
            self._read(timeout_s)
            events = list(self._events)
            self._events.clear()
            if not events:
                self._raise_if_any(lambda worker: worker.eof or worker.exited)
            return events

    def _raise_if_any(self, has_ended: Callable[[_Worker], bool]) -> None:
        for worker in self._workers:
            if has_ended(worker):
                self._raise_died(worker)

    def _read(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            worker: _Worker | None = key.data
            sock = key.fileobj
            assert isinstance(sock, pipe.Socket)
            got = pipe.receive(sock)
            if got is None:
                self._selector.unregister(sock)
                if worker is not None:
                    worker.eof = True
                else:
                    self._on_supervisor_gone()
            else:
                self._file(worker, *got)

    def _file(self, worker: _Worker | None, message: tuple[Any, ...], fds: list[int]) -> None:
        if worker is None:
            self._on_supervisor(message)
        elif message[0] == messages.READY:
            worker.ready, worker.address = True, message[1]
        else:
            self._events.append(Event(worker.number, message, tuple(fds)))

    def _on_supervisor(self, message: tuple[Any, ...]) -> None:
        if message[0] == messages.READY:
            for number, pid in message[1].items():
                self._workers[number].pid = pid
        elif message[0] == messages.EXITED:
            worker = self._workers[message[1]]
            worker.exited, worker.exitcode = True, message[3]
        else:
            self._events.append(Event(-1, message, ()))

    def _on_supervisor_gone(self) -> None:
        for worker in self._workers:
            worker.exited = True

    def _raise_died(self, worker: _Worker) -> None:
        deadline = time.monotonic() + _EXIT_REPORT_S
        while not worker.exited and time.monotonic() < deadline:
            self._read(0.1)
        raise WorkerDiedError(worker.number, worker.pid, worker.exitcode)

    def describe(self, numbers: list[int]) -> str:
        """Say who workers are and what the system says they are doing."""

        def state(pid: int) -> str:
            return "not started yet" if pid < 0 else f"pid {pid}, {process_state(pid)}"

        return ", ".join(f"worker {n} ({state(self._workers[n].pid)})" for n in numbers)

    # -- stop -----------------------------------------------------------------------------------

    def stop(self, linger_s: float) -> None:
        """End all workers; idempotent, and never raises.

        Args:
            linger_s: They go on answering other partitions until the workers that ask them have
                said that they are done, or have asked nothing for this many seconds.
        """
        with self._ending:
            if self._stopped:
                return
            self._stopped = True
        _live_pools.discard(self)
        for worker in self._workers:
            with contextlib.suppress(OSError), self._sending:
                worker.sock.settimeout(0.0 if linger_s <= 0 else _SEND_TIMEOUT_S)
                pipe.send(worker.sock, (messages.STOP, linger_s))
        with self._reading:  # a reader sees _stopped within the second that it waits at most
            self._drop_events()
            if linger_s > 0:
                self._await_exit(linger_s)
            self._close()

    def _drop_events(self) -> None:
        for event in self._events:
            segments.close_fds(list(event.fds))
        self._events.clear()

    def _await_exit(self, linger_s: float) -> None:
        heard = said = time.monotonic()
        while not all(worker.exited for worker in self._workers):
            now = time.monotonic()
            if now - heard > linger_s + _EXIT_REPORT_S or not self._selector.get_map():
                return  # not even a sign of life: the supervisor ends them
            if now - said > _PROGRESS_S:
                said = now
                logger.info("the workers still answer other partitions whose loaders are at work")
            with contextlib.suppress(OSError):
                self._read(1.0)
            if any(event.message[0] == messages.LINGERING for event in self._events):
                heard = now
            self._drop_events()

    def _close(self) -> None:
        self._selector.close()
        for worker in self._workers:
            worker.sock.close()
        if self._control is not None:
            self._control.close()  # the supervisor kills what is left, and ends
        if self._supervisor is not None:
            try:
                self._supervisor.wait(5.0)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()  # the kernel ends its workers with it
                self._supervisor.wait(5.0)

    def disown(self) -> None:
        """Forget the workers, in a forked child: they are the parent's.

        Only descriptors are closed, so that the parent's end is not kept open by its child.
        """
        self._stopped = True
        for worker in self._workers:
            worker.sock.close()
        if self._control is not None:
            self._control.close()
        self._supervisor = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.stop(0.0)


def read_stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the third, the state, on; None: it is gone.

    A process that ends between the opening and the reading of the file is a ProcessLookupError,
    one that had ended before a FileNotFoundError.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def process_state(pid: int) -> str:
    """Return in words what the system says that process ``pid`` is doing."""
    stat = read_stat(pid)
    return "gone" if stat is None else _STATES.get(stat[0], f"state {stat[0]}")


@atexit.register
def _stop_all() -> None:
    for pool in list(_live_pools):
        pool.stop(0.0)


def _after_fork() -> None:  # a forked child of the trainer owns none of its workers
    for pool in list(_live_pools):
        pool.disown()
    _live_pools.clear()


os.register_at_fork(after_in_child=_after_fork)
