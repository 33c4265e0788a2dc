"""The partition of a rank, of a graph of which each rank has read a share of the records.

Each row goes to its owner. Rows of ranks arrive by rank, and a rank's share is a run of the files,
so an owner has them in the order of the files: partitions are those of `partition_tables`, whose
ranges of nodes and order of edges are the same.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gigl_loader.dataset.partition.build import contiguous_book, owned_ids
from gigl_loader.dataset.partition.partition_output import (
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
)
from gigl_loader.dataset.partition.partition_view import Book
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType, expanded_end
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.other_libraries.foreign_graphs import ForeignGraph
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.ranks.collectives import RankExchange


def exchange_shares(graph: ForeignGraph, edge_dir: EdgeDir, *, typed: bool) -> PartitionOutput:
    """Return this rank's partition; all ranks of the process group have to call it.

    Args:
        graph: This rank's share; types are the same on all ranks.
        edge_dir: Whether edges go to the owner of their destination or their source.
        typed: Whether types keep their names: False needs one of each.

    Raises:
        ConfigError: Ids of nodes do not count from 0, an edge has an end that is no node, or a type
            has no records.
    """
    shares = _Shares(RankExchange(doing="records were exchanged"))
    for node_type, nodes in graph.nodes.items():
        shares.add_nodes(node_type, nodes)
    for edge_type, tables in graph.edges.items():
        for table in tables:
            shares.add_edges(edge_type, table, expanded_end(edge_dir))
    fields: dict[str, Any] = shares.fields
    if not typed:
        fields = {name: next(iter(values.values())) for name, values in fields.items()}
    return PartitionOutput(**fields)


class _Shares:
    """What has been exchanged so far.

    Args:
        ranks: Those of the process group.
    """

    def __init__(self, ranks: RankExchange) -> None:
        self._ranks = ranks
        self._books: dict[NodeType, Book] = {}
        self.fields: dict[str, dict[Any, Any]] = {}
        """Fields of `PartitionOutput` by type."""

    def _set(self, field: str, key: Any, value: Any) -> None:
        self.fields.setdefault(f"partitioned_{field}", {})[key] = value

    def add_nodes(self, node_type: NodeType, table: NodeTable) -> None:
        """Exchange the nodes of a type."""
        where = f"nodes of {node_type!r}"
        share = _read(table)
        count = sum(self._ranks.gather(len(share.get("_id", ())), int))
        self._books[node_type] = book = contiguous_book(count, self._ranks.size)
        rows = self._to_owners(share, "_id", node_type, where)
        order = rows["_id"].argsort()
        ids, rank = rows["_id"][order], self._ranks.rank
        if not ids.equal(owned_ids(book, rank)):
            raise ConfigError(f"{where}: an id is there twice, so ids {_DO_NOT_COUNT}")
        self.fields.setdefault("node_partition_book", {})[node_type] = book
        for column, field in (("features", "node_features"), ("label", "node_labels")):
            if column in rows:
                values = rows[column][order]
                values = values if values.dim() == 2 else values[:, None]
                self._set(field, node_type, FeaturePartitionData(values, ids))

    def add_edges(self, edge_type: EdgeType, table: EdgeTable, end: int) -> None:
        """Exchange edges of a type; ``end``: the one whose owner gets them, 0 or 1."""
        kind = table.supervision
        where = f"{kind or 'main'} edges of {edge_type}"
        owning = ("_src", "_dst")[0 if kind else end]
        rows = _read(table)
        for column, node_type in (("_src", edge_type[0]), ("_dst", edge_type[2])):
            own, count = rows.get(column, np.empty(0, np.int64)), self._books[node_type].num_ids
            if len(bad := own[(own < 0) | (own >= count)]):
                raise ConfigError(
                    f"{where} have ids that are no nodes of {node_type!r}: {bad[:5].tolist()}; it "
                    f"has {count} nodes"
                )
        came = self._to_owners(rows, owning, edge_type[0 if owning == "_src" else 2], where)
        edges = torch.stack([came["_src"], came["_dst"]])
        if kind:
            self._set(f"{kind}_labels", edge_type, edges)
            return
        # equal edges stay in the order of the files: the sort is stable
        order = torch.from_numpy(np.lexsort((edges[1 - end].numpy(), edges[end].numpy())))
        counts = self._ranks.gather(len(order), int)
        book = Book(bounds=torch.tensor(counts, device="cpu").cumsum(0))
        ids = torch.arange(len(order), device="cpu") + sum(counts[: self._ranks.rank])
        weights = came["weight"][order] if "weight" in came else None
        self._set("edge_index", edge_type, GraphPartitionData(edges[:, order], ids, weights))
        self.fields.setdefault("edge_partition_book", {})[edge_type] = book
        if "features" in came:
            self._set(
                "edge_features", edge_type, FeaturePartitionData(came["features"][order], ids)
            )

    def _to_owners(
        self, rows: dict[str, Array], column: str, node_type: NodeType, where: str
    ) -> dict[str, Tensor]:
        """Send rows to the owners of the nodes in a column; return those that came, by rank."""
        book, count = self._books[node_type], self._books[node_type].num_ids
        ids = rows.get(column, np.empty(0, np.int64))
        if len(bad := ids[(ids < 0) | (ids >= count)]):
            raise ConfigError(f"{where}: {count} ids {_DO_NOT_COUNT}: {bad[:5].tolist()}")
        # a rank without files does not know the columns
        own = {name: (str(v.dtype), list(v.shape[1:])) for name, v in rows.items()}
        about = self._ranks.gather(own, dict[str, tuple[str, list[int]]])
        known = [one for one in about if one]
        if not known:
            raise ConfigError(f"{where}: its TFRecords are empty")
        if any(one != known[0] for one in known):
            raise ConfigError(f"{where}: types or widths of columns differ between files: {known}")
        owner = book.owner(torch.from_numpy(ids)).numpy()
        order = np.argsort(owner, kind="stable")
        send = np.bincount(owner, minlength=self._ranks.size).tolist()
        receive = self._ranks.all_to_all_counts(send)
        came = {}
        for name, (dtype, shape) in sorted(known[0].items()):
            values = rows[name][order] if rows else np.empty((0, *shape), dtype)
            came[name] = self._ranks.all_to_all(torch.from_numpy(values), send, receive)
        return came


_DO_NOT_COUNT = (
    "do not count from 0, as GiGL's preprocessor numbers them; gigl-loader partition --from gigl "
    "maps any"
)


def _read(table: NodeTable | EdgeTable) -> dict[str, Array]:
    """Return the columns of a table's files; without files none."""
    files: Any = table.source
    if not files:
        return {}
    whole = pa.concat_tables([pq.read_table(file) for file in files]).combine_chunks()
    return {name: _values(whole.column(name).combine_chunks()) for name in whole.column_names}


def _values(column: Any) -> Array:
    if not pa.types.is_fixed_size_list(column.type):
        return np.array(column)  # a copy, which may be written to
    flat: Array = np.array(column.flatten())
    return flat.reshape(len(column), -1)
