"""A storage server's responses about its partition."""

import json
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.from_pyg.split_ids import names_of
from gigl_loader.dataset.identity import Share
from gigl_loader.dataset.lookup import check_ids, num_ids_of
from gigl_loader.dataset.partition.adjacency import edges_at, spans_of
from gigl_loader.dataset.partition.partition_view import ROW_KINDS, Book, PartitionView, Rows
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeDir,
    EdgeType,
    NodeType,
    Split,
    is_label_edge_type,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server.glt_answers import GLTAnswers, check_answer
from gigl_loader.graph_store.wire.calls import FeatureInfos, PartitionBook
from gigl_loader.graph_store.wire.requests import NodeIdsRequest, RowBook
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.memory.tensors import as_array
from gigl_loader.sampler.plan import RowsAnswer, RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.sampler.rows.reader import ReaderOfThread

_MOST_EDGES = 1 << 21
"""Most edges in one answer: some 100 MB while it is made."""


class PartitionAnswers(GLTAnswers):
    """The methods that only read the partition.

    Args:
        dataset: The partition.
        server_rank: Rank of this server among the storage servers.
        num_servers: Number of storage servers.
    """

    def __init__(self, dataset: Any, server_rank: int = 0, num_servers: int = 1) -> None:
        self.dataset = DistDataset.wrap(dataset)
        self.server_rank, self.num_servers = server_rank, num_servers
        self.num_partitions: int = self.dataset.num_partitions
        self._of_thread = ReaderOfThread(_of_arrays(self.dataset.view()))

    @override
    def get_partition_index(self) -> int:
        return int(self.dataset.view().partition_idx)

    @override
    def get_row_books(self) -> list[RowBook]:
        view, row_books = self.dataset.view(), {}
        for kind in ROW_KINDS:
            for name, rows in getattr(view, kind).items():
                group = kind.partition("_")[0]
                of_type = name[0] if kind.endswith("_attributes") else name
                books: Any = view.node_books if group == "node" else view.edge_books
                # one book for all matrices of a type, as features and labels of a node have one
                # owner
                row_books[group, of_type] = _book(group, of_type, books.get(of_type), rows)
        return list(row_books.values())

    @override
    def get_schema(self) -> DatasetSchema:
        return self.dataset.schema

    @override
    def get_graph_identity(self) -> str:
        identity = self.dataset.graph_identity
        return f"{identity.run} {identity.digest}"

    @override
    def get_database(self) -> str:
        return json.dumps(self.dataset.database)

    @override
    def get_num_nodes(self) -> dict[NodeType, int]:
        return dict(self.dataset.view().num_nodes)

    @override
    def get_num_edges(self) -> dict[EdgeType, int]:
        return self.dataset.view().total_edges()

    @override
    def get_node_feature_info(self) -> FeatureInfos:
        return self.dataset.node_feature_info

    @override
    def get_edge_feature_info(self) -> FeatureInfos:
        return self.dataset.edge_feature_info

    @override
    def get_edge_dir(self) -> EdgeDir:
        return self.dataset.schema.edge_dir

    @override
    def get_edge_types(self) -> list[EdgeType] | None:
        return self.dataset.schema.edge_types

    @override
    def get_node_types(self) -> list[NodeType] | None:
        return sorted(self.dataset.view().num_nodes) if self.dataset.is_typed else None

    @override
    def get_edge_weights_registered(self) -> bool:
        return self.dataset.has_edge_weights

    @override
    def get_node_partition_book(self, node_type: NodeType | None = None) -> PartitionBook:
        return self._of_type(self.dataset.node_partition_book, node_type, "node")

    @override
    def get_edge_partition_book(self, edge_type: EdgeType | None = None) -> PartitionBook:
        # a single partition has no books, but a wrong type must still be refused by name
        books = self.dataset.edge_partition_book
        if books is None:
            books = dict.fromkeys(self.dataset.schema.edge_types or ()) or None
        return self._of_type(books, edge_type, "edge")

    @override
    def get_node_ids(self, request: NodeIdsRequest | None = None) -> Tensor:
        request = request or NodeIdsRequest()
        if request.split is None:
            ids = self.dataset.node_ids
        else:
            split = cast("Split", request.split)  # `known_split` refuses another one
            in_split = self.dataset.known_split(split)
            if in_split is None:
                raise ConfigError(f"the graph has no {split!r} split: give it {names_of(split)}")
            ids = in_split
        typed_ids = self._of_type(ids, request.node_type, "node")
        # the server's part first, then the requested share of it: so a server's ids are
        # the same for any number of shares, and at each of its replicas
        return request.share.cut(self._part_of(request.server).cut(typed_ids))

    def _part_of(self, server: int | None) -> Share:
        """Return the part of the partition's ids that a server of this partition owns."""
        # Ranks of replicas differ by multiples of `num_partitions`. A server that is called in its
        # own process may have a rank beyond `num_servers`; it still owns a part.
        rank, partitions = self.server_rank, self.num_partitions
        server = rank if server is None else server
        replicas = range(rank % partitions, max(self.num_servers, rank + 1), partitions)
        if server not in replicas:
            raise ConfigError(
                f"storage server {rank} cannot answer for server {server}: only servers "
                f"{list(replicas)} have its partition"
            )
        position = replicas.index(server)
        return Share(position, position + 1, len(replicas))

    @override
    def get_ablp_input(
        self, request: NodeIdsRequest, supervision_edge_type: EdgeType | None = None
    ) -> tuple[NodeType, Tensor, dict[EdgeType, Tensor], dict[EdgeType, Tensor] | None]:
        edge_type = supervision_edge_type or self._only_supervision_type()
        anchor_type = request.node_type or edge_type[0]
        # labels are read from the rows of their source type: ids of another type would be taken for
        # row numbers there
        if anchor_type != edge_type[0]:
            raise ConfigError(
                f"anchors of type {anchor_type!r} have no labels of {edge_type}: its anchors are "
                f"of type {edge_type[0]!r}"
            )
        anchors = self.get_node_ids(replace(request, node_type=anchor_type))
        positive = message_passing_to_positive_label(edge_type)
        negative = message_passing_to_negative_label(edge_type)
        adjacency = self.dataset.view().adjacency
        if positive not in adjacency:
            known = [name for name in adjacency if is_label_edge_type(name)]
            raise ConfigError(f"the graph has no labels {positive}; its label edge types: {known}")
        # cut here, not by the receiver: one hub among the anchors would make the whole table as
        # wide as its labels
        most = self.dataset.max_labels_per_anchor_node
        labels = {
            name: padded_rows(adjacency[name], anchors, most)
            for name in (positive, negative)
            if name in adjacency
        }
        negatives = {negative: labels[negative]} if negative in labels else None
        return anchor_type, anchors, {positive: labels[positive]}, negatives

    @override
    def get_rows(self, request: RowsRequest[PackedInts]) -> RowsAnswer:
        view, unpacked = self.dataset.view(), request.map(PackedInts.unpack)
        rows = unpacked.matrix_in(view)
        if rows is None:
            raise ConfigError(
                f"the graph has no {unpacked.kind.replace('_', ' ')} of {unpacked.name!r}"
            )
        books: Any = view.edge_books if unpacked.kind.startswith("edge") else view.node_books
        # any server can read a matrix that is whole here, not only the owner of the ids
        if not rows.whole:
            self._check_owned(unpacked.ids, unpacked.name, books.get(unpacked.name))
        answer = self._of_thread.reader.answer_rows(unpacked)
        if request.with_scales and rows.scales is not None:
            return replace(answer, scales=as_array(rows.scales))
        return answer

    @override
    def get_edges(
        self,
        edge_type: EdgeType,
        ids: np.ndarray,
        *,
        start: int = 0,
        weights: bool = False,
        edge_ids: bool = False,
    ) -> dict[str, Tensor]:
        view = self.dataset.view()
        adjacency = view.adjacency.get(edge_type)
        if adjacency is None:
            raise ConfigError(f"the graph has no edges {edge_type}")
        expanded = view.row_type(edge_type)
        self._check_owned(ids, expanded, view.node_books.get(expanded))
        starts, counts = spans_of(adjacency, torch.from_numpy(ids))
        degree = int(counts[:1].sum())
        if not 0 <= start <= degree:
            raise ConfigError(f"start must be in [0, {degree}], got {start}")
        starts[:1] += start
        counts[:1] -= start
        # before memory for edges is taken: the nodes that fit, or what fits of the first
        fitting = max(1, int((counts.cumsum(0) <= _MOST_EDGES).sum()))
        starts, counts = starts[:fitting], counts[:fitting]
        told = counts.clamp(max=_MOST_EDGES)
        edges = edges_at(adjacency, starts, told, weights=weights, edge_ids=edge_ids)
        columns = {"counts": counts, "indices": edges.sources}
        for name, column in (("weights", edges.weights), ("edge_ids", edges.edge_ids)):
            if column is not None:
                columns[name] = column
        return columns

    @override
    def _check_owned(self, ids: Array, name: Any, book: Book[Any] | None) -> None:
        view = self.dataset.view()
        # two passes of numpy, as torch would wake its threads for each request
        if book is not None and book.bounds is not None and book.owns(view.partition_idx, ids):
            return
        # the range first: the book's table would accept a negative id, counting from its
        # end
        tensor = torch.from_numpy(ids)
        check_ids(tensor, name, view.num_nodes.get(name) if book is None else book.num_ids)
        if book is not None and not book.owns(view.partition_idx, tensor):
            raise ConfigError(f"some ids of {name!r} are not of partition {view.partition_idx}")

    def _only_supervision_type(self) -> EdgeType:
        if self.dataset.schema.is_homogeneous_with_labeled_edge_type:
            return DEFAULT_HOMOGENEOUS_EDGE_TYPE
        raise ConfigError(
            "supervision_edge_type must be given: the graph is not a homogeneous one with labels"
        )

    def _of_type(self, value: Any, name: Any, kind: str) -> Any:
        default: Any = DEFAULT_HOMOGENEOUS_NODE_TYPE
        if kind == "edge":
            default = DEFAULT_HOMOGENEOUS_EDGE_TYPE
        if not isinstance(value, dict):
            if name not in (None, default):
                raise ConfigError(f"the graph is homogeneous: it has no {kind} type {name!r}")
            return value
        if name is None and self.dataset.schema.is_homogeneous_with_labeled_edge_type:
            name = default
        if name not in value:
            raise ConfigError(f"{kind}_type must be one of {sorted(value)}, got {name!r}")
        return value[name]


def padded_rows(adjacency: Any, nodes: Tensor, limit: int | None = None) -> Tensor:
    """Return the neighbours of ``nodes`` as ``[len(nodes), most]`` int64, padded with -1.

    With ``limit``, these are the first ``limit`` of each.
    """
    indptr, rows = adjacency.indptr, adjacency.locate(nodes)
    known = rows < indptr.numel() - 1  # ids past the end have no edge
    # row 0 replaces these, so that reads stay in bounds; they count as nodes without edges
    rows = torch.where(known, rows, 0)
    starts = indptr[rows]
    counts = torch.where(known, indptr[rows + 1] - starts, 0) if indptr.numel() > 1 else nodes * 0
    counts = counts if limit is None else counts.clamp(max=limit)
    most = int(counts.max()) if counts.numel() else 0
    what = f"labels of {nodes.numel():,} anchors, {most:,} for each (max_labels_per_anchor_node),"
    check_answer(8 * nodes.numel() * most, what)
    table = nodes.new_full((nodes.numel(), most), -1)
    positions = torch.arange(most, device="cpu")
    filled = positions < counts[:, None]
    # both sides of the assignment read a mask row by row, so each neighbour lands in its own
    # row
    table[filled] = adjacency.indices[(starts[:, None] + positions)[filled]].long()
    return table


def _book(group: str, name: Any, book: Book[Any] | None, rows: Rows[Any]) -> RowBook:
    if book is None:
        return RowBook(group, name, num_ids_of(rows))
    bounds = None if book.bounds is None else as_array(book.bounds)
    table = None if book.table is None else as_array(book.table)
    return RowBook(group, name, book.num_ids, bounds, table)


def _of_arrays(view: PartitionView[Any]) -> PartitionView[Array]:
    """Return the view with arrays of rows for kernels, over the memory of the tensors."""
    changed: dict[str, Any] = {}
    for kind in ROW_KINDS:
        changed[kind] = {
            name: replace(
                rows,
                **{
                    part: as_array(getattr(rows, part))
                    for part in ("values", "index", "ids")
                    if getattr(rows, part) is not None
                },
            )
            for name, rows in getattr(view, kind).items()
        }
    return cast("PartitionView[Array]", replace(view, **changed))
