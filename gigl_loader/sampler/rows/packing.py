"""Integers in as few bits as they need, for requests between workers and their responses.

Ids and labels of a batch fit into 10 to 30 bits; in memory they have 64. `PackedInts` keeps the
distance of each value to the smallest one, or, if values ascend, to the previous one. `PackedRuns`
keeps runs of equal values as values and counts. Both restore the exact input. A request is packed
by `DrawRequest.map` with `PackedInts.of`, and unpacked with `PackedInts.unpack`.
"""

from dataclasses import dataclass

import numpy as np

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.sampler.kernels import packing_kernels as kernels

_LEAST_RUN = 2
"""Mean length from which runs take less space than values."""


@dataclass(frozen=True)
class PackedInts:
    """Integers, ``bits`` bits each."""

    size: int
    """The number of integers."""
    first: int
    """Offset of each value; with ``steps``, of the first value alone."""
    bits: int
    """1 to 64."""
    steps: bool
    """Whether each is kept as its distance to the previous one."""
    words: np.ndarray
    """``[ceil(size * bits / 64)]`` uint64."""

    @classmethod
    def of(cls, values: Array) -> "PackedInts":
        """Pack ``[n]`` int64."""
        size = values.size
        if size == 0:
            return cls(0, 0, 1, False, np.empty(0, np.uint64))
        least, most, ascending, widest = kernels.survey(values)
        span = int(most) - int(least)
        # Python integers: the span of int64 values may have 64 bits.
        steps = bool(ascending and int(widest) < span)
        bits = max(1, (int(widest) if steps else span).bit_length())
        # Not filled: the kernel writes each word once, the last one with zeros above.
        words = np.empty(-(-size * bits // 64), np.uint64)
        kernels.pack(values, least, bits, steps, words)
        return cls(size, int(least), bits, steps, words)

    @property
    def nbytes(self) -> int:
        """Bytes of the words; their description is a few bytes in each message."""
        return int(self.words.nbytes)

    def unpack(self, out: Array | None = None) -> Array:
        """Return the integers as ``[size]`` int64.

        Args:
            out: Contiguous array of that size to write to; None: fresh memory.

        Raises:
            ProtocolError: They came from another machine and are invalid, or of another size than
                ``out``.
        """
        self.check()
        if out is None:
            out = np.empty(self.size, np.int64)
        elif out.size != self.size:
            raise ProtocolError(f"{self.size} integers came for {out.size}")
        kernels.unpack(self.words, self.first, self.bits, self.steps, out)
        return out

    def check(self) -> None:
        """Check that the words hold the integers, which take at most 64 times the words' memory.

        Raises:
            ProtocolError: They do not.
        """
        words = self.words
        fits = (
            1 <= self.bits <= 64
            and self.size >= 0
            and -(1 << 63) <= self.first < 1 << 63
            and words.dtype == np.uint64
            and words.ndim == 1
            and words.size == -(-self.size * self.bits // 64)
        )
        if not fits:
            raise ProtocolError(
                f"{self.size} integers of {self.bits} bits above {self.first} came as "
                f"{words.dtype} {words.shape}"
            )


@dataclass(frozen=True)
class PackedRuns:
    """Integers, most of which equal the previous one."""

    values: PackedInts
    """One value of each run."""
    counts: PackedInts | None
    """The length of each run; None: no runs, ``values`` are all."""

    @classmethod
    def of(cls, values: Array) -> "PackedRuns":
        """Pack ``[n]`` int64 as runs, if that is shorter."""
        starts = np.empty(values.size // _LEAST_RUN, np.int64)
        num_runs = int(kernels.find_runs(values, starts))
        # -1: more runs than half of the values, so that values and counts are no shorter; 0: empty.
        if num_runs <= 0:
            return cls(PackedInts.of(values), None)
        starts = starts[:num_runs]
        counts = np.diff(starts, append=values.size)
        return cls(PackedInts.of(values[starts]), PackedInts.of(counts))

    def unpack(self, out: Array) -> None:
        """Write the integers to ``out``, which has the packed size and so bounds the runs.

        Raises:
            ProtocolError: They came from another machine and are invalid, or of another size.
        """
        if self.counts is None:
            self.values.unpack(out)
            return
        values, counts = self.values.unpack(), self.counts.unpack()
        if values.size != counts.size or not kernels.repeat(values, counts, out):
            raise ProtocolError(f"{values.size} runs do not make up {out.size} integers")

    @property
    def nbytes(self) -> int:
        """Bytes of the words."""
        return self.values.nbytes + (0 if self.counts is None else self.counts.nbytes)
