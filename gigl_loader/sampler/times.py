"""The time of each seed of a batch, and what it allows in the seed's tree."""

from dataclasses import dataclass

import numpy as np

from gigl_loader.dataset.view import earlier, keys_of
from gigl_loader.memory.segments import Array, array_in, nbytes_of
from gigl_loader.message import SEED_TIME
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.questions import Asked
from gigl_loader.sampler.reader import GraphReader


@dataclass(frozen=True)
class Limits:
    """The times of neighbours that each tree may have, as `TimeOrder.times`."""

    until: Array
    """``[num_trees]`` int64."""
    since: Array | None
    """``[num_trees]`` int64; None: nothing is too old."""

    def asked(self, trees: Array) -> Asked:
        """Return what nodes of ``trees`` are asked with."""
        return Asked(trees, self.until[trees], None if self.since is None else self.since[trees])


class SeedTimes:
    """Finds the times of seeds: those that come with them, or else their own."""

    def __init__(self, reader: GraphReader, plan: SamplingPlan) -> None:
        self._reader, self._plan = reader, plan
        self._attr = plan.expansion.time_attr
        self._is_float = any(order.is_float for order in reader.view.times.values())

    def of(self, request: SampleRequest) -> Array | None:
        """Return ``[batch_size]`` int64 or float64; None: no time counts."""
        if self._attr is None:
            return None
        given = request.extra.get(SEED_TIME)
        if given is None:
            given = self.of_nodes(self._plan.input_type, request.seeds)
        # Whole where the graph's are and the seeds' too. Seeds of a type that is nobody's neighbour
        # may have fractions though neighbours have none: these are not cut off (-0.5 is before 0).
        is_float = self._is_float or given.dtype.kind == "f"
        return given.reshape(-1).astype(np.float64 if is_float else np.int64, copy=False)

    def of_nodes(self, node_type: str, ids: Array) -> Array:
        """Return the times that nodes have as an attribute."""
        split = self._reader.split(self._reader.view.node_books.get(node_type), ids)
        dtype, shape, write = self._reader.fetch(
            "node_attributes", (node_type, self._attr or ""), ids, split
        )
        # Read at once, although a field may be written later: what is drawn depends on it.
        found = array_in(bytearray(nbytes_of(dtype, shape)), dtype, shape, 0)
        write(found)
        return found

    def later(self, node_type: str, ids: Array, times: Array) -> Array:
        """Return which of ``ids`` have a time after ``times``; a type without times has none."""
        if (node_type, self._attr) not in self._reader.view.node_attributes:
            return np.zeros(ids.size, bool)
        found: Array = self.of_nodes(node_type, ids).reshape(-1) > times
        return found

    def limits(self, nodes: BatchNodes) -> Limits | None:
        """Return what each tree of a batch may have."""
        if nodes.seed_times is None:
            return None
        # By tree: of several seeds in one, the first, whose time all others have.
        times = nodes.seed_times[nodes.seeds]
        window = self._plan.expansion.time_window
        if times.dtype.kind == "f" and not self._is_float:
            since = None if window is None else _whole(np.ceil(times - window))
            return Limits(_whole(np.floor(times)), since)
        since = None if window is None else earlier(times, window, is_float=self._is_float)
        return Limits(keys_of(times, is_float=self._is_float), since)


def _whole(times: Array) -> Array:
    """Return floats without fractions as int64; beyond its ends, the ends."""
    least, most = -(2.0**63), 2.0**63 - 1024  # the largest float64 below 2 ** 63
    return np.clip(times, least, most).astype(np.int64)
