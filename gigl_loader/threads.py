"""Threads of this library: one that ends by an error says so, and tells who relies on it.

A thread of `threading` that raises prints a traceback and is gone; whoever waits for what it would
have done waits until a limit of its own.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)


def nothing_hangs_on_it(error: BaseException) -> None:
    """Do nothing, as ``on_death``: nobody waits for what the thread does, so the log is enough."""


def new_thread(
    *,
    target: Callable[..., object],
    args: tuple[Any, ...] = (),
    name: str,
    on_death: Callable[[BaseException], object],
) -> threading.Thread:
    """Return a daemon, not started, whose death is never silent.

    Args:
        target: What it does. Errors that it expects are its own to handle.
        args: For ``target``.
        name: For logs and debuggers.
        on_death: Called, in the thread, with what ``target`` raised, after that was logged: ends or
            restarts what hangs on the thread. `nothing_hangs_on_it` where nothing does.
    """
    return threading.Thread(
        target=_run, args=(target, args, name, on_death), name=name, daemon=True
    )


def _run(
    target: Callable[..., object], args: tuple[Any, ...], name: str,
    on_death: Callable[[BaseException], object],
) -> None:  # fmt: skip
    try:
        target(*args)
    # SystemExit, too: `threading` lets that end a thread without a word
    except (Exception, SystemExit) as error:
        _log.exception("thread %r ended by %s: %s", name, type(error).__name__, error)
        try:
            on_death(error)
        except Exception:
            _log.exception("what hung on thread %r could not be ended", name)
