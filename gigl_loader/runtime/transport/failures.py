"""Why a connection ended, how a handler's exception travels, and the text of both.

Text from another process is cleaned before it reaches a log or an error here: a line break could
forge a log line, and an escape sequence could move a terminal's cursor, hide text or turn its
direction.
"""

import inspect
import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from gigl_loader import errors
from gigl_loader.errors import GiglLoaderError, RemoteError

E = TypeVar("E", bound=GiglLoaderError)
_MOST = 500
"""Most characters of one line; our longest refusal has about 300."""


def one_line(text: str, most: int = _MOST) -> str:
    """Return ``text`` as one line of printable characters, cut after ``most``."""
    # cut before escaping: escaped text is up to ten times as long
    return _escaped(text[:most], "") + ("..." if len(text) > most else "")


def readable(text: str) -> str:
    """Return ``text`` without control characters, except a traceback's line breaks and tabs."""
    return _escaped(text, "\n\t")


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode()
        for char in text
    )


class EndReason(StrEnum):
    """Why a connection is over. It travels in goodbyes and refusals."""

    CLOSED = "closed"
    """This side closed it."""
    SHUTDOWN = "shutdown"
    """The other side ends in good order."""
    JOB_OVER = "job over"
    """The other side's job is done, so it sends no more requests."""
    LOST_PEER = "lost peer"
    """The other side gives up because it lost another peer."""
    REPLACED = "replaced"
    """The caller came back on a fresh connection."""
    GONE = "gone"
    """The connection ended without a goodbye: the process was killed, or the network dropped it."""
    SILENT = "silent"
    """Nothing was heard for longer than the limit: the machine stopped, or the network is cut."""
    PROTOCOL = "protocol"
    """The other side sent data that no healthy peer of this version sends."""
    REFUSED_TOKEN = "refused: token"
    REFUSED_CERTIFICATE = "refused: certificate"
    REFUSED_USER = "refused: user"
    """A process of another user, where only this user's processes are admitted."""
    REFUSED_VERSION = "refused: version"
    REFUSED_MODE = "refused: encryption"
    """One side is encrypted and the other is not."""
    REFUSED_SERVICE = "refused: other service"
    """The other side is not gigl_loader."""
    REFUSED_BUSY = "refused: busy"
    """No thread or descriptor is left for the caller."""
    REFUSED_SLOW = "refused: slow"
    """The caller did not finish the handshake in time, or newer callers pushed it out."""


_OURS = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, GiglLoaderError)
}
"""Error classes that the other side may rebuild: a fixed table, so that no frame can name code."""


@dataclass(frozen=True)
class Failure:
    """Content of an ERROR frame."""

    kind: str
    args: tuple[bool | int | float | str | None, ...]
    text: str
    traceback: str


def describe(error: BaseException) -> Failure:
    """Return the part of ``error`` that is sent."""
    name = type(error).__name__
    plain = all(isinstance(arg, None | bool | int | float | str) for arg in error.args)
    # the `args` of our classes are their fields; of all other errors only the text travels
    args = error.args if name in _OURS and plain else (str(error),)
    trace = "".join(traceback.format_exception(error))
    # The end of a long traceback says where the error was raised; a whole one might not fit into a
    # header.
    return Failure(name, tuple(_plain(arg) for arg in args), str(error)[:10_000], trace[-50_000:])


def _plain(arg: Any) -> Any:
    return arg.value if hasattr(arg, "value") else arg[:100_000] if isinstance(arg, str) else arg


def fresh_copy(error: E) -> E:
    """Return a copy with the same cause, for one thread to raise.

    An object that several threads raise would collect all their tracebacks.
    """
    copied = type(error)(*error.args)
    if error.__cause__ is not None:  # assigning None, too, would hide the context
        copied.__cause__ = error.__cause__
    return copied


def short_copy(error: E) -> E:
    """Return a copy to keep: each of its texts is one line, as it may quote all that was sent."""
    return type(error)(*(one_line(arg) if isinstance(arg, str) else arg for arg in error.args))


def rebuild(failure: Failure, where: str) -> GiglLoaderError:
    """Return the error again, of the same class if it is one of gigl_loader's."""
    cls = _OURS.get(failure.kind)
    try:
        if cls is not None:
            return cls(*(readable(arg) if isinstance(arg, str) else arg for arg in failure.args))
    except (TypeError, ValueError):
        pass  # the class has other fields on this side
    text = readable(f"{failure.kind}: {failure.text}")
    return RemoteError(where, text, readable(failure.traceback))
