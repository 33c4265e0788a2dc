"""An exception in a handler, as it travels to whoever asked."""

import inspect
import traceback
from dataclasses import dataclass
from typing import Any

from gigl_loader import errors
from gigl_loader.errors import GiglLoaderError, RemoteError
from gigl_loader.transport.words import readable

_OURS = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, GiglLoaderError)
}
"""What may be built again on the other side: a fixed table, so that no frame can name code."""


@dataclass(frozen=True)
class Failure:
    """Content of an ERROR frame."""

    kind: str
    args: tuple[bool | int | float | str | None, ...]
    text: str
    traceback: str


def describe(error: BaseException) -> Failure:
    """Return what travels of ``error``."""
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
