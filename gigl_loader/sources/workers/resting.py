"""Supervisors that wait for the next loader of this process, which then starts in milliseconds.

::

    pool stops --keep--> at rest --take--> pool of the next loader
                            `--60 s, release, the trainer's end--> ended

A supervisor at rest has no worker, and nothing of a graph: its memory is that of Numba and the
kernels. It ends by itself after a while, and when its socket ends, however the trainer ends.

Whatever a loader may change is sent with it: environment, folder, output, import path. The
user's modules are imported by workers, so each loader gets them as they are now. What a process has
from its start on cannot be sent; `Origin` compares it, and another supervisor is started.
"""

import atexit
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gigl_loader.errors import ProtocolError
from gigl_loader.sources.workers import pipe

REST_S = 60.0
"""Seconds after which a supervisor at rest ends."""
MOST = 2
"""Supervisors at rest: those of a loader that trains and of one that validates."""
_ANSWER_S = 5.0
"""Seconds that a supervisor may take to answer, which takes less than a millisecond if it gets to
run. One that takes longer is stopped, and is replaced."""

_READ_AT_START = (
    "BLIS",
    "COVERAGE",
    "GIGL_",
    "GLIBC",
    "GOTO",
    "HOME",
    "KMP",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC",
    "MKL",
    "NPY",
    "NUMBA_",
    "OMP",
    "OPENBLAS",
    "OPENSSL",
    "PYTHON",
    "TEMP",
    "TMP",
    "TZ",
    "VECLIB",
    "XDG",
)
"""Begins of variables that an interpreter, a library or this package may read only once."""
_OF_A_THREAD = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "SigBlk",
    "SigIgn",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed",
    "Mems_allowed",
)
"""Lines of ``/proc/thread-self/status`` that a child process inherits."""
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
_SELF = Path("/proc/thread-self")


@dataclass(frozen=True)
class Origin:
    """Where a supervisor comes from: what no message changes, compared, and its environment."""

    starts: Callable[..., Any]
    """The function that starts supervisors."""
    users_code: bool
    """Whether workers run a sampler or a function of the user."""
    inherited: tuple[object, ...]
    environment: dict[str, str] = field(compare=False)

    @classmethod
    def now(cls, starts: Callable[..., Any], users_code: bool) -> "Origin | None":
        """Return the origin of a supervisor that this thread would start; None: unknown."""
        environment = dict(os.environ)
        fixed = sorted(
            variable for variable in environment.items() if variable[0].startswith(_READ_AT_START)
        )
        try:
            return cls(starts, users_code, (sys.executable, *fixed, *_inherited()), environment)
        except OSError:  # a kernel or a container without one of these files
            return None


def _inherited() -> list[object]:
    """Return what a child has from the thread that starts it, and keeps."""
    lines = (_SELF / "status").read_text().splitlines()
    return [
        os.getpriority(os.PRIO_PROCESS, 0),
        os.sched_getscheduler(0),
        os.getpgid(0),
        os.getsid(0),
        [resource.getrlimit(limit) for limit in _LIMITS],
        [line for line in lines if line.startswith(_OF_A_THREAD)],
        (_SELF / "cgroup").read_text(),
        Path("/proc/self/oom_score_adj").read_text(),
        [os.readlink(namespace) for namespace in sorted((_SELF / "ns").iterdir())],
    ]


@dataclass(frozen=True, eq=False)
class Supervisor:
    """A supervisor without a pool."""

    process: "subprocess.Popen[bytes]"
    control: pipe.Socket
    origin: Origin

    def wake(self, origin: Origin, kernels: Collection[str]) -> bool:
        """Let it serve a pool as one that this process would start now; False: it cannot."""
        before, now = self.origin.environment, origin.environment
        order = (
            {name: value for name, value in now.items() if before.get(name) != value},
            [name for name in before if name not in now],
            list(sys.path),
            list(kernels),
        )
        try:
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            try:
                pipe.send(self.control, (pipe.SERVE, *order), [folder, 1, 2])
            finally:
                os.close(folder)
        # it has ended, this process has no standard output, or has a huge environment
        except (OSError, ProtocolError):
            return False
        return self._wait_for_answer(pipe.SERVING)

    def sleep(self) -> bool:
        """Let it end its workers and rest; False: it does not."""
        try:
            pipe.send(self.control, (pipe.REST, REST_S))
        except OSError:
            return False
        return self._wait_for_answer(pipe.RESTING)

    def _wait_for_answer(self, word: str) -> bool:
        before = self.control.gettimeout()
        self.control.settimeout(_ANSWER_S)
        try:
            # reports of workers that ended before it come first
            while (got := pipe.receive(self.control)) is not None:
                if got[0][0] == word:
                    return True
            return False
        except OSError:
            return False
        finally:
            self.control.settimeout(before)

    def end(self) -> None:
        """End it; returns when it is gone."""
        self.control.close()  # it reads an end of file
        await_end(self.process)


def await_end(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a supervisor whose socket was closed; kill it if that takes long."""
    try:
        process.wait(5.0)  # killing and reaping its workers takes milliseconds
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel ends its workers with it
        with contextlib.suppress(subprocess.TimeoutExpired):  # it will end later
            process.wait(5.0)


# Without a lock, which a destructor of a pool, run in the middle of `take`, would wait for: each
# step is one operation on the list, of which only one thread succeeds.
_resting: list[Supervisor] = []


def take(origin: Origin, kernels: Collection[str]) -> Supervisor | None:
    """Return a supervisor that rests here and has this origin, ready to serve; None: start one.

    Args:
        origin: `Origin.now`.
        kernels: Names of the kernels that it loads before it forks workers.
    """
    _reap()
    for supervisor in reversed(list(_resting)):
        if supervisor.origin == origin and _remove(supervisor):
            try:
                if supervisor.wake(origin, kernels):
                    return supervisor
            except BaseException:  # Ctrl-C
                supervisor.end()
                raise
            supervisor.process.kill()  # it has no workers, and may be stopped
            supervisor.end()
    return None


def keep(supervisor: Supervisor) -> bool:
    """Let a supervisor rest that has lost its pool; False: it does not answer."""
    if not supervisor.sleep():
        return False
    _reap()
    _resting.append(supervisor)
    for oldest in list(_resting)[:-MOST]:
        if _remove(oldest):
            oldest.end()
    return True


def _remove(supervisor: Supervisor) -> bool:
    try:
        _resting.remove(supervisor)
    except ValueError:  # another thread has it
        return False
    return True


def _reap() -> None:
    """Forget those that have ended, so that no zombie process stays."""
    for supervisor in list(_resting):
        if supervisor.process.poll() is not None and _remove(supervisor):
            supervisor.control.close()


def release_workers() -> None:
    """End the processes that wait for this process's next loader; loaders at work stay.

    After a loader is shut down, one process of it waits for the next one, which so starts in
    milliseconds. It holds no graph, about 70 MB of memory, and ends after a minute of rest or with
    this process. Call this to end it now. The next loader starts a new one.
    """
    ended = [supervisor for supervisor in list(_resting) if _remove(supervisor)]
    for supervisor in ended:  # all first, so that they end at the same time
        supervisor.control.close()
    for supervisor in ended:
        await_end(supervisor.process)


atexit.register(release_workers)


def _after_fork() -> None:  # they belong to the parent; a copy of a socket would hide its end
    for supervisor in _resting:
        supervisor.control.close()
        supervisor.process.returncode = 0  # not this process's child: nothing to wait for
    _resting.clear()


os.register_at_fork(after_in_child=_after_fork)
