"""How far long work is: a bar for files that are written or read, a line for rows."""

import importlib
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_log = logging.getLogger(__name__)
_LOG_STEP = 0.1
"""Without ``tqdm``, a line for each tenth."""
_LATE_S, _LATE_EVERY_S = 5.0, 10.0
"""Where nobody asked for a bar: when the first line comes, and how often from then on."""


class ProgressBar:
    """How much of a long piece of work is done: a bar of ``tqdm``, log lines where it is missing.

    Args:
        title: What is done.
        total: Bytes that it will write or read, more or less.
        shown: False: nothing is shown. None: a line now and then, once it takes long; ``total`` is
            not looked at.
    """

    def __init__(self, title: str, total: int, *, shown: bool | None) -> None:
        self._started = self._said = time.monotonic()
        # at least 1: shares of it are taken, and a graph may be empty
        self._title, self._total, self._bar = title, max(total, 1), None
        self._done, self._logged, self._shown, self._is_late = 0, 0.0, bool(shown), shown is None
        if shown:
            try:
                # here, as it is an extra: who wants no bar need not have it
                tqdm = importlib.import_module("tqdm").tqdm
                self._bar = tqdm(total=self._total, desc=title, unit="B", unit_scale=True)
            except ImportError:
                _log.info("%s: install tqdm for a progress bar", title)

    @property
    def done(self) -> int:
        """Bytes that were noted."""
        return self._done

    def step(self, what: str) -> None:
        """Say what is done now."""
        if self._bar is not None:
            self._bar.set_postfix_str(what)
        elif self._shown:
            _log.info("%s: %s", self._title, what)

    def add(self, nbytes: int) -> None:
        """Note that so much more is done."""
        if self._is_late:
            self._done += nbytes
            self._say_late()
            return
        # the total is an estimate, of which a bar should not go past the end
        nbytes = min(nbytes, self._total - self._done)
        self._done += nbytes
        if self._bar is not None:
            self._bar.update(nbytes)
        elif self._shown and self._done / self._total >= self._logged + _LOG_STEP:
            self._logged = self._done / self._total
            _log.info("%s: %.0f%%", self._title, 100 * self._logged)

    def _say_late(self) -> None:
        now = time.monotonic()
        pause_s = _LATE_S if self._said == self._started else _LATE_EVERY_S
        if now - self._said >= pause_s:
            self._said = now
            # a warning: these show where no logging was set up, and a process that is silent for
            # half a minute looks like one that hangs
            _log.warning(
                "%s: %.1f GB after %.0f s", self._title, self._done / 1e9, now - self._started
            )

    def close(self, *, complete: bool) -> None:
        """End; idempotent."""
        if self._is_late:
            return
        # and should reach it; a piece of work that failed leaves its bar where it was
        if complete:
            self.add(self._total)
        if self._bar is not None:
            self._bar.close()


# Not an argument: what writes and reads files is some calls below, and most of it is used without
# a bar, too. Of the context: two threads that load do not move each other's.
_current: ContextVar[ProgressBar | None] = ContextVar("progress", default=None)


@contextmanager
def showing(title: str, total: int, *, shown: bool | None) -> Iterator[ProgressBar]:
    """Let `note` move a bar in this block."""
    progress = ProgressBar(title, total, shown=shown)
    token, complete = _current.set(progress), False
    try:
        yield progress
        complete = True
    finally:
        _current.reset(token)
        progress.close(complete=complete)


def note(values: Any) -> None:
    """Move the bar of the `showing` block that this is in, where it is in one.

    Args:
        values: The tensor that was written or read, or a number of bytes.
    """
    progress = _current.get()
    if progress is not None:
        is_count = isinstance(values, int)
        progress.add(values if is_count else values.numel() * values.element_size())


_TERMINAL_S, _ELSEWHERE_S = 0.5, 10.0
"""How often a line is written: often enough for an eye, without slowing work on a slow terminal; in
a log file a day's run is some thousand lines at most."""


class ProgressLine:
    """How much is done, how fast, and how long the rest takes, on stderr.

    On a terminal it is one line, which is renewed.

    Args:
        total: Rows, or whatever is counted, of all of the work.
        shown: False: nothing is written.
        name: What is done; `add` may say it anew.
        unit: What is counted.
    """

    def __init__(self, total: int, *, shown: bool, name: str = "", unit: str = "rows") -> None:
        self._total, self._shown, self._name, self._unit = total, shown, name, unit
        self._done = self._skipped = 0
        self._started = self._written = time.perf_counter()

    @property
    def per_second(self) -> float:
        """Rows that were done, per second."""
        # without the rows of an earlier run: they took this one no time, and would make it look
        # fast
        return self._done / max(time.perf_counter() - self._started, 1e-3)

    def skip(self, count: int) -> None:
        """An earlier run has done these."""
        self._skipped += count

    def add(self, count: int, name: str = "") -> None:
        """So many more are done."""
        self._done, self._name = self._done + count, name or self._name
        if not self._shown:
            return
        now, is_terminal = time.perf_counter(), sys.stderr.isatty()
        if now - self._written > (_TERMINAL_S if is_terminal else _ELSEWHERE_S):
            self._written = now
            self._write("" if is_terminal else "\n")

    def end(self) -> None:
        """Write the last line."""
        if self._shown:
            self._write("\n")

    def _write(self, end: str) -> None:
        # a rate of 0, and a stage without rows or time, divide by no zero
        done, rate = self._done + self._skipped, self.per_second
        left = max((self._total - done) / max(rate, 1e-3), 0)
        text = (
            f"{self._name}: {done:,} of {self._total:,} {self._unit}, {rate:,.0f} {self._unit}/s, "
            f"{time.perf_counter() - self._started:.1f} s, {left:.0f} s left"
        )
        # padded, so that what is left of a longer line before it is written over
        start, text = ("\r", f"{text:<90}") if sys.stderr.isatty() else ("", text)
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
