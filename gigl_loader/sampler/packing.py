"""Integers in as few bits as they need, and workers' requests made of them, for the network.

Ids and labels of a batch fit into 10 to 30 bits; in memory they have 64. `pack_ints` keeps the
distance of each value to the smallest one, or, if values ascend, to the previous one. `pack_runs`
keeps runs of equal values as values and counts. Both restore the exact input.
"""

from dataclasses import dataclass

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ProtocolError
from gigl_loader.memory.segments import Array
from gigl_loader.sampler import packing_kernels as kernels
from gigl_loader.sampler.plan import Asked, Draw, Drawn, DrawRequest, RowsRequest

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

    @property
    def nbytes(self) -> int:
        """Bytes of the words."""
        counts = 0 if self.counts is None else self.counts.words.nbytes
        return int(self.values.words.nbytes) + int(counts)


def pack_ints(values: Array) -> PackedInts:
    """Pack ``[n]`` int64."""
    size = values.size
    if size == 0:
        return PackedInts(0, 0, 1, False, np.empty(0, np.uint64))
    least, most, ascending, widest = kernels.survey(values)
    span = int(most) - int(least)
    # Python integers: the span of int64 values may have 64 bits.
    steps = bool(ascending and int(widest) < span)
    bits = max(1, (int(widest) if steps else span).bit_length())
    # Not filled: the kernel writes each word once, the last one with zeros above.
    words = np.empty(-(-size * bits // 64), np.uint64)
    kernels.pack(values, least, bits, steps, words)
    return PackedInts(size, int(least), bits, steps, words)


def unpack_ints(packed: PackedInts, out: Array | None = None) -> Array:
    """Return the integers as ``[size]`` int64.

    Args:
        packed: From `pack_ints`, perhaps of another machine.
        out: Contiguous array of that size to write to; None: fresh memory.

    Raises:
        ProtocolError: ``packed`` is invalid, or of another size than ``out``.
    """
    packed.check()
    if out is None:
        out = np.empty(packed.size, np.int64)
    elif out.size != packed.size:
        raise ProtocolError(f"{packed.size} integers came for {out.size}")
    kernels.unpack(packed.words, packed.first, packed.bits, packed.steps, out)
    return out


def pack_runs(values: Array) -> PackedRuns:
    """Pack ``[n]`` int64 as runs, if that is shorter."""
    starts = np.empty(values.size // _LEAST_RUN, np.int64)
    found = int(kernels.find_runs(values, starts))
    # -1: more runs than half of the values, so that values and counts are no shorter; 0: empty.
    if found <= 0:
        return PackedRuns(pack_ints(values), None)
    starts = starts[:found]
    counts = np.diff(starts, append=values.size)
    return PackedRuns(pack_ints(values[starts]), pack_ints(counts))


def unpack_runs(packed: PackedRuns, out: Array) -> None:
    """Write the integers to ``out``, which has the packed size and so bounds the runs.

    Raises:
        ProtocolError: ``packed`` is invalid, or of another size.
    """
    if packed.counts is None:
        unpack_ints(packed.values, out)
        return
    values, counts = unpack_ints(packed.values), unpack_ints(packed.counts)
    if values.size != counts.size or not kernels.repeat(values, counts, out):
        raise ProtocolError(f"{values.size} runs do not make up {out.size} integers")


@dataclass(frozen=True)
class AskedQuestion:
    """An `Asked`, packed."""

    tree: PackedInts
    until: PackedInts | None
    since: PackedInts | None

    @classmethod
    def of(cls, asked: Asked) -> "AskedQuestion":
        """Pack the trees and times of nodes."""
        until = None if asked.until is None else pack_ints(asked.until)
        since = None if asked.since is None else pack_ints(asked.since)
        return cls(pack_ints(asked.tree), until, since)

    def unpacked(self) -> Asked:
        """Undo `of`.

        Raises:
            ProtocolError: A part of it is invalid.
        """
        until = None if self.until is None else unpack_ints(self.until)
        since = None if self.since is None else unpack_ints(self.since)
        return Asked(unpack_ints(self.tree), until, since)


@dataclass(frozen=True)
class DrawQuestion:
    """A `DrawRequest`, packed."""

    draw: Draw
    nodes: PackedInts
    asked: AskedQuestion | None

    @classmethod
    def of(cls, request: DrawRequest) -> "DrawQuestion":
        """Pack a request."""
        asked = None if request.asked is None else AskedQuestion.of(request.asked)
        return cls(request.draw, pack_ints(request.nodes), asked)

    def unpacked(self) -> DrawRequest:
        """Undo `of`.

        Raises:
            ProtocolError: The ids are invalid.
        """
        asked = None if self.asked is None else self.asked.unpacked()
        return DrawRequest(self.draw, unpack_ints(self.nodes), asked)


@dataclass(frozen=True)
class DrawAnswer:
    """A `Drawn`, packed."""

    counts: PackedInts
    neighbors: PackedInts
    edge_ids: PackedInts | None

    @classmethod
    def of(cls, drawn: Drawn) -> "DrawAnswer":
        """Pack a response."""
        edge_ids = None if drawn.edge_ids is None else pack_ints(drawn.edge_ids)
        return cls(pack_ints(drawn.counts), pack_ints(drawn.neighbors), edge_ids)

    def unpacked(self) -> Drawn:
        """Undo `of`.

        Raises:
            ProtocolError: A part of it is invalid.
        """
        edge_ids = None if self.edge_ids is None else unpack_ints(self.edge_ids)
        return Drawn(unpack_ints(self.counts), unpack_ints(self.neighbors), edge_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        parts = (self.counts, self.neighbors, self.edge_ids)
        # the words alone: their description is a few bytes in each message
        return sum(int(part.words.nbytes) for part in parts if part is not None)


@dataclass(frozen=True)
class RowsQuestion:
    """A `RowsRequest`, packed. Rows travel as they are stored."""

    kind: str
    name: NodeType | EdgeType
    ids: PackedInts
    attribute: str | None
    with_scales: bool = False
    """Whether to send the scales of quantised rows; batches bring their own."""

    @classmethod
    def of(cls, request: RowsRequest, *, with_scales: bool = False) -> "RowsQuestion":
        """Pack a request."""
        ids = pack_ints(request.ids)
        return cls(request.kind, request.name, ids, request.attribute, with_scales)

    def unpacked(self) -> RowsRequest:
        """Undo `of`.

        Raises:
            ProtocolError: The ids are invalid.
        """
        return RowsRequest(self.kind, self.name, unpack_ints(self.ids), self.attribute)
