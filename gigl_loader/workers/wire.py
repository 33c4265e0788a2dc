"""Questions between workers as they travel between machines: ids, counts and neighbours packed."""

from dataclasses import dataclass

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.sampler.packing import PackedInts, pack_ints, unpack_ints
from gigl_loader.sampler.questions import Draw, Drawn, DrawRequest, RowsRequest


@dataclass(frozen=True)
class DrawQuestion:
    """A `DrawRequest`."""

    draw: Draw
    nodes: PackedInts

    @classmethod
    def of(cls, request: DrawRequest) -> "DrawQuestion":
        """Pack a request."""
        return cls(request.draw, pack_ints(request.nodes))

    def unpacked(self) -> DrawRequest:
        """Undo `of`.

        Raises:
            ProtocolError: The ids are none.
        """
        return DrawRequest(self.draw, unpack_ints(self.nodes))


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
        return sum(int(part.words.nbytes) for part in parts if part is not None)


@dataclass(frozen=True)
class RowsQuestion:
    """A `RowsRequest`. Rows travel as they are stored."""

    kind: str
    name: NodeType | EdgeType
    ids: PackedInts
    attribute: str | None

    @classmethod
    def of(cls, request: RowsRequest) -> "RowsQuestion":
        """Pack a request."""
        return cls(request.kind, request.name, pack_ints(request.ids), request.attribute)

    def unpacked(self) -> RowsRequest:
        """Undo `of`.

        Raises:
            ProtocolError: The ids are none.
        """
        return RowsRequest(self.kind, self.name, unpack_ints(self.ids), self.attribute)
