"""Every error that gigl_loader raises on purpose.

::

    GiglLoaderError
    +-- ConfigError (ValueError)      a value the caller passed is wrong; nothing was started
    |   +-- WrongTypeError (TypeError)  an argument of the wrong kind, or of the other deployment
    |   +-- FileChangedError          a file of a dataset was changed while it was in use
    +-- UsageError (RuntimeError)     good values, wrong moment: used twice, or after close
    |   +-- NotReadyError (ValueError)  a dataset is empty still, or there is no process group yet
    +-- PeerError (RuntimeError)      something outside this process failed
    |   +-- WorkerDiedError           a sampling process exited early
    |   +-- SamplingError             a sampler raised; carries the remote traceback
    |   +-- PeerTimeoutError          no progress before the deadline
    |   +-- ServerDiedError           a storage server is gone or unreachable
    |   +-- PeerLostError             a connection is over and could not be replaced
    |   +-- RemoteError               a call on a peer raised an error there
    |   +-- JoinRefusedError          one side of a connection refused the other
    |   |   +-- JobStoppedError       the job was stopped by `gigl-loader stop-job`
    |   +-- ObjectStorageError        object storage failed, also after requests were repeated
    +-- ResourceError (OSError)       this machine is out of disk, or of files it may open
    +-- NativeLibraryError (RuntimeError)  a function of GLT's native library was called without it
    +-- ProtocolError (RuntimeError)  a message broke the wire contract: a bug in gigl_loader
    GraphWarning (UserWarning)        a graph has what is likely a mistake, and may be meant

Messages have this order: what, where (worker, server, epoch, batch), why, what to do next.
"""

import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_NO_PATH_BEFORE, _NO_PATH_AFTER = r"(?<![\w/\"-])", r"(?![\w/\"-]|\.\w)"
_DEFAULT_TYPES = (
    (
        r"\('default_homogeneous_node_type', 'to', 'default_homogeneous_node_type'\)",
        "(the only type)",
    ),
    (r"\('default_homogeneous_node_type', ('\w+'), 'default_homogeneous_node_type'\)", r"\1"),
    (r"\[default_homogeneous_node_type, to, default_homogeneous_node_type\]", "(the only type)"),
    (r"\[default_homogeneous_node_type, (\w+), default_homogeneous_node_type\]", r"\1"),
    (r"'default_homogeneous_node_type'", "(the only type)"),
    # names of files stay: they have to be found
    (
        rf"{_NO_PATH_BEFORE}default_homogeneous_node_type__to__default_homogeneous_node_type"
        rf"{_NO_PATH_AFTER}",
        "(the only type)",
    ),
    (
        rf"{_NO_PATH_BEFORE}default_homogeneous_node_type__(\w+)__default_homogeneous_node_type"
        rf"{_NO_PATH_AFTER}",
        r"\1",
    ),
    (rf"{_NO_PATH_BEFORE}default_homogeneous_node_type{_NO_PATH_AFTER}", "(the only type)"),
)
"""The internal types of a homogeneous graph, and their replacement in messages."""


def without_default_types(text: str) -> str:
    """Return a message without the internal type names of a homogeneous graph."""
    for pattern, words in _DEFAULT_TYPES:
        text = re.sub(pattern, words, text)
    return text


def without_only_type(text: str) -> str:
    """Return a title without the type that it ends with, if that is the only one of the graph."""
    return re.sub(r"( of)? \(the only type\)$", "", without_default_types(text))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, for a message; its class if it has no text."""
    # Arrow appends the traceback of a caller's own function.
    text = str(error).strip().partition(". Detail: Python exception")[0]
    return (text.splitlines() or [type(error).__name__])[0]


class GraphWarning(UserWarning):
    """A graph has what is likely a mistake, and may be meant.

    Features or labels that are NaN, labels below -1, nodes in two splits, more partitions than
    nodes. The message has the place and the count.
    ``warnings.simplefilter("error", GraphWarning)`` makes it an error.
    """


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and blame the line outside of this package that led here."""
    level, frame = 1, sys._getframe()
    # by name, as in tracebacks: `gigl_loader.x` is ours, and a user's module is not
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith("gigl_loader."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


class GiglLoaderError(Exception):
    """Base class: ``except GiglLoaderError`` catches all of them."""

    def __str__(self) -> str:
        return without_default_types(self._text())

    def _text(self) -> str:
        """Return the message, with internal type names."""
        return super().__str__()


class ConfigError(GiglLoaderError, ValueError):
    """An argument or a setting cannot work. Raised before any process or connection starts."""


class WrongTypeError(ConfigError, TypeError):
    """An argument is of the wrong type, or belongs to the other deployment."""


class FileChangedError(ConfigError):
    """A file of a dataset was changed while it was in use, so batches may have had other rows."""


class UsageError(GiglLoaderError, RuntimeError):
    """A call at the wrong moment: before a process group exists, or after shutdown."""


class NotReadyError(UsageError, ValueError):
    """A dataset that was not built yet, or a process group that is not up; torch's ValueError."""


class PeerError(GiglLoaderError, RuntimeError):
    """A worker, server or link failed while this side was healthy."""


class WorkerDiedError(PeerError):
    """A sampling process exited early. ``exitcode`` ``-n`` means killed by signal ``n``.

    ``pid`` is None if it ended before its supervisor could start it, ``exitcode`` if it is unknown.
    ``note`` is the reason why it was not replaced; "" if ``max_restarts`` is 0. ``where`` names the
    storage server of the process; "" for a process of this machine.
    """

    def __init__(
        self, worker: int, pid: int | None, exitcode: int | None, note: str = "", where: str = ""
    ) -> None:
        super().__init__(worker, pid, exitcode, note, where)  # == fields: it survives pickling
        self.worker, self.pid, self.exitcode, self.note = worker, pid, exitcode, note
        self.where = where

    def _text(self) -> str:
        how, hint = f"exit code {self.exitcode}", "its traceback is in the worker's stderr"
        if self.exitcode is None:
            how = "exit code unknown"
            hint = "its supervising process was ended, and the kernel ends its workers with it"
        # multiprocessing gives the signal that ended a process as a negative exit code
        elif self.exitcode < 0:
            how = signal_name(-self.exitcode)
            hint = _HINTS.get(-self.exitcode, _KILLED)
        tail = f"; {self.note}" if self.note else ""
        who = f"{self.where}: " if self.where else ""
        which = "not started yet" if self.pid is None else f"pid {self.pid}"
        return f"{who}sampling worker {self.worker} ({which}) died: {how}; {hint}{tail}"


_KILLED = "if nobody sent it, the host ran out of memory: lower num_workers or batch_size"
_HINTS: dict[int, str] = {
    signal.SIGBUS: "a page of a mapped file could not be read: its disk failed (see dmesg), or a "
    "partition of another process of this machine was changed (see its log); or memory that was "
    "set aside as huge pages ran out"
}
"""By signal, why it ends a worker."""


def signal_name(number: int) -> str:
    """Return the name of a signal, for messages."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


class _RaisedElsewhere(PeerError):
    """``remote_traceback`` is the traceback in the process that failed."""

    def __init__(self, where: str, cause: str, remote_traceback: str = "") -> None:
        super().__init__(where, cause, remote_traceback)
        self.where, self.cause, self.remote_traceback = where, cause, remote_traceback

    def _text(self) -> str:
        tail = f"\n--- traceback of {self.where} ---\n{self.remote_traceback}"
        return f"{self.where} failed: {self.cause}" + (tail if self.remote_traceback else "")


class SamplingError(_RaisedElsewhere):
    """A sampler raised. ``remote_traceback`` is the traceback in the process that failed."""


class PeerTimeoutError(PeerError, TimeoutError):
    """A healthy-looking peer made no progress before the deadline."""


class ServerDiedError(PeerError):
    """A storage server ended, or can no longer be reached."""


class PeerLostError(PeerError):
    """A connection is over and could not be replaced: ``end`` is a ``transport.EndReason``."""

    def __init__(self, text: str, end: str = "gone") -> None:
        super().__init__(text, end)
        # args are all fields, for pickling; str() shows only the text
        self.end = end

    def _text(self) -> str:
        return str(self.args[0])


class RemoteError(_RaisedElsewhere):
    """A call on a peer raised an error of a class that is not gigl_loader's."""


class JoinRefusedError(PeerLostError):
    """One side of a connection refused the other; ``end`` gives the reason."""

    def __init__(self, text: str, end: str = "refused: token") -> None:
        super().__init__(text, end)


class JobStoppedError(JoinRefusedError):
    """The job of this process was stopped on the graph store, by ``gigl-loader stop-job``."""

    def __init__(self, text: str, end: str = "job over") -> None:
        super().__init__(text, end)


class ObjectStorageError(PeerError):
    """Object storage refused a request, or failed, also after requests were repeated."""


class ResourceError(GiglLoaderError, OSError):
    """This machine ran out of open files, processes, memory, disk space, or space for a file."""


_LIMITS = {
    errno.EMFILE: "this process may open no more files: raise the limit (ulimit -n 65536), or shut "
    "loaders down that are no longer used",
    errno.ENFILE: "this machine has no more open files to give: end other programs, or raise "
    "fs.file-max",
    errno.EAGAIN: "this user may start no more processes and threads: raise the limit (ulimit -u, "
    "or pids.max of the container), or end other programs",
    errno.ENOSPC: "the disk is full: make room, or choose another directory",
    errno.EDQUOT: "your quota of the disk is used up: make room, or choose another directory",
    errno.EFBIG: "the file became larger than it may be: raise the limit (ulimit -f unlimited)",
}


_NO_MEMORY = (
    "this machine, or its limit (ulimit -v, memory.max of the container), has too little memory: "
    "end other programs, or look at what was read, if it is of others"
)
"""For a MemoryError, which has no number. Shared memory has an error of its own."""


@contextmanager
def needed(text: str) -> Iterator[None]:
    """Raise `ConfigError` instead of an ImportError.

    Args:
        text: Who needs the package that is imported within, and how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(text) from error


@contextmanager
def explained_limits(what: str) -> Iterator[None]:
    """Raise `ResourceError` instead of a system error about a limit.

    Args:
        what: The current operation.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        # libraries wrap system errors: the number is in the last one of the chain
        while cause is not None and not isinstance(cause, ResourceError):
            number = cause.errno if isinstance(cause, OSError) else None
            if number in _LIMITS:
                raise ResourceError(
                    number, f"{what}: {os.strerror(number)}: {_LIMITS[number]}"
                ) from error
            if isinstance(cause, MemoryError):
                raise ResourceError(errno.ENOMEM, f"{what}: {_NO_MEMORY}") from error
            known = None if cause.__suppress_context__ else cause.__context__
            cause = cause.__cause__ or known
        raise


class NoEarlyEnd:
    """Raises `SamplingError` instead of a StopIteration, as Python itself does in generators.

    Around all calls of an iterator's ``__next__``: a bare ``next()`` anywhere below, also in a
    sampler or a transform, would end the loop over it as if all batches had come.

    Args:
        what: The current operation.
    """

    # no generator: contextlib confuses an error raised from a StopIteration with that one
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StopIteration):
            raise SamplingError(
                self._what,
                "StopIteration was raised, which a loop takes for the end of the epoch, and the "
                "epoch is not over: look above for a next() without a default, in your sampler or "
                "transform; in gigl_loader it is a bug to report",
            ) from error


class NativeLibraryError(GiglLoaderError, RuntimeError):
    """A function of graphlearn-torch's native library was called, but it cannot be loaded."""


class ProtocolError(GiglLoaderError, RuntimeError):
    """A message broke the wire contract between two parts of gigl_loader: report it as a bug."""


def exit_code(error: Exception) -> int:
    """Return a command's exit code for an error: 2 for refused input, as argparse has it, or 1."""
    return 2 if isinstance(error, ConfigError) else 1
