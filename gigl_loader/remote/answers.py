"""What methods of `DistServer` return, as it travels; the table is in `remote.messages`."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.memory import same_host
from gigl_loader.remote import values
from gigl_loader.remote.values import (
    BookMessage,
    FeatureInfosMessage,
    SchemaMessage,
    TensorMessage,
)
from gigl_loader.sampler.questions import RowsAnswer

A = TypeVar("A", bound="Answer")


class Answer:
    """The value that a method returned, encoded in the field ``value``."""

    # Subclasses narrow it. The transport checks what arrives against that type, so that a broken
    # server, or one of another version, is a ProtocolError and not a strange batch.
    value: Any

    @classmethod
    def of(cls: type[A], result: Any) -> A:
        """Return the message for what a method returned."""
        # subclasses are dataclasses of this one field; this class, which mypy sees, is none
        return cls(value=values.to_message(result))  # type: ignore[call-arg]

    @property
    def result(self) -> Any:
        """The value that the method returned."""
        return values.from_message(self.value)


@dataclass(frozen=True)
class Nothing(Answer):
    """Nothing: it was done."""

    value: None = None


@dataclass(frozen=True)
class Flag(Answer):
    """Yes or no."""

    value: bool


@dataclass(frozen=True)
class Number(Answer):
    """A number: an id."""

    value: int


@dataclass(frozen=True)
class Numbers(Answer):
    """Several numbers."""

    value: list[int]


@dataclass(frozen=True)
class Rows(Answer):
    """Rows of a matrix."""

    # made of arrays, so it travels as it is; whoever asked makes tensors of them, once the rows of
    # all servers are there (`StoreLookup`)
    value: RowsAnswer


@dataclass(frozen=True)
class Text(Answer):
    """A text."""

    value: str


@dataclass(frozen=True)
class Status(Answer):
    """The server's state, as plain values."""

    value: dict[str, Any]


@dataclass(frozen=True)
class Mark(Answer):
    """Position and content of the server's mark in shared memory."""

    value: same_host.Mark


@dataclass(frozen=True)
class Sampled(Answer):
    """A batch, or None; and whether the epoch is over."""

    value: tuple[dict[str, TensorMessage] | None, bool]


@dataclass(frozen=True)
class Batch(Answer):
    """A batch that belongs to no epoch."""

    value: dict[str, TensorMessage]


@dataclass(frozen=True)
class Schema(Answer):
    """Schema of the graph: types, feature infos, direction."""

    value: SchemaMessage


@dataclass(frozen=True)
class NodeCounts(Answer):
    """Nodes by type."""

    value: dict[NodeType, int]


@dataclass(frozen=True)
class EdgeTypes(Answer):
    """Edge types; None for a homogeneous graph."""

    value: list[EdgeType] | None


@dataclass(frozen=True)
class NodeTypes(Answer):
    """Node types; None for a homogeneous graph."""

    value: list[NodeType] | None


@dataclass(frozen=True)
class Ids(Answer):
    """``[n]`` int64, global ids."""

    value: TensorMessage


@dataclass(frozen=True)
class Tensors(Answer):
    """Tensors by name."""

    value: dict[str, TensorMessage]


@dataclass(frozen=True)
class ABLPInput(Answer):
    """Type of the anchors, anchors, and positives and negatives by label edge type."""

    value: tuple[
        NodeType,
        TensorMessage,
        dict[EdgeType, TensorMessage],
        dict[EdgeType, TensorMessage] | None,
    ]


@dataclass(frozen=True)
class FeatureInfos(Answer):
    """Width and type of features."""

    value: FeatureInfosMessage

    @classmethod
    def of(cls, result: Any) -> "FeatureInfos":
        """Return the message for a ``FeatureInfo``, a dict of them by type, or None."""
        # not by `to_message`, which leaves a FeatureInfo as it is: torch's dtype in it does not
        # travel
        return cls(FeatureInfosMessage.of(result))


@dataclass(frozen=True)
class RowBook:
    """Partition book of the rows of one type."""

    group: str
    """``"node"`` or ``"edge"``."""
    name: NodeType | EdgeType
    num_ids: int
    bounds: np.ndarray | None = None
    """``[num_partitions]`` int64, where each partition's range of ids ends."""
    table: np.ndarray | None = None
    """``[num_ids]``, the owner of each id; neither: one partition has all."""


@dataclass(frozen=True)
class RowBooks(Answer):
    """Partition books of all rows, by type."""

    value: list[RowBook]


@dataclass(frozen=True)
class BookAnswer(Answer):
    """A partition book."""

    value: BookMessage

    @classmethod
    def of(cls, result: Any) -> "BookAnswer":
        """Return the message for a partition book."""
        # not by `to_message`: that makes a bare TensorMessage of a tensor, and knows no range book
        return cls(BookMessage.of(result))
