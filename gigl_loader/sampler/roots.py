"""The roots that a batch grows from: the first of the three choices that make a sampler.

A sampler is roots x draw x expansion. `Roots` choose the first nodes of a batch and their fields.
The plan decides how neighbours are drawn (`sampler.plan.Draw`) and how the
batch grows (`sampler.expansion`). If the graph has times, the time of each seed
limits its tree (`SeedTimes`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gigl_loader.batch.message import (
    BATCH,
    INPUT_ID,
    META,
    SEED_TIME,
    Field,
    SeedColumns,
    heterogeneous_field,
    keys_of_type,
)
from gigl_loader.dataset.partition.partition_view import earlier, keys_of
from gigl_loader.dataset.schema import EdgeType
from gigl_loader.runtime.memory.segments import Array, array_in, nbytes_of
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import Drawn, SampleRequest, SamplingPlan, TreesAndTimes
from gigl_loader.sampler.rows.reader import GraphReader

EdgeFilter = Callable[[EdgeType, Array, Drawn], tuple[Array, Drawn]]
"""Takes drawn edges and the local labels of the nodes that each was drawn for (``[num_edges]``
int64); returns those of both to keep."""


@dataclass(frozen=True)
class RootFields:
    """Fields that roots add to a batch, besides nodes."""

    fields: Sequence[Field]
    """The seeds of the batch, and their further values."""
    keep_edges: EdgeFilter | None = None
    """Filter of the drawn edges; None: all stay."""
    dropped: "Callable[[], dict[EdgeType, tuple[Array, Array]]] | None" = None
    """Returns by edge type the edges to remove: global ids of the nodes that are expanded and of
    their neighbours. For merged nodes only; None: all edges stay."""


class Roots(Protocol):
    """Places the roots of a batch. One object per sampling thread."""

    def place(self, request: SampleRequest, nodes: BatchNodes) -> RootFields:
        """Give the roots of ``request`` their labels in ``nodes``, which is empty."""


MakeRoots = Callable[[GraphReader], Roots]


class NodeRoots:
    """The seeds as given, repeats too."""

    def __init__(self, reader: GraphReader, plan: SamplingPlan) -> None:
        self._view, self._plan = reader.view, plan
        self._type = heterogeneous_field(reader.view.is_heterogeneous)
        self._keys = keys_of_type(plan.input_type if reader.view.is_heterogeneous else None)

    def place(self, request: SampleRequest, nodes: BatchNodes) -> RootFields:
        """Put the seeds first."""
        # Repeats keep positions of their own, as in PyG: the first ``batch_size`` outputs are the
        # seeds.
        nodes.place(self._plan.input_type, request.seeds)
        return RootFields(self.fields(request, nodes))

    def fields(self, request: SampleRequest, nodes: BatchNodes) -> list[Field]:
        """Return the fields that describe the seeds of the batch."""
        keys, numbers = self._keys, request.extra.get(INPUT_ID, request.input_id)
        fields = [self._type, Field.of(keys[INPUT_ID], numbers)]
        if not self._plan.expansion.in_trees:  # there, PyG's `batch` is the tree of each node
            fields.append(Field.of(keys[BATCH], request.seeds))
        if nodes.seed_times is not None:
            fields.append(Field.of(keys[SEED_TIME], nodes.seed_times))
        return fields


class DistinctRoots(NodeRoots):
    """The seeds, each node once; ``mapping`` of the batch has each seed's place, as in GLT."""

    def place(self, request: SampleRequest, nodes: BatchNodes) -> RootFields:
        """Put the seeds first."""
        labels = nodes.label(self._plan.input_type, request.seeds)
        return RootFields([*self.fields(request, nodes), Field.of(META + "mapping", labels)])


@dataclass(frozen=True)
class Limits:
    """The limits on the times of neighbours in each tree, as `TimeOrder.times`."""

    until: Array
    """``[num_trees]`` int64."""
    since: Array | None
    """``[num_trees]`` int64; None: nothing is too old."""

    def of(self, trees: Array) -> TreesAndTimes:
        """Return the trees and times for a request for nodes of ``trees``."""
        return TreesAndTimes(
            trees, self.until[trees], None if self.since is None else self.since[trees]
        )


class SeedTimes:
    """Finds the times of seeds: given with them, or else their own."""

    def __init__(self, reader: GraphReader, plan: SamplingPlan) -> None:
        self._reader, self._plan = reader, plan
        self._attr = plan.expansion.time_attr
        self._is_float = any(order.is_float for order in reader.view.times.values())

    def of(self, request: SampleRequest) -> Array | None:
        """Return ``[batch_size]`` int64 or float64; None without times."""
        if self._attr is None:
            return None
        given: Array | None = SeedColumns.of(request.extra).time
        if given is None:
            given = self.of_nodes(self._plan.input_type, request.seeds)
        # Integers if the times of the graph and the seeds are. Seeds of a type that is never a
        # neighbour may have fractions though neighbours have none: they are not cut off (-0.5 is
        # before 0).
        is_float = self._is_float or given.dtype.kind == "f"
        return given.reshape(-1).astype(np.float64 if is_float else np.int64, copy=False)

    def of_nodes(self, node_type: str, ids: Array) -> Array:
        """Return the times that nodes have as an attribute."""
        split = self._reader.split(self._reader.view.node_books.get(node_type), ids)
        dtype, shape, write = self._reader.fetch(
            "node_attributes", (node_type, self._attr or ""), ids, split
        )
        # Read at once, although a field may be written later: draws depend on it.
        times = array_in(bytearray(nbytes_of(dtype, shape)), dtype, shape, 0)
        write(times)
        return times

    def later(self, node_type: str, ids: Array, times: Array) -> Array:
        """Return which of ``ids`` have a time after ``times``; a type without times has none."""
        if (node_type, self._attr) not in self._reader.view.node_attributes:
            return np.zeros(ids.size, bool)
        return self.of_nodes(node_type, ids).reshape(-1) > times

    def limits(self, nodes: BatchNodes) -> Limits | None:
        """Return the time limits of each tree of a batch."""
        if nodes.seed_times is None:
            return None
        # By tree: of several seeds in one, the first, whose time all others have.
        times = nodes.seed_times[nodes.seeds]
        since = None if nodes.seed_starts is None else nodes.seed_starts[nodes.seeds]
        if times.dtype.kind == "f" and not self._is_float:
            return Limits(_whole(np.floor(times)), since)
        return Limits(keys_of(times, is_float=self._is_float), since)

    def starts(self, request: SampleRequest, times: Array | None) -> Array | None:
        """Return the earliest time of neighbours, given or by a window before ``times``.

        Returns:
            ``[batch_size]`` int64, as `TimeOrder.times`; None: no time is too early.
        """
        if times is None:
            return None
        given = SeedColumns.of(request.extra)
        window = self._plan.expansion.time_window if given.window is None else given.window
        if given.start is not None:
            times, window = given.start, 0
        if window is None:
            return None
        if times.dtype.kind == "f" and not self._is_float:
            return _whole(np.ceil(times - window))
        return earlier(times, window, is_float=self._is_float)


def _whole(times: Array) -> Array:
    """Return floats without fractions as int64, clipped to its range."""
    least, most = -(2.0**63), 2.0**63 - 1024  # the largest float64 below 2 ** 63
    return np.clip(times, least, most).astype(np.int64)
