"""Threads of this library: an error that ends one is logged, and its dependents are told.

A thread of `threading` that raises prints a traceback and is gone; a thread waiting for its result
waits until its own timeout.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)


def nothing_hangs_on_it(error: BaseException) -> None:
    """Do nothing, as ``on_death``: no other thread waits, so the log is enough."""


def new_thread(
    *,
    target: Callable[..., object],
    args: tuple[Any, ...] = (),
    name: str,
    on_death: Callable[[BaseException], object],
) -> threading.Thread:
    """Return a daemon, not started, whose death is never silent.

    Args:
        target: Function of the thread. It handles expected errors itself.
        args: Arguments of ``target``.
        name: For logs and debuggers.
        on_death: Called, in the thread, with the error of ``target``, after it was logged: ends or
            restarts the dependents of the thread. `nothing_hangs_on_it` if there are none.
    """
    return threading.Thread(
        target=_run, args=(target, args, name, on_death), name=name, daemon=True
    )


def start_aside(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Start a daemon that calls ``target``, and on which nothing hangs; return it."""
    thread = new_thread(target=target, args=args, name=name, on_death=nothing_hangs_on_it)
    thread.start()
    return thread


def fulfil(answer: Any, function: Callable[[], object]) -> None:
    """Give a future what a function returns, or the error of any kind that it raises."""
    try:
        answer.set_result(function())
    except BaseException as error:
        answer.set_exception(error)


def _run(
    target: Callable[..., object],
    args: tuple[Any, ...],
    name: str,
    on_death: Callable[[BaseException], object],
) -> None:
    try:
        target(*args)
    # SystemExit, too: `threading` lets that end a thread without a word
    except (Exception, SystemExit) as error:
        _log.exception("thread %r ended by %s: %s", name, type(error).__name__, error)
        try:
            on_death(error)
        except Exception:
            _log.exception("what hung on thread %r could not be ended", name)
