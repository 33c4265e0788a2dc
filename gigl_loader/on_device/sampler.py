"""`DeviceSampler`: roots on the host, expansion and rows on the device.

Roots are a handful of ids, and seed edges, labels and negatives are found with the same code
wherever a batch is sampled. What grows with the fan-outs is done on the device: draws, labels,
edges and rows. A batch is launched first, and later cut to what there is of it::

    launch    roots, host -> device; all hops; counts, device -> host       waits for nothing
    finish    when the counts have come: edges, rows at their exact sizes   waits for nothing else
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.schema import EdgeType, NodeType, reverse_edge_type
from gigl_loader.dataset.view import Adjacency, PartitionView, Rows
from gigl_loader.device.memory import DeviceMemory
from gigl_loader.errors import ConfigError, PeerTimeoutError
from gigl_loader.memory.segments import Array
from gigl_loader.message import (
    ATTRIBUTE,
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGES_PER_HOP,
    NODE,
    NODE_FEATURES,
    NODE_LABELS,
    NODES_PER_HOP,
    SCALES,
    TREE,
    Field,
    key,
)
from gigl_loader.on_device.expansion import (
    DeviceExpansion,
    DeviceRoots,
    Grown,
    SampledEdges,
    pair_keys,
)
from gigl_loader.on_device.kernels import Kernels
from gigl_loader.sampler.neighbor import NeighborSampler, attribute_names
from gigl_loader.sampler.plan import Sampler, SampleRequest, SamplingPlan


class DeviceTensors:
    """Tensors of one batch on the device; a `gigl_loader.message.OnDevice`."""

    def __init__(self, found: dict[str, Tensor], memory: DeviceMemory, event: Any) -> None:
        self._found, self._memory, self._event = found, memory, event

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(one.nbytes for one in self._found.values())

    def lent(self) -> dict[str, Tensor]:
        """Return them, for use on the stream that is current in the calling thread."""
        self._memory.follow(self._event)
        self._memory.lend(self._found.values())
        return self._found


@dataclass(frozen=True)
class Launched:
    """A batch under way."""

    request: SampleRequest
    fields: list[Field]
    """What the roots add to the batch, on the host; to be written before the next launch."""
    grown: Grown
    seeds: Tensor | None
    """``[num_trees]`` int64, the seed of each tree."""
    counts: Tensor
    """Counts of `grown`, on the host once ``event`` has passed."""
    event: Any


class DeviceSampler:
    """Samples on one device. One object per thread.

    Args:
        sampler: For its roots; a plain `NeighborSampler`.
        plan: What to sample.
        view: The whole graph, with its tensors on the device.
        kernels: Of the device.
        memory: Of the device.
        timeout_s: Seconds that a batch may take there.

    Raises:
        ConfigError: The plan asks for something that is only done on the host.
    """

    def __init__(
        self, sampler: Sampler, plan: SamplingPlan, view: PartitionView[Tensor], kernels: Kernels,
        memory: DeviceMemory, timeout_s: float,
    ) -> None:  # fmt: skip
        self._roots = checked(sampler)
        self._plan, self._view, self._kernels = plan, view, kernels
        self._memory, self._timeout_s = memory, timeout_s
        self._expansion = DeviceExpansion(view, plan, kernels, self._roots.nodes.bits)
        self._attributes: dict[Any, list[str]] = {}
        if plan.collect_features:
            self._attributes = attribute_names(view.node_attributes, view.edge_attributes)

    def check(self, batch_size: int) -> None:
        """Raise `ConfigError` where a batch of so many seeds finds no room on the device."""
        seeds = {self._plan.input_type: batch_size}
        self._expansion.check({name: seeds.get(name, 0) for name in self._view.num_nodes})

    # -- launch ------------------------------------------------------------------------------------

    def launch(self, request: SampleRequest) -> Launched:
        """Start a batch; waits for nothing on the device."""
        roots = self._roots
        placed = roots.place(request)
        nodes = roots.nodes
        self._expansion.check({name: nodes.count(name) for name in nodes.types})
        with self._memory.in_use():
            limits = roots.times.limits(nodes)
            start = DeviceRoots(
                {name: self._uploaded(nodes.keys(name)) for name in nodes.types},
                None if limits is None else self._uploaded(limits.until),
                None if limits is None or limits.since is None else self._uploaded(limits.since),
                {} if placed.dropped is None else self._pairs(placed.dropped()),
            )
            seeds = self._uploaded(nodes.seeds) if nodes.disjoint else None
            grown = self._expansion.run(request.ticket, start)
            counts = self._memory.downloaded(grown.counts)
            return Launched(request, list(placed.fields), grown, seeds, counts, self._memory.mark())

    def _uploaded(self, array: Array) -> Tensor:
        host = self._memory.on_host(array.nbytes)
        np.copyto(host.numpy().view(array.dtype), array.reshape(-1))
        return self._memory.uploaded(host).view(getattr(torch, array.dtype.name))

    def _pairs(self, dropped: dict[EdgeType, tuple[Array, Array]]) -> dict[EdgeType, Tensor]:
        found = {}
        for edge_type, (expanded, neighbors) in dropped.items():
            _, neighbor = self._expansion.ends(edge_type)
            pairs = pair_keys(expanded, neighbors, self._view.num_nodes[neighbor])
            found[edge_type] = self._uploaded(np.sort(pairs))
        return found

    # -- finish ------------------------------------------------------------------------------------

    def finish(self, launched: Launched) -> tuple[dict[str, Tensor], DeviceTensors]:
        """Return the tensors of a batch that stay on the host, and those on the device.

        Raises:
            PeerTimeoutError: The device did not get so far in time.
        """
        if not self._memory.wait(launched.event, self._timeout_s):
            ticket = launched.request.ticket
            raise PeerTimeoutError(
                f"batch {ticket.batch} of epoch {ticket.epoch} was not sampled on "
                f"{self._memory.device} in {self._timeout_s:.0f} s: the device is busy or hangs; "
                "if a step of the model really takes that long, raise `timeout`"
            )
        with self._memory.in_use():
            host: dict[str, Tensor] = {}
            found: dict[str, Tensor] = {}
            keys, per_hop, edges = launched.grown.sampled(
                launched.counts.tolist(), list(self._plan.fanouts)
            )
            for node_type in self._roots.nodes.types:
                name = node_type if self._view.is_heterogeneous else None
                host[key(NODES_PER_HOP, name)] = torch.tensor(per_hop[node_type])
                self._add_nodes(found, node_type, name, keys[node_type], launched.seeds)
            for edge_type, sampled in edges.items():
                self._add_edges(host, found, edge_type, sampled)
            return host, DeviceTensors(found, self._memory, self._memory.mark())

    def _add_nodes(
        self, found: dict[str, Tensor], node_type: NodeType, name: Any, keys: Tensor,
        seeds: Tensor | None,
    ) -> None:  # fmt: skip
        ids = keys
        bits = self._roots.nodes.bits
        if bits is not None:
            assert seeds is not None, "trees have seeds"
            ids = keys & ((1 << bits[node_type]) - 1)
            found[key(TREE, name)] = seeds[keys >> bits[node_type]]
        found[key(NODE, name)] = ids
        view = self._view
        if self._plan.collect_features and node_type in view.node_features:
            features = view.node_features[node_type]
            found[key(NODE_FEATURES, name)] = self._rows(features, ids)
            if features.scales is not None:
                found[SCALES + key(NODE_FEATURES, name)] = features.scales
        if node_type in view.node_labels:
            found[key(NODE_LABELS, name)] = self._rows(view.node_labels[node_type], ids)
        for attribute in self._attributes.get(node_type, ()):
            rows = view.node_attributes[node_type, attribute]
            found[key(ATTRIBUTE + attribute, name)] = self._rows(rows, ids)

    def _add_edges(
        self, host: dict[str, Tensor], found: dict[str, Tensor], edge_type: EdgeType,
        sampled: SampledEdges,
    ) -> None:  # fmt: skip
        view, name = self._view, None
        if view.is_heterogeneous:
            name = reverse_edge_type(edge_type) if view.edge_dir == "out" else edge_type
        found[key(EDGE_INDEX, name)] = sampled.edge_index
        host[key(EDGES_PER_HOP, name)] = torch.tensor(sampled.per_hop, dtype=torch.int64)
        if not self._plan.with_edge:
            return
        ids = self._edge_ids(view.adjacency[edge_type], sampled.offsets)
        found[key(EDGE, name)] = ids
        if self._plan.collect_features and edge_type in view.edge_features:
            found[key(EDGE_FEATURES, name)] = self._rows(view.edge_features[edge_type], ids)
        for attribute in self._attributes.get(edge_type, ()):
            rows = view.edge_attributes[edge_type, attribute]
            found[key(ATTRIBUTE + attribute, name)] = self._rows(rows, ids)

    def _edge_ids(self, adjacency: Adjacency[Tensor], offsets: Tensor) -> Tensor:
        ids: Tensor = adjacency.edge_ids_at(offsets)
        return ids.long()

    def _rows(self, rows: Rows[Tensor], ids: Tensor) -> Tensor:
        return self._kernels.gather(rows.values, rows.locate(ids))


def check_plan(plan: SamplingPlan) -> None:
    """Raise `ConfigError` where a plan asks for something that is only done on the host."""
    subgraph = plan.expansion.subgraph_type
    if subgraph in ("induced", "bidirectional"):
        raise _refused(f'subgraph_type="{subgraph}"')
    if plan.feature_store is not None:
        raise _refused("feature_store")


def checked(sampler: Sampler) -> NeighborSampler:
    """Return ``sampler`` if a device can do what it does.

    Raises:
        ConfigError: It is more than roots, draws and an expansion.
    """
    if type(sampler) is not NeighborSampler:
        raise _refused(f"the sampler {type(sampler).__name__} (PPR, or one of your own)")
    return sampler


def _refused(what: str) -> ConfigError:
    return ConfigError(
        f"{what} is not sampled on a device: take the dataset back with dataset.to('cpu') and "
        "give the loader workers, or leave it out"
    )
