"""Figures of a partitioned graph on disk, for a plan."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigl_loader.commands.capacity.expect import DegreeDistribution
from gigl_loader.commands.capacity.needs import BOOKS
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format.glt_files import count_partitions
from gigl_loader.dataset.format.mapped import is_mapped_format
from gigl_loader.errors import ConfigError


def read_root(root: Path) -> tuple[dict[str, Any], DegreeDistribution, int]:
    """Return a directory's figures for a `Job`, the degrees of its nodes, and its partitions."""
    nodes, edges, remote = 0, 0, 0
    degrees = pulls = np.empty(0, np.int64)
    seeds: list[Any] = []
    rows: list[Any] = []
    parts = count_partitions(root)
    # Mapped if possible: for a graph larger than this machine's memory, only edges are read.
    mmap = is_mapped_format(root)
    for k in range(parts):
        dataset = DistDataset.load(root, k, mmap=mmap)
        view = dataset.view()
        if len(view.num_nodes) > 1 or sum(len(t) == 3 for t in view.adjacency) > 1:
            raise ConfigError(
                f"{root} has several node or edge types: give --nodes, --edges and --dim of all"
            )
        (nodes,) = view.num_nodes.values()
        (adjacency,) = view.adjacency.values()
        if k == 0:
            degrees, pulls = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        counts = adjacency.indptr.diff().numpy()  # of all nodes, of local ones, or up to the last
        degrees[adjacency.first_row : adjacency.first_row + len(counts)] += counts
        # How often each node is a neighbour, here and in all; only of nodes owned here.
        pulled = np.bincount(adjacency.indices.numpy(), minlength=nodes)
        pulls += pulled
        for book in view.node_books.values():
            remote += int(
                pulled[(book.owner(torch.arange(nodes, device="cpu")) != k).numpy()].sum()
            )
        edges += int(adjacency.indices.numel())
        seeds.append(dataset.known_split("train"))
        rows = list(view.node_features.values())
    known: dict[str, Any] = {
        "nodes": float(nodes),
        "edges": float(edges),
        "dim": 0,
        "resident": resident_bytes(root),
    }
    if parts > 1 and edges:
        known["remote_share"] = remote / edges
    if rows:  # as stored and sent: quantized ones are smaller than in batches
        known |= {"dim": math.prod(rows[0].values.shape[1:]), "dtype": rows[0].dtype}
    return known, DegreeDistribution.measured(degrees, pulls, _is_seed(nodes, seeds)), parts


_PARTS_OF_A_GRAPH = (
    (
        "rows and labels",
        (
            "node_features",
            "edge_features",
            "node_labels",
            "node_attributes",
            "edge_attributes",
            "lookup",
            "splits",
        ),
    ),
    ("edges", ("edges",)),
    (BOOKS, ("books",)),
)


def resident_bytes(root: Path) -> tuple[tuple[str, float], ...]:
    """Return by kind the bytes that the largest part of a directory takes in memory.

    For a directory from graphlearn-torch nothing is returned: its files are no tensors.
    """
    sizes = {
        part: {file: float(file.stat().st_size) for file in part.rglob("*.bin")}
        for part in root.glob("part[0-9]*")
    }
    if not any(sizes.values()):
        return ()
    # The machine with most decides. By file size: a loaded partition has the same bytes in memory.
    largest = max(sizes, key=lambda part: sum(sizes[part].values()))
    files = {file.relative_to(largest): nbytes for file, nbytes in sizes[largest].items()}
    files |= {file.relative_to(root): file.stat().st_size for file in root.glob("books/**/*.bin")}
    return tuple(
        (name, sum(nbytes for file, nbytes in files.items() if file.parts[0] in folders))
        for name, folders in _PARTS_OF_A_GRAPH
    )


def _is_seed(nodes: int, of_parts: Sequence[Any]) -> Any:
    """Return ``[nodes]`` bool, the training seeds; None: all, or not known."""
    if any(ids is None or isinstance(ids, dict) or len(ids) == 0 for ids in of_parts):
        return None
    is_seed = np.zeros(nodes, bool)
    for ids in of_parts:
        is_seed[ids.numpy()] = True
    return is_seed
