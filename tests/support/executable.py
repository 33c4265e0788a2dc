"""An executable that is Python, and is forked: for programs that start Python without `subprocess`.

Ray's raylet is such a program: it starts each of its workers by a command line. With
`forked_executable` a short script stands in for the interpreter, and asks a process that has
imported what workers need to fork one::

    raylet --starts--> stand-in --its arguments, environment, folder, streams--> server
                           `<--------- exit code --------------- forks the worker --'

The stand-in hands on the signals that it is sent, and ends as the worker ends; the worker ends with
it. What differs from an interpreter: the worker's pid and parent are not those of the stand-in.
"""

import contextlib
import gc
import importlib
import os
import select
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.sources.workers import pipe
from tests.support import scripts, zygote

_STAND_IN = """\
import array, os, pickle, signal, socket, sys

position, executable, *words = sys.argv[1:]
while words[:1] == ["-u"]:  # all streams of what is forked are unbuffered
    del words[0]
if not words or words[0][:1] == "-" and words[0] not in ("-c", "-m", "-"):
    os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(position)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: server.send(b"%d" % number))
fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
fds = [fd for fd in fds if fd != server.fileno() and os.path.exists(f"/proc/self/fd/{fd}")]
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
request = pickle.dumps((executable, words, dict(os.environ), os.getcwd(), fds))
server.sendmsg([request], rights)
code = int(server.recv(64) or 1)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextlib.contextmanager
def forked_executable(*modules: str) -> Iterator[str]:
    """Give the path of an executable that acts as `sys.executable`, without the seconds of imports.

    Nothing that is started by it, or by its like in turn, outlives the ``with`` block.

    Args:
        modules: Imported before anything is forked, beside what a `ForkedProcess` has imported.
            None that starts a thread, or reads the variables of its process once and for all.
    """
    with tempfile.TemporaryDirectory() as name:
        position, path = f"{name}/socket", Path(name, "python")
        stand_in = Path(name, "stand_in.py")
        stand_in.write_text(_STAND_IN)
        # isolated and without site: the stand-in needs a few modules of the standard library, and
        # to be quick
        words = [sys.executable, "-IS", str(stand_in), position, str(path)]
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        path.chmod(0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind(position)
            door.listen()  # who comes while modules are imported waits
            # the socket is handed over, and closed here: when the server ends, connecting is
            # refused
            process = ForkedProcess(target=_serve, args=(door, modules))
            process.start()
        try:
            yield str(path)
        finally:
            process.kill()
            process.join()


@contextlib.contextmanager
def forked_ray(*modules: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Give an executable as `forked_executable` does, and variables, for Ray's Python processes.

    Args:
        modules: Imported beside what Ray's own processes import.
    """
    with forked_executable(*_IMPORTED_BY_RAY, *modules) as path:
        yield path, _OF_RAY


_IMPORTED_BY_RAY = (
    *("aiohttp", "filelock", "fsspec", "google.protobuf.message", "jsonschema", "msgpack"),
    *("pandas", "psutil", "pyarrow.fs", "pydantic", "requests", "yaml"),
)
"""By its processes, but Ray: its library reads variables when it is imported."""
_OF_RAY = {
    # the parent of Ray's agents is not Ray: let them watch a pipe, and not who their parent is
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    # no worker for each CPU before there is work: actors need workers of another environment
    "RAY_prestart_worker_first_driver": "0",
}


def _serve(door: socket.socket, modules: tuple[str, ...]) -> None:
    """Fork what stand-ins ask for, until this process is killed."""
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # what is forked need not look for garbage in all that was imported
    poller = select.poll()
    poller.register(door, select.POLLIN)
    # one thread and poll(): a fork from a process with threads may inherit a lock that is held
    ready: dict[int, Callable[[], bool]] = {}
    while True:
        for fd, _ in poller.poll():
            if fd == door.fileno():
                for new, function in _accept(door).items():
                    ready[new] = function
                    poller.register(new, select.POLLIN)
            elif not ready[fd]():
                poller.unregister(fd)
                os.close(fd)


def _accept(door: socket.socket) -> dict[int, Callable[[], bool]]:
    """Fork for the next stand-in.

    Returns:
        By descriptor, what to call where it is ready; if that returns False, it is done with.
    """
    connection, _ = door.accept()
    request = pipe.receive(connection)
    if request is None:  # the stand-in was killed
        connection.close()
        return {}
    one = _Forked(connection.detach(), *request)
    # a pidfd is readable when its process ends: no SIGCHLD, which the children would inherit a
    # handler of
    return {one.connection: one.listen, one.pidfd: one.reap}


class _Forked:
    """A process, and the connection to the stand-in that it runs for.

    Args:
        connection: Its descriptor.
        told: What to run: executable, words, environment, folder, numbers of descriptors.
        fds: Those descriptors here, in the same order, the three streams first.
    """

    def __init__(self, connection: int, told: tuple[Any, ...], fds: list[int]) -> None:
        executable, words, environment, folder, numbers = told
        self.connection, self._ended, me = connection, False, os.getpid()
        # not by an orphan, as a zygote does: this server is the parent, to wait for the exit code
        self._pid = os.fork()
        if self._pid == 0:
            zygote.never_return(
                lambda: _end_with(me),
                lambda: zygote.run(("", environment, folder, False), fds),
                lambda: _be(executable, words, numbers[zygote.STREAMS :]),
            )
        for fd in fds:
            os.close(fd)
        self.pidfd = os.pidfd_open(self._pid)

    def listen(self) -> bool:
        """Hand on a signal to the process; the end of the stand-in ends it, too."""
        try:
            told = os.read(self.connection, 64)
        except ConnectionError:
            told = b""
        if not self._ended:
            # an empty message: the stand-in has ended, by SIGKILL perhaps, which it cannot hand on
            os.kill(self._pid, int(told or signal.SIGKILL))
        return bool(told)

    def reap(self) -> bool:
        """Tell the stand-in how the process has ended."""
        self._ended = True
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        with contextlib.suppress(OSError):  # it may be gone
            # negative: the signal by which it ended, and by which the stand-in ends itself then
            os.write(self.connection, b"%d" % code)
        return False


def _end_with(parent: int) -> None:
    zygote.die_with_parent()
    if os.getppid() != parent:  # it went before the line above
        raise SystemExit(1)


def _be(executable: str, words: list[str], inherited: list[int]) -> None:
    """Be the interpreter that is told ``words``: the streams, folder and environment are set."""
    if inherited:
        zygote.renumber(inherited, [])
    sys.executable = executable  # what this one starts by that name is forked, too
    scripts.be(words, to_children=True, finalized=False)
