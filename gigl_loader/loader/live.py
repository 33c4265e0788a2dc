"""The loaders of this process that are open: shut down at its end, disowned by forked children."""

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any, Protocol


class Closable(Protocol):
    """Entry of a loader in the table of live loaders."""

    _shutdowned: bool
    _is_forked: bool

    def shutdown(self, linger_s: float | None = None) -> None:
        """Stop its workers."""
        ...


# Weak, or no loader would ever be dropped, and told of by its finaliser.
_loaders: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def add(loader: Closable) -> None:
    """Shut ``loader`` down when the interpreter ends, if it is still open then."""
    _loaders.add(loader)


def discard(loader: Closable) -> None:
    """Forget a loader that was shut down."""
    _loaders.discard(loader)


def inputs() -> Iterator[Any]:
    """Yield what the open loaders sample: an input, or those of all storage servers."""
    for loader in list(_loaders):
        yield getattr(loader, "input_data", None)


def _disown() -> None:
    """Count all loaders as shut down: a forked child owns none of its parent's workers."""
    for loader in list(_loaders):
        # Without a call of `shutdown`: the child has copies of the parent's pipes and sockets, and
        # saying good-bye there would end the parent's workers.
        loader._shutdowned = loader._is_forked = True


# At exit and not by finalisers: when these run, modules may be gone already.
@atexit.register
def _shut_all_down() -> None:
    for loader in list(_loaders):
        with contextlib.suppress(Exception):  # the interpreter is ending: nobody could handle it
            loader.shutdown(linger_s=0.0)


# In the child alone; the parent goes on with its loaders as they are.
os.register_at_fork(after_in_child=_disown)
