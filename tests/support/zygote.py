"""Supervisors of sampling workers that start in milliseconds, for tests.

A worker pool starts its supervisor in a new Python interpreter, which imports Numba and loads the
kernels: a second of work, for most tests their longest. With `use_zygote` a process that has
imported all of it already, the zygote, forks the supervisor instead. What it forks is as a new
interpreter would be: nothing of the trainer's memory is in it, its environment, folder, standard
streams and descriptors are those of the trainer, and the trainer is its parent::

    trainer --request--> zygote --forks--> (one that ends at once) --forks--> supervisor
       `--------------------------- adopts, as a subreaper, the orphan ---------^

Each `ForkedProcess` has a zygote of its own, where its starter uses one (`warm`).
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker, util
from typing import Any

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime import processes, system
from gigl_loader.sources.workers import pipe, pool
from tests.support.huge_pages import move_into_huge_pages

# of linux/prctl.h, which Python has no names for
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
# a fork takes milliseconds: what takes a minute is gone, or the machine swaps
_TIMEOUT_S = 60.0
_IMPORT_TIMEOUT_S = 300.0  # where all others of this machine import, too
STREAMS = 3
NAME = "gigl-zygote"
"""What a zygote is called in ``/proc/<pid>/comm``."""
VARIABLE = "GIGL_LOADER_TESTS_FORK"
"""1: each `ForkedProcess` is to have a zygote; 0: none has. A `ForkedPython` has one but for 0."""
system.IGNORED.add(NAME)

_libc = ctypes.CDLL(None)


class _Adopted(subprocess.Popen[bytes]):
    """A child of this process that another has forked; to wait for and to kill, as any Popen."""

    def __init__(self, pid: int) -> None:
        self.pid, self.args = pid, [NAME]
        self.returncode: Any = None
        self.stdin = self.stdout = self.stderr = None
        # what Popen.__init__ would set, which starts a process; wait(), poll() and kill() read
        # these
        self._child_created = True
        self._waitpid_lock = threading.Lock()


class Zygote:
    """The trainer's end: asks for processes, one at a time."""

    def __init__(self, sock: pipe.Socket) -> None:
        # the lock keeps question and answer together: threads of the trainer start pools too
        self._socket, self._lock = sock, threading.Lock()
        sock.settimeout(_TIMEOUT_S)

    def start(self, script: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
        """Run ``script`` as ``python -c script *fds`` would; returns at once.

        Raises:
            ProtocolError: The zygote is gone.
        """
        with open(os.devnull) as null:
            return _Adopted(
                self.fork(script, [null.fileno(), 1, 2, *fds], dict(os.environ), os.getcwd())
            )

    def fork(
        self,
        script: str,
        fds: Sequence[int],
        environment: dict[str, str],
        folder: str,
        new_session: bool = False,
    ) -> int:
        """Return the pid of a child of this process that runs ``script``.

        Args:
            script: As of ``python -c``.
            fds: Its standard streams, then what it inherits; ``sys.argv`` has the numbers there.
            environment: Its whole environment.
            folder: Where it runs.
            new_session: It leads a session and a process group of its own, before this returns.

        Raises:
            ProtocolError: The zygote, or the child, is gone.
        """
        with self._lock:
            # Only while it forks: as a subreaper for good, a trainer would adopt every orphan that
            # its own children leave, and never wait for them.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                pipe.send(self._socket, (script, environment, folder, new_session), list(fds))
                answer = pipe.receive(self._socket)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)
        if answer is None:
            raise ProtocolError(f"the zygote of process {os.getpid()} is gone")
        if not answer[0]:  # 0 is no child: whoever ends it would end this process's own group
            raise ProtocolError("what the zygote had forked ended before it told its pid")
        return int(answer[0])


@contextlib.contextmanager
def use_zygote(zygote: Zygote | None) -> Iterator[None]:
    """Let worker pools of this process start by ``zygote``; None: in a new interpreter.

    So do processes of multiprocessing with the start method spawn, and its fork server.
    """
    before = pool.start_supervisor, util.spawnv_passfds, os.environ.get(VARIABLE)
    # names of modules, replaced for the process: workers are started deep below a loader that a
    # test makes as a user does
    pool.start_supervisor = _in_new_interpreter if zygote is None else zygote.start
    util.spawnv_passfds = _spawn if zygote is None else _fork_or_spawn
    os.environ[VARIABLE] = str(int(zygote is not None))
    try:
        yield
    finally:
        pool.start_supervisor, util.spawnv_passfds, variable = before
        os.environ[VARIABLE] = variable or "0"


@contextlib.contextmanager
def new_zygote(*modules: str) -> Iterator[Zygote]:
    """Start a zygote in a new interpreter, which imports ``modules`` first; it ends with the block.

    Nothing of it is imported here, and what it forks has nothing of this process in its memory.
    """
    ours, theirs = pipe.pair()
    # pytest has put folders of the tests there, from which the functions are that a test sends
    script = f"import socket, sys; sys.path[:] = {sys.path!r}\n"
    script += f"import {', '.join([*modules, __name__])}\n"
    script += f"{__name__}._serve_all(socket.socket(fileno=int(sys.argv[1])))"
    fd = theirs.fileno()
    with subprocess.Popen([sys.executable, "-c", script, str(fd)], pass_fds=[fd]):
        theirs.close()
        zygote = Zygote(ours)
        ours.settimeout(_IMPORT_TIMEOUT_S)
        with ours:
            yield zygote


@contextlib.contextmanager
def fast_supervisors() -> Iterator[None]:
    """Let sampling workers start in milliseconds, here and in each `ForkedProcess`."""
    if uses_zygote():  # this process was forked by one
        yield
        return
    ours, theirs = pipe.pair()
    process = processes.ForkedProcess(target=serve, args=(theirs,))
    process.start()
    theirs.close()
    with ours, use_zygote(Zygote(ours)):
        yield
    # the zygote ends when its socket is closed, above
    process.join()


@contextlib.contextmanager
def slow_supervisors() -> Iterator[None]:
    """Let sampling workers start as users' do, in a new interpreter: where the start is tested."""
    with use_zygote(None):
        yield


def uses_zygote() -> bool:
    """Whether worker pools of this process start by a zygote."""
    return pool.start_supervisor is not _in_new_interpreter


def current_zygote() -> Zygote | None:
    """Return the zygote by which worker pools of this process start."""
    zygote = getattr(pool.start_supervisor, "__self__", None)
    return zygote if isinstance(zygote, Zygote) else None


@functools.wraps(processes.with_environment)
def _with_zygote(kind: Any, environment: dict[str, str]) -> Any:
    """Prepare a `ForkedProcess`: where its starter uses a zygote, it has one, too."""
    process = _with_environment(kind, environment)
    if environment.get(VARIABLE) == "1":
        fork_zygote()
    return process


_with_environment, processes.with_environment = processes.with_environment, _with_zygote
_spawn = util.spawnv_passfds
_in_new_interpreter = pool.start_supervisor


def _fork_or_spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Do as ``util.spawnv_passfds`` of multiprocessing does where this process has a zygote."""
    zygote = current_zygote()
    if zygote is None:
        return _spawn(path, args, passfds)
    # what spawn passes: interpreter, options, -c, script, arguments
    at = args.index("-c")
    script = f"from {__name__} import renumber, fork_zygote\n"
    script += f"renumber({list(passfds)}, {args[at + 2 :]!r})\n"
    if "--multiprocessing-fork" in args:  # and not multiprocessing's own servers
        script += "fork_zygote()\n"
    streams_and_fds = [0, 1, 2, *passfds]
    return zygote.fork(script + args[at + 1], streams_and_fds, dict(os.environ), os.getcwd())


def renumber(numbers: list[int], arguments: list[str]) -> None:
    """Give the descriptors of ``sys.argv`` the numbers that they have where they come from."""
    # Out of the way first: a number that is wanted may be taken by a descriptor that is still to be
    # moved.
    above = max(numbers) + 1
    given = [int(word) for word in sys.argv[1:]]
    # unlike dup2, F_DUPFD takes the first free number, so that nothing is written over
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in given]
    for fd in given:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = ["-c", *arguments]


def fork_zygote() -> None:
    """Fork a zygote off this process, which has no thread yet, and use it until the end."""
    ours, theirs = pipe.pair()
    gc.freeze()  # a supervisor collects garbage first: all that was imported is none
    # before there is a thread: a lock that another thread holds at that moment stays locked in the
    # child
    if os.fork() == 0:
        never_return(_forget_zygote, lambda: _close_all_but(theirs.fileno()), lambda: serve(theirs))
    theirs.close()
    pool.start_supervisor, util.spawnv_passfds = Zygote(ours).start, _fork_or_spawn
    os.environ[VARIABLE] = "1"


def _forget_zygote() -> None:
    """Let go of the zygote of the process that this one was forked off.

    Its descriptor is closed with all others, and the number given to another file: the object, when
    it is collected, would close that.
    """
    current = current_zygote()
    if current is not None:
        current._socket.detach()


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(sock: pipe.Socket) -> None:
    """Be a zygote until the other end of ``sock`` is closed, or who started this one has ended."""
    _libc.prctl(_PR_SET_NAME, NAME.encode())
    die_with_parent()  # fork() clears it: each zygote asks for itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer's
    sock.settimeout(None)
    gc.freeze()
    # None: the trainer has ended, or closed its end
    while (request := pipe.receive(sock)) is not None:
        message, fds = request
        pipe.send(sock, _fork_orphan(message, fds))
        for fd in fds:
            os.close(fd)


def _serve_all(sock: pipe.Socket) -> None:
    """Be the zygote that all others are forked from, in an interpreter that was started for it."""
    gc.collect()
    move_into_huge_pages()  # before any fork: what is forked shares them, and so do its own forks
    serve(sock)
    os._exit(0)


def _fork_orphan(message: tuple[str, dict[str, str], str, bool], fds: list[int]) -> int:
    """Return the pid of a process whose parent has ended: the trainer becomes its parent."""
    read, write = os.pipe()
    # Twice: the one in between ends, and the kernel gives its child to the nearest subreaper above,
    # which is the trainer.
    between = os.fork()
    if between == 0:
        me = os.getpid()
        if os.fork() == 0:
            never_return(
                lambda: _introduce(write, message[3]),
                lambda: _await_adoption(me),
                lambda: run(message, fds),
            )
        os._exit(0)
    # here, or read() would not see the end of the pipe if the child ends before it tells its pid
    os.close(write)
    with open(read, "rb") as answer:
        pid = int.from_bytes(answer.read(8), "little")
    # or it would be a zombie until the zygote ends
    os.waitpid(between, 0)
    return pid


def _introduce(write: int, new_session: bool) -> None:
    """Tell the pid; first take a name of its own: who knows the pid must not see a zygote.

    Nor may they see its process group: who sends that a signal would send it to their own.
    """
    if new_session:
        os.setsid()
    _libc.prctl(_PR_SET_NAME, b"python")
    os.write(write, os.getpid().to_bytes(8, "little"))


def _await_adoption(between: int) -> None:
    # Code that asks for its parent, such as a watch for the trainer's end, is to see the trainer.
    while os.getppid() == between:
        time.sleep(0.0005)


def run(message: tuple[str, dict[str, str], str, bool], fds: list[int]) -> None:
    script, environment, folder, _ = message
    # dup2 closes what was there: the zygote's own streams
    for number, fd in enumerate(fds[:STREAMS]):
        os.dup2(fd, number)
    # also the zygote's socket: as long as a child holds it, the trainer's end is not noticed
    _close_all_but(*fds[STREAMS:])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has put another there
    # Its pipe is among those closed above: what multiprocessing writes to the tracker would go to
    # the file that has the number next.
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    # by os.environ, not as a new dict: C code reads the variables with getenv()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # the zygote ignores it, and an ignored signal is inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-c", *map(str, fds[STREAMS:])]
    exec(script, {"__name__": "__main__"})


def never_return(*steps: Callable[[], None]) -> None:
    code = 1
    try:
        for step in steps:
            step()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        # Past all cleanup of the process that was forked: its atexit functions, and the frames
        # above this one, are the zygote's.
        os._exit(code)


def _close_all_but(*kept: int) -> None:
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) >= STREAMS and int(entry) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(entry))
