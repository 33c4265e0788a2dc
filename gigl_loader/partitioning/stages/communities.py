"""Owners and communities of nodes from passes over sorted edges on disk: a multilevel `ldg`.

::

    edges of nodes --cluster--> edges of clusters --cluster--> ... few clusters --place--> parts
          |                           |                                                      |
        refine <-- communities <--- refine <----------------- ... <--------------------------/

Every step is a pass over the edges of a level, node by node: a node takes the label that most of
its neighbours have, among the labels with room. Labels are clusters, parts, or communities within a
part. So memory is about 20 bytes per node, and none per edge.

Source:
    I. Stanton, G. Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012,
    section 4 (LDG: the penalty for full parts); J. Nishimura, J. Ugander, "Restreaming graph
    partitioning", KDD 2013 (further passes, in which neighbours have the labels of the last one);
    H. Meyerhenke, P. Sanders, C. Schulz, "Partitioning complex networks via size-constrained
    clustering", SEA 2014 (clusters of limited size as the levels of a graph with communities).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from gigl_loader.dataset.format.mapped_writer import index_type, new_file
from gigl_loader.partitioning.metis import community_bounds, dense_communities
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.owners import LDG_SLACK, Union
from gigl_loader.runtime.memory.segments import Array

_CLUSTER_PASSES, _PLACE_PASSES, _REFINE_PASSES = 4, 10, 3
"""Most passes of a step; it ends early once no node takes another label."""
_CLUSTERS_A_PART = 32
"""Clusters are at least so small that this many fill a part: larger ones cannot be balanced."""
_SHRINKS = 0.9
"""A level with more than this share of the nodes before it is not worth its passes."""
_ONE_GROUP = np.empty(0, np.int16)
_PROBES = 64
"""Labels that are looked at to find one with much room: there may be millions."""


@dataclass(frozen=True)
class MergeLevel:
    """A graph as files of edges in both directions, ascending by node."""

    folder: Path
    num_nodes: int
    ends: list[int]
    """Edges before the end of each block; a node's edges are in one block."""
    sizes: Array
    """``[num_nodes]`` int64, the original nodes in each one; empty: one."""

    def blocks(self) -> Iterator[tuple[Array, ...]]:
        """Yield node, neighbour and weight of edges; no weights mean 1."""
        for start, end in pairwise((0, *self.ends)):
            # an empty file of weights gives none
            yield tuple(
                np.fromfile(self.folder / name, kind, end - start, offset=start * kind.itemsize)
                for name, kind in _columns(self.num_nodes)
            )

    @staticmethod
    def write_edges(
        folder: Path, batches: Iterable[tuple[Array, ...]], num_nodes: int
    ) -> list[int]:
        """Write sorted edges, with weights if batches have them; return the ends of blocks."""
        ends, count, last, columns = list[int](), 0, -1, _columns(num_nodes)
        with ExitStack() as stack:
            files = [stack.enter_context(new_file(folder / name)) for name, _ in columns]
            for batch in batches:
                for file, (_, kind), values in zip(files, columns, batch, strict=False):
                    file.write(np.ascontiguousarray(values, kind).data)
                nodes = batch[0]
                if len(nodes):
                    # before the last node, whose edges may go on in the next batch
                    whole = int(np.searchsorted(nodes, nodes[-1]))
                    if whole or nodes[0] != last:
                        ends.append(count + whole)
                    count, last = count + len(nodes), nodes[-1]
        return [*ends, count]


def _columns(num_nodes: int) -> list[tuple[str, "np.dtype[Any]"]]:
    """Return the files of a level's edges."""
    ids = index_type(num_nodes)
    return [("nodes", ids), ("neighbors", ids), ("weights", np.dtype(np.int64))]


class CommunityCut:
    """Cuts a graph on disk into parts, and each part into communities.

    Args:
        job: The run.
        union: The graph.
        num_partitions: Number of parts.
        communities: Number of communities, over all parts.
        kept: Runs a step, or returns its result from a run that was killed.
    """

    def __init__(
        self,
        job: ResumableJob,
        union: Union,
        num_partitions: int,
        communities: int,
        kept: Callable[[str, Callable[[], Array]], Array],
    ) -> None:
        self._job, self._kept = job, kept
        self._total, self._parts, self._communities = union.num_nodes, num_partitions, communities
        self._levels = [self._level("0", union.read(), union.num_nodes, np.empty(0, np.int64))]
        self._clusters: list[Array] = []
        """By level, the node of the next level that each of its nodes belongs to."""

    def cut(self) -> tuple[Array, Array]:
        """Return ``[nodes]`` owners and dense communities."""
        self._add_levels()
        parts = self._cut_parts()
        return parts[0], dense_communities(self._cut_communities(parts))

    def _level(
        self, name: str, batches: Iterable[tuple[Array, ...]], num_nodes: int, sizes: Array
    ) -> MergeLevel:
        folder = self._job.folder / "levels" / name
        ends = self._job.step(
            f"levels/{name}", lambda: MergeLevel.write_edges(folder, batches, num_nodes)
        )
        return MergeLevel(folder, num_nodes, ends, sizes)

    def _add_levels(self) -> None:
        fewest = _CLUSTERS_A_PART * self._parts
        # Clusters of nodes become communities; those of clusters become parts.
        most = max(1, self._total // max(self._communities, fewest))
        while (level := self._levels[-1]).num_nodes > fewest:
            name = str(len(self._levels))
            labels = self._kept(f"clusters/{name}", partial(self._cluster, level, most))
            count = int(labels.max()) + 1
            if count > _SHRINKS * level.num_nodes:
                break
            sizes = np.bincount(labels, level.sizes if len(level.sizes) else None, count)
            merged = self._merged(level, labels)
            self._levels.append(self._level(name, merged, count, sizes.astype(np.int64)))
            self._clusters.append(labels)
            most = max(1, self._total // fewest)

    def _cluster(self, level: MergeLevel, most: int) -> Array:
        own = np.arange(level.num_nodes, dtype=index_type(level.num_nodes))
        labels = self._move(level, own, _CLUSTER_PASSES, most, np.array([0, level.num_nodes]))
        return dense_communities(labels)

    def _merged(self, level: MergeLevel, clusters: Array) -> Iterator[tuple[Array, ...]]:
        """Yield the edges between clusters, sorted, with their weights."""
        kind, count = clusters.dtype, pa.int64()
        schema = pa.schema(
            {"u": pa.from_numpy_dtype(kind), "v": pa.from_numpy_dtype(kind), "w": count}
        )

        def between_clusters() -> Iterator[Any]:
            for nodes, neighbors, weights in level.blocks():
                u, v = clusters[nodes], clusters[neighbors]
                kept = u != v
                w = (weights if len(weights) else np.ones(len(u), np.int64))[kept]
                yield pa.record_batch([u[kept], v[kept], w], schema)

        with self._job.engine() as engine:
            edges = pa.RecordBatchReader.from_batches(schema, between_clusters())
            engine.register("edges", edges)
            # Sorted here and added up below, in half of the time of GROUP BY. Edges that a batch
            # ends between stay two, which count the same.
            in_order = engine.sql("SELECT u, v, w FROM edges ORDER BY u, v")
            for batch in in_order.to_arrow_reader(self._job.sizes.sorted_rows):
                u, v, w = (column.to_numpy() for column in batch.columns)
                first = np.flatnonzero(np.diff(u, prepend=-1) | np.diff(v, prepend=-1))
                yield u[first], v[first], np.add.reduceat(w, first) if len(w) else w

    def _cut_parts(self) -> list[Array]:
        """Return the parts of each level's nodes, int16."""
        most = (1 + LDG_SLACK) * max(1, -(-self._total // self._parts))
        bounds, coarsest = np.array([0, self._parts]), self._levels[-1]
        cut = partial(self._move, most=most, bounds=bounds)
        labels = _unlabelled(coarsest)
        first = partial(cut, coarsest, labels, _PLACE_PASSES, damped=True)
        parts = [self._kept("parts/placed", first)]
        for k, level in reversed([*enumerate(self._levels)]):
            of_nodes = parts[0] if level is coarsest else parts[0][self._clusters[k]]
            labels = of_nodes.astype(index_type(level.num_nodes))
            refined = self._kept(f"parts/{k}", partial(cut, level, labels, _REFINE_PASSES))
            parts.insert(0, refined.astype(np.int16))  # there are 1,024 at most
        return parts[:-1]

    def _cut_communities(self, parts: list[Array]) -> Array:
        # Parts and communities may be a few nodes larger than the mean.
        most = max(1.0, (1 + LDG_SLACK) ** 2 * self._total / self._communities)
        bounds = community_bounds(parts[0], self._parts, self._communities)
        cut = partial(self._move, most=most, bounds=bounds)
        k = min(1, len(self._clusters))
        level, labels = self._levels[k], _unlabelled(self._levels[k])
        placed = partial(cut, level, labels, _PLACE_PASSES, groups=parts[k], damped=True)
        labels = self._kept("communities/placed", placed)
        refined = partial(cut, level, labels, _REFINE_PASSES, groups=parts[k])
        labels = self._kept("communities/refined", refined)
        if k:
            clusters = self._clusters[0]
            labels = labels[clusters].astype(clusters.dtype)
            labels[parts[0] != parts[1][clusters]] = -1  # the node has left the part
            of_nodes = partial(cut, self._levels[0], labels, _REFINE_PASSES, groups=parts[0])
            labels = self._kept("communities/of_nodes", of_nodes)
        return labels

    def _move(
        self,
        level: MergeLevel,
        labels: Array,
        passes: int,
        most: float,
        bounds: Array,
        groups: Array = _ONE_GROUP,
        *,
        damped: bool = False,
    ) -> Array:
        """Pass over the edges, and change labels in place.

        Args:
            level: The graph.
            labels: ``[num_nodes]``; -1: none yet.
            passes: Most passes.
            most: Original nodes that may have a label.
            bounds: ``[num_groups + 1]``: the first label of each group, and the end.
            groups: ``[num_nodes]`` int16, the group of each node, whose labels it may have; only
                neighbours in it count.
            damped: Whether labels with many nodes attract less.
        """
        # As many as nodes, if those are clustered. Weights of very many edges may be rounded.
        loads = np.zeros(bounds[-1], index_type(self._total))
        _add_loads(labels, level.sizes, loads)
        scores, next_ones = np.zeros(len(loads), np.float32), bounds[:-1].copy()
        rest = labels, level.sizes, loads, float(most), groups, bounds, next_ones
        for _ in range(passes):
            moved = sum(_pass(*block, *rest, scores, float(damped)) for block in level.blocks())
            moved += _place_rest(*rest[:3], *rest[4:])
            if not moved:
                break
        return labels


def _unlabelled(level: MergeLevel) -> Array:
    return np.full(level.num_nodes, -1, index_type(level.num_nodes))


@numba.njit(cache=True, nogil=True)
def _add_loads(labels: Any, sizes: Any, loads: Any) -> Any:
    for node in range(labels.shape[0]):
        if labels[node] >= 0:
            loads[labels[node]] += sizes[node] if sizes.shape[0] else 1


@numba.njit(cache=True, nogil=True)
def _emptiest(loads: Any, group: Any, bounds: Any, next_ones: Any) -> Any:
    """Return the label with the fewest nodes among the next ones of a group."""
    first, end = bounds[group], bounds[group + 1]
    best = next_ones[group]
    for _ in range(min(end - first, _PROBES)):
        label = next_ones[group]
        if loads[label] < loads[best]:
            best = label
        next_ones[group] = label + 1 if label + 1 < end else first
    return best


@numba.njit(cache=True, nogil=True)
def _pass(
    nodes: Any,
    neighbors: Any,
    weights: Any,
    labels: Any,
    sizes: Any,
    loads: Any,
    most: Any,
    groups: Any,
    bounds: Any,
    next_ones: Any,
    scores: Any,
    damp: Any,
) -> Any:
    """Take a block of edges; return how many nodes took another label."""
    moved, end = 0, 0
    seen = np.empty(nodes.shape[0], labels.dtype)
    while end < nodes.shape[0]:
        node = nodes[end]
        end, num_seen = _score(nodes, neighbors, weights, labels, groups, scores, seen, end)
        size = sizes[node] if sizes.shape[0] else 1
        old = labels[node]
        best, best_score = -1, -1.0
        if old >= 0:
            loads[old] -= size
            if loads[old] + size <= most:  # it stays, unless another label is better
                best, best_score = old, scores[old] * (1.0 - damp * loads[old] / most)
        for label in seen[:num_seen]:
            if loads[label] + size <= most:
                score = scores[label] * (1.0 - damp * loads[label] / most)
                if score > best_score or (score == best_score and loads[label] < loads[best]):
                    best, best_score = label, score
            scores[label] = 0
        if best < 0:
            best = _emptiest(loads, groups[node] if groups.shape[0] else 0, bounds, next_ones)
        labels[node] = best
        loads[best] += size
        moved += best != old
    return moved


@numba.njit(cache=True, nogil=True)
def _score(
    nodes: Any,
    neighbors: Any,
    weights: Any,
    labels: Any,
    groups: Any,
    scores: Any,
    seen: Any,
    start: Any,
) -> Any:
    """Count the labels of a node's neighbours; return the end of its edges, and of the labels."""
    end, num_seen, node = start, 0, nodes[start]
    while end < nodes.shape[0] and nodes[end] == node:
        label = labels[neighbors[end]]
        if label >= 0 and (not groups.shape[0] or groups[neighbors[end]] == groups[node]):
            if scores[label] == 0:
                seen[num_seen] = label
                num_seen += 1
            scores[label] += weights[end] if weights.shape[0] else 1
        end += 1
    return end, num_seen


@numba.njit(cache=True, nogil=True)
def _place_rest(
    labels: Any, sizes: Any, loads: Any, groups: Any, bounds: Any, next_ones: Any
) -> Any:
    """Give nodes without edges a label; return how many."""
    placed = 0
    for node in range(labels.shape[0]):
        if labels[node] < 0:
            group = groups[node] if groups.shape[0] else 0
            labels[node] = _emptiest(loads, group, bounds, next_ones)
            loads[labels[node]] += sizes[node] if sizes.shape[0] else 1
            placed += 1
    return placed
