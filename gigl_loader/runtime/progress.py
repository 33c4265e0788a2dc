"""Progress of long work: a bar for files that are written or read, a line for rows."""

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
"""Without a requested bar: the time of the first line, and the interval from then on."""


class ProgressBar:
    """Progress of a long piece of work: a bar of ``tqdm``, or log lines if it is missing.

    Args:
        title: Name of the work.
        total: Approximate bytes to write or read.
        shown: False: nothing is shown. None: a line now and then, once it takes long; ``total`` is
            ignored.
    """

    def __init__(self, title: str, total: int, *, shown: bool | None) -> None:
        self._started = self._said = time.monotonic()
        # at least 1: it is a divisor, and a graph may be empty
        self._title, self._total, self._bar = title, max(total, 1), None
        self._done, self._logged, self._shown, self._is_late = 0, 0.0, bool(shown), shown is None
        if shown:
            try:
                # here, as it is an extra: a user without a bar need not have it
                tqdm = importlib.import_module("tqdm").tqdm
                self._bar = tqdm(total=self._total, desc=title, unit="B", unit_scale=True)
            except ImportError:
                _log.info("%s: install tqdm for a progress bar", title)

    @property
    def done(self) -> int:
        """Finished bytes."""
        return self._done

    def step(self, what: str) -> None:
        """Show the name of the current step."""
        if self._bar is not None:
            self._bar.set_postfix_str(what)
        elif self._shown:
            _log.info("%s: %s", self._title, what)

    def add(self, nbytes: int) -> None:
        """Add finished bytes."""
        if self._is_late:
            self._done += nbytes
            self._say_late()
            return
        # the total is an estimate, but a bar should not go past the end
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
            # a warning: it appears without any logging setup, and a process that is silent for half
            # a minute looks like one that hangs
            _log.warning(
                "%s: %.1f GB after %.0f s", self._title, self._done / 1e9, now - self._started
            )

    def close(self, *, complete: bool) -> None:
        """End the display; idempotent."""
        if self._is_late:
            return
        # a successful bar should reach the end; after a failure it stays at its position
        if complete:
            self.add(self._total)
        if self._bar is not None:
            self._bar.close()


# Not an argument: the code that reads and writes files is some calls below, and is mostly used
# without a bar. A context variable: two loading threads do not move each other's bar.
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
    """Move the bar of the enclosing `showing` block, if there is one.

    Args:
        values: The tensor that was written or read, or a number of bytes.
    """
    progress = _current.get()
    if progress is not None:
        is_count = isinstance(values, int)
        progress.add(values if is_count else values.numel() * values.element_size())


_TERMINAL_S, _ELSEWHERE_S = 0.5, 10.0
"""Interval between lines: short enough to read along, without slowing work on a slow terminal; a
log file gets some thousand lines at most per day."""


class ProgressLine:
    """Finished rows, rows per second and remaining time, on stderr.

    On a terminal it is one line, which is overwritten.

    Args:
        total: Rows, or other units, of all of the work. 0: unknown.
        shown: False: nothing is written.
        name: Name of the work; `add` may change it.
        unit: Unit of the count.
    """

    def __init__(self, total: int, *, shown: bool, name: str = "", unit: str = "rows") -> None:
        self._total, self._shown, self._name, self._unit = total, shown, name, unit
        self._done = self._skipped = 0
        self._started = self._written = time.perf_counter()

    @property
    def per_second(self) -> float:
        """Rows per second."""
        # without the rows of an earlier run: they took no time in this one, and would raise the
        # rate
        return self._done / max(time.perf_counter() - self._started, 1e-3)

    def skip(self, count: int) -> None:
        """Add rows that an earlier run finished."""
        self._skipped += count

    def add(self, count: int, name: str = "") -> None:
        """Add finished rows."""
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
        # no division by zero with a rate of 0, or a stage without rows or time
        done, rate = self._done + self._skipped, self.per_second
        left = max((self._total - done) / max(rate, 1e-3), 0)
        is_known = bool(self._total) or not done
        text = (
            f"{self._name}: {done:,}{f' of {self._total:,}' if is_known else ''} {self._unit}, "
            f"{rate:,.0f} {self._unit}/s, {time.perf_counter() - self._started:.1f} s"
            f"{f', {left:.0f} s left' if is_known else ''}"
        )
        # padded, to overwrite the rest of a longer line
        start, text = ("\r", f"{text:<90}") if sys.stderr.isatty() else ("", text)
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
