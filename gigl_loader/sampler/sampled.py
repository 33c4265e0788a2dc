"""What a batch grew to: sampled edges by type, and how many nodes and edges each hop found."""

from dataclasses import dataclass, field

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.memory.segments import Array


class EdgeCollector:
    """Sampled edges of one type, hop after hop, by local labels."""

    def __init__(self, *, has_ids: bool = True) -> None:
        self.neighbors: list[Array] = []
        self.targets: list[Array] = []
        self.edge_ids: list[Array] = []
        self.per_hop: list[int] = []
        self.has_ids = has_ids
        """False: an edge here stands for several of the graph."""

    def add(self, neighbors: Array, targets: Array, edge_ids: Array | None) -> None:
        """Add the edges of one hop."""
        self.neighbors.append(neighbors)
        self.targets.append(targets)
        if edge_ids is not None:
            self.edge_ids.append(edge_ids)
        self.per_hop.append(neighbors.size)

    @property
    def count(self) -> int:
        """How many edges there are."""
        return sum(self.per_hop)

    def ids(self) -> Array:
        """Return ``[count]`` int64, the ids of all."""
        return np.concatenate(self.edge_ids) if self.edge_ids else np.empty(0, np.int64)

    def as_index(self) -> Array:
        """Return ``[2, count]`` int64, neighbours and the nodes they were drawn for."""
        index = np.empty((2, self.count), np.int64)
        self.write_edge_index(index)
        return index

    def write_edge_index(self, out: Array) -> None:
        """Write `as_index` to ``out``."""
        if self.neighbors:
            # Into the message: edges of all hops are put together once, where they are sent from.
            np.concatenate(self.neighbors, out=out[0])
            np.concatenate(self.targets, out=out[1])


@dataclass
class Sampled:
    """Result of the expansion of a batch, besides its nodes."""

    edges: dict[EdgeType, EdgeCollector]
    nodes_per_hop: dict[NodeType, list[int]] = field(default_factory=dict)
    """Empty where hops are not told apart any more."""
