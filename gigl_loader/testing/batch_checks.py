"""The rules for a sampled batch, checked edge by edge in plain Python; and a hash of a batch."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, strided
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.partition.frames import is_frame
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    NodeType,
    reverse_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.tensors import bytes_of
from gigl_loader.testing.tiny_graphs import TinyGraph


class BatchError(AssertionError):
    """A batch breaks a rule that holds for all batches."""


def _must(holds: bool, what: str, *values: object) -> None:
    if not holds:
        raise BatchError(f"{what}: {', '.join(map(repr, values))}")


@dataclass(frozen=True)
class _Rules:
    graph: TinyGraph
    edge_dir: EdgeDir
    replace: bool
    with_weight: bool
    hops: int

    def ends(self, edge_type: EdgeType) -> tuple[NodeType, NodeType]:
        """Return (expanded type, type of its neighbours)."""
        src, _, dst = edge_type
        return (dst, src) if self.edge_dir == "in" else (src, dst)

    def possible(self, edge_type: EdgeType) -> dict[int, dict[int, int]]:
        """Return ``{node: {edge id: neighbour}}``."""
        neighbors: dict[int, dict[int, int]] = {}
        for edge_id, (src, dst) in enumerate(self.graph.edges[edge_type]):
            # an edge of weight 0 is never drawn, so it does not count as a neighbour
            if self.with_weight and self.graph.weight(edge_id) == 0:
                continue
            node, neighbor = (dst, src) if self.edge_dir == "in" else (src, dst)
            neighbors.setdefault(node, {})[edge_id] = neighbor
        return neighbors

    def expected(self, degree: int, fanout: int) -> int:
        """Return the number of neighbours that must be drawn."""
        if fanout < 0:
            return degree
        # with replacement a single neighbour is drawn as many times as the fanout
        return fanout * (degree > 0) if self.replace else min(degree, fanout)


def check_batch(
    batch: Data | HeteroData,
    graph: TinyGraph,
    *,
    seeds: Tensor | Mapping[NodeType, Tensor],
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
    edge_dir: EdgeDir = "in",
    input_type: NodeType = DEFAULT_HOMOGENEOUS_NODE_TYPE,
    replace: bool = False,
    with_weight: bool = False,
) -> None:
    """Check everything that holds for any draw.

    Seeds come first, in order. Every other node is there once, was reached by an edge of its hop,
    and labels ascend in order of first appearance. Every node has its own features and labels;
    every edge is an edge of the graph, in the right direction, with its own features. In every hop,
    each node that the previous hop found has exactly as many neighbours per edge type as the fanout
    requires; without replacement no edge of it comes twice. Counts per hop add up.

    Args:
        batch: A `Data` or `HeteroData` from a loader.
        graph: The sampled graph; the dataset must be made from it.
        seeds: ``[n]`` int64, the seeds of this batch; or the first nodes by node type, for a batch
            that is not seeded by nodes.
        num_neighbors: As given to the loader; missing edge types of a dict are not sampled.
        edge_dir: As given to the dataset.
        input_type: Node type of the seeds.
        replace: Whether neighbours were drawn with replacement.
        with_weight: Whether they were drawn by weight: an edge of weight 0 is then no edge.

    Raises:
        BatchError: A rule is broken; names it.
    """
    if not isinstance(num_neighbors, Mapping):
        num_neighbors = dict.fromkeys(graph.edges, num_neighbors)
    hops = len(next(iter(num_neighbors.values()), ()))
    rules = _Rules(graph, edge_dir, replace, with_weight, hops)
    _must(hasattr(batch, "node_types") == graph.is_heterogeneous, "kind of batch", type(batch))
    stores = {name: batch[name] if graph.is_heterogeneous else batch for name in graph.num_nodes}
    roots = seeds if isinstance(seeds, Mapping) else {input_type: seeds}
    if graph.is_heterogeneous:
        _must(set(batch.node_types) == set(graph.num_nodes), "node types", batch.node_types)
    for name, store in stores.items():
        if not isinstance(seeds, Mapping) and name == input_type:
            _check_seeds(name, store, seeds)
        _check_nodes(
            rules, name, store, roots.get(name, torch.empty(0, dtype=torch.int64, device="cpu"))
        )
    _check_hops(rules, batch, stores, num_neighbors)


def _check_hops(
    rules: _Rules,
    batch: Data | HeteroData,
    nodes: dict[NodeType, Any],
    num_neighbors: Mapping[EdgeType, Sequence[int]],
) -> None:
    # samplers go through edge types by name
    edges = {edge_type: _edge_store(batch, rules, edge_type) for edge_type in sorted(num_neighbors)}
    per_hop = {name: [int(store.num_sampled_nodes[0])] for name, store in nodes.items()}
    cursors = dict.fromkeys(edges, 0)
    for hop in range(rules.hops):
        # Nodes that had appeared before this hop; then its edges add theirs, one after the other.
        seen = {name: sum(counts) for name, counts in per_hop.items()}
        for edge_type, store in edges.items():
            # edges of a hop follow those of the hop before, in one list for each type
            start = cursors[edge_type]
            stop = cursors[edge_type] = start + store.num_sampled_edges[hop]
            fanout = num_neighbors[edge_type][hop]
            _check_hop(rules, edge_type, nodes, store, (start, stop), hop, fanout, seen)
        for name, counts in per_hop.items():
            # new nodes of a hop are the next hop's frontier
            counts.append(seen[name] - sum(counts))
    for name, store in nodes.items():
        _must(list(store.num_sampled_nodes) == per_hop[name], "nodes per hop", name, per_hop[name])
        _must(sum(per_hop[name]) == store.n_id.numel(), "nodes per hop do not add up", name)
    for edge_type, store in edges.items():
        total = store.edge_index.size(1)
        _must(cursors[edge_type] == total, "edges per hop do not add up", edge_type, total)


def _edge_store(batch: Any, rules: _Rules, edge_type: EdgeType) -> Any:
    if not rules.graph.is_heterogeneous:
        return batch
    name = reverse_edge_type(edge_type) if rules.edge_dir == "out" else edge_type
    _must(name in batch.edge_types, "an edge type is missing", name, batch.edge_types)
    return batch[name]


def _check_seeds(name: NodeType, store: Any, seeds: Tensor) -> None:
    _must(store.batch.tolist() == seeds.tolist(), "batch is not the seeds", store.batch, seeds)
    _must(store.batch_size == seeds.numel(), "batch_size", name, store.batch_size)


def _check_nodes(rules: _Rules, name: NodeType, store: Any, seeds: Tensor) -> None:
    ids = store.n_id.tolist()
    _must(store.node.tolist() == ids, "node is not n_id", name)
    first = seeds.numel()
    _must(len(store.num_sampled_nodes) == rules.hops + 1, "hops of nodes", name)
    _must(store.num_sampled_nodes[0] == first, "nodes of hop 0", name, store.num_sampled_nodes)
    _must(ids[:first] == seeds.tolist(), "seeds do not come first", ids[:first], seeds)
    # seeds may repeat, also in the batch; all other nodes occur once
    repeated = [
        i for i, count in Counter(ids[first:] + list(set(ids[:first]))).items() if count > 1
    ]
    _must(not repeated, "nodes come twice", name, repeated)
    features, labels = rules.graph.node_rows(name, ids)
    _must(store.x.shape == (len(ids), 2), "shape of x", name, store.x.shape)
    _must(store.x.dtype == torch.float32, "dtype of x", name, store.x.dtype)
    _must(store.x.tolist() == features, "features of another node", name)
    if "node_time" in store or "train_mask" in store:
        time, mask = rules.graph.node_attributes(store.n_id)
        _must(_same(store.node_time, time), "node_time of another node", name)
        _must(_same(store.train_mask, mask), "train_mask of another node", name)
    if "y" in store:
        _must(store.y.shape == (len(ids), 3), "shape of y", name, store.y.shape)
        _must(store.y.tolist() == labels, "labels of another node", name)


def _check_hop(
    rules: _Rules,
    name: EdgeType,
    nodes: Any,
    store: Any,
    span: tuple[int, int],
    hop: int,
    fanout: int,
    seen: dict[NodeType, int],
) -> None:
    expanded, reached = rules.ends(name)
    per_hop = nodes[expanded].num_sampled_nodes
    frontier = range(sum(per_hop[:hop]), sum(per_hop[: hop + 1]))
    neighbors, targets = store.edge_index[:, slice(*span)].tolist()
    chosen: dict[int, list[int]] = {position: [] for position in frontier}
    for neighbor, target in zip(neighbors, targets, strict=True):
        _must(
            target in chosen, "sampled for a node that was not in the frontier", name, hop, target
        )
        # a new label is the next free one: labels ascend in order of first appearance
        _must(neighbor <= seen[reached], "labels are not in order of appearance", name, neighbor)
        seen[reached] += neighbor == seen[reached]
        chosen[target].append(neighbor)
    # in plain Python with dicts: slow, but independent of the samplers
    possible = rules.possible(name)
    ids, of = nodes[expanded].n_id.tolist(), nodes[reached].n_id.tolist()
    for position, drawn in chosen.items():
        edges = possible.get(ids[position], {})
        tally = Counter(of[neighbor] for neighbor in drawn)
        where = f"{name}, hop {hop}, node {ids[position]}"
        _must(set(tally) <= set(edges.values()), "no such edge", where, tally, edges)
        _must(len(drawn) == rules.expected(len(edges), fanout), "neighbours", where, tally, edges)
        # parallel edges are different edges with the same ends: each may come once
        if not rules.replace or fanout < 0:
            _must(tally <= Counter(edges.values()), "an edge comes twice", where, tally, edges)
    if "e_id" in store:
        _check_edge_ids(rules, name, store, span, (ids, of))


def _check_edge_ids(
    rules: _Rules, name: EdgeType, store: Any, span: tuple[int, int], ids: tuple[list[int], ...]
) -> None:
    edge_ids = store.e_id[slice(*span)].tolist()
    neighbors, targets = store.edge_index[:, slice(*span)].tolist()
    _must(store.edge.tolist() == store.e_id.tolist(), "edge is not e_id", name)
    possible = rules.possible(name)
    for edge_id, neighbor, target in zip(edge_ids, neighbors, targets, strict=True):
        node, other = ids[0][target], ids[1][neighbor]
        _must(possible.get(node, {}).get(edge_id) == other, "wrong edge id", name, edge_id, node)
    if not rules.replace:
        twice = [pair for pair, n in Counter(zip(edge_ids, targets, strict=True)).items() if n > 1]
        _must(not twice, "an edge id comes twice for a node", name, twice)
    if "edge_attr" in store:
        rows = store.edge_attr[slice(*span)].tolist()
        _must(rows == rules.graph.edge_rows(name, edge_ids), "features of another edge", name)
    if "edge_age" in store:
        ages = rules.graph.edge_ages(store.e_id)
        _must(_same(store.edge_age, ages), "edge_age of another edge", name)
        weights = [rules.graph.weight(edge_id) for edge_id in store.e_id.tolist()]
        _must(store.edge_weight.tolist() == weights, "weight of another edge", name)


def batch_tensors(batch: Data | HeteroData) -> dict[str, Any]:
    """Return the whole contents of a batch, by name and place: for comparing batches."""
    tensors: dict[str, Any] = {}
    for store in batch.stores:
        # of a HeteroData's stores; a Data's has none
        name = getattr(store, "_key", None)
        for attribute, value in store.items():
            tensors[attribute if name is None else f"{name}.{attribute}"] = value
    return tensors


def check_same_batches(first: Iterable[Any], second: Iterable[Any]) -> None:
    """Check that two sequences of batches are the same, bit for bit.

    Raises:
        BatchError: They differ; names the place.
    """
    first, second = list(first), list(second)
    _must(len(first) == len(second), "numbers of batches", len(first), len(second))
    for index, pair in enumerate(zip(first, second, strict=True)):
        given, other = map(batch_tensors, pair)
        _must(
            given.keys() == other.keys(), "attributes", index, sorted(given.keys() ^ other.keys())
        )
        for name, value in given.items():
            _must(_same(value, other[name]), "values", f"batch {index}", name, value, other[name])


def _parts_of(frame: Any) -> dict[str, Any]:
    """Return all that a ``TensorFrame`` holds, as tensors and names."""
    parts: dict[str, Any] = {"y": frame.y, "rows": len(frame)}
    for stype, values in frame.feat_dict.items():
        of = [values.values, values.offset] if hasattr(values, "offset") else values
        parts[stype.value] = [list(frame.col_names_dict[stype]), of]
    return parts


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor):
        return (
            isinstance(other, Tensor)
            and value.dtype == other.dtype
            and value.shape == other.shape
            # a missing number is NaN in rows of mixed types
            and bool((value == other).logical_or((value != value) & (other != other)).all())
        )
    if is_frame(value) and is_frame(other):
        return _same(_parts_of(value), _parts_of(other))
    if is_dataclass(value) and type(other) is type(value):  # tokens
        return all(_same(getattr(value, f.name), getattr(other, f.name)) for f in fields(value))
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_same(v, other[k]) for k, v in value.items())
    return bool(value == other)


# --- one number for a batch -----------------------------------------------------------------------


def batch_digest(batch: Data | HeteroData) -> str:
    """Return the sha256 of the whole contents of a batch, as 64 hexadecimal digits.

    It covers names, and dtype, shape and bytes of tensors, but not the order of attributes, the
    device and strides. Two batches with one digest are the same bit for bit.

    Args:
        batch: From any loader; attributes may be tensors, numbers, strings, None, and lists, tuples
            and dicts of these, and rows of mixed types (``TensorFrame``).

    Raises:
        ConfigError: An attribute is of another type, or a sparse tensor.
    """
    # a Data and a HeteroData without stores have the same attributes
    hasher = hashlib.sha256(b"HeteroData" if isinstance(batch, HeteroData) else b"Data")
    for name, value in sorted(batch_tensors(batch).items()):
        _add(hasher, name, name)
        _add(hasher, value, name)
    return hasher.hexdigest()


def _add(hasher: Any, value: object, where: str) -> None:
    """Feed ``value`` to the hash, its type and length first, so that no two values look alike."""
    if isinstance(value, Tensor):
        if value.layout != strided:
            raise ConfigError(f"batch_digest takes dense tensors: {where} is {value.layout}")
        hasher.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        # a conjugated or negated view has other bytes than its values
        hasher.update(bytes_of(value.detach().cpu().resolve_conj().resolve_neg().contiguous()))
    elif isinstance(value, dict):
        hasher.update(f"dict {len(value)};".encode())
        # by repr: keys of a dict may have several types, which cannot be compared
        for name, item in sorted(value.items(), key=lambda item: repr(item[0])):
            _add(hasher, name, where)
            _add(hasher, item, where)
    elif is_dataclass(value):  # tokens
        names = [f.name for f in fields(value) if f.name != "_tf"]  # that is the batch's own
        _add(hasher, {name: getattr(value, name) for name in names}, where)
    elif is_frame(value):
        _add(hasher, _parts_of(value), where)
    elif isinstance(value, list | tuple):
        hasher.update(f"list {len(value)};".encode())
        for item in value:
            _add(hasher, item, where)
    # repr of a float shows all its bits
    elif value is None or isinstance(value, bool | int | float | str):
        text = repr(value).encode()
        hasher.update(f"{type(value).__name__} {len(text)};".encode() + text)
    else:
        raise ConfigError(
            f"batch_digest cannot hash {where}, a {type(value).__name__}: it takes tensors, "
            "numbers, strings, and lists, tuples and dicts of these"
        )
