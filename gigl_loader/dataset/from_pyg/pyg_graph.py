"""PyG's `Data` and `HeteroData` as checked tensors, whole or cut to one partition's share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.format.directory import RowOrder
from gigl_loader.dataset.from_pyg.split_ids import by_type_of, is_mask, is_read_as_split, split_ids
from gigl_loader.dataset.partition.build import ViewBuilder, count_classes, make_book, owned_ids
from gigl_loader.dataset.partition.checks import (
    check_edge_index,
    check_edge_type,
    check_matrix,
    check_tensor,
    check_weights,
    warn_not_carried,
    warn_of_doubts,
)
from gigl_loader.dataset.partition.doubts import empty_partitions
from gigl_loader.dataset.partition.frames import FRAME, Frames, as_columns, is_frame
from gigl_loader.dataset.partition.partition_output import GraphPartitionData
from gigl_loader.dataset.partition.partition_view import (
    Book,
    PartitionView,
    Rows,
    Splits,
    WithSplits,
)
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    NEIGHBOR_TIME,
    SPLITS,
    WEIGHT_NAMES,
    EdgeDir,
    EdgeType,
    NodeType,
    edge_type_str,
    expanded_end,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.runtime.memory.segments import storage_dtype
from gigl_loader.runtime.memory.tensors import empty_shared

if TYPE_CHECKING:  # storage servers import this module and read no PyG graph
    from torch_geometric.data import Data, HeteroData

_OF_NODES = ("feat", "pos", "node_type", "n_id", "batch")
"""Further attributes that PyG derives the number of nodes from."""

Labels = Tensor | tuple[Tensor, Tensor | None]
"""Positive label edges, or positives and negatives: ``[2, n]`` int64, anchors first."""
Supervision = Labels | Mapping[EdgeType, Labels]


@dataclass
class CheckedGraph:
    """A whole graph in memory, checked. Edge ids are positions in the edge index."""

    heterogeneous: bool
    num_nodes: dict[NodeType, int]
    edges: dict[EdgeType, GraphPartitionData] = field(default_factory=dict)
    label_edges: dict[EdgeType, Tensor] = field(default_factory=dict)
    node_features: dict[NodeType, Tensor] = field(default_factory=dict)
    node_labels: dict[NodeType, Tensor] = field(default_factory=dict)
    edge_features: dict[EdgeType, Tensor] = field(default_factory=dict)
    splits: dict[str, dict[NodeType, Tensor]] = field(default_factory=dict)
    node_attributes: dict[tuple[NodeType, str], Tensor] = field(default_factory=dict)
    edge_attributes: dict[tuple[EdgeType, str], Tensor] = field(default_factory=dict)
    frames: Frames = field(default_factory=dict)
    num_classes: dict[NodeType, int] = field(default_factory=dict)
    feature_scales: dict[Any, Tensor] = field(default_factory=dict)
    """Scales of quantized features, by node type, and of embeddings, by type and attribute."""
    not_carried: dict[str, str] = field(default_factory=dict)
    """Attributes that batches will lack, and the reasons."""

    def warn_of_doubts(self, num_partitions: int = 1) -> None:
        """Warn once of what is likely a mistake in this graph, or in cutting it into so many."""
        # an anchor may have links in each split
        anchors = {edge_type[0] for edge_type in self.label_edges}
        splits = {
            split: {t: ids for t, ids in by_type.items() if t not in anchors}
            for split, by_type in self.splits.items()
        }
        further = empty_partitions(sum(self.num_nodes.values()), num_partitions)
        matrices = self.node_features, self.edge_features, self.node_labels
        warn_of_doubts(*matrices, splits, *further)


def read_pyg(data: Any, supervision: Supervision | None = None) -> CheckedGraph:
    """Return ``data`` as checked tensors; ``supervision`` adds label edges to it.

    Raises:
        ConfigError: ``data`` has an invalid attribute: the message names it.
    """
    # within the function: storage servers and workers never use a PyG graph
    from torch_geometric.data import Data, Dataset, HeteroData

    if isinstance(data, HeteroData):
        source = _read_hetero(data)
    elif isinstance(data, Data):
        source = _read_homogeneous(data)
    else:
        raise WrongTypeError(
            "data must be a torch_geometric.data.Data or HeteroData, "
            f"got {type(data).__module__}.{type(data).__name__}"
            + ("; that holds graphs: give one, dataset[0]" if isinstance(data, Dataset) else "")
        )
    # after the graph: label edges may only name its node types
    _add_supervision(source, supervision)
    if not source.num_nodes:
        raise ConfigError("data has no nodes: give it x or set num_nodes")
    # Nodes alone are a graph, as in PyG; but label edges predict edges, and there are none.
    if not source.edges and source.label_edges:
        raise ConfigError("data has label edges and no message-passing edge type: give it one")
    # before the cut: a partition has a part of the labels
    source.num_classes = count_classes(
        {node_type: Rows(labels, None, True) for node_type, labels in source.node_labels.items()}
    )
    # 3: the line that called `from_pyg` or `partition_graph`
    warn_not_carried(source.not_carried, stacklevel=3)
    return source


def _read_homogeneous(data: "Data") -> CheckedGraph:
    store = data.stores[0]
    node_type, edge_type = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE
    num_nodes, edge_index = _num_nodes(store, "data"), store.get("edge_index")
    if edge_index is None:
        # a graph may consist of nodes only
        if num_nodes is None or store.get("adj_t") is not None:
            raise ConfigError(_missing_edge_index(store, "data"))
        edge_index = torch.empty(2, 0, dtype=torch.int64, device="cpu")
    if num_nodes is None:
        # as PyG counts without other information; checked, since -1 would make it one node fewer
        edges = check_edge_index(edge_index, None, None, "data.edge_index")
        num_nodes = int(edges.max()) + 1 if edges.numel() else 0
    source = CheckedGraph(False, {node_type: num_nodes})
    _read_nodes(source, store, node_type, "data")
    _read_edges(source, store, edge_index, edge_type, "data")
    num_edges = source.edges[edge_type].edge_index.size(1)
    lost = source.not_carried
    of_nodes, of_edges = node_and_edge_attributes(data, store, num_nodes, num_edges, lost, "data")
    _keep(source.node_attributes, node_type, of_nodes)
    _keep_edges(source, edge_type, of_edges)
    _read_frame(source, store, {node_type: num_nodes, edge_type: num_edges}, "data")
    return source


def _read_hetero(data: "HeteroData") -> CheckedGraph:
    source = CheckedGraph(True, {})
    by_type = by_type_of(data)
    for node_type in data.node_types:
        where = f"data[{node_type!r}]"
        num_nodes = _num_nodes(data[node_type], where)
        if num_nodes is None:
            raise ConfigError(
                f"{where} does not say how many nodes there are: give it x or set num_nodes"
            )
        source.num_nodes[node_type] = num_nodes
        _read_nodes(source, data[node_type], node_type, where, by_type.get(node_type))
        nodes, _ = node_and_edge_attributes(
            data, data[node_type], num_nodes, None, source.not_carried, where
        )
        _keep(source.node_attributes, node_type, nodes)
        _read_frame(source, data[node_type], {node_type: num_nodes}, where)
    # nodes were read before: edges are checked against the counts of both ends
    for edge_type in map(plain_edge_type, data.edge_types):
        where = f"data[{edge_type}]"
        for node_type in (edge_type[0], edge_type[2]):
            _check_node_type(source, node_type, where)
        if data[edge_type].get("edge_index") is None:
            raise ConfigError(_missing_edge_index(data[edge_type], where))
        _read_edges(source, data[edge_type], data[edge_type]["edge_index"], edge_type, where)
        if edge_type in source.edges:
            num_edges = source.edges[edge_type].edge_index.size(1)
            store, lost = data[edge_type], source.not_carried
            _, attributes = node_and_edge_attributes(data, store, None, num_edges, lost, where)
            _keep_edges(source, edge_type, attributes)
            _read_frame(source, store, {edge_type: num_edges}, where)
        else:
            for name in data[edge_type]:
                if name != "edge_index":
                    source.not_carried[f"{where}.{name}"] = "label edges are no edges of a batch"
    _note_global(source, data)
    return source


def _note_global(source: CheckedGraph, data: "HeteroData") -> None:
    for name, value in data._global_store.items():
        if not is_read_as_split(name, value):
            source.not_carried[f"data.{name}"] = "it is of the whole graph"


def keep_neighbor_times(source: CheckedGraph, edge_dir: EdgeDir, time_attr: str) -> None:
    """Let each edge carry the time of its neighbour, which may be another partition's node.

    Raises:
        ConfigError: There is no such attribute.
    """
    # a partition has the times of its own nodes, but edges lead to others' nodes
    if not any(name == time_attr for _, name in source.node_attributes):
        if any(name == time_attr for _, name in source.edge_attributes):
            return  # edges have their own
        raise ConfigError(f"time_attr={time_attr!r} is no attribute of the graph's nodes or edges")
    for edge_type, part in source.edges.items():
        end = 1 - expanded_end(edge_dir)
        times = source.node_attributes.get(((edge_type[0], edge_type[2])[end], time_attr))
        if times is not None:
            name = NEIGHBOR_TIME + time_attr
            # before edges are cut, so that each edge takes it along to its partition
            source.edge_attributes[edge_type, name] = times[part.edge_index[end]]


def _keep(target: dict[Any, Tensor], owner: Any, attributes: dict[str, Tensor]) -> None:
    target.update({(owner, name): value for name, value in attributes.items()})


def _keep_edges(source: CheckedGraph, edge_type: EdgeType, attributes: dict[str, Tensor]) -> None:
    """Keep attributes of edges, except weights in the same form as the sampling weights."""
    # `ViewBuilder` adds float32 weights as an attribute of their first name; kept here as well,
    # they would take memory twice. float64 or [n, 1] differs: batches have it unchanged.
    weights = source.edges[edge_type].weights
    named = attributes.get(WEIGHT_NAMES[0])
    if named is None or weights is None or WEIGHT_NAMES[1] in attributes:
        alike = False
    else:
        alike = (named.shape, named.dtype) == (weights.shape, weights.dtype)
    if alike:
        del attributes[WEIGHT_NAMES[0]]
    _keep(source.edge_attributes, edge_type, attributes)


def _read_frame(source: CheckedGraph, store: Any, counts: Mapping[Any, int], where: str) -> None:
    """Keep the ``tf`` of a store; ``counts``: nodes and edges that it may have rows of."""
    frame, where = store.get(FRAME), f"{where}.{FRAME}"
    if not is_frame(frame):
        return
    owner = next((name for name, count in counts.items() if count == len(frame)), None)
    if owner is None:
        units = [f"{n} {'nodes' if isinstance(of, str) else 'edges'}" for of, n in counts.items()]
        raise ConfigError(
            f"{where} has {len(frame)} rows, for {' and '.join(units)}: give it a row for each"
        )
    of_nodes = isinstance(owner, str)
    name = owner if of_nodes else edge_type_str(owner)
    source.frames[name], arrays = as_columns(frame, where)
    _keep(source.node_attributes if of_nodes else source.edge_attributes, owner, arrays)
    if frame.y is not None:
        source.not_carried[f"{where}.y"] = (
            f"labels are the graph's own y: set {where.removesuffix(FRAME)}y to it"
        )


def _check_node_type(source: CheckedGraph, node_type: NodeType, where: str) -> None:
    if node_type not in source.num_nodes:
        raise ConfigError(
            f"{where} ends at node type {node_type!r}, which has no nodes: give "
            f"data[{node_type!r}] an x or num_nodes (known: {sorted(source.num_nodes)})"
        )


def _missing_edge_index(store: Any, where: str) -> str:
    if store.get("adj_t") is not None:
        return f"{where} holds adj_t instead of edge_index: leave the ToSparseTensor transform out"
    return f"{where} has no edge_index"


def _num_nodes(store: Any, where: str) -> int | None:
    """Return the number of nodes that a store states itself; None if it does not."""
    if "num_nodes" in store and store["num_nodes"] is not None:
        count = store["num_nodes"]
        count = int(count) if isinstance(count, Tensor) and count.numel() == 1 else count
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"{where}.num_nodes must be a non-negative int, got {count!r}")
        return count
    # the highest id in edges, which comes last, would miss nodes without edges
    for name in ("x", *(f"{split}_mask" for split in SPLITS), "y", *_OF_NODES):
        value = store.get(name)
        if name.endswith("_mask") and not is_mask(value):
            continue  # ids, not a row for each node
        if isinstance(value, Tensor | np.ndarray) and value.ndim:
            return int(value.shape[0])
    frame = store.get(FRAME)
    return len(frame) if is_frame(frame) else None


def _read_nodes(
    source: CheckedGraph,
    store: Any,
    node_type: NodeType,
    where: str,
    splits: dict[str, Any] | None = None,
) -> None:
    num_nodes = source.num_nodes[node_type]
    if store.get("x") is not None:
        source.node_features[node_type] = check_matrix(store["x"], num_nodes, "node", f"{where}.x")
    if store.get("y") is not None:
        source.node_labels[node_type] = check_matrix(store["y"], num_nodes, "node", f"{where}.y")
    for split, ids in split_ids(store, num_nodes, where, splits).items():
        source.splits.setdefault(split, {})[node_type] = ids


def _read_edges(
    source: CheckedGraph, store: Any, edge_index: Any, edge_type: EdgeType, where: str
) -> None:
    src, _, dst = edge_type
    edge_index = check_edge_index(
        edge_index, source.num_nodes[src], source.num_nodes[dst], f"{where}.edge_index"
    )
    if is_label_edge_type(edge_type):
        source.label_edges[edge_type] = edge_index
        return
    num_edges = edge_index.size(1)
    weights = None
    for name in WEIGHT_NAMES:
        # the first name is used: draws need one, and batches carry both
        if weights is None and store.get(name) is not None:
            weights = check_weights(store[name], num_edges, f"{where}.{name}")
    # None: ids are positions, and need no tensor before a partition keeps some of them
    source.edges[edge_type] = GraphPartitionData(edge_index, None, weights)
    if store.get("edge_attr") is not None:
        source.edge_features[edge_type] = check_matrix(
            store["edge_attr"], num_edges, "edge", f"{where}.edge_attr"
        )


def _add_supervision(source: CheckedGraph, supervision: Supervision | None) -> None:
    if supervision is None:
        return
    if not isinstance(supervision, Mapping):
        if source.heterogeneous:
            raise WrongTypeError(
                "supervision of a HeteroData must be a dict {edge_type: (positives, negatives)}"
            )
        supervision = {DEFAULT_HOMOGENEOUS_EDGE_TYPE: supervision}
    for edge_type, labels in supervision.items():
        check_edge_type(edge_type, "supervision")
        if is_label_edge_type(edge_type):
            raise ConfigError(
                f"supervision names {edge_type}: name the edge type that is predicted, "
                "without the label suffix"
            )
        # a tensor [2, n] would also unpack, into anchors and their labels
        positives, negatives = labels if isinstance(labels, tuple | list) else (labels, None)
        _add_labels(source, message_passing_to_positive_label(edge_type), positives)
        if negatives is not None:
            _add_labels(source, message_passing_to_negative_label(edge_type), negatives)


def _add_labels(source: CheckedGraph, label_type: EdgeType, labels: Any) -> None:
    where = f"supervision, label edges {label_type}"
    src, _, dst = label_type
    for node_type in (src, dst):
        _check_node_type(source, node_type, where)
    if label_type in source.label_edges:
        raise ConfigError(f"{where}: data has these label edges already; give them once")
    source.label_edges[label_type] = check_edge_index(
        labels, source.num_nodes[src], source.num_nodes[dst], where
    )


class Cutter:
    """Cuts a source into the shares of partitions."""

    def __init__(
        self,
        source: CheckedGraph,
        node_books: dict[NodeType, Book],
        edge_dir: EdgeDir,
        num_partitions: int,
        order: RowOrder = "ids",
    ) -> None:
        self._source, self._edge_dir, self._count = source, edge_dir, num_partitions
        self.node_books = node_books
        self._owners: dict[EdgeType, Tensor] = {}
        self._uses = _neighbor_degrees(source, edge_dir) if order == "degree" else {}
        self.edge_books: dict[EdgeType, Book] = {}
        # nothing is cut: `cut` returns the tensors of the source themselves
        if num_partitions == 1:
            return
        end = expanded_end(edge_dir)
        for edge_type, part in source.edges.items():
            owners = self._owner_of((edge_type[0], edge_type[2])[end], part.edge_index[end])
            self._owners[edge_type] = owners
            # ids are positions, so the owners in the order of the edges are the table of owners by
            # id
            self.edge_books[edge_type] = make_book(owners, num_partitions)
        for edge_type, labels in source.label_edges.items():
            self._owners[edge_type] = self._owner_of(edge_type[0], labels[0])

    def _owner_of(self, node_type: NodeType, ids: Tensor) -> Tensor:
        # kept until the last partition is cut: one byte per edge of the graph, not eight
        dtype = torch.uint8 if self._count <= 256 else torch.int32
        return self.node_books[node_type].owner(ids).to(dtype)

    def cut(self, partition_idx: int) -> WithSplits:
        """Return the view of one partition, and its split ids; with one partition, all of it."""
        source = self._source
        splits: Splits = {}
        view = PartitionView(
            source.heterogeneous,
            self._edge_dir,
            self._count,
            partition_idx,
            source.num_nodes,
            {},
            self.node_books,
            self.edge_books,
            # of the whole graph: a part of the labels cannot tell
            num_classes=source.num_classes,
            frames=source.frames,
        )
        builder = ViewBuilder(view)
        mine = {t: self._edges_of(t, partition_idx) for t in (*source.edges, *source.label_edges)}
        for edge_type, part in source.edges.items():
            ids = mine[edge_type]
            # ids are positions in the whole edge index
            ends = part.edge_index if ids is None else part.edge_index[:, ids]
            weights = None if part.weights is None else _rows_of(part.weights, ids)
            builder.add_edges(edge_type, ends, ids, weights)
        for edge_type, labels in source.label_edges.items():
            ids = mine[edge_type]
            builder.add_labels(edge_type, labels if ids is None else labels[:, ids])
        for node_type in source.num_nodes:
            self._cut_nodes(builder, node_type, splits)
        for edge_type in source.edges:
            ids = mine[edge_type]
            if edge_type in source.edge_features:
                values = _rows_of(source.edge_features[edge_type], ids)
                builder.add_rows("edge_features", edge_type, values, ids)
            _add_attributes(builder, "edge_attributes", source, edge_type, ids)
        return builder.completed_view(), splits

    def _edges_of(self, edge_type: EdgeType, partition_idx: int) -> Tensor | None:
        if self._count == 1:
            return None
        # numpy's search takes a third of the time of torch's
        mine = np.flatnonzero((self._owners[edge_type] == partition_idx).numpy())
        return torch.from_numpy(mine)

    def _cut_nodes(self, builder: ViewBuilder, node_type: NodeType, splits: Splits) -> None:
        source, mine, partition_idx = self._source, None, builder.view.partition_idx
        if self._count > 1:
            mine = owned_ids(self.node_books[node_type], partition_idx)
        rows = mine
        if node_type in self._uses:
            uses = _rows_of(self._uses[node_type], mine)
            # stable: nodes of one degree stay in the order of ids, and the same graph gives the
            # same files
            order = torch.argsort(uses, descending=True, stable=True)
            rows = order if mine is None else mine[order]
        if node_type in source.node_features:
            values = _rows_of(source.node_features[node_type], rows)
            scales = source.feature_scales.get(node_type)
            builder.add_rows("node_features", node_type, values, rows, scales)
        if node_type in source.node_labels:
            values = _rows_of(source.node_labels[node_type], rows)
            builder.add_rows("node_labels", node_type, values, rows)
        _add_attributes(builder, "node_attributes", source, node_type, rows)
        for split, by_type in source.splits.items():
            if node_type in by_type:
                ids = by_type[node_type]
                if mine is not None:
                    ids = ids[self.node_books[node_type].owner(ids) == partition_idx]
                splits.setdefault(split, {})[node_type] = ids


def _neighbor_degrees(source: CheckedGraph, edge_dir: EdgeDir) -> dict[NodeType, Tensor]:
    """Return by type, ``[num_nodes]`` int64: edges that lead to each node as a neighbour."""
    # as a neighbour: a node that is not a seed is read once for each edge that leads to it
    end, degrees = 1 - expanded_end(edge_dir), {}
    for node_type, count in source.num_nodes.items():
        degrees[node_type] = torch.zeros(count, dtype=torch.int64, device="cpu")
    for edge_type, part in source.edges.items():
        node_type = (edge_type[0], edge_type[2])[end]
        count = source.num_nodes[node_type]
        degrees[node_type] += torch.bincount(part.edge_index[end], minlength=count)
    return degrees


def _add_attributes(
    builder: ViewBuilder, kind: str, source: CheckedGraph, of: Any, ids: Tensor | None
) -> None:
    """Add the rows ``ids`` of all attributes of a node or edge type; ``kind`` as in `add_rows`."""
    for key, values in getattr(source, kind).items():
        if key[0] == of:
            scales = source.feature_scales.get(key)
            builder.add_rows(kind, key, _rows_of(values, ids), ids, scales)


def _rows_of(values: Tensor, ids: Tensor | None) -> Tensor:
    """Return the rows of ``ids`` in shared memory; None: all, unchanged."""
    if ids is None:
        return values
    # where samplers read them: `make_rows` need not copy them
    rows = empty_shared((ids.numel(), *values.shape[1:]), values.dtype)
    return torch.index_select(values.detach(), 0, ids, out=rows)


# --- attributes that batches can carry ------------------------------------------------------------


_NODES_READ, _EDGES_READ = ("x", "y", "num_nodes"), ("edge_index", "edge_attr")
"""Attributes of nodes and of edges that the dataset itself reads."""
_OF_LOADERS = frozenset(
    (
        "n_id",
        "node",
        "e_id",
        "edge",
        "batch",
        "batch_size",
        "input_id",
        "num_sampled_nodes",
        "num_sampled_edges",
        "y_positive",
        "y_negative",
        "seed_time",
        "ptr",
    )
)
"""Attributes that loaders set in every batch."""


def node_and_edge_attributes(
    data: Any,
    store: Any,
    num_nodes: int | None,
    num_edges: int | None,
    not_carried: dict[str, str],
    where: str,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the attributes of nodes and of edges in ``store``, rows first; CPU tensors.

    Args:
        data: The `Data` or `HeteroData` that ``store`` belongs to.
        store: One of its stores.
        num_nodes: Nodes of the store; None: a store of edges.
        num_edges: Edges of the store; None: a store of nodes.
        not_carried: Receives name and reason of each attribute that is neither, or that no batch
            can have.
        where: The name of the store in messages.

    Source:
        PyG, ``Data.is_node_attr`` and ``is_edge_attr``: the size along PyG's concatenation
        dimension decides; with as many nodes as edges, "edge" in the name does.
    """
    levels: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}}
    read = (_NODES_READ if num_nodes is not None else ()) + (
        _EDGES_READ if num_edges is not None else ()
    )
    for name in store:
        value = store[name]
        # PyG stores attributes that were set to None; its own batches leave them out as well
        if name in read or value is None or (name == FRAME and is_frame(value)):
            continue
        if num_nodes is not None and is_read_as_split(name, value):
            continue
        rows = _read(name, value)
        if isinstance(rows, Tensor):
            # PyG's own rule, which users override: for an attribute like `edge_index` the last
            # dimension counts. With the original value, since the rule may look at its class.
            dim = data.__cat_dim__(name, value, store)
            level = _level(name, rows, dim, num_nodes, num_edges)
            if level is not None:
                # samplers take rows, which must be the first dimension
                levels[level][name] = rows.movedim(dim, 0)
                continue
            rows = f"shape {tuple(rows.shape)} has no row per node or edge"
        not_carried[f"{where}.{name}"] = rows
    return levels["node"], levels["edge"]


def _level(
    name: str, rows: Tensor, dim: Any, num_nodes: int | None, num_edges: int | None
) -> str | None:
    """Return whether there is a row per ``"node"`` or ``"edge"``; None: neither."""
    count = rows.shape[dim] if isinstance(dim, int) else None
    if count is None or count not in (num_nodes, num_edges):
        return None
    # the one case without a clear shape; a store of nodes or of edges has None for the other
    if num_nodes == num_edges:
        return "edge" if "edge" in name else "node"
    return "node" if count == num_nodes else "edge"


def _read(name: str, value: Any) -> Tensor | str:
    """Return an attribute as a CPU tensor, whose shape decides, or the reason against it."""
    # a batch would have either ours or the user's under that name, without any sign which
    if name in _OF_LOADERS:
        return "loaders give batches one of that name: rename it"
    # names become names of files and of batch attributes, where "_" marks PyG's own and ours
    if not name.isidentifier() or name.startswith("_"):
        return "its name is no public Python name: rename it"
    if is_frame(value):
        return f"a TensorFrame that is not called {FRAME}"
    if not isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__}: only tensors and arrays have rows that can be taken"
    try:
        rows = check_tensor(value, name)
    except WrongTypeError:
        return f"an array of {value.dtype}"
    except ConfigError:
        return "a sparse, quantised or meta tensor: make it a plain one"
    try:
        # workers do without torch: the bits of every type must fit a numpy type
        storage_dtype(str(rows.dtype).removeprefix("torch."))
    except TypeError:
        return f"samplers cannot read {rows.dtype}"
    return "it is of the whole graph" if rows.dim() == 0 else rows
