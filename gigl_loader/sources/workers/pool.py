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
from dataclasses import dataclass, field
from typing import Any

from gigl_loader.errors import PeerTimeoutError, SamplingError, UsageError, WorkerDiedError
from gigl_loader.runtime.interrupts import interruptible
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.system import read_stat
from gigl_loader.sources.workers import pipe, resting
from gigl_loader.sources.workers.pipe import WorkerSetup
from gigl_loader.sources.workers.schedule import Restarts, ended_by_itself

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 30.0
"""Seconds for which a process may have no room for a message before it counts as hanging."""
_PROGRESS_S = 10.0
_EXIT_REPORT_S = 10.0
"""Seconds that the supervisor may take to report how a worker ended; it takes milliseconds if it
gets to run. After that the worker counts as gone for an unknown reason."""
_STATES = {
    "T": "stopped by a signal (SIGSTOP or SIGTSTP)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk or device",
    "R": "running",
    "S": "sleeping",
    "Z": "dead",
}

_live_pools: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


def start_supervisor(script: str, fds: Sequence[int]) -> "subprocess.Popen[bytes]":
    """Run ``script`` in a new Python interpreter, with ``fds`` kept open, as its arguments."""
    command = [sys.executable, "-c", script, *map(str, fds)]
    return subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL)


@dataclass
class _Worker:
    number: int
    sock: pipe.Socket
    pid: int | None = None
    """None until its supervisor has started it. Never -1: killing that kills all processes."""
    ready: bool = False
    address: tuple[str, int] | None = None
    exitcode: int | None = None
    exited: bool = False
    """Whether its supervisor has reaped it; then all that it sent has arrived."""
    orphan_of: int | None = None
    """Number of its lost supervisor, from 1: the kernel ends the worker, which may send until then,
    and nobody reports how it ended. None: the supervisor is alive."""
    eof_at: float | None = None
    """Time at which its socket ended (`time.monotonic`)."""
    orphaned_at: float = 0.0
    told: bool = False
    """Whether a `pipe.DIED` was made for its end."""
    outbox: deque[tuple[bytes, list[int]]] = field(default_factory=deque)
    """Messages that it has no room for, with descriptors, which are closed when they are sent."""
    flushing: bool = False
    unread_since: float | None = None
    """Time since which it has no room (`time.monotonic`)."""


@dataclass(frozen=True)
class WorkerEvent:
    """One message of a worker."""

    worker: int
    message: tuple[Any, ...]
    fds: tuple[int, ...]


class WorkerPool:
    """The workers of one producer.

    ::

        trainer --socket--> supervisor (forks, watches)    trainer gone: supervisor kills workers
           `-----socket per worker------> worker, worker   supervisor gone: the kernel kills them

    Args:
        num_workers: Number of workers.
        dumps: `runtime.memory.tensors.dumps`. It needs torch, and what starts supervisors does
            without. starts: Starts a supervisor; None: `start_supervisor`.
    """

    def __init__(
        self,
        num_workers: int,
        dumps: "Callable[[Any], tuple[bytes, list[int]]]",
        starts: "Callable[[str, Sequence[int]], subprocess.Popen[bytes]] | None" = None,
    ) -> None:
        self._dumps, self._starts = dumps, starts
        self._workers: list[_Worker] = []
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._origin: resting.Origin | None = None
        """Where the supervisor comes from; None: it must not serve another pool."""
        self._control: pipe.Socket | None = None
        self._selector = selectors.DefaultSelector()
        self._events: deque[WorkerEvent] = deque()
        # a thread that takes two of these locks takes them in this order
        self._ending = threading.Lock()  # so that only one of two threads stops the pool
        self._reading = threading.RLock()  # one thread at a time waits for the workers
        # separate, so that sending never waits for a reader; reentrant, as the collector may end an
        # iterator within `send`, whose epoch workers are then told of
        self._sending = threading.RLock()
        # never held while anything waits, as wake-ups come from other producers' threads
        self._waking = threading.Lock()
        self._waker: int | None = None
        """Descriptor whose event ends the wait of `poll`."""
        self._stopped = False
        self._is_gone = False
        """Whether the supervisor has ended."""
        self._num_supervisors = 0
        self._compiled_at = 0.0
        """Time at which the supervisor last compiled a kernel."""
        self._setup: WorkerSetup | None = None
        self._listeners: dict[int, int] = {}
        """Descriptors of the sockets on which workers serve, by worker: they outlive a lost
        worker, so that callers wait for its successor and are not refused."""
        self.num_workers = num_workers

    # -- start ----------------------------------------------------------------------------------

    def start(self, setup: WorkerSetup, timeout_s: float, max_restarts: int = 0) -> None:
        """Start the workers and wait until each is ready.

        Args:
            setup: Setup of all workers.
            timeout_s: Longest wait, in seconds.
            max_restarts: How often to start a worker again that was killed, or whose supervisor
                was; one that ends by itself is not restarted, as it would end again.

        Raises:
            SamplingError: A worker raised while it started; carries its traceback.
            WorkerDiedError: A worker ended.
            PeerTimeoutError: A worker was not ready in ``timeout_s`` seconds. All are ended.
        """
        if self._supervisor is not None or self._stopped:
            raise UsageError("a worker pool starts once")
        _live_pools.add(self)
        self._setup = setup
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._waker, selectors.EVENT_READ, None)
        try:
            self._start_supervisor()
            for number in range(self.num_workers):
                self._workers.append(self._fork(number))
            # while the supervisor imports, setups wait in the sockets, or this waits for room
            for worker in self._workers:
                self._send_setup(worker, replaces=False)
            self._await_ready(timeout_s, Restarts(max_restarts))
        except BaseException:
            self.stop(0.0, keep=False)
            raise

    def replace(self, number: int, *, was_asked: bool = True) -> None:
        """Start another worker in place of one that died; `pipe.READY` tells when it is up.

        It serves on the socket of its predecessor.

        Args:
            number: Number of the worker.
            was_asked: Whether workers of other partitions may have sent requests to the old one.
        """
        with self._reading:
            if self._stopped:
                return
            self._close_worker(self._workers[number])
            self._workers[number] = self._fork(number)
            self._send_setup(self._workers[number], replaces=was_asked)

    def kill(self, number: int) -> None:
        """End a worker that hangs, which is then handled as one that died."""
        # through the supervisor: only it knows whether it has reaped the child, after which the pid
        # may belong to another process
        with contextlib.suppress(OSError), self._sending:
            if self._control is not None:
                pipe.send(self._control, (pipe.KILL, self._workers[number].pid))

    def _start_supervisor(self) -> None:
        self._is_gone = False
        self._num_supervisors += 1
        assert self._setup is not None, "a pool was started"
        main_path, users_code = self._setup.main_path, self._setup.users_code
        # none that has run the user's script, which may be another one the next time
        if main_path is None and self._starts is None:
            self._origin = resting.Origin.now(start_supervisor, users_code)
        rested = self._origin and resting.take(self._origin, self._setup.kernels)
        if rested:
            self._supervisor, self._control = rested.process, rested.control
        else:
            self._start_process(main_path, users_code, self._setup.kernels)
        assert self._control is not None, "there is a supervisor"
        self._selector.register(self._control, selectors.EVENT_READ, None)

    def _start_process(
        self, main_path: str | None, users_code: bool, kernels: Sequence[str]
    ) -> None:
        self._control, theirs = pipe.pair()
        self._control.settimeout(SEND_TIMEOUT_S)
        script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # the trainer's
        # including the user's later changes: their classes are imported there
        script += f"import sys; sys.path[:] = {sys.path!r}\n"
        if main_path is not None:
            script += f"import multiprocessing.spawn as s; s.import_main_path({main_path!r})\n"
        script += "from gigl_loader.sources.workers.supervisor import main\n"
        script += f"main({kernels!r}, users_code={users_code})"
        with theirs:  # the child has its copy: one kept here would hide the end of the child
            self._supervisor = (self._starts or start_supervisor)(script, [theirs.fileno()])

    def _fork(self, number: int) -> _Worker:
        # The supervisor was killed, and the kernel ends all of its workers: replacing the first one
        # starts a supervisor for the others as well.
        if self._has_lost_supervisor():
            self._renew_supervisor()
        ours, theirs = pipe.pair()
        worker = _Worker(number, ours)
        ours.setblocking(False)  # what it does not take at once waits in its outbox
        self._selector.register(ours, selectors.EVENT_READ, worker)
        with theirs:
            try:
                self._order(worker, theirs.fileno())
            except OSError:  # it has ended since the check above
                self._renew_supervisor()
                with contextlib.suppress(OSError):  # it ended too: then the worker's socket ends
                    self._order(worker, theirs.fileno())
        return worker

    def _order(self, worker: _Worker, fd: int) -> None:
        assert self._control is not None, "there is a supervisor"
        with self._sending:
            pipe.send(self._control, (pipe.FORK, worker.number), [fd])

    def _has_lost_supervisor(self) -> bool:
        # its socket ends before it can be reaped, long before on a busy machine
        return self._supervisor is None or self._is_gone or self._supervisor.poll() is not None

    def _renew_supervisor(self) -> None:
        # read its last reports of ended workers
        while self._control is not None and pipe.is_readable(self._control):
            got = pipe.receive(self._control)
            if got is None:
                break
            self._on_supervisor(got[0])
        self._on_supervisor_gone()
        self._close_control()
        self._await_supervisor()
        self._start_supervisor()

    def _send_setup(self, worker: _Worker, *, replaces: bool) -> None:
        listener = self._listeners.get(worker.number)
        fds = [] if listener is None else [os.dup(listener)]
        setup = pipe.pieces_of(*self._dumps(self._setup))
        self._post(worker, [*setup, (pipe.packed((pipe.PLACE, replaces)), fds)])

    def _await_ready(self, timeout_s: float, restarts: Restarts) -> None:
        started = time.monotonic()
        # a worker's own message may overtake its supervisor's, which has the pid
        while late := [one.number for one in self._workers if not one.ready or one.pid is None]:
            # the first start on a machine compiles: each finished kernel is progress
            left = max(started, self._compiled_at) + timeout_s - time.monotonic()
            if left <= 0:
                raise PeerTimeoutError(
                    f"sampling workers {late} were not ready {timeout_s:.0f} s after their start: "
                    f"{self.describe(late)}; raise `timeout` if this machine is that slow"
                )
            # in steps of a second, since `stop` in another thread waits for the reader that long
            for event in self.poll(min(left, 1.0)):
                kind, *rest = event.message
                if kind == pipe.DIED:
                    self._start_again(restarts, event.worker, *rest)
                elif kind != pipe.READY:
                    raise SamplingError(f"start of sampling worker {event.worker}", *rest[:2])

    @property
    def addresses(self) -> list[tuple[str, int] | None]:
        """Host and port on which each worker serves other partitions; None: it does not."""
        return [worker.address for worker in self._workers]

    @property
    def pids(self) -> list[int | None]:
        """Process id of each worker; None: it is being started or replaced."""
        return [worker.pid for worker in self._workers]

    @property
    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor, which may have ended; None: it is not started, or left."""
        return None if self._supervisor is None else self._supervisor.pid

    # -- talk -----------------------------------------------------------------------------------

    def _start_again(
        self,
        restarts: Restarts,
        number: int,
        pid: int | None,
        exitcode: int | None,
        orphan_of: int | None,
    ) -> None:
        """Restart a worker that was ended from outside while the pool starts.

        Raises:
            WorkerDiedError: The worker ended by itself, or too often.
        """
        error = WorkerDiedError(number, pid, exitcode)
        if ended_by_itself(exitcode) or not restarts.may_take(orphan_of):
            raise error
        logger.warning("%s; it is started again", error)
        time.sleep(restarts.take(orphan_of))
        self.replace(number, was_asked=False)

    def send(self, number: int, message: tuple[Any, ...], obj: Any = None) -> None:
        """Send ``message`` to a worker, followed by ``obj`` if one is given. Never waits.

        What a worker does not take at once is sent while `poll` waits; after `SEND_TIMEOUT_S` it
        reports the worker as `pipe.UNREAD`. A worker that is gone gets nothing; `poll` reports its
        end.
        """
        # all of it before anything is sent: a worker that waits for an object takes the next
        # message for it
        pieces = [] if obj is None else pipe.pieces_of(*self._dumps(obj))
        self._post(self._workers[number], [(pipe.packed(message), []), *pieces])

    def _post(self, worker: _Worker, messages: list[tuple[bytes, list[int]]]) -> None:
        with self._sending:
            worker.outbox.extend(messages)
            self._flush(worker)

    def _flush(self, worker: _Worker) -> None:
        """Send what a worker takes; `_sending` is held."""
        if worker.flushing:  # within a send, by the collector: that call goes on with it
            return
        worker.flushing = True
        try:
            while worker.outbox:
                data, fds = worker.outbox[0]
                pipe.send_packed(worker.sock, data, fds)
                worker.outbox.popleft()
                segments.close_fds(fds)
                self._note_room(worker, has_room=True)
        except BlockingIOError:
            self._note_room(worker, has_room=False)
        except OSError:  # it is gone
            self._drop_outbox(worker)
        finally:
            worker.flushing = False

    def _note_room(self, worker: _Worker, *, has_room: bool) -> None:
        """Note whether a worker reads; while it does not, `poll` waits for it to have room."""
        if has_room == (worker.unread_since is None):
            return
        worker.unread_since = None if has_room else time.monotonic()
        events = selectors.EVENT_READ if has_room else selectors.EVENT_READ | selectors.EVENT_WRITE
        with contextlib.suppress(KeyError, ValueError):  # its end was read
            self._selector.modify(worker.sock, events, worker)  # for a thread that waits, too

    def _drop_outbox(self, worker: _Worker) -> None:
        while worker.outbox:
            segments.close_fds(worker.outbox.popleft()[1])
        self._note_room(worker, has_room=True)

    def poll(self, timeout_s: float) -> list[WorkerEvent]:
        """Return messages of workers, waiting up to ``timeout_s`` seconds for the first.

        The end of a worker is reported once, as `pipe.DIED` with pid, exit code and the supervisor
        that it was lost with; no message of that worker follows.
        """
        with self._reading:
            if self._stopped:
                raise UsageError("the workers were stopped")
            self._read(timeout_s)
            for worker in self._workers:
                if not worker.told and self._has_ended(worker):
                    self._hear_out(worker)
                    died = (pipe.DIED, worker.pid, worker.exitcode, worker.orphan_of)
                    self._events.append(WorkerEvent(worker.number, died, ()))
                elif worker.unread_since is not None and self._hangs(worker, worker.unread_since):
                    self._events.append(WorkerEvent(worker.number, (pipe.UNREAD,), ()))
            events = list(self._events)
            self._events.clear()
            return events

    @staticmethod
    def _hangs(worker: _Worker, unread_since: float) -> bool:
        """Return, once in each `SEND_TIMEOUT_S`, whether a worker does not read."""
        now = time.monotonic()
        # one that is starting has not begun to read
        if not worker.ready or worker.told or now - unread_since <= SEND_TIMEOUT_S:
            return False
        worker.unread_since = now
        return True

    def wake(self) -> None:
        """End the wait of `poll` in another thread. Never waits."""
        with self._waking:
            if self._waker is not None:
                os.eventfd_write(self._waker, 1)

    def has_news(self) -> bool:
        """Return whether a worker may have ended: the supervisor reports it, or is gone itself."""
        if any(worker.orphan_of is not None and not worker.told for worker in self._workers):
            return True
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            return self._control is not None and pipe.is_readable(self._control)
        return False

    def _has_ended(self, worker: _Worker) -> bool:
        if worker.exited:
            return True
        # by the worker's own socket: the supervisor's may end long before the kernel ends the
        # workers, which go on sending until then
        now, is_orphan = time.monotonic(), worker.orphan_of is not None
        if worker.eof_at is not None:
            return is_orphan or now - worker.eof_at > _EXIT_REPORT_S
        # a program that the worker started may hold its socket open
        return is_orphan and now - worker.orphaned_at > _EXIT_REPORT_S

    def _hear_out(self, worker: _Worker) -> None:
        """File the messages that a worker sent before its end, and none after it."""
        worker.told = True
        while worker.eof_at is None and pipe.is_readable(worker.sock):
            got = pipe.receive(worker.sock)
            if got is None:
                break
            self._file(worker, *got)
        self._unregister(worker.sock)
        pipe.end(worker.sock)  # ends the worker too, should it still live

    def _read(self, timeout_s: float) -> None:
        with interruptible() if timeout_s > 0 else contextlib.nullcontext():
            found = self._selector.select(timeout_s)
        # one message of each worker that has some, so that none keeps the others waiting
        for key, mask in found:
            worker: _Worker | None = key.data
            sock = key.fileobj
            if mask & selectors.EVENT_WRITE and worker is not None:
                with self._sending:
                    self._flush(worker)
            if not mask & selectors.EVENT_READ:
                continue
            if sock == self._waker:
                os.eventfd_read(key.fd)
                continue
            assert isinstance(sock, pipe.Socket)
            got = pipe.receive(sock)
            if got is None:
                self._selector.unregister(sock)
                if worker is not None:
                    worker.eof_at = time.monotonic()
                else:
                    self._on_supervisor_gone()
            elif worker is None:
                self._on_supervisor(got[0])
            else:
                self._file(worker, *got)

    def _file(self, worker: _Worker, message: tuple[Any, ...], fds: list[int]) -> None:
        if message[0] == pipe.READY:
            worker.ready, worker.address = True, message[1]
            # not inheritable: else programs that the trainer starts would keep the port open
            for fd in fds:
                os.set_inheritable(fd, False)
                self._listeners[worker.number] = fd
            fds = []
        self._events.append(WorkerEvent(worker.number, message, tuple(fds)))

    def _on_supervisor(self, message: tuple[Any, ...]) -> None:
        if message[0] == pipe.COMPILED:
            self._compiled_at = time.monotonic()
            return
        kind, number, pid, *rest = message
        worker = self._workers[number]
        if kind == pipe.FORKED:
            worker.pid = pid
        elif worker.pid == pid:  # else this is the end of a worker that was replaced
            worker.exited, worker.exitcode = True, rest[0]

    def _on_supervisor_gone(self) -> None:
        self._is_gone = True
        for worker in self._workers:
            # except those whose own supervisor went before
            if not worker.exited and worker.orphan_of is None:
                worker.orphan_of = self._num_supervisors
                worker.orphaned_at = time.monotonic()

    def is_stopped(self, number: int) -> bool:
        """Return whether the system reports a worker as stopped by a signal."""
        pid = self._workers[number].pid
        stat = None if pid is None else read_stat(pid)
        return stat is not None and stat[0] == "T"

    def describe(self, numbers: list[int]) -> str:
        """Describe the workers with their state as the system reports it."""

        def state(pid: int | None) -> str:
            return "not started yet" if pid is None else f"pid {pid}, {process_state(pid)}"

        return ", ".join(f"worker {n} ({state(self._workers[n].pid)})" for n in numbers)

    def take_listener(self, number: int) -> int | None:
        """Return the listening socket of a worker that is gone, for the caller to close.

        Only for a worker without a successor, which would need the socket.
        """
        return self._listeners.pop(number, None)

    def _close_listeners(self) -> None:
        segments.close_fds([self._listeners.popitem()[1] for _ in list(self._listeners)])

    # -- stop -----------------------------------------------------------------------------------

    def stop(self, linger_s: float, *, keep: bool = True) -> None:
        """End all workers; idempotent, never raises.

        Args:
            linger_s: Workers go on serving other partitions until the workers there have said that
                they are done, or have sent no request for this many seconds.
            keep: Let the supervisor rest, for the next pool of this process.
        """
        with self._ending:
            if self._stopped:
                return
            self._stopped = True
        _live_pools.discard(self)
        # without `_reading`, which another thread may hold while it waits. If nobody lingers, no
        # worker has to read this: the end of the sockets says the same
        for worker in self._workers:
            with contextlib.suppress(OSError), self._sending:
                worker.sock.settimeout(0.0 if linger_s <= 0 else SEND_TIMEOUT_S)
                self._flush(worker)
                pipe.send(worker.sock, (pipe.STOP, linger_s))
        with self._reading:  # a reader waits at most a second before it sees _stopped
            self._drop_events()
            if linger_s > 0:
                self._await_exit(linger_s)
            self._close(keep)

    def _drop_events(self) -> None:
        for event in self._events:
            segments.close_fds(list(event.fds))
        self._events.clear()

    def _await_exit(self, linger_s: float) -> None:
        heard = said = time.monotonic()
        while not all(self._has_ended(worker) for worker in self._workers):
            now = time.monotonic()
            if now - heard > linger_s + _EXIT_REPORT_S or not self._selector.get_map():
                return  # no sign of life: the supervisor ends them
            if now - said > _PROGRESS_S:
                said = now
                logger.info("the workers still answer other partitions whose loaders are at work")
            with contextlib.suppress(OSError):
                self._read(1.0)
            if any(event.message[0] == pipe.LINGERING for event in self._events):
                heard = now
            self._drop_events()

    def _close_worker(self, worker: _Worker) -> None:
        self._unregister(worker.sock)
        with self._sending:
            self._drop_outbox(worker)
            worker.sock.close()

    def _unregister(self, sock: pipe.Socket) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it has ended, and is unregistered already
            self._selector.unregister(sock)

    def _close_control(self) -> None:
        if self._control is not None:
            self._unregister(self._control)
            with self._sending:
                self._control.close()  # then the supervisor kills remaining workers and ends

    def _close(self, keep: bool) -> None:
        for worker in self._workers:
            self._close_worker(worker)
        try:
            rests = keep and self._rest()
        except BaseException:  # Ctrl-C
            self._close_control()
            raise
        if not rests:
            self._close_control()
            self._await_supervisor()
        self._selector.close()
        self._close_waker()
        self._close_listeners()

    def _close_waker(self) -> None:
        with self._waking:
            waker, self._waker = self._waker, None
        if waker is not None:
            os.close(waker)

    def _rest(self) -> bool:
        """Give the supervisor to the next pool; returns when the workers are gone, or False."""
        origin, process, control = self._origin, self._supervisor, self._control
        if origin is None or process is None or control is None or self._is_gone:
            return False
        self._unregister(control)
        with self._sending:
            if not resting.keep(resting.Supervisor(process, control, origin)):
                return False
            self._supervisor = self._control = None  # a late `kill` would reach the next pool's
            return True

    def _await_supervisor(self) -> None:
        if self._supervisor is not None:
            resting.await_end(self._supervisor)

    def disown(self) -> None:
        """Forget the workers in a forked child: they are the parent's.

        Only closes descriptors, so that the child does not keep the parent's ends open.
        """
        # takes no lock: a thread of the parent may have held it at the fork, and that thread does
        # not exist here to release it
        self._stopped = True
        for worker in self._workers:
            segments.close_fds([fd for _, fds in worker.outbox for fd in fds])
            worker.sock.close()
        if self._control is not None:
            self._control.close()
        if self._waker is not None:
            os.close(self._waker)
        self._close_listeners()
        self._supervisor = self._waker = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.stop(0.0)


def process_state(pid: int) -> str:
    """Describe the state of process ``pid`` as the system reports it."""
    stat = read_stat(pid)
    return "gone" if stat is None else _STATES.get(stat[0], f"state {stat[0]}")


@atexit.register
def _stop_all() -> None:
    for pool in list(_live_pools):
        pool.stop(0.0, keep=False)


def _after_fork() -> None:  # a forked child of the trainer owns none of its workers
    for pool in list(_live_pools):
        pool.disown()
    _live_pools.clear()


os.register_at_fork(after_in_child=_after_fork)
