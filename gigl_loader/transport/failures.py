"""How a connection ended, how a handler's exception travels, and how both are put into words.

Text of another process is cleaned before it reaches a log or an error of this one: a line break in
it would forge a line of the log, an escape sequence would move the cursor of a terminal, hide
text or turn its direction.
"""

import inspect
import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gigl_loader import errors
from gigl_loader.errors import GiglLoaderError, RemoteError

_MOST = 500
"""Characters of a line; the longest refusal of ours has some 300."""


def one_line(text: str, most: int = _MOST) -> str:
    """Return ``text`` in one line of printable characters, cut after ``most``."""
    # cut first: escaped text is up to ten times as long
    return _escaped(text[:most], "") + ("..." if len(text) > most else "")


def readable(text: str) -> str:
    """Return ``text`` with its lines and tabs, as a traceback has them, and no other control."""
    return _escaped(text, "\n\t")


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in kept else one.encode("unicode_escape").decode()
        for one in text
    )


class End(StrEnum):
    """Why a connection is over. Travels in the goodbye and in a refusal."""

    CLOSED = "closed"
    """This side closed it."""
    SHUTDOWN = "shutdown"
    """The other side ends in good order."""
    JOB_OVER = "job over"
    """The other side has nothing more to ask, because its job is done."""
    LOST_PEER = "lost peer"
    """The other side gives up because it lost somebody else."""
    REPLACED = "replaced"
    """The caller came back on a fresh connection."""
    GONE = "gone"
    """It was cut off without a goodbye: the process was killed, or the network dropped it."""
    SILENT = "silent"
    """Nothing was heard for the limit: the machine is stopped, or the network is cut."""
    PROTOCOL = "protocol"
    """It sent data that no healthy peer of this version sends."""
    REFUSED_TOKEN = "refused: token"
    REFUSED_CERTIFICATE = "refused: certificate"
    REFUSED_USER = "refused: user"
    """A process of another user, where only this user's processes are admitted."""
    REFUSED_VERSION = "refused: version"
    REFUSED_MODE = "refused: encryption"
    """One side is encrypted and the other is not."""
    REFUSED_SERVICE = "refused: other service"
    """Not gigl_loader at all."""
    REFUSED_BUSY = "refused: busy"
    """No thread or descriptor is left for it."""
    REFUSED_SLOW = "refused: slow"
    """It did not finish the handshake in time, or newer ones pushed it out."""


_OURS = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, GiglLoaderError)
}
"""Errors that the other side may rebuild: a fixed table, so that no frame can name code."""


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
    # the `args` of our classes are their fields; of all other errors only the words travel
    args = error.args if name in _OURS and plain else (str(error),)
    trace = "".join(traceback.format_exception(error))
    # the end of a long traceback says where it was raised; with more, the failure would not fit
    # into a header
    return Failure(name, tuple(_plain(arg) for arg in args), str(error)[:10_000], trace[-50_000:])


def _plain(arg: Any) -> Any:
    return arg.value if hasattr(arg, "value") else arg[:100_000] if isinstance(arg, str) else arg


def rebuild(failure: Failure, where: str) -> GiglLoaderError:
    """Return the error again: of the same class where it is one of gigl_loader's."""
    cls = _OURS.get(failure.kind)
    try:
        if cls is not None:
            return cls(*(readable(arg) if isinstance(arg, str) else arg for arg in failure.args))
    except (TypeError, ValueError):
        pass  # a class whose fields are others on this side
    text = readable(f"{failure.kind}: {failure.text}")
    return RemoteError(where, text, readable(failure.traceback))
