"""Conversion between our view of a partition and the attributes of GLT's dataset class."""

import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from gigl_loader.dataset.partition.adjacency import canonical, is_canonical
from gigl_loader.dataset.partition.build import book_table, count_classes, make_rows, read_book
from gigl_loader.dataset.partition.checks import warn_not_carried
from gigl_loader.dataset.partition.partition_output import by_type
from gigl_loader.dataset.partition.partition_view import (
    Adjacency,
    Book,
    PartitionView,
    Rows,
    Splits,
    WithSplits,
)
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    WEIGHT_NAMES,
    EdgeDir,
    EdgeType,
    NodeType,
    glt_edge_type,
    is_label_edge_type,
    is_labeled_homogeneous,
)
from gigl_loader.errors import ConfigError, without_default_types
from gigl_loader.runtime.glt_classes import Feature, Graph, RangePartitionBook, Topology
from gigl_loader.runtime.memory.tensors import share_tensor

_log = logging.getLogger(__name__)


class NotComputed:
    """A value of `ComputedOnUse` that is not computed yet."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.making = threading.Lock()


class ComputedOnUse:
    """An attribute that only code for GLT reads, computed on first use: most jobs never need it.

    GLT wants rows for all nodes and 64-bit ids, which a mapped partition does not have.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        # Python asks a class with __set__ before the instance's own dictionary, so a value may lie
        # there under the attribute's name, and a `NotComputed` in it is never returned.
        value = vars(instance).get(self._name)
        if isinstance(value, NotComputed):
            with value.making:  # once, as it may take as much memory as the graph
                if vars(instance)[self._name] is value:
                    vars(instance)[self._name] = value.make()
            value = vars(instance)[self._name]
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        vars(instance)[self._name] = value


# --- ours to GLT's --------------------------------------------------------------------------------


def set_glt(dataset: Any, view: PartitionView, splits: Splits, *, typed: bool) -> None:
    """Set the attributes of GLT's class, over the memory of ``view``."""

    def plain(values: dict[Any, Any]) -> Any:
        if typed:
            return values or None
        return next(iter(values.values()), None)

    dataset.graph = NotComputed(lambda: plain(_graphs(view)))
    nodes, edges = view.node_features, view.edge_features
    # None for missing data, not a `NotComputed`: code for GLT tests `is None` to learn what
    # a dataset has
    dataset.node_features = NotComputed(lambda: plain(_features(view, nodes))) if nodes else None
    dataset.edge_features = NotComputed(lambda: plain(_features(view, edges))) if edges else None
    dataset.node_labels = NotComputed(lambda: plain(_labels(view))) if view.node_labels else None
    dataset.node_pb = plain(
        {
            node_type: _glt_book(_book_of(view, node_type), view.partition_idx)
            for node_type in view.num_nodes
        }
    )
    dataset.edge_pb = plain(
        {t: _glt_book(book, view.partition_idx) for t, book in _edge_books(view).items()}
    )
    set_splits(dataset, splits, typed=typed)
    # GLT's default takes tables only; our dataset may have range books, or both by type
    dataset.id_filter = filter_ids
    dataset._directed = True


def set_splits(dataset: Any, splits: Splits, *, typed: bool) -> None:
    """Set the split ids of a dataset: a dict by type if it is typed, or the ids of its type."""
    for split in SPLITS:
        owned = {t: share_tensor(ids) for t, ids in splits.get(split, {}).items()}
        value = (owned or None) if typed else next(iter(owned.values()), None)
        setattr(dataset, f"{split}_idx", value)


def _graphs(view: PartitionView) -> dict[EdgeType, Any]:
    graphs = {}
    for edge_type, adjacency in view.adjacency.items():
        by_source = view.edge_dir == "out" or is_label_edge_type(edge_type)
        num_rows = view.num_nodes[edge_type[0 if by_source else 2]]
        graph = _graph(adjacency, view.edge_dir, num_rows)
        graphs[glt_edge_type(edge_type, view.edge_dir)] = graph
    return graphs


def _all_rows(adjacency: Adjacency, num_rows: int) -> Tensor:
    """Return an index pointer with a row for every node."""
    indptr, first = adjacency.indptr, adjacency.first_row
    # no row before the first, none missing after the last
    if not first and indptr.numel() > num_rows:
        return indptr
    # rows before the range end at its start, edge 0; rows after it, at the last edge
    whole = torch.zeros(num_rows + 1, dtype=torch.int64, device="cpu")
    whole[first : first + indptr.numel()] = indptr
    whole[first + indptr.numel() :] = indptr[-1]
    return share_tensor(whole)


def _graph(adjacency: Adjacency, edge_dir: EdgeDir, num_rows: int) -> Any:
    edge_ids = adjacency.edge_ids
    if edge_ids is None:  # GLT would make them itself, and copy them
        start = adjacency.first_edge or 0
        edge_ids = share_tensor(
            torch.arange(start, start + adjacency.indices.numel(), device="cpu")
        )
    indices = share_tensor(adjacency.indices.long())
    indptr = _all_rows(adjacency, num_rows)
    if edge_dir == "in":
        # GLT wants (sources, destinations); the index pointer stands for the expanded end
        edge_index, layout = (indices, indptr), "CSC"
    else:
        edge_index, layout = (indptr, indices), "CSR"
    # input and result have one layout: GLT then sorts nothing and keeps these tensors
    topology = Topology(edge_index, edge_ids, adjacency.weights, input_layout=layout, layout=layout)
    return Graph(topology, "CPU", None)


def _features(view: PartitionView, matrices: dict[Any, Rows]) -> dict[Any, Any]:
    return {key: _feature(rows, _num_ids(view, key)) for key, rows in matrices.items()}


def _num_ids(view: PartitionView, key: Any) -> int:
    if key in view.num_nodes:
        return view.num_nodes[key]
    # 0: one partition's row numbers tell the number of ids themselves
    return view.edge_books[key].num_ids if key in view.edge_books else 0


def _feature(rows: Rows, num_ids: int) -> Any:
    index = rows.index
    # GLT indexes `id2index` with global ids and without a check, so it has a position for every id
    # of the graph, whichever partition has the row
    if index is not None and rows.first == 0 and index.numel() >= num_ids:
        index = index.long()
    elif index is not None:  # of a range of ids
        part_index = index
        index = torch.full((max(num_ids, rows.first + index.numel()),), -1, device="cpu")
        index[rows.first : rows.first + part_index.numel()] = part_index
        index = share_tensor(index)
    elif rows.ids is not None or rows.first or rows.values.size(0) < num_ids:
        ids = rows.ids
        if ids is None:
            ids = torch.arange(rows.first, rows.first + rows.values.size(0), device="cpu")
        index = torch.full(
            (max(num_ids, int(ids.max()) + 1 if ids.numel() else 0),), -1, device="cpu"
        )
        index[ids] = torch.arange(ids.numel(), device="cpu")
        index = share_tensor(index)
    values = rows.values.unsqueeze(1) if rows.values.dim() == 1 else rows.values  # GLT wants 2-D
    # without a dtype, GLT would convert integers and half floats to float32
    return Feature(values, index, with_gpu=False, dtype=values.dtype)


def _labels(view: PartitionView) -> dict[NodeType, Any]:
    labels: dict[NodeType, Any] = {}
    for node_type, rows in view.node_labels.items():
        # a part of the labels is found by id; GLT's datasets keep all of them as a plain tensor
        if rows.index is not None or not rows.whole:
            labels[node_type] = _feature(rows, view.num_nodes[node_type])
            continue
        one_column = rows.values.dim() == 2 and rows.values.size(1) == 1
        labels[node_type] = rows.values.squeeze(1) if one_column else rows.values
    return labels


def _book_of(view: PartitionView, node_type: NodeType) -> Book:
    count = view.num_nodes[node_type]
    # a view of one partition has no books, but GLT's code looks up owners
    return view.node_books.get(node_type, Book(bounds=torch.tensor([count], device="cpu")))


def _edge_books(view: PartitionView) -> dict[EdgeType, Book]:
    """Return the books of edges; of one partition for types with features, which GLT looks up."""
    counts = {
        edge_type: torch.tensor([view.adjacency[edge_type].indices.numel()], device="cpu")
        for edge_type in (view.edge_features if view.num_partitions == 1 else ())
    }
    whole = {edge_type: Book(bounds=count) for edge_type, count in counts.items()}
    return whole | view.edge_books


def _glt_book(book: Book, partition_idx: int) -> Any:
    """Return GLT's range book, or a table if a range is empty, which GLT does not allow."""
    if book.bounds is None:
        return book.table
    ends = book.bounds.tolist()
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    if all(start < end for start, end in ranges):
        return RangePartitionBook(ranges, partition_idx)
    return book_table(book)


def filter_ids(book: Any, partition_idx: int) -> Tensor:
    """Return the ids that a partition owns: GLT's ``id_filter``, for range books and tables."""
    if isinstance(book, Tensor):
        return (book == partition_idx).nonzero().view(-1)
    return cast("Tensor", book.id_filter(book, partition_idx))


def read_splits(dataset: Any) -> Splits:
    """Return the split ids that a dataset's attributes hold now."""
    splits: Splits = {}
    for split in SPLITS:
        ids_by_type = by_type(getattr(dataset, f"{split}_idx", None), DEFAULT_HOMOGENEOUS_NODE_TYPE)
        if ids_by_type:
            splits[split] = {node_type: share_tensor(ids) for node_type, ids in ids_by_type.items()}
    return splits


# --- GLT's to ours --------------------------------------------------------------------------------


def read_glt(dataset: Any) -> WithSplits:
    """Return a GLT dataset as a view over the same memory, and its split ids."""
    if dataset.graph is None:
        raise ConfigError("this GLT dataset has no graph: load it, or call init_graph, first")
    edge_dir: EdgeDir = dataset.edge_dir
    num_partitions = getattr(dataset, "num_partitions", 1)
    graphs = {
        glt_edge_type(edge_type, edge_dir): graph
        for edge_type, graph in by_type(dataset.graph, DEFAULT_HOMOGENEOUS_EDGE_TYPE).items()
    }
    node_books = _read_books(
        getattr(dataset, "node_pb", None), DEFAULT_HOMOGENEOUS_NODE_TYPE, num_partitions, "node_pb"
    )
    features = _read_features(dataset.node_features, DEFAULT_HOMOGENEOUS_NODE_TYPE, num_partitions)
    labels = _read_labels(dataset.node_labels, num_partitions)
    num_nodes = _count_nodes(graphs, edge_dir, node_books, [features, labels])
    several = num_partitions > 1
    # the highest known id differs between partitions, so only books can tell counts
    missing = sorted(set(num_nodes) - set(node_books))
    if several and missing:
        raise ConfigError(f"this GLT dataset has no node partition book for {missing}")
    edge_books = _read_books(
        getattr(dataset, "edge_pb", None), DEFAULT_HOMOGENEOUS_EDGE_TYPE, num_partitions, "edge_pb"
    )
    adjacency = {t: _read_graph(t, graph) for t, graph in graphs.items()}
    edge_books = edge_books if several else {}
    labeled = is_labeled_homogeneous(num_nodes, list(adjacency))
    view = PartitionView(
        # GLT has dicts by type for a labeled-homogeneous graph, whose batches are plain `Data`
        is_heterogeneous=isinstance(dataset.graph, dict) and not labeled,
        edge_dir=edge_dir,
        num_partitions=num_partitions,
        partition_idx=getattr(dataset, "partition_idx", 0),
        num_nodes=num_nodes,
        adjacency=adjacency,
        node_books=node_books if several else {},
        edge_books=edge_books,
        node_features=features,
        node_labels=labels,
        edge_features=_read_features(
            dataset.edge_features, DEFAULT_HOMOGENEOUS_EDGE_TYPE, num_partitions
        ),
        edge_attributes=_read_weights(adjacency, edge_books, num_partitions),
        num_classes=count_classes(labels),
    )
    return view, read_splits(dataset)


def keep_glt(ours: Any, dataset: Any) -> None:
    """Let ``ours`` return the very objects of the GLT dataset that it wraps."""
    # instead of the `NotComputed` values, which would make further objects over the same memory
    for name in ("graph", "node_features", "edge_features", "node_labels"):
        setattr(ours, name, getattr(dataset, name))
    # their books may be of user classes, which work with functions of their own
    for name in ("node_pb", "edge_pb", "_node_feat_pb", "_edge_feat_pb", "id_filter", "id_select"):
        if getattr(dataset, name, None) is not None:
            setattr(ours, name, getattr(dataset, name))


def _read_books(value: Any, default: Any, num_partitions: int, where: str) -> dict[Any, Book]:
    return {
        key: read_book(book, num_partitions, f"{where} of {key!r}")
        for key, book in by_type(value, default).items()
        if book is not None
    }


def _read_graph(edge_type: EdgeType, graph: Any) -> Adjacency:
    topology = graph.topo
    weights = topology.edge_weights
    adjacency = Adjacency(
        share_tensor(topology.indptr),
        share_tensor(topology.indices),
        None if topology.edge_ids is None else share_tensor(topology.edge_ids),
        None if weights is None else share_tensor(weights),
    )
    if is_canonical(adjacency):
        return adjacency
    text = f"edges of {edge_type} are not ascending by (neighbour, edge id): sorting a copy"
    _log.info("%s", without_default_types(text))
    return canonical(adjacency)


def _read_features(value: Any, default: Any, num_partitions: int) -> dict[Any, Rows]:
    return {
        key: _read_feature(feature, num_partitions, key)
        for key, feature in by_type(value, default).items()
        if feature is not None
    }


def _read_feature(feature: Any, num_partitions: int, key: Any) -> Rows:
    # a feature that came from another process gets its tensor only here
    feature.lazy_init_with_ipc_handle()
    values, index = feature.feature_tensor, feature.id2index
    offset = getattr(index, "offset", None)
    if isinstance(offset, int):  # GLT's range book: row = id - offset
        # as a table, the only index of samplers; ids below the range are on other partitions
        ids = torch.arange(offset + values.size(0), device="cpu")
        index = (ids - offset).clamp_(min=-1)
    if index is not None and not isinstance(index, Tensor):
        raise ConfigError(
            f"features of {key!r} map ids to rows by a {type(index).__name__}; a tensor is needed"
        )
    index = None if index is None else share_tensor(index.cpu())
    # an index does not tell about other owners of rows, and GLT has no flag: the count decides
    return Rows(share_tensor(values), index, num_partitions == 1)


def _read_weights(
    adjacency: dict[EdgeType, Adjacency], books: dict[EdgeType, Book], num_partitions: int
) -> dict[tuple[EdgeType, str], Rows]:
    """Return the edges' weights by edge id, a copy, as batches carry them."""
    weights = {}
    for edge_type, edges in adjacency.items():
        if edges.weights is None or is_label_edge_type(edge_type):
            continue
        if edges.edge_ids is None or (num_partitions > 1 and edge_type not in books):
            reason = "there are no edge ids, or no edge partition book"
            warn_not_carried({f"weights of {edge_type}": reason}, stacklevel=4)
            continue
        past = int(edges.edge_ids.max()) + 1 if edges.edge_ids.numel() else 0
        num_ids = books[edge_type].num_ids if edge_type in books else past
        # by id, so that ids 0, 1, 2... need no index; by row an index would always be needed
        order = torch.argsort(edges.edge_ids)
        rows = make_rows(edges.weights[order], edges.edge_ids[order], num_ids)
        weights[edge_type, WEIGHT_NAMES[0]] = rows
    return weights


def _read_labels(value: Any, num_partitions: int) -> dict[NodeType, Rows]:
    rows = {}
    for node_type, labels in by_type(value, DEFAULT_HOMOGENEOUS_NODE_TYPE).items():
        if isinstance(labels, Tensor):  # of all nodes, as GLT has it
            rows[node_type] = Rows(share_tensor(labels), None, True)
        elif labels is not None:
            rows[node_type] = _read_feature(labels, num_partitions, node_type)
    return rows


def _count_nodes(
    graphs: dict[EdgeType, Any],
    edge_dir: EdgeDir,
    books: dict[NodeType, Book],
    rows: list[dict[NodeType, Rows]],
) -> dict[NodeType, int]:
    """Return the nodes of each type: from the books, else one past the highest known id."""
    counts = {node_type: book.num_ids for node_type, book in books.items()}
    seen: dict[NodeType, int] = {}
    for edge_type, graph in graphs.items():
        by_source = edge_dir == "out" or is_label_edge_type(edge_type)
        row_type, col_type = (edge_type[0], edge_type[2])[:: 1 if by_source else -1]
        indices = graph.topo.indices
        highest = int(indices.max()) + 1 if indices.numel() else 0
        # GLT's index pointer ends at the last row that has an edge
        seen[row_type] = max(seen.get(row_type, 0), graph.topo.indptr.numel() - 1)
        seen[col_type] = max(seen.get(col_type, 0), highest)
    for matrices in rows:
        for node_type, matrix in matrices.items():
            known = matrix.values.size(0) if matrix.index is None else matrix.index.numel()
            seen[node_type] = max(seen.get(node_type, 0), known)
    # `counts` again: a type with a book but without edges and rows is a type, too
    return {node_type: counts.get(node_type, count) for node_type, count in seen.items()} | counts
