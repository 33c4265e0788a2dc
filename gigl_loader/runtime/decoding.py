"""Types that msgspec decodes into: it may analyse a class in one thread at a time."""

import threading
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")
MOST_OF_NAME = 255
"""Most characters of a name, as of a host."""
Name = Annotated[str, msgspec.Meta(max_length=MOST_OF_NAME)]
"""Text of another process that this one keeps, or writes into its log."""

_analysed: set[Any] = set()
_analysing = threading.Lock()


def analysed(kind: T) -> T:
    """Return ``kind`` once msgspec has analysed it: the ``type`` of each of its calls.

    msgspec 0.22 stores the analysis of a dataclass on the class before it is complete, and a second
    thread that meets it then crashes the process with a segmentation fault.

    Args:
        kind: A class, or a type such as ``list[int]``.
    """
    if kind not in _analysed:  # without the lock: a set's look-up is atomic
        with _analysing:
            msgspec.msgpack.Decoder(kind)
            _analysed.add(kind)
    return kind
