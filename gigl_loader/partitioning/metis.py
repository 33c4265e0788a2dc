"""METIS on a graph in memory: owners of nodes, and communities within each partition.

Does not import torch, which the table writer never needs.
"""

import importlib
from typing import Any

import numpy as np

from gigl_loader.errors import ConfigError, WrongTypeError, needed
from gigl_loader.runtime.memory.segments import Array

COMMUNITY_METHODS = ("ldg", "metis")
"""Methods that look at edges: only their partitions have communities to find."""


def check_communities(
    communities: Any, num_partitions: int, method: str, methods: tuple[str, ...]
) -> None:
    """Check the number of communities; ``methods``: those that the caller knows.

    Raises:
        ConfigError: It cannot work.
    """
    if communities is None:
        return
    if isinstance(communities, bool) or not isinstance(communities, int):
        raise WrongTypeError(f"communities must be an int or None, got {communities!r}")
    if method not in COMMUNITY_METHODS:
        able = " or ".join(f'method="{name}"' for name in COMMUNITY_METHODS if name in methods)
        raise ConfigError(
            f"communities={communities} needs {able}: method={method!r} does not look at edges"
        )
    if communities < num_partitions:
        raise ConfigError(
            f"communities must be at least num_partitions={num_partitions}, since each lies in one "
            f"partition, got {communities}"
        )


def import_metis(otherwise: str) -> Any:
    """Return pymetis; ``otherwise``: the method to name in the error.

    Raises:
        ConfigError: It is not installed.
    """
    with needed(
        'method="metis" needs pymetis: run pip install "gigl_loader[metis]", or use '
        f'method="{otherwise}"'
    ):
        return importlib.import_module("pymetis")


def cut_by_metis(metis: Any, indptr: Array, indices: Array, count: int, seed: int) -> Array:
    """Return ``[num_nodes]`` int64, the part of each node.

    Args:
        metis: From `import_metis`.
        indptr: ``[num_nodes + 1]`` int64.
        indices: Neighbours; each edge is listed at both ends, and there are no loops.
        count: The number of parts.
        seed: Of METIS.
    """
    num_nodes = len(indptr) - 1
    if not len(indices) or count == 1:  # METIS has nothing to cut
        sizes = [len(run) for run in np.array_split(np.empty(num_nodes), count)]
        return np.repeat(np.arange(count), sizes)
    options = metis.Options(seed=seed % 2**31)  # pymetis's METIS has 32-bit ints
    # older releases take two arrays
    if hasattr(metis, "CSRAdjacency"):
        _, parts = metis.part_graph(count, metis.CSRAdjacency(indptr, indices), options=options)
    else:
        _, parts = metis.part_graph(count, xadj=indptr, adjncy=indices, options=options)
    return np.asarray(parts, np.int64)


def communities_by_metis(
    metis: Any,
    indptr: Array,
    indices: Array,
    owners: Array,
    num_partitions: int,
    communities: int,
    seed: int,
) -> Array:
    """Return ``[num_nodes]`` int64, dense communities: each partition is cut again.

    Args:
        metis: See `cut_by_metis`, as for ``indptr``, ``indices`` and ``seed``.
        indptr: See there.
        indices: See there.
        owners: ``[num_nodes]``, the partition of each node.
        num_partitions: Their number.
        communities: Number of communities over all partitions.
        seed: See there.
    """
    bounds = community_bounds(owners, num_partitions, communities)
    labels = np.empty(len(owners), np.int64)
    positions = np.empty(len(owners), np.int64)
    by_owner = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=num_partitions))
    for k, nodes in enumerate(np.split(by_owner, ends[:-1])):
        positions[nodes] = np.arange(len(nodes))
        degrees = (indptr[1:] - indptr[:-1])[nodes]
        rows = np.repeat(np.arange(len(nodes)), degrees)
        starts = indptr[nodes] - (np.cumsum(degrees) - degrees)
        neighbors = indices[np.arange(len(rows)) + starts[rows]]
        inside = owners[neighbors] == k
        pointer = np.zeros(len(nodes) + 1, np.int64)
        np.cumsum(np.bincount(rows[inside], minlength=len(nodes)), out=pointer[1:])
        # METIS does not accept more parts than nodes
        count = min(int(bounds[k + 1] - bounds[k]), max(1, len(nodes)))
        parts = cut_by_metis(metis, pointer, positions[neighbors[inside]], count, seed)
        labels[nodes] = bounds[k] + parts
    return dense_communities(labels)


def community_bounds(owners: Array, num_partitions: int, communities: int) -> Array:
    """Return ``[num_partitions + 1]``: the first community of each partition, and the end.

    Communities are shared out by nodes, so that those of all partitions are of equal size; at least
    one each.
    """
    ends = np.cumsum(np.bincount(owners, minlength=num_partitions))
    bounds = np.concatenate([[0], ends * communities // max(1, len(owners))])
    fewest = np.arange(num_partitions + 1)
    return np.maximum.accumulate(bounds - fewest) + fewest


def dense_communities(communities: Array) -> Array:
    """Return communities as dense ids: empty ones have none, the order is unchanged."""
    if not len(communities):
        return communities
    numbers = np.cumsum(np.bincount(communities) > 0, dtype=communities.dtype) - 1
    return numbers[communities]
