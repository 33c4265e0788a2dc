"""Which direction a partition directory was made for, where it does not say so itself."""

from typing import Protocol

import torch
from torch import Tensor

from gigl_loader.dataset._pieces import check_ownership, expanded_end
from gigl_loader.dataset.parts import GraphPartitionData
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType
from gigl_loader.dataset.view import Book
from gigl_loader.errors import ConfigError


class _Directory(Protocol):
    num_partitions: int
    cached: bool
    edge_types: list[EdgeType]
    node_books: dict[NodeType, Book]
    edge_books: dict[EdgeType, Book]

    def edges(self, edge_type: EdgeType, partition_idx: int) -> GraphPartitionData: ...


def choose_edge_dir(directory: _Directory, partition_idx: int) -> EdgeDir:
    """Return the direction that fits the owners of the edges; ``"in"`` where both do.

    A partition whose edges fit both asks the others, so that all partitions answer alike.
    """
    # one owner has all edges by either rule; "in" is PyG's own direction
    if directory.num_partitions == 1:
        return "in"
    # Ranks load different partitions and must not disagree. Where one partition fits both (all its
    # edges are inside it), another may not: asked in any order, the first that tells decides, and
    # two that tell differently would be no partitioning by either rule.
    others = [p for p in range(directory.num_partitions) if p != partition_idx]
    # a cached graph has all edges in one place, so that every rank sees the same
    for candidate in [partition_idx] if directory.cached else [partition_idx, *others]:
        fitting = _fitting(directory, candidate)
        if not fitting:
            raise ConfigError(
                f"edges in partition {candidate} are assigned neither by source nor by "
                "destination: partition the graph again"
            )
        if len(fitting) == 1:
            return fitting[0]
    return "in"


def _fitting(directory: _Directory, partition_idx: int) -> list[EdgeDir]:
    fitting: list[EdgeDir] = ["in", "out"]
    for edge_type in directory.edge_types:
        edges = directory.edges(edge_type, partition_idx)
        wanted: Tensor | int = partition_idx
        if directory.cached:
            # who was given an edge is not written down anywhere: this type cannot tell
            if edge_type not in directory.edge_books or edges.edge_ids is None:
                continue
            wanted = directory.edge_books[edge_type].owner(edges.edge_ids)
        fitting = [
            edge_dir
            for edge_dir in fitting
            if bool((_owners(directory, edge_type, edges, edge_dir) == wanted).all())
        ]
    return fitting


def _owners(
    directory: _Directory, edge_type: EdgeType, edges: GraphPartitionData, edge_dir: EdgeDir
) -> Tensor:
    end = expanded_end(edge_dir)
    return directory.node_books[(edge_type[0], edge_type[2])[end]].owner(edges.edge_index[end])


def keep_owned(
    directory: _Directory, edge_type: EdgeType, edges: GraphPartitionData, edge_dir: EdgeDir,
    partition_idx: int,
) -> GraphPartitionData:  # fmt: skip
    """Return the partition's own edges: those of a cached graph are picked, others checked."""
    if directory.num_partitions == 1:
        return edges
    owners = _owners(directory, edge_type, edges, edge_dir)
    if not directory.cached:
        other = "out" if edge_dir == "in" else "in"
        check_ownership(
            owners, partition_idx, f"edges {edge_type} of partition {partition_idx}",
            f'they do not fit edge_dir="{edge_dir}"; try "{other}"',
        )  # fmt: skip
        return edges
    # GLT caches the whole topology with each partition; our workers ask the owner, and a neighbour
    # that two partitions answer for would be drawn twice
    mine = (owners == partition_idx).nonzero().view(-1)
    weights = None if edges.weights is None else edges.weights[mine]
    # positions among all edges, before the others' are left out: they are global
    edge_ids = torch.arange(owners.numel()) if edges.edge_ids is None else edges.edge_ids
    return GraphPartitionData(edges.edge_index[:, mine], edge_ids[mine], weights)
