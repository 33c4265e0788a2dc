"""The source of graph and rows for `full_graph_inference`: this rank's partition, or a graph store.

Rows for a layer are exchanged between ranks, or fetched from the storage servers.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.identity import content_digest
from gigl_loader.dataset.lookup import RowLookup
from gigl_loader.dataset.partition.adjacency import EdgeBlock, all_edges, block_of
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    NodeType,
)
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.inference.local_graph import NodeShares, message_types
from gigl_loader.inference.rank_rows import OwnedRows, Owners, RowSource
from gigl_loader.inference.results import tensor_digest
from gigl_loader.runtime.memory.tensors import bytes_of, dtype_name, dtype_named
from gigl_loader.runtime.ranks.collectives import RankExchange

_SAMPLE_ROWS = 4096
"""Number of sampled rows that identify a graph."""


class GraphSource(Protocol):
    """Structure and features. Edge types have the direction of messages: source to destination."""

    is_heterogeneous: bool
    owners: Owners
    edge_types: list[EdgeType]
    """Edge types that carry messages, ascending."""
    weighted: set[EdgeType]
    """Those whose edges have weights."""
    with_attr: set[EdgeType]
    """Those whose edges have features."""

    def edges(self, edge_type: EdgeType, ids: Tensor, *, weight: bool, attr: bool) -> EdgeBlock:
        """Return the edges into own nodes; collective with ``attr``."""

    def features(self) -> dict[NodeType, RowSource]:
        """Return the features by type, of the types with features."""

    def digest(self) -> str:
        """Return values that identify this graph, without reading all of it."""

    def bytes_with_neighbors(self) -> float:
        """Return the approximate bytes of a node's features and its in-neighbours'."""


class PartitionGraph:
    """The partitions that the ranks hold.

    Args:
        dataset: This rank's.
        exchange: The ranks.
    """

    def __init__(self, dataset: DistDataset, exchange: RankExchange) -> None:
        self._dataset = dataset
        self._view, self._is_known = dataset.view(), dataset.has_checksums
        self.is_heterogeneous = self._view.is_heterogeneous
        self._names = message_types(self._view.adjacency, self._view.edge_dir)
        self.edge_types = sorted(self._names)
        known = self._view.adjacency
        self.weighted = {t for t, n in self._names.items() if known[n].weights is not None}
        self.with_attr = {t for t, n in self._names.items() if n in self._view.edge_features}
        # collective, and raises if the ranks lack a partition
        shares = NodeShares(self._view, exchange)
        self.owners: Owners = shares
        self._lookup = RowLookup(self._view, exchange) if self.with_attr else None

    def edges(self, edge_type: EdgeType, ids: Tensor, *, weight: bool, attr: bool) -> EdgeBlock:
        """See `GraphSource`."""
        # For each chunk: results of altered files would look like others.
        self._dataset.check_files()
        name = self._names[edge_type]
        attr = attr and edge_type in self.with_attr
        block = all_edges(self._view.adjacency[name], ids, weights=weight, edge_ids=attr)
        rows = None
        if self._lookup is not None and attr:
            assert block.edge_ids is not None
            # also without edges: the lookup is collective, and other ranks may have some
            rows = self._lookup.rows("edge_features", name, block.edge_ids)
        return replace(block, attr=rows, edge_ids=None, positions=None)

    def features(self) -> dict[NodeType, RowSource]:
        """See `GraphSource`."""
        return {name: self._own_rows(name) for name in self._view.node_features}

    def _own_rows(self, name: NodeType) -> OwnedRows:
        rows, own_ids = self._view.node_features[name], self.owners.own_ids[name]
        positions = rows.locate(own_ids)
        first, count = (int(positions[0]) if len(positions) else 0), len(positions)
        consecutive = torch.arange(first, first + count, device="cpu")
        if torch.equal(positions, consecutive):  # saves 8 bytes per node
            return OwnedRows(rows.values[first : first + count], None, rows.scales)
        return OwnedRows(rows.values, positions, rows.scales)

    def digest(self) -> str:
        """See `GraphSource`."""
        # a directory's manifest has the digests; else all data in memory is read, which takes less
        # time than a layer
        if self._is_known:
            return str(self._view.identity)
        return content_digest(replace(self._view, identity=None), whole=True)

    def bytes_with_neighbors(self) -> float:
        """See `GraphSource`."""
        num_edges = sum(self._view.adjacency[n].indices.numel() for n in self._names.values())
        num_nodes = sum(ids.numel() for ids in self.owners.own_ids.values())
        widths = [rows.values[:1].numel() for rows in self._view.node_features.values()]
        return _bytes_with_neighbors(num_edges / max(num_nodes, 1), widths)


def _bytes_with_neighbors(degree: float, widths: list[int]) -> float:
    return (1.0 + degree) * max([*widths, 1]) * 4  # layers read float32


class RangeShares:
    """Nodes of a graph store by rank: a range of ids for each.

    Args:
        num_nodes: By type.
        exchange: The ranks.
    """

    def __init__(self, num_nodes: dict[NodeType, int], exchange: RankExchange) -> None:
        self.own_ids: dict[NodeType, Tensor] = {}
        self._ends: dict[NodeType, Tensor] = {}
        for name, count in sorted(num_nodes.items()):
            # integers: the last end is the count, with any remainder of the division
            ends = [(rank + 1) * count // exchange.size for rank in range(exchange.size)]
            self._ends[name] = torch.tensor(ends, device="cpu")
            self.own_ids[name] = torch.arange(
                [0, *ends][exchange.rank], ends[exchange.rank], device="cpu"
            )

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the rank that computes each of ``ids``: ``[n]`` int64."""
        # right: an end is the first id of the next rank
        return torch.searchsorted(self._ends[node_type], ids, right=True)


logger = logging.getLogger(__name__)

_InFile = tuple[int, str, torch.Size]
"""A tensor in a file: offset in bytes, dtype and shape."""


class KeptTensors:
    """Tensors by key, in memory or in an unnamed file, which is gone with the process.

    If the disk is full, further tensors are not kept.

    Args:
        folder: Folder of the file; None: memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._kept: dict[Hashable, list[Tensor | _InFile | None]] = {}
        self._end = 0
        # beside the results, not in /tmp, which is often memory
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def get(self, key: Hashable, fetch: Callable[[], list[Tensor | None]]) -> list[Tensor | None]:
        """Return the result of the first ``fetch`` for ``key``."""
        if key in self._kept:
            return [self._read(t) if isinstance(t, tuple) else t for t in self._kept[key]]
        # errors of fetch() are not kept: the next call fetches again
        tensors = fetch()
        if self._file is None:
            self._kept[key] = list(tensors)
        else:
            self._write_all(key, tensors)
        return tensors

    def close(self) -> None:
        """Free all of it."""
        self._kept.clear()
        if self._file is not None:
            self._file.close()

    def _write_all(self, key: Hashable, tensors: list[Tensor | None]) -> None:
        start = self._end
        try:
            # the key is set only after all of its tensors were written: a partial entry is never
            # read
            self._kept[key] = [None if t is None else self._write(t) for t in tensors]
        except OSError as error:
            # the next key overwrites the written part of this one
            self._end = start
            logger.warning("edges cannot be kept, and are fetched for each layer: %s", error)

    def _write(self, tensor: Tensor) -> _InFile:
        assert self._file is not None
        tensor = tensor.contiguous()
        start, data = self._end, bytes_of(tensor)
        while data:
            # The kernel writes at most 2 GiB at a time, and less when the disk fills up. At an
            # offset, like the read: threads share no file position.
            count = os.pwrite(self._file.fileno(), data, self._end)
            self._end, data = self._end + count, data[count:]
        return start, dtype_name(tensor.dtype), tensor.shape

    def _read(self, in_file: _InFile) -> Tensor:
        assert self._file is not None
        start, name, shape = in_file
        tensor = torch.empty(shape, dtype=dtype_named(name), device="cpu")
        data = bytes_of(tensor)
        while data:
            count = os.preadv(self._file.fileno(), [data], start)
            # 0 is the end of the file: without an error the loop would not end
            if not count:
                raise ProtocolError(f"kept edges end at byte {start}, {len(data)} bytes too early")
            start, data = start + count, data[count:]
        return tensor


class StoredGraph:
    """The partitions of storage servers; each rank computes a range of the nodes.

    Args:
        dataset: The graph.
        exchange: The compute processes.
    """

    def __init__(self, dataset: RemoteDistDataset, exchange: RankExchange) -> None:
        self._dataset = dataset
        schema = dataset.fetch_schema()
        self.is_heterogeneous = dataset.fetch_node_types() is not None
        edge_types = schema.edge_types or [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        self._names = message_types(edge_types, schema.edge_dir)
        self.edge_types = sorted(self._names)
        infos = schema.edge_feature_info
        featured = infos if isinstance(infos, dict) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: infos}
        self.with_attr = {t for t, n in self._names.items() if featured.get(n) is not None}
        # the schema does not tell: a server that is asked for the weights of no edges does
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        self.weighted = {
            edge_type
            for edge_type, name in self._names.items()
            if dataset.lookup.edges(name, nothing, weights=True).weights is not None
        }
        self._num_nodes = dataset.fetch_num_nodes()
        self.owners: Owners = RangeShares(self._num_nodes, exchange)
        self._kept: KeptTensors | None = None
        self._kept_parts = False, False

    def keep_edges(self, kept: KeptTensors, *, weight: bool, attr: bool) -> None:
        """Keep fetched edges from now on.

        Args:
            kept: Their storage.
            weight: Whether any layer reads weights: they then come with the edges.
            attr: Whether any layer reads features of edges.
        """
        self._kept, self._kept_parts = kept, (weight, attr)

    def edges(self, edge_type: EdgeType, ids: Tensor, *, weight: bool, attr: bool) -> EdgeBlock:
        """See `GraphSource`; not collective."""
        # a rank without a chunk requests no ids: there is nothing to keep
        if self._kept is None or not ids.numel():
            parts = self._fetch(edge_type, ids, weight, attr)
        else:  # a chunk is a range of ids
            # Sampled ids of digest() are no range: it comes before keep_edges().
            key = edge_type, int(ids[0]), ids.numel()
            parts = self._kept.get(key, lambda: self._fetch(edge_type, ids, *self._kept_parts))
        sources, counts, weights, rows = parts
        assert sources is not None
        assert counts is not None
        # computed again each time: counts are shorter than targets, in memory and in transfer
        return block_of(
            sources, counts, weights=weights if weight else None, attr=rows if attr else None
        )

    def _fetch(
        self, edge_type: EdgeType, ids: Tensor, weight: bool, attr: bool
    ) -> list[Tensor | None]:
        """Return sources and counts (in half of the bytes, if they fit), weights, features."""
        name = self._names[edge_type]
        attr = attr and edge_type in self.with_attr
        block = self._dataset.lookup.edges(name, ids, weights=weight, edge_ids=attr)
        rows = None
        if attr:
            if block.edge_ids is None:
                raise ConfigError(f"the edges {name} have no ids to look their features up by")
            # by ids: features may be on other servers than the edges
            rows = self._dataset.lookup.rows("edge_features", name, block.edge_ids)
        few = self._num_nodes[edge_type[0]] <= torch.iinfo(torch.int32).max
        sources = block.sources.int() if few else block.sources
        return [sources, block.counts.int(), block.weights, rows]

    def features(self) -> dict[NodeType, RowSource]:
        """See `GraphSource`."""
        infos = self._dataset.fetch_node_feature_info()
        by_type = infos if isinstance(infos, dict) else {DEFAULT_HOMOGENEOUS_NODE_TYPE: infos}
        rows = self._dataset.lookup.rows
        return {
            name: partial(rows, "node_features", name)
            for name, info in by_type.items()
            if info is not None
        }

    def digest(self) -> str:
        """See `GraphSource`."""
        # exact if servers loaded a directory; else a sample is included, too
        parts: list[Any] = [self._dataset.fetch_graph_identity()]
        for name, source in sorted(self.features().items()):
            assert not isinstance(source, OwnedRows)
            parts.append(tensor_digest(source(self._sample(name))))
        for edge_type in self.edge_types:
            block = self.edges(edge_type, self._sample(edge_type[2]), weight=True, attr=False)
            parts += [block.sources.numel(), int(block.sources.sum())]
        return " ".join(str(part) for part in parts)

    def bytes_with_neighbors(self) -> float:
        """See `GraphSource`."""
        degree = 0.0
        for edge_type in self.edge_types:
            # from a sample: the edges are not here to be counted
            ids = self._sample(edge_type[2])
            counts = self.edges(edge_type, ids, weight=False, attr=False).sources.numel()
            degree = max(degree, counts / max(ids.numel(), 1))
        infos = self._dataset.fetch_node_feature_info()
        known = infos.values() if isinstance(infos, dict) else [infos]
        return _bytes_with_neighbors(degree, [info.dim for info in known if info is not None])

    def _sample(self, node_type: NodeType) -> Tensor:
        own_ids = self.owners.own_ids[node_type]
        return own_ids[:: max(own_ids.numel() // _SAMPLE_ROWS, 1)].contiguous()
