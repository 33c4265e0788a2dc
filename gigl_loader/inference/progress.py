"""A line that says how far inference is."""

import sys
import time

# Twice a second is smooth to look at; more often, writing to a slow terminal costs time that the
# layers need.
_EVERY_S = 0.5


class ProgressLine:
    """Rows done, rows per second and time left, on one line of stderr.

    Args:
        total: Rows over all layers, of this rank.
        shown: False: nothing is written.
    """

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total, self._shown = total, shown
        self._rows = self._skipped = 0
        self._started = time.perf_counter()
        self._written = 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows that were computed, per second."""
        # without the rows of an earlier run: they took this one no time, and would make it look
        # fast
        return self._rows / max(time.perf_counter() - self._started, 1e-9)

    def skip(self, rows: int) -> None:
        """An earlier run has computed these."""
        self._skipped += rows

    def add(self, rows: int, layer: str) -> None:
        """These rows were computed."""
        self._rows += rows
        now = time.perf_counter()
        if self._shown and now - self._written > _EVERY_S:
            self._written = now
            self._write(layer)

    def _write(self, layer: str) -> None:
        done = self._rows + self._skipped
        left = int((self._total - done) / max(self.rows_per_s, 1e-9))
        minutes, seconds = divmod(left, 60)
        share = 100 * done / max(self._total, 1)
        text = (
            f"{layer}  {share:3.0f}%  {self.rows_per_s:,.0f} rows/s  {minutes}:{seconds:02d} left"
        )
        # padded, so that what is left of a longer line before it is written over
        print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._shown:
            print(f"\r{f'{self._rows:,} rows, {self.rows_per_s:,.0f} rows/s':<70}", file=sys.stderr)
