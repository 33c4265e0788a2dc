"""Times of neighbours, written beside the edges that lead to them: see `partition_tables`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gigl_loader.dataset.mapped import LOOKUPS, ArraySpec, Part, array_path
from gigl_loader.dataset.schema import (
    NEIGHBOR_TIME,
    EdgeDir,
    EdgeType,
    NodeType,
    edge_type_str,
)
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.tables._job import Job, allow_files
from gigl_loader.tables._rows import NodeRows
from gigl_loader.tables._source import BATCH_ROWS
from gigl_loader.tables.spec import Graph


def check_time_attr(graph: Graph, rows: Mapping[NodeType, NodeRows], time_attr: str) -> None:
    """Check that nodes or edges have the attribute, one number each.

    Raises:
        ConfigError: They have not.
    """
    of_nodes = {node_type for node_type, one in rows.items() if time_attr in one.attributes}
    for node_type in sorted(of_nodes):
        if rows[node_type].attributes[time_attr] != 1:
            raise ConfigError(
                f"time_attr={time_attr!r} of nodes {node_type!r} has "
                f"{rows[node_type].attributes[time_attr]} numbers each: a time is one number"
            )
    of_edges = time_attr == "time" and any(graph.edges[t].time for t in graph.walked)
    if not of_nodes and not of_edges:
        known = sorted({name for one in rows.values() for name in one.attributes})
        raise ConfigError(
            f"time_attr={time_attr!r} is no attribute of nodes (there are {known}), and no table "
            'of edges has a time, whose name would be "time"'
        )


def write_neighbor_times(
    job: Job, out: Path, parts: list[Part], graph: Graph, ends: Mapping[NodeType, Array],
    edge_dir: EdgeDir, time_attr: str,
) -> None:  # fmt: skip
    """Let the edges of each partition carry the times of their neighbours.

    Args:
        job: The run.
        out: Where edges and attributes of nodes were written.
        parts: The manifests of the partitions.
        graph: The tables.
        ends: By node type, where the numbers of each partition end.
        edge_dir: Which end of an edge is the neighbour.
        time_attr: The attribute.
    """
    for edge_type in graph.walked:
        neighbor = edge_type[0] if edge_dir == "in" else edge_type[2]
        kept = f"node_attributes/{neighbor}/{time_attr}/values"
        if kept not in parts[0].arrays:  # a type without the attribute: all parts have it or none
            continue
        key = edge_type_str(edge_type)
        where = f"edge_attributes/{key}/{NEIGHBOR_TIME}{time_attr}"
        with job.stage(f"times {key}", _edges(parts, key)) as progress:
            for k, part in enumerate(parts):
                count = part.arrays[f"edges/{key}/indices"].shape[0]
                write = partial(_write, out, parts, k, kept, where, edge_type, ends[neighbor])
                job.step(f"times/{key}/{k}", write)
                part.arrays[f"{where}/values"] = ArraySpec(part.arrays[kept].dtype, (count,))
                part.ranges[where] = {"first": part.ranges[f"edges/{key}"]["first_edge"]}
                progress(count)


def _edges(parts: list[Part], key: str) -> int:
    return sum(part.arrays[f"edges/{key}/indices"].shape[0] for part in parts)


def _write(
    out: Path, parts: list[Part], k: int, kept: str, where: str, edge_type: EdgeType, ends: Array
) -> None:
    """Write the times of one partition's neighbours; of all nodes, only what is asked is read."""
    # One number a node, so rows are positions in the file. Mapped: neighbours of a partition lie in
    # all others, in no order, and together those are the whole graph's times.
    allow_files(2 * len(parts))  # a mapping keeps a descriptor of its file
    times = [_open(out, other, p, kept) for p, other in enumerate(parts)]
    positions = f"{LOOKUPS}/{kept.split('/')[1]}"  # where rows do not follow their ids
    ordered = [_open(out, other, p, positions) for p, other in enumerate(parts)
               if positions in other.arrays]  # fmt: skip
    # By degree, all partitions have look-ups, else none has: an owner's is found by its number.
    starts = np.concatenate([[0], ends[:-1]])
    neighbors = _open(out, parts[k], k, f"edges/{edge_type_str(edge_type)}/indices")
    path = array_path(out / f"part{k}", f"{where}/values")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for first in range(0, len(neighbors), BATCH_ROWS):
            asked = neighbors[first : first + BATCH_ROWS].astype(np.int64)
            owners = np.searchsorted(ends, asked, "right")
            found = np.empty(len(asked), times[0].dtype)
            for owner in np.unique(owners):  # a mapping is asked once for all that it has
                mine = owners == owner
                rows = asked[mine] - starts[owner]
                found[mine] = times[owner][ordered[owner][rows] if ordered else rows]
            file.write(found.data)


def _open(out: Path, part: Part, k: int, name: str) -> Any:
    spec = part.arrays[name]
    count = int(np.prod(spec.shape))
    if count == 0:  # the system maps no empty file
        return np.empty(0, spec.dtype)
    return np.memmap(array_path(out / f"part{k}", name), spec.dtype, "r", 0, (count,))
