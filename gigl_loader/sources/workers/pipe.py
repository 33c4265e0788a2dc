"""Messages between a trainer, its supervisor and its workers, and a worker's setup.

A message is a tuple that begins with a name.

::

    trainer -> supervisor  FORK (with the worker's socket), KILL; REST, and SERVE after that
    supervisor -> trainer  COMPILED per kernel; FORKED, EXITED per worker; RESTING, SERVING
    trainer -> worker      the set-up and PLACE (once); PEERS, ATTEMPT, TASK, STOP;
                           SLOTS that are free, if no TASK is left to carry them
    worker -> trainer      READY or FAILED (once), BATCH, ERROR or STALE per task, LINGERING,
                           UNHEARD before an ERROR: a worker of another rank did not respond;
                           DRAWN before a BATCH if rows are cached

The trainer's side itself makes a `DIED` when a worker ends, and an `UNREAD` when one that is ready
does not read.

Each message is one datagram, with descriptors beside it.

The socket is a Unix ``SOCK_SEQPACKET`` pair: a message arrives whole or not at all, and the end of
either process is an end of file for the other. Only a parent and the children that it started share
such a pair, so pickle is safe here.
"""

import array
import ast
import contextlib
import errno
import importlib.util
import os
import pickle
import select
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from gigl_loader.dataset.partition.partition_view import A, PartitionView
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.transport import SILENCE_S
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND
from gigl_loader.sampler.plan import SamplingPlan, SeedInput
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.workers.peers import Access

STREAM_AHEAD = 0
"""The stream that is drawn ahead; others, which sample single batches, are filled at once."""
FORK, KILL, FORKED, EXITED, COMPILED = "fork", "kill", "forked", "exited", "compiled"
REST, RESTING, SERVE, SERVING = "rest", "resting", "serve", "serving"
PLACE, PEERS, ATTEMPT, TASK, STOP = "place", "peers", "attempt", "task", "stop"
SLOTS = "slots"
READY, FAILED, BATCH, ERROR, STALE = "ready", "failed", "batch", "error", "stale"
LINGERING, UNHEARD, DRAWN, DIED = "lingering", "unheard", "drawn", "died"
UNREAD = "unread"

MAX_BYTES = 160 * 1024
"""Most bytes in one datagram; Linux allows about 208 KiB by default."""
_MAX_FDS = 200
"""Most descriptors in one datagram; Linux allows 253."""
_CONTROL_BYTES = socket.CMSG_SPACE(_MAX_FDS * 4)
_NOT_INHERITED = socket.MSG_CMSG_CLOEXEC
"""Programs that this process starts get none of the received descriptors, nor their memory."""


Socket = socket.socket
"""Type of one end; other modules need nothing else of sockets."""


def pair() -> tuple[Socket, Socket]:
    """Return two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def is_readable(sock: socket.socket) -> bool:
    """Return whether `receive` would return at once."""
    poller = select.poll()  # `select.select` takes no descriptor above 1023
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def end(sock: socket.socket) -> None:
    """Make both sides read an end of file, even if other processes have a copy of the socket."""
    with contextlib.suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one small message, with descriptors.

    Raises:
        OSError: The other end is gone, or did not read within the socket's timeout.
    """
    send_packed(sock, packed(message), fds)


def packed(message: Any) -> bytes:
    """Return a message as `send_packed` takes it."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"a control message of {len(data)} bytes exceeds {MAX_BYTES}")
    return data


def send_packed(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send one message; raises as `send`, and BlockingIOError if the socket does not wait."""
    if fds:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sock.sendmsg([data], rights)
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """Return the next message and its descriptors; None: the other end is gone.

    Raises:
        BlockingIOError, TimeoutError: Nothing came within the socket's timeout.
        OSError: This process may open no more files; the descriptors of a message are lost.
    """
    try:
        try:
            received = sock.recvmsg(MAX_BYTES, _CONTROL_BYTES, _NOT_INHERITED)
        except ConnectionResetError:
            # The other end left messages unread, which the kernel reports once. The messages that
            # it had sent come after that.
            received = sock.recvmsg(MAX_BYTES, _CONTROL_BYTES, _NOT_INHERITED)
    except ConnectionError:
        return None
    data, ancillary, flags, _ = received
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # excess bytes are cut off anywhere, even within a number
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if not data:  # end of file: no message is empty
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        segments.close_fds(list(fds))
        if flags & socket.MSG_CTRUNC:  # there is room for all: the system had no number left
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "descriptors of a message")
        raise ProtocolError("a control message arrived cut off")
    return pickle.loads(data), list(fds)


def pieces_of(data: bytes, fds: list[int]) -> list[tuple[bytes, list[int]]]:
    """Return the messages of an object of any size, packed, each with its descriptors.

    Its tensors are shared, not copied, and arrive as arrays.

    Args:
        data: From `runtime.memory.tensors.dumps`, which needs torch. Workers, which only receive,
            do without it.
        fds: From the same call.
    """
    # Half of what fits, as the tuple around a piece is pickled too. Each message has a piece,
    # descriptors, and the number of messages that follow.
    pieces = [data[i : i + MAX_BYTES // 2] for i in range(0, len(data), MAX_BYTES // 2)]
    groups = [fds[i : i + _MAX_FDS] for i in range(0, len(fds), _MAX_FDS)]
    count = max(len(pieces), len(groups), 1)
    return [
        (
            packed((count - i - 1, pieces[i] if i < len(pieces) else b"")),
            groups[i] if i < len(groups) else [],
        )
        for i in range(count)
    ]


def receive_object(sock: socket.socket) -> Any:
    """Undo `pieces_of`.

    Raises:
        ConnectionError: The other end is gone.
    """
    data, fds = b"", []
    try:
        left = 1
        while left:
            got = receive(sock)
            if got is None:
                raise ConnectionError("the process that sends the set-up is gone")
            (left, piece), more = got
            data += piece
            fds += more
        return segments.loads(data, fds)
    finally:  # the mappings keep the memory
        segments.close_fds(fds)


@dataclass(frozen=True)
class Plugins:
    """The user's classes and functions that a worker runs."""

    sampler: SamplerKind = NEIGHBOR_KIND
    init_fn: Callable[[int], None] | None = None
    """Function called in each worker with its number, before sampling."""


@dataclass(frozen=True, kw_only=True)
class WorkerSetup(Generic[A]):
    """Everything that a worker needs to sample, except its peers."""

    view: PartitionView[A]
    plan: SamplingPlan
    seed_input: SeedInput[A]
    batch_size: int
    concurrency: int
    """Most batches that a worker samples at once."""
    cpus: int
    """This worker's share of the CPUs, at least 1."""
    access: Access | None
    """How to reach the workers of other partitions; None: there are none."""
    rpc_timeout_s: float
    """Longest wait for a response of another partition, in seconds."""
    replaceable: bool
    """Whether a worker that dies is replaced."""
    plugins: bytes
    """`Plugins`, pickled separately: they may hold tensors, for which the worker needs torch."""
    users_code: bool = True
    """Whether some plugins are the user's own."""
    main_path: str | None = None
    """Path of the user's script if a plugin is defined in it."""
    kernels: Sequence[str] = ()
    """Names of the kernels that workers need, in `supervisor.KERNELS`."""

    @property
    def patience_s(self) -> float:
        """How long a worker of another partition may be silent, in seconds.

        If workers are replaced, that is as long as a response may take: a suspended worker comes
        back as another one, and a cut link may heal.
        """
        return max(SILENCE_S, self.rpc_timeout_s) if self.replaceable else SILENCE_S


def pickled(plugins: Plugins) -> bytes:
    """Return ``plugins`` pickled for workers.

    Raises:
        ConfigError: They cannot be pickled.
    """
    # any error: besides PicklingError, pickle raises errors of the objects' methods, and
    # AttributeError or TypeError for functions and handles that it cannot name
    try:
        return pickle.dumps(plugins)
    except Exception as error:
        raise ConfigError(
            f"worker_init_fn={plugins.init_fn!r}, or the keywords of the sampler "
            f"{plugins.sampler.path!r}, cannot be sent to workers ({error}): give a function of a "
            "module, or a functools.partial of one, and keywords that can be pickled"
        ) from error


def main_path_of(function: Callable[..., Any] | None) -> str | None:
    """Return the path of the user's script if ``function`` is defined in it.

    Raises:
        ConfigError: Workers could not import it, as this session has no script.
    """
    if function is None:
        return None
    if getattr(function, "__module__", "") != "__main__":
        return None
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or importlib.util.find_spec("gigl_loader") is None:
        raise ConfigError(
            "worker_init_fn is defined in an interactive session, where workers cannot import it: "
            "put it into a module"
        )
    _check_script(Path(path))
    return str(path)


def _check_script(path: Path) -> None:
    """Check that workers can run the user's script to find a function in it.

    Raises:
        ConfigError: The file does not exist, or running it would start the whole job again.
    """
    if not path.is_file():
        raise ConfigError(
            f"worker_init_fn is defined in {str(path)!r}, which workers cannot import (a script "
            "from standard input?): put the function into a module, or the script into a file"
        )
    # the syntax tree, not the text, which may name it in a comment
    if not any(
        isinstance(node, ast.Name) and node.id == "__name__"
        for node in ast.walk(ast.parse(path.read_bytes()))
    ):
        raise ConfigError(
            f"worker_init_fn is defined in {path}, which workers have to import, and which has no "
            '`if __name__ == "__main__":`, so each of them would run all of it again: put the '
            "start of the job below that line, or the function into a module"
        )
