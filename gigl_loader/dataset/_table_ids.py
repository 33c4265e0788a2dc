"""The way back to the tables that a graph was made of: ids of nodes, rows of edges."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.original_ids import OriginalIds
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.memory.segments import Array


class TableIds:
    """Methods of a `gigl_loader.DistDataset`; that class holds what they are read from."""

    _original: dict[NodeType | EdgeType, OriginalIds]

    def view(self) -> PartitionView:
        """Return the partition as sampling workers read it."""
        raise NotImplementedError

    @property
    def has_original_ids(self) -> bool:
        """Whether nodes had other ids in the tables that they came from, see `to_original`."""
        return any(isinstance(key, str) for key in self._original)

    def to_original(self, ids: Tensor | Array, node_type: NodeType | None = None) -> Array:
        """Return the ids that nodes had in the tables that `partition_tables` read.

        Args:
            ids: ``[n]`` int64, a tensor or an array; of any partition, as in ``batch.n_id``.
            node_type: None: the only one.

        Returns:
            ``[n]`` array of int64, or of `str` objects.

        Raises:
            ConfigError: There is no such node or node type.
            UsageError: The graph was not made of tables.
        """
        found = ids.numpy() if isinstance(ids, Tensor) else np.asarray(ids, np.int64)
        return self._dictionary(node_type).to_original(found)

    def from_original(
        self, values: Sequence[int] | Sequence[str] | Array, node_type: NodeType | None = None
    ) -> Tensor:
        """Return the ids in this dataset of nodes that are named as in the tables.

        Reads through the file of all ids once, a block at a time: give many ids at once.

        Args:
            values: A sequence or an array of `int` or `str`.
            node_type: None: the only one.

        Returns:
            ``[n]`` int64.

        Raises:
            ConfigError: One of them is not there, or pyarrow is not installed.
            UsageError: The graph was not made of tables.
        """
        return torch.from_numpy(self._dictionary(node_type).from_original(values))

    def to_table_rows(self, edge_ids: Tensor | Array, edge_type: EdgeType | None = None) -> Array:
        """Return the rows that edges had in the table that `partition_tables` read.

        Rows count over all files of the table, in the order in which they were read: as given, and
        those of a directory or a pattern by name.

        Args:
            edge_ids: ``[n]`` int64, a tensor or an array; of any partition, as in ``batch.e_id``.
            edge_type: None: the only one.

        Returns:
            ``[n]`` int64.

        Raises:
            ConfigError: There is no such edge or edge type.
            UsageError: The graph was not made of tables with ``edge_rows=True``.
        """
        self.view()  # raises what the comparison in the background has found
        known = {key: found for key, found in self._original.items() if isinstance(key, tuple)}
        if not known:
            raise UsageError(
                "rows of edges were not kept: this takes partition_tables(..., edge_rows=True)"
            )
        if edge_type is None and len(known) == 1:
            (edge_type,) = known
        if edge_type not in known:
            raise ConfigError(f"edge_type must be one of {sorted(known)}, got {edge_type!r}")
        ids = edge_ids.numpy() if isinstance(edge_ids, Tensor) else np.asarray(edge_ids, np.int64)
        return known[edge_type].to_original(ids)

    def _dictionary(self, node_type: NodeType | None) -> OriginalIds:
        self.view()  # raises what the comparison in the background has found
        known = {key: found for key, found in self._original.items() if isinstance(key, str)}
        if not known:
            raise UsageError("this graph was not made of tables: its ids are those it was given")
        if node_type is None and len(known) == 1:
            return next(iter(known.values()))
        if node_type not in known:
            raise ConfigError(f"node_type must be one of {sorted(known)}, got {node_type!r}")
        return known[node_type]
