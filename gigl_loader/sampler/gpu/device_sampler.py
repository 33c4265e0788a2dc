"""`DeviceSampler`: roots on the host, expansion and rows on the device.

Roots are a handful of ids; seed edges, labels and negatives are found with the same code in every
deployment. The parts that grow with the fan-outs run on the device: draws, labels, edges and rows.
A batch is launched first, and later cut to its real size::

    place     roots, by the host's readers
    launch    roots, host -> device; all hops; counts, device -> host   waits for nothing
    cut       nodes and edges at their exact sizes                      waits for the counts
    finish    rows                                                      waits for nothing

The graph may lie in partitions on the devices of several ranks
(`sources.in_process.partitioned_graph`): then each hop, and the rows, wait for the numbers of ids
that the ranks request.

Features may lie on the host, and some of them may be kept on the device (`sampler.gpu.kept_rows`).
Then batches are cut many steps ahead, and their ids come to the host (`tell`).
"""

import copy
import logging
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.batch.device.device_memory import DeviceMemory, LentTensors
from gigl_loader.batch.leases import BufferPool
from gigl_loader.batch.message import (
    EDGE,
    EDGE_INDEX,
    EDGE_ROWS,
    EDGES_PER_HOP,
    NODE_FEATURES,
    NODE_ROWS,
    NODES_PER_HOP,
    Field,
    SampleMessage,
    scales_key,
    stays_on_host,
)
from gigl_loader.dataset.partition.partition_view import Matrix, Owner, owner_of
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError, PeerTimeoutError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.sizes import size_in_words
from gigl_loader.runtime.system import available_memory
from gigl_loader.sampler.batch_bounds import BATCHES_HELD
from gigl_loader.sampler.expansion import EdgeCollector, Sampled
from gigl_loader.sampler.gpu.cuda_graphs import Replays
from gigl_loader.sampler.gpu.device_expansion import (
    DeviceExpansion,
    DeviceRoots,
    Grown,
    Layout,
    SampledEdges,
    pair_keys,
)
from gigl_loader.sampler.gpu.device_graph import DeviceGraph, LocalDeviceGraph, rows_of
from gigl_loader.sampler.gpu.device_kernels import DeviceLabels, TorchKernels, TypedPlaces
from gigl_loader.sampler.gpu.kept_rows import KeptRows
from gigl_loader.sampler.neighbor import NeighborSampler, values_of_nodes
from gigl_loader.sampler.plan import Sampler, SampleRequest, SamplingPlan
from gigl_loader.sampler.tokens import TokenNodes, ticket_of_tokens

logger = logging.getLogger(__name__)

_NO_IDS = np.empty(0, np.int64)


@dataclass
class PlacedRoots:
    """The roots of a batch, as the host has them."""

    request: SampleRequest
    fields: list[Field]
    """The fields of the roots, on the host; to be written before the next batch is placed."""
    seeds: Tensor | None
    """``[num_trees]`` int64, the seed of each tree."""
    message: SampleMessage = field(default_factory=dict)
    """``fields``, once written."""
    nodes: TokenNodes | None = None
    """The roots of a batch with tokens; None: it has none."""
    tokens: SampleMessage = field(default_factory=dict)
    """Fields of its tokens, once the batch is cut: on the device, but for those that the host
    reads."""
    has_repeats: bool = True
    """Whether a node of the batch may have several labels, or is in several trees."""
    nbytes: int = 0
    seconds: float = 0.0
    """Seconds of the host to place and draw the batch."""

    def write(self, memory: BufferPool) -> None:
        """Write the fields of the roots."""
        self.message, self.nbytes = memory.write(self.fields)


@dataclass(frozen=True)
class Launched:
    """A batch under way."""

    roots: PlacedRoots
    grown: Grown
    counts: Tensor
    """Counts of `grown`, on the host once ``event`` has passed."""
    event: Any


@dataclass(frozen=True)
class _DistinctIds:
    """The ids of one owner in a batch, each once."""

    ids: Tensor
    """int64, on the device; the first ``count`` are used."""
    on_host: Tensor
    """A copy of ``ids``, once the batch's event has passed."""
    count: Tensor | None = None
    """``[1]`` int64, on the host once the event has passed; None: all are used."""
    places: Tensor | None = None
    """``[n]`` int64, on the device: the position in ``ids`` of each id of the batch; None: its
    own."""

    def array(self) -> Array:
        """Return the ids on the host."""
        count = self.on_host.numel() if self.count is None else int(self.count)
        ids: Array = self.on_host[:count].numpy()
        return ids


@dataclass
class CutBatch:
    """A batch whose nodes and edges are known, without rows."""

    roots: PlacedRoots
    keys: dict[NodeType, Tensor]
    per_hop: dict[NodeType, list[int]]
    edges: dict[EdgeType, SampledEdges]
    ids: dict[Owner, _DistinctIds]
    """The ids of owners with kept features."""
    event: Any
    number: int = -1
    """Number of the batch in the cache; -1 if it has none."""
    wanted: dict[Owner, Array] = field(default_factory=dict)
    """``ids``, once the host has them."""


class DeviceSampler:
    """Samples on one device. One object per thread.

    Args:
        sampler: Makes the roots; a plain `NeighborSampler`.
        plan: How to sample.
        graph: Draws and rows.
        kernels: Kernels of the device.
        memory: Memory of the device.
        timeout_s: Seconds that a batch may take there.
        cache: Device memory for features that lie on the host, in bytes, or as a float the share of
            them; None: nothing is kept.

    Raises:
        ConfigError: The plan needs something that is only done on the host.
    """

    def __init__(
        self,
        sampler: Sampler,
        plan: SamplingPlan,
        graph: DeviceGraph,
        kernels: TorchKernels,
        memory: DeviceMemory,
        timeout_s: float,
        cache: int | float | None = None,
    ) -> None:
        self._roots = require_neighbor_sampler(sampler)
        if self._roots.tokens is not None and self._roots.leaves_out_edges:
            raise _refused("exclude_supervision with tokens")
        self._plan, self.graph, self._kernels = plan, graph, kernels
        self._view = view = graph.view
        self._memory, self._timeout_s = memory, timeout_s
        self.kept = self._kept_rows(cache)
        self._rows_of_a_batch = 0
        self._expansion = DeviceExpansion(graph, plan, kernels, self._roots.grown.bits)
        # Partitions ask their owners. Edges on the host are slower than any launch, and torch's
        # operators wait for them.
        self._may_capture = isinstance(graph, LocalDeviceGraph) and all(
            adjacency.indices.device == memory.device for adjacency in view.adjacency.values()
        )
        self.replays = Replays(self._expansion, memory, may_capture=self._may_capture)
        self._matrices = self._matrices_of_batches()

    def _kept_rows(self, cache: int | float | None) -> KeptRows | None:
        plan = self._plan
        kinds = ("node_features", *(["edge_features"] if plan.with_edge else []))
        if cache is None or not plan.collect_features:
            return None
        # Slots belong to the stream that uses them: where the loader is built, kernels of the
        # model may still write to memory that was freed there.
        with self._memory.in_use():
            return KeptRows(self._view, kinds, cache, self._kernels, self._memory)

    def check(self, batch_size: int, under_way: int, free: int | None) -> None:
        """Raise `ConfigError` if batches do not fit on the device; nothing was allocated for them.

        Args:
            batch_size: Seeds of a batch.
            under_way: Batches at once.
            free: Free bytes of the device; None: it has this machine's memory.
        """
        seeds = {self._plan.input_type: batch_size}
        roots = {name: seeds.get(name, 0) for name in self._view.num_nodes}
        self._expansion.check(roots)
        wanted = (under_way + BATCHES_HELD) * self._expansion.device_bytes(roots, self._row_bytes())
        wanted += self._expansion.scratch_bytes
        if self._may_capture:  # the graph has memory of its own, but for rows
            wanted += self._expansion.device_bytes(roots, {})
        if wanted > (free := available_memory() if free is None else free):
            raise ConfigError(
                f"batches take up to {size_in_words(wanted)} of {self._memory.device}, which has "
                f"{size_in_words(free)} free: {under_way} are under way, with room for all "
                f"neighbours that they may draw and for their rows, and {BATCHES_HELD} more are "
                "held (`gigl-loader plan --gpu` counts the same); give smaller fan-outs or "
                "batches, a lower worker_concurrency, or sample with workers"
            )

    def _row_bytes(self) -> dict[Owner, int]:
        """Return the bytes of all rows that a batch has of a node or an edge, by owner."""
        sizes: dict[Owner, int] = {}
        for matrix in self._matrices:
            rows, owner = rows_of(self._view, matrix), owner_of(*matrix)
            count = math.prod(rows.values.shape[1:])
            size = count * rows.values.element_size()
            if rows.scales is not None:  # widened to float32, beside what is stored
                size += 4 * count
            sizes[owner] = sizes.get(owner, 0) + size
        return sizes

    # -- launch ------------------------------------------------------------------------------------

    def place(self, request: SampleRequest) -> tuple[PlacedRoots, DeviceRoots]:
        """Find the roots of a batch on the host, and start to copy them to the device."""
        roots = self._roots
        placed = roots.place(request)
        nodes, ticket = roots.grown, request.ticket
        if roots.tokens is not None:
            ticket = ticket_of_tokens(ticket)
        num_roots = {name: nodes.count(name) for name in nodes.types}
        self._expansion.check(num_roots)
        layout = self._expansion.layout(ticket, num_roots)
        limits = roots.times.limits(nodes)
        dropped = {} if placed.dropped is None else self._pairs(placed.dropped())
        arrays: dict[Any, Array] = {
            "numbers": layout.numbers(),
            **{("roots", name): nodes.keys(name) for name in nodes.types},
            **{("dropped", name): pairs for name, pairs in dropped.items()},
        }
        if limits is not None:
            arrays["until"] = limits.until
            if limits.since is not None:
                arrays["since"] = limits.since
        if nodes.disjoint:
            arrays["seeds"] = nodes.seeds
        if nodes.places is not None:
            arrays["places"] = nodes.places
        start = self._uploaded(layout, arrays)
        has_repeats = self.kept is None or nodes.disjoint  # without a cache nobody asks
        has_repeats = has_repeats or any(_has_repeats(nodes.keys(name)) for name in nodes.types)
        fields = list(placed.fields)
        made = PlacedRoots(request, fields, start.seeds, has_repeats=has_repeats)
        if isinstance(roots.nodes, TokenNodes):  # the next batch is placed before this one is cut
            made.nodes = copy.deepcopy(roots.nodes)
        return made, start

    def no_roots(self, request: SampleRequest) -> tuple[PlacedRoots, DeviceRoots]:
        """Return an empty batch, for a rank that only takes part in the exchanges of others."""
        return self._bare(request, _NO_IDS, dict.fromkeys(self._roots.nodes.types, _NO_IDS))

    def first_nodes(self, request: SampleRequest) -> tuple[PlacedRoots, DeviceRoots]:
        """Return a batch around node 0 of each type, for a trial that no user sees."""
        first, num_nodes = np.zeros(1, np.int64), self._view.num_nodes
        nodes = {name: first if num_nodes[name] else _NO_IDS for name in self._roots.nodes.types}
        return self._bare(request, first, nodes)

    def _bare(
        self, request: SampleRequest, seeds: Array, nodes: Mapping[NodeType, Array]
    ) -> tuple[PlacedRoots, DeviceRoots]:
        """Return a batch of these roots, without fields of their own."""
        num_roots = {name: ids.size for name, ids in nodes.items()}
        layout = self._expansion.layout(request.ticket, num_roots)
        arrays: dict[Any, Array] = {"numbers": layout.numbers(), "seeds": seeds}
        roots = {("roots", name): ids for name, ids in nodes.items()}
        start = self._uploaded(layout, arrays | roots)
        return PlacedRoots(request, [], start.seeds), start

    def _uploaded(self, layout: Layout, arrays: Mapping[Any, Array]) -> DeviceRoots:
        """Return roots of the arrays of `DeviceRoots.flattened`; they are copied as one."""
        flat, sizes = DeviceRoots.flattened(arrays)
        with self._memory.in_use():
            return DeviceRoots(layout, self._memory.uploaded_array(flat), sizes)

    def launch(self, roots: PlacedRoots, start: DeviceRoots) -> Launched:
        """Start a batch; waits for nothing on the device if the whole graph is there."""
        with self._memory.in_use():
            grown = self.replays.run(start)
            counts = self._memory.downloaded(grown.counts)
            return Launched(roots, grown, counts, self._memory.mark())

    def _pairs(self, dropped: dict[EdgeType, tuple[Array, Array]]) -> dict[EdgeType, Array]:
        keys = {}
        for edge_type, (expanded, neighbors) in dropped.items():
            _, neighbor = self._expansion.ends(edge_type)
            keys[edge_type] = np.sort(
                pair_keys(expanded, neighbors, self._view.num_nodes[neighbor])
            )
        return keys

    # -- finish ------------------------------------------------------------------------------------

    def has_come(self, under_way: Launched | CutBatch) -> bool:
        """Return whether the next step of a batch would run at once."""
        return self._memory.has_passed(under_way.event)

    def cut(self, launched: Launched) -> CutBatch:
        """Return a batch cut to its real nodes and edges; waits for its counts.

        Raises:
            PeerTimeoutError: The device did not get so far in time.
        """
        self._wait(launched.event, launched.roots.request)
        with self._memory.in_use():
            keys, per_hop, edges = launched.grown.sampled(
                launched.counts.tolist(), self._expansion.node_types
            )
            ids = {}
            if launched.roots.nodes is not None:
                keys, edges = self._with_tokens(launched.roots, keys, per_hop, edges)
            if self.kept is not None:
                ids = self._ids_of_kept(
                    self.kept.owners, keys, edges, nodes_repeat=launched.roots.has_repeats
                )
            return CutBatch(launched.roots, keys, per_hop, edges, ids, self._memory.mark())

    def _with_tokens(
        self,
        roots: PlacedRoots,
        keys: dict[NodeType, Tensor],
        per_hop: dict[NodeType, list[int]],
        edges: dict[EdgeType, SampledEdges],
    ) -> tuple[dict[NodeType, Tensor], dict[EdgeType, SampledEdges]]:
        """Return the nodes that are tokens, and the edges between them; waits for the trees.

        The host makes tokens of them, by the same code as elsewhere.
        """
        nodes, maker = roots.nodes, self._roots.tokens
        assert nodes is not None
        assert nodes.forest is not None
        assert maker is not None
        trees = {name: self._memory.downloaded(node_keys) for name, node_keys in keys.items()}
        drawn = {
            name: (self._memory.downloaded(one.edge_index), self._memory.downloaded(one.offsets))
            for name, one in edges.items()
        }
        self._wait(self._memory.mark(), roots.request)
        nodes.forest.replace({name: node_keys.numpy() for name, node_keys in trees.items()})
        sampled = Sampled({name: EdgeCollector() for name in edges}, found_per_hop=per_hop)
        for name, (ends, offsets) in drawn.items():
            neighbors, targets = ends.numpy()
            ids = offsets.numpy() if self._plan.with_edge else None
            sampled.edges[name].add(neighbors, targets, ids)
        between, tokens = maker.of_trees(roots.request, nodes, sampled)
        for field_ in tokens:
            array = np.empty(field_.shape, field_.dtype)
            field_.write(array)
            host = torch.from_numpy(array)
            roots.tokens[field_.key] = host if stays_on_host(field_.key) else self._moved(array)
        merged = {
            name: SampledEdges(self._moved(one.as_index()), self._moved(one.ids()), [one.count])
            for name, one in between.edges.items()
        }
        return {name: self._moved(nodes.ids(name).copy()) for name in keys}, merged

    def _moved(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._memory.device)

    def _ids_of_kept(
        self,
        owners: Container[Owner],
        keys: dict[NodeType, Tensor],
        edges: dict[EdgeType, SampledEdges],
        *,
        nodes_repeat: bool,
    ) -> dict[Owner, _DistinctIds]:
        """Start to copy to the host the ids of a batch whose features are kept, each once."""
        distinct: dict[Owner, _DistinctIds] = {}
        for name, type_keys in keys.items():
            if ("node", name) in owners:
                ids = self._node_ids(name, type_keys)
                distinct["node", name] = self._distinct(ids, may_repeat=nodes_repeat)
        for edge_type, sampled in edges.items():
            if ("edge", edge_type) in owners:
                # drawn twice with replacement; and ids that the user gave may repeat
                ids = self.graph.edge_ids(edge_type, sampled.offsets)
                distinct["edge", edge_type] = self._distinct(ids, may_repeat=True)
        return distinct

    def _distinct(self, ids: Tensor, *, may_repeat: bool) -> _DistinctIds:
        """Start to copy ``ids`` to the host, each once.

        The device finds repeats: the host would sort the ids, in the thread that trains.
        """
        count = ids.numel()
        if not (may_repeat and count):
            return _DistinctIds(ids, self._memory.downloaded(ids))
        # labels of one type, none of which is given yet; made of numbers without a copy to wait for
        ends = torch.arange(0, count + 1, count, device=ids.device)
        labels = DeviceLabels(torch.full_like(ids, -1), ids.new_zeros(1), [0, count], ends)
        places = self._kernels.label(labels, ids, TypedPlaces([count], ends[1:]))
        on_host = self._memory.downloaded(labels.keys)
        return _DistinctIds(labels.keys, on_host, self._memory.downloaded(labels.counts), places)

    def tell(self, drawn: CutBatch) -> None:
        """Announce the rows of a batch to the cache, after all batches before it.

        Raises:
            PeerTimeoutError: The device did not get so far in time.
        """
        if self.kept is None or drawn.number >= 0:
            return
        self._wait(drawn.event, drawn.roots.request)
        drawn.wanted = {owner: distinct.array() for owner, distinct in drawn.ids.items()}
        drawn.number = self.kept.add(drawn.wanted)
        self._rows_of_a_batch = sum(owner_ids.size for owner_ids in drawn.wanted.values())

    def wants_more(self, ahead: int) -> bool:
        """Return whether the cache would keep better if more than ``ahead`` batches were known."""
        return self.kept is not None and ahead * self._rows_of_a_batch < self.kept.window

    def forget(self, drawn: CutBatch) -> None:
        """Tell the cache that a batch is not going to be finished."""
        if self.kept is not None and drawn.number >= 0:
            self.kept.forget(drawn.number)

    def finish(self, drawn: CutBatch) -> tuple[dict[str, Tensor], LentTensors]:
        """Return the tensors of a batch that stay on the host, and those on the device."""
        with self._memory.in_use():
            ids, rows = self._rows(drawn)
            host: dict[str, Tensor] = {}
            tensors: dict[str, Tensor] = {}
            for name, value in drawn.roots.tokens.items():
                (host if stays_on_host(name) else tensors)[name] = value
            for node_type in self._roots.nodes.types:
                keys = self._roots.keys[node_type]
                if drawn.roots.nodes is None:  # tokens are of no hop of the batch
                    host[keys[NODES_PER_HOP]] = torch.tensor(drawn.per_hop[node_type], device="cpu")
                self._add_nodes(tensors, node_type, drawn, ids, rows)
            for edge_type, sampled in drawn.edges.items():
                self._add_edges(host, tensors, edge_type, sampled, ids, rows)
            return host, LentTensors(tensors, self._memory, self._memory.mark())

    def _wait(self, event: Any, request: SampleRequest) -> None:
        if self._memory.wait(event, self._timeout_s):
            return
        ticket = request.ticket
        raise PeerTimeoutError(
            f"batch {ticket.batch} of epoch {ticket.epoch} was not sampled on "
            f"{self._memory.device} in {self._timeout_s:.0f} s: the device is busy or hangs; "
            "if a step of the model really takes that long, raise `timeout`"
        )

    def _kept_features(self, drawn: CutBatch) -> dict[Matrix, Tensor]:
        """Return the features of a batch that go through the cache, which may be off."""
        kept, features = self.kept, {}
        if kept is None or drawn.number < 0:
            return {}
        try:
            for owner, plan in kept.plan(drawn.number, drawn.wanted).items():
                if owner not in drawn.ids:
                    continue
                distinct = drawn.ids[owner]
                ids = distinct.ids[: drawn.wanted[owner].size]
                for matrix in kept.matrices(owner):
                    rows = kept.rows(matrix, ids, plan)
                    places = distinct.places
                    features[matrix] = rows if places is None else rows.index_select(0, places)
        except BaseException:
            # Slots were planned for rows that were not written: nobody may read them any more.
            logger.warning(
                "the cache of features on %s is off: a batch failed", self._memory.device
            )
            self.kept = None
            raise
        return features

    def _rows(self, drawn: CutBatch) -> tuple[dict[Owner, Tensor], dict[Matrix, Tensor]]:
        """Return ids and rows of a batch."""
        ids: dict[Owner, Tensor] = {
            ("node", name): self._node_ids(name, drawn.keys[name]) for name in drawn.keys
        }
        if self._plan.with_edge:
            for edge_type, sampled in drawn.edges.items():
                ids["edge", edge_type] = self.graph.edge_ids(edge_type, sampled.offsets)
        kept = self._kept_features(drawn)
        wanted = [matrix for matrix in self._matrices if matrix not in kept]
        return ids, {**kept, **self.graph.rows(ids, wanted)}

    def _matrices_of_batches(self) -> list[Matrix]:
        """Return the matrices whose rows batches have, in an order that all ranks share."""
        plan, view = self._plan, self._view
        found: list[Matrix] = []
        for kind in (*NODE_ROWS, *EDGE_ROWS):
            types: Any = view.num_nodes if kind in NODE_ROWS else plan.fanouts
            found += [(kind, name) for name in types if name in getattr(view, kind)]
        for kind, named in (("node_attributes", view.num_nodes), ("edge_attributes", plan.fanouts)):
            found += [
                (kind, (name, a)) for name in named for a, _ in self._roots.attributes.get(name, ())
            ]
        return sorted((one for one in found if plan.has_rows(one[0])), key=str)

    def _add_nodes(
        self,
        tensors: dict[str, Tensor],
        node_type: NodeType,
        drawn: CutBatch,
        ids: dict[Owner, Tensor],
        rows: dict[Matrix, Tensor],
    ) -> None:
        keys, bits = self._roots.keys[node_type], self._roots.nodes.bits
        seeds = None if bits is None else drawn.roots.seeds
        nodes, found = ids["node", node_type], drawn.per_hop[node_type]
        if bits is not None:
            assert seeds is not None, "trees have seeds"
            seeds = seeds[drawn.keys[node_type] >> bits[node_type]]
        for name, value in values_of_nodes(self._plan, keys, nodes, seeds, found):
            tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
            tensors[name] = tensor.to(nodes.device, non_blocking=True)
        self._add_rows(tensors, NODE_ROWS, node_type, rows)
        matrices: dict[str, Matrix] = {keys[NODE_FEATURES]: ("node_features", node_type)}
        for attribute, attribute_key in self._roots.attributes.get(node_type, ()):
            matrices[attribute_key] = "node_attributes", (node_type, attribute)
        for name in matrices.keys() & tensors.keys():
            scales = rows_of(self._view, matrices[name]).scales
            if scales is not None:
                tensors[scales_key(name)] = scales

    def _add_rows(
        self,
        tensors: dict[str, Tensor],
        built_in: Mapping[str, str],
        owner: NodeType | EdgeType,
        rows: dict[Matrix, Tensor],
    ) -> None:
        """Add rows of the nodes or edges of a type, of those matrices that batches have."""
        keys = self._roots.keys[owner]
        wanted: list[tuple[str, Matrix]] = [
            (keys[name], (kind, owner)) for kind, name in built_in.items()
        ]
        kind = "edge_attributes" if built_in is EDGE_ROWS else "node_attributes"
        for attribute, attribute_key in self._roots.attributes.get(owner, ()):
            wanted.append((attribute_key, (kind, (owner, attribute))))
        tensors.update({name: rows[matrix] for name, matrix in wanted if matrix in rows})

    def _node_ids(self, node_type: NodeType, keys: Tensor) -> Tensor:
        bits = self._roots.nodes.bits
        return keys if bits is None else keys & ((1 << bits[node_type]) - 1)

    def _add_edges(
        self,
        host: dict[str, Tensor],
        tensors: dict[str, Tensor],
        edge_type: EdgeType,
        sampled: SampledEdges,
        ids: dict[Owner, Tensor],
        rows: dict[Matrix, Tensor],
    ) -> None:
        keys = self._roots.keys[edge_type]
        tensors[keys[EDGE_INDEX]] = sampled.edge_index
        if self._roots.tokens is None:
            per_hop = torch.tensor(sampled.per_hop, dtype=torch.int64, device="cpu")
            host[keys[EDGES_PER_HOP]] = per_hop
        if self._plan.with_edge:
            tensors[keys[EDGE]] = ids["edge", edge_type]
            self._add_rows(tensors, EDGE_ROWS, edge_type, rows)


def _has_repeats(ids: Array) -> bool:
    return np.unique(ids).size < ids.size


def check_plan(plan: SamplingPlan) -> None:
    """Raise `ConfigError` if a plan needs something that is only done on the host."""
    subgraph = plan.expansion.subgraph_type
    if subgraph in ("induced", "bidirectional"):
        raise _refused(f'subgraph_type="{subgraph}"')
    if plan.feature_store is not None:
        raise _refused("feature_store")
    if plan.expansion.adaptive_fanout:
        raise _refused("adaptive_fanout=True")


def require_neighbor_sampler(sampler: Sampler) -> NeighborSampler:
    """Return ``sampler`` if a device can do its work.

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
