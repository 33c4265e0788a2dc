"""Questions between workers as they travel between machines: ids, counts and neighbours packed."""

from dataclasses import dataclass

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.sampler.packing import PackedInts, pack_ints, unpack_ints
from gigl_loader.sampler.questions import Asked, Draw, Drawn, DrawRequest, RowsRequest


@dataclass(frozen=True)
class AskedQuestion:
    """An `Asked`."""

    tree: PackedInts
    until: PackedInts | None
    since: PackedInts | None

    @classmethod
    def of(cls, asked: Asked) -> "AskedQuestion":
        """Pack what is told of nodes."""
        until = None if asked.until is None else pack_ints(asked.until)
        since = None if asked.since is None else pack_ints(asked.since)
        return cls(pack_ints(asked.tree), until, since)

    def unpacked(self) -> Asked:
        """Undo `of`.

        Raises:
            ProtocolError: Something in it is not packed.
        """
        until = None if self.until is None else unpack_ints(self.until)
        since = None if self.since is None else unpack_ints(self.since)
        return Asked(unpack_ints(self.tree), until, since)


@dataclass(frozen=True)
class DrawQuestion:
    """A `DrawRequest`."""

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
            ProtocolError: The ids are none.
        """
        asked = None if self.asked is None else self.asked.unpacked()
        return DrawRequest(self.draw, unpack_ints(self.nodes), asked)


@dataclass(frozen=True)
class DrawAnswer:
    """A `Drawn`."""

    counts: PackedInts
    neighbors: PackedInts
    edge_ids: PackedInts | None

    @classmethod
    def of(cls, drawn: Drawn) -> "DrawAnswer":
        """Pack an answer."""
        edge_ids = None if drawn.edge_ids is None else pack_ints(drawn.edge_ids)
        return cls(pack_ints(drawn.counts), pack_ints(drawn.neighbors), edge_ids)

    def unpacked(self) -> Drawn:
        """Undo `of`.

        Raises:
            ProtocolError: Something in it is not packed.
        """
        edge_ids = None if self.edge_ids is None else unpack_ints(self.edge_ids)
        return Drawn(unpack_ints(self.counts), unpack_ints(self.neighbors), edge_ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        parts = (self.counts, self.neighbors, self.edge_ids)
        # the words alone: what else describes them is a few bytes in each message
        return sum(int(part.words.nbytes) for part in parts if part is not None)


@dataclass(frozen=True)
class RowsQuestion:
    """A `RowsRequest`. Rows travel as they are stored."""

    kind: str
    name: NodeType | EdgeType
    ids: PackedInts
    attribute: str | None
    with_scales: bool = False
    """Whether to tell the scales of quantised rows: who takes batches has them from these."""

    @classmethod
    def of(cls, request: RowsRequest, *, with_scales: bool = False) -> "RowsQuestion":
        """Pack a request."""
        ids = pack_ints(request.ids)
        return cls(request.kind, request.name, ids, request.attribute, with_scales)

    def unpacked(self) -> RowsRequest:
        """Undo `of`.

        Raises:
            ProtocolError: The ids are none.
        """
        return RowsRequest(self.kind, self.name, unpack_ints(self.ids), self.attribute)
