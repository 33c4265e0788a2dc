"""What one partition asks another: neighbours of nodes, and rows of a matrix.

The requests travel as they are, arrays beside them. Every answer depends on its request alone, so
that a request whose answer was lost with a connection is simply sent again.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.memory.segments import Array

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Draw:
    """A question for neighbours; everything but the nodes."""

    edge_type: EdgeType
    fanout: int
    """Neighbours of each node; -1: all."""
    key: int
    """uint64; with node and edge type it decides what is drawn."""
    replace: bool = False
    with_weight: bool = False
    with_edge: bool = False
    labor: bool = False
    """Random numbers belong to the neighbours, so that nodes that are asked together share them."""
    timed: bool = False
    """Only neighbours within the times that are asked for each node (`Asked`)."""
    last: bool = False
    """The latest of these instead of any."""


@dataclass(frozen=True)
class Asked:
    """The tree of each node that is asked, and the times it allows, where trees are disjoint."""

    tree: Array
    """``[num_nodes]`` int64, number of its tree: with key and node it decides what is drawn."""
    until: Array | None = None
    """``[num_nodes]`` int64, the latest time of a neighbour, as `TimeOrder.times`; None: any."""
    since: Array | None = None
    """``[num_nodes]`` int64, the earliest time of a neighbour; None: any."""

    def take(self, at: Array) -> "Asked":
        """Return what is told of the nodes at the positions ``at``."""
        return Asked(*(None if one is None else one.take(at) for one in self._columns()))  # type: ignore[arg-type]

    def fits(self, num_nodes: int, timed: bool) -> bool:
        """Return whether there is a value for each node."""
        there = [column for column in self._columns() if column is not None]
        alike = all(one.dtype == "int64" and one.shape == (num_nodes,) for one in there)
        return alike and (self.until is not None or not timed)

    def _columns(self) -> tuple[Array | None, ...]:
        return self.tree, self.until, self.since


@dataclass(frozen=True)
class DrawRequest:
    """Asks for neighbours of some nodes that the partition owns; a `Drawn` answers."""

    draw: Draw
    nodes: Array
    """``[num_nodes]`` int64, global ids."""
    asked: Asked | None = None
    """None: trees are merged, and no time counts."""


@dataclass(frozen=True)
class Drawn:
    """Neighbours of some nodes, row after row."""

    counts: Array
    """``[num_nodes]`` int64, neighbours of each."""
    neighbors: Array
    """``[counts.sum()]`` int64, global ids."""
    edge_ids: Array | None
    """``[counts.sum()]`` int64; None where not requested."""


@dataclass(frozen=True)
class RowsRequest:
    """Asks for rows of one matrix; a `RowsAnswer` answers."""

    kind: str
    """``node_features``, ``node_labels``, ``edge_features``, ``node_attributes``,
    ``edge_attributes``, or ``degrees`` of an edge type."""
    name: NodeType | EdgeType
    ids: Array
    """``[num_ids]`` int64, global ids that the partition owns."""
    attribute: str | None = None
    """Name among ``node_attributes`` and ``edge_attributes``; None: the features."""


@dataclass(frozen=True)
class RowsAnswer:
    """Rows in the order of the ids."""

    values: Array
    """``[num_ids, ...]``, of the matrix's storage type."""
    dtype: str = ""
    """Name of the type that is stored; empty: of no matrix."""
    scales: Array | None = None
    """Scales of quantised rows, where asked for; see `gigl_loader.dataset.view.Rows.scales`."""


class PendingAnswer(Protocol[T_co]):
    """An answer under way."""

    @property
    def has_come(self) -> bool:
        """Whether `wait` would not wait."""
        ...

    def wait(self) -> T_co:
        """Return it, or raise what went wrong."""
        ...


class RowPeers(Protocol):
    """Owners of rows that can be asked for them: partitions, or servers."""

    def rows(self, owner: int, request: RowsRequest, out: Array, /) -> PendingAnswer[RowsAnswer]:
        """Ask for rows, which may come to lie in ``out``; return before they are there.

        The answer says where they are; ``out`` is memory for them, of its shape and type,
        contiguous, and untouched until the answer is there.
        """
        ...


class Peers(RowPeers, Protocol):
    """The other partitions, for a sampler."""

    def draw(self, partition: int, request: DrawRequest, /) -> PendingAnswer[Drawn]:
        """Ask for neighbours; return before they are there."""
        ...
