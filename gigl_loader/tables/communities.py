"""Owners and communities of nodes from passes over sorted edges on disk: a multilevel `ldg`.

::

    edges of nodes --cluster--> edges of clusters --cluster--> ... few clusters --place--> parts
          |                           |                                                      |
        refine <-- communities <--- refine <----------------- ... <--------------------------/

Every step is a pass over the edges of a level, node by node: a node takes the label that most of
its neighbours have, among the labels with room. Labels are clusters, parts, or communities within a
part. So memory is a few numbers per node, as for `ldg`, and none per edge.

Source:
    I. Stanton, G. Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012,
    section 4 (LDG: the penalty for full parts); J. Nishimura, J. Ugander, "Restreaming graph
    partitioning", KDD 2013 (further passes, in which neighbours have the labels of the last one);
    H. Meyerhenke, P. Sanders, C. Schulz, "Partitioning complex networks via size-constrained
    clustering", SEA 2014 (clusters of limited size as the levels of a graph with communities).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa

from gigl_loader.dataset.mapped_writer import index_type, new_file
from gigl_loader.dataset.metis import community_bounds, dense_communities
from gigl_loader.memory.segments import Array
from gigl_loader.tables.methods import LDG_SLACK, Union
from gigl_loader.tables.resumable import ResumableJob

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
class Level:
    """A graph as files of edges in both directions, ascending by node."""

    folder: Path
    num_nodes: int
    ends: list[int]
    """Edges before the end of each block; a node's edges are in one block."""
    sizes: Array
    """``[num_nodes]`` int64, the original nodes in each one; empty: one."""

    @property
    def is_weighted(self) -> bool:
        """Whether edges stand for several of the original ones."""
        return bool(len(self.sizes))

    def blocks(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield node, neighbour and weight of edges; no weights mean 1."""
        dtype = index_type(self.num_nodes)
        kinds = {"nodes": dtype, "neighbors": dtype, "weights": np.dtype(np.int64)}
        for start, end in pairwise((0, *self.ends)):
            nodes, neighbors, weights = (
                np.fromfile(self.folder / name, kind, end - start, offset=start * kind.itemsize)
                if name != "weights" or self.is_weighted
                else np.empty(0, kind)
                for name, kind in kinds.items()
            )
            yield nodes, neighbors, weights

    @staticmethod
    def write(folder: Path, batches: Iterable[tuple[Array, ...]], num_nodes: int) -> list[int]:
        """Write sorted edges, with weights if batches have them; return the ends of blocks."""
        dtype, ends, count, last = index_type(num_nodes), [0], 0, -1
        kinds = {"nodes": dtype, "neighbors": dtype, "weights": np.dtype(np.int64)}
        files = {name: new_file(folder / name) for name in kinds}
        try:
            for batch in batches:
                if not len(batch[0]):
                    continue
                for (name, kind), column in zip(kinds.items(), batch, strict=False):
                    files[name].write(np.ascontiguousarray(column, kind).data)
                nodes = batch[0]
                # before the last node, whose edges may go on in the next batch
                whole = int(np.searchsorted(nodes, nodes[-1]))
                if whole or nodes[0] != last:
                    ends.append(count + whole)
                count, last = count + len(nodes), nodes[-1]
        finally:
            for file in files.values():
                file.close()
        return [*ends[1:], count]


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
        self, job: ResumableJob, union: Union, num_partitions: int, communities: int,
        kept: Callable[[str, Callable[[], Array]], Array],
    ) -> None:  # fmt: skip
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
    ) -> Level:
        folder = self._job.folder / "levels" / name
        ends = self._job.step(f"levels/{name}", lambda: Level.write(folder, batches, num_nodes))
        return Level(folder, num_nodes, ends, sizes)

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
            sizes = np.bincount(labels, level.sizes if level.is_weighted else None, count)
            merged = self._merged(level, labels)
            self._levels.append(self._level(name, merged, count, sizes.astype(np.int64)))
            self._clusters.append(labels)
            most = max(1, self._total // fewest)

    def _cluster(self, level: Level, most: int) -> Array:
        own = np.arange(level.num_nodes, dtype=index_type(level.num_nodes))
        labels = self._move(level, own, _CLUSTER_PASSES, most, np.array([0, level.num_nodes]))
        return dense_communities(labels).astype(own.dtype)

    def _merged(self, level: Level, clusters: Array) -> Iterator[tuple[Array, ...]]:
        """Yield the edges between clusters, sorted, with their weights."""
        names = ["u", "v", "w"]

        def between_clusters() -> Iterator[Any]:
            for nodes, neighbors, weights in level.blocks():
                u, v = clusters[nodes], clusters[neighbors]
                kept = u != v
                w = weights[kept] if level.is_weighted else np.ones(int(kept.sum()), np.int64)
                columns = [pa.array(column, pa.int64()) for column in (u[kept], v[kept], w)]
                yield pa.record_batch(columns, names)

        schema = pa.schema([(name, pa.int64()) for name in names])
        with self._job.engine() as engine:
            engine.register("edges", pa.RecordBatchReader.from_batches(schema, between_clusters()))
            sums = engine.sql(
                "SELECT u, v, CAST(sum(w) AS BIGINT) AS w FROM edges GROUP BY u, v ORDER BY u, v"
            )
            for batch in sums.to_arrow_reader(self._job.sizes.sorted_rows):
                yield tuple(column.to_numpy() for column in batch.columns)

    def _cut_parts(self) -> list[Array]:
        """Return the parts of each level's nodes, int16."""
        most = (1 + LDG_SLACK) * max(1, -(-self._total // self._parts))
        parts: list[Array] = []
        for k in reversed(range(len(self._levels))):

            def cut(k: int = k) -> Array:
                level, first = self._levels[k], not parts
                labels = _unlabelled(level) if first else parts[-1][self._clusters[k]]
                labels = labels.astype(index_type(level.num_nodes))
                bounds = np.array([0, self._parts])
                if first:
                    self._move(level, labels, _PLACE_PASSES, most, bounds, damped=True)
                self._move(level, labels, _REFINE_PASSES, most, bounds)
                return labels.astype(np.int16)  # there are 1,024 at most

            parts.append(self._kept(f"parts/{k}", cut))
        return parts[::-1]

    def _cut_communities(self, parts: list[Array]) -> Array:
        # Parts and communities may be a few nodes larger than the mean.
        bounds = community_bounds(parts[0], self._parts, self._communities)
        most = max(1.0, (1 + LDG_SLACK) ** 2 * self._total / self._communities)
        coarse = min(1, len(self._clusters))

        def cut_level(k: int, labels: Array, *, damped: bool) -> Array:
            passes = _PLACE_PASSES if damped else _REFINE_PASSES
            return self._move(
                self._levels[k], labels, passes, most, bounds, parts[k], damped=damped
            )

        def place() -> Array:
            labels = _unlabelled(self._levels[coarse])
            return cut_level(coarse, cut_level(coarse, labels, damped=True), damped=False)

        placed = self._kept("communities/placed", place)
        if not coarse:
            return placed

        def refine() -> Array:
            clusters = self._clusters[0]
            labels = placed[clusters].astype(clusters.dtype)
            labels[parts[0] != parts[1][clusters]] = -1  # the node has left the part
            return cut_level(0, labels, damped=False)

        return self._kept("communities/refined", refine)

    def _move(
        self, level: Level, labels: Array, passes: int, most: float, bounds: Array,
        groups: Array = _ONE_GROUP, *, damped: bool = False,
    ) -> Array:  # fmt: skip
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
        loads = np.zeros(bounds[-1], np.int64)
        _add_loads(labels, level.sizes, loads)
        scores, next_ones = np.zeros_like(loads), bounds[:-1].copy()
        rest = labels, level.sizes, loads, float(most), groups, bounds, next_ones
        for _ in range(passes):
            moved = sum(_pass(*block, *rest, scores, float(damped)) for block in level.blocks())
            moved += _place_rest(*rest[:3], *rest[4:])
            if not moved:
                break
        return labels


def _unlabelled(level: Level) -> Array:
    return np.full(level.num_nodes, -1, index_type(level.num_nodes))


@numba.njit(cache=True, nogil=True)
def _add_loads(labels, sizes, loads):  # type: ignore[no-untyped-def]
    for node in range(labels.shape[0]):
        if labels[node] >= 0:
            loads[labels[node]] += sizes[node] if sizes.shape[0] else 1


@numba.njit(cache=True, nogil=True)
def _emptiest(loads, group, bounds, next_ones):  # type: ignore[no-untyped-def]
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
def _pass(  # type: ignore[no-untyped-def]
    nodes, neighbors, weights, labels, sizes, loads, most, groups, bounds, next_ones, scores, damp
):
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
def _score(nodes, neighbors, weights, labels, groups, scores, seen, start):  # type: ignore[no-untyped-def]
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
def _place_rest(labels, sizes, loads, groups, bounds, next_ones):  # type: ignore[no-untyped-def]
    """Give nodes without edges a label; return how many."""
    placed = 0
    for node in range(labels.shape[0]):
        if labels[node] < 0:
            group = groups[node] if groups.shape[0] else 0
            labels[node] = _emptiest(loads, group, bounds, next_ones)
            loads[labels[node]] += sizes[node] if sizes.shape[0] else 1
            placed += 1
    return placed
