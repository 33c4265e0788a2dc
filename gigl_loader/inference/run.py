"""One call of `full_graph_inference`: layer by layer, type by type, chunk by chunk."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.progress import ProgressLine
from gigl_loader.dataset.schema import NodeType
from gigl_loader.device.prefetch import DevicePrefetcher
from gigl_loader.errors import ConfigError
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.chunks import Chunk, ChunkReader, Reads
from gigl_loader.inference.layers import Layer
from gigl_loader.inference.norms import Norm
from gigl_loader.inference.parquet import ParquetRows
from gigl_loader.inference.results import Results
from gigl_loader.inference.rows import OwnedRows, RowSource
from gigl_loader.inference.sources import GraphSource
from gigl_loader.memory.kernel_pages import give_back_freed
from gigl_loader.memory.tensors import dtype_name, dtype_named

KEPT_DTYPES = (torch.float16, torch.float32, torch.float64)
"""The dtypes in which rows may be kept."""

_GIVE_BACK_EVERY = 16
"""Chunks after which freed memory goes back to the kernel: their small arrays are spread over the
heaps of two threads, and what malloc keeps of them was 25 MiB more than all of a chunk."""

_Shape = tuple[int, str]
"""Width and dtype of rows."""


class LayerRun:
    """Computes layers over a graph.

    Args:
        graph: Structure and features.
        exchange: The ranks.
        layers: In order.
        batch_size: Destination rows of a chunk.
        device: Where layers compute.
        compute_dtype: What they compute in.
        kept_dtype: What rows are kept as; None: as computed.
    """

    def __init__(
        self, graph: GraphSource, exchange: RankExchange, layers: list[Layer], batch_size: int,
        device: torch.device, compute_dtype: torch.dtype, kept_dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self._graph, self._exchange, self._layers = graph, exchange, layers
        self._device, self._compute_dtype, self._kept_dtype = device, compute_dtype, kept_dtype
        # sorted, like all that is done by type here: reading is collective
        self._readers = {
            name: ChunkReader(graph, name, exchange, batch_size)
            for name in sorted(graph.owners.own)
        }
        self._degrees: dict[Norm, OwnedRows] = {}
        self._chunks_since_freed = 0

    @property
    def num_rows(self) -> int:
        """Nodes of this rank, of all types."""
        return sum(reader.own.numel() for reader in self._readers.values())

    def compute(
        self, results: Mapping[NodeType, Results], files: Mapping[NodeType, ParquetRows],
        line: ProgressLine,
    ) -> dict[NodeType, Tensor]:  # fmt: skip
        """Return the rows of the last layer, by type. Collective.

        Args:
            results: Where rows are kept, by type.
            files: Parquet files for the last layer, by type.
            line: Shows how far it is.
        """
        give_back_freed()  # of all that was worked out before
        # a layer is gone on with after all ranks have all of the one before, of all types
        first, found = self._resume(results)
        line.skip(first * self.num_rows)
        sources: Mapping[NodeType, RowSource] = self._graph.features()
        # the layer before is in the files of an earlier run
        if first:
            sources = {name: OwnedRows(rows) for name, rows in found.items()}
        for index in range(first, len(self._layers)):
            found = {}
            for name in self._readers:
                rows = self._layer(index, name, sources, results[name], files.get(name), line)
                if rows is not None:
                    found[name] = rows
            for result in results.values():  # all ranks have ended the layer, and read it no more
                result.forget(index - 1)
            # only now: all types of a layer read the layer before
            sources = {name: OwnedRows(rows) for name, rows in found.items()}
        for name, rows in found.items():
            if name in files:
                files[name].finish(rows)
        # after all ranks have ended the last layer: `_layer` ends with what they tell each other
        for result in results.values():
            result.finish(len(self._layers) - 1)
        line.end()
        return found

    # -- what an earlier run left -----------------------------------------------------------------

    def _resume(self, results: Mapping[NodeType, Results]) -> tuple[int, dict[NodeType, Tensor]]:
        """Return (the first layer to compute, the rows of the one before). Collective."""
        last = len(self._layers) - 1
        # The last one first: files of earlier layers were removed. Every rank decides by what all
        # of them sent, so that they begin with the same layer.
        for layer in range(last, -1, -1):
            rows = {n: r.existing(layer, last=layer == last) for n, r in results.items()}
            state = {name: self._state(layer, name, results[name], rows[name]) for name in results}
            everyone = self._exchange.gather(state, dict[str, tuple[bool, bool, _Shape | None]])
            if all(whole for one in everyone for whole, _, _ in one.values()):
                found = {name: self._shape_of(name, everyone) for name in results}
                kept = {
                    # this rank has no node of a type that the others have rows of
                    name: _no_rows(shape) if (one := rows[name]) is None else one
                    for name, shape in found.items()
                    if shape is not None
                }
                if kept:
                    return layer + 1, kept
        return 0, {}

    def _state(
        self, layer: int, name: NodeType, results: Results, rows: Tensor | None
    ) -> tuple[bool, bool, _Shape | None]:
        """Return (whether all is there, whether there is nothing to be, what rows are like)."""
        if results.has_nothing(layer):
            return True, True, None
        done = self._done(results, layer, name, rows)
        return len(done) == self._readers[name].num_chunks, False, _shape(rows)

    @staticmethod
    def _shape_of(name: NodeType, everyone: list[Any]) -> _Shape | None:
        return next((one[name][2] for one in everyone if one[name][2] is not None), None)

    def _done(self, results: Results, layer: int, name: NodeType, rows: Tensor | None) -> set[int]:
        return set() if rows is None else results.finished(layer, rows, self._readers[name].bounds)

    # -- one layer of one type --------------------------------------------------------------------

    def _layer(
        self, index: int, name: NodeType, sources: Mapping[NodeType, RowSource], results: Results,
        file: ParquetRows | None, line: ProgressLine,
    ) -> Tensor | None:  # fmt: skip
        """Return the rows of a layer; None: it computes nothing for this type. Collective."""
        layer, reader, last = self._layers[index], self._readers[name], len(self._layers) - 1
        rows = results.existing(index, last=index == last)
        done = self._done(results, index, name, rows)
        if index == last and len(done) < reader.num_chunks:
            results.withdraw(index)
        line.skip(sum(stop - start for start, stop in map(reader.bounds, done)))
        nothing = results.has_nothing(index)
        for chunk in self._on_device(layer, reader, self._reads(layer, name, sources), done):
            # no collective calls here: the reader's thread makes its own at the same time
            found = self._checked(layer(chunk), chunk, layer)
            nothing = found is None
            if found is not None:
                if rows is None:
                    # the width is known with the first chunk only
                    rows = results.create(index, found.shape[1], found.dtype, last=index == last)
                rows[chunk.start : chunk.stop] = found
                # the digest is of what the file holds, in the dtype in which it is kept
                results.note(index, chunk.index, rows[chunk.start : chunk.stop])
                if file is not None and index == last:
                    # with the chunks before it that an earlier run computed: steps go up
                    file.advance(rows, chunk.stop)
            line.add(chunk.num_dst, f"layer {index + 1} of {last + 1}")
            del chunk, found  # what they hold is free before the next but one is read
            self._give_back()
        if nothing and not results.has_nothing(index):
            results.note_nothing(index)
        # also the point at which every rank has finished reading the layer before
        known = self._exchange.gather(_shape(rows), _Shape | None)
        shape = next((one for one in known if one is not None), None)
        if rows is None and shape is not None:  # this rank has no node of the type
            rows = results.create(index, shape[0], dtype_named(shape[1]), last=index == last)
        return rows

    def _give_back(self) -> None:
        self._chunks_since_freed += 1
        if self._chunks_since_freed >= _GIVE_BACK_EVERY:
            self._chunks_since_freed = 0
            give_back_freed()

    def _reads(self, layer: Layer, name: NodeType, sources: Mapping[NodeType, RowSource]) -> Reads:
        # sorted by text: a set's order is another one on each rank, and rows are exchanged norm by
        # norm
        norms = {norm for norm in layer.norms.values() if norm.edge_type[2] == name}
        degrees = {norm: self._degrees_of(norm, name) for norm in sorted(norms, key=str)}
        return Reads(sources, layer.weight, layer.attr, degrees)

    def _degrees_of(self, norm: Norm, name: NodeType) -> OwnedRows:
        if norm not in self._degrees:
            # structure() without edge features asks no other rank, so each may have another number
            # of chunks; the empty part is for a rank that has none
            reader, parts = self._readers[name], [torch.empty(0)]
            reads = Reads({name: OwnedRows(torch.empty(0))}, weight=norm.weighted)
            for index in range(reader.num_chunks):
                found = reader.structure(index, *reader.bounds(index), reads)
                edges = found.edges[norm.edge_type]
                num_rows = found.n_id[name].numel()
                parts.append(norm.degrees(edges.edge_index, edges.weights, num_rows, found.num_dst))
            self._degrees[norm] = OwnedRows(torch.cat(parts))
        return self._degrees[norm]

    def _on_device(
        self, layer: Layer, reader: ChunkReader, reads: Reads, done: set[int]
    ) -> Iterator[Chunk]:
        waiting: list[Chunk] = []  # their tensors are copied ahead

        def parts() -> Iterator[list[Tensor]]:
            for chunk in reader.read(reads, done):
                tensors: list[Tensor] = []
                # The prefetcher knows lists of tensors; a chunk waits here until its own come back,
                # in order.
                waiting.append(self._prepared(chunk, ids=layer.ids))
                waiting[-1].map(tensors.append)
                del chunk
                yield tensors
                del tensors

        # around the yield too: layers compute while this generator is suspended in it
        with torch.no_grad():
            for tensors in DevicePrefetcher(parts(), self._device):
                yield _filled(waiting.pop(0), tensors)
                del tensors

    def _prepared(self, chunk: Chunk, *, ids: bool) -> Chunk:
        """Return a chunk in the dtype of the layers, ready to be copied."""
        # rows may be kept in another dtype than that of the model's parameters
        x = {name: rows.to(self._compute_dtype) for name, rows in chunk.x.items()}
        chunk = replace(chunk, x=x, n_id=chunk.n_id if ids else {})
        return chunk.map(lambda t: t.pin_memory()) if self._device.type == "cuda" else chunk

    def _checked(self, found: Any, chunk: Chunk, layer: Layer) -> Tensor | None:
        if found is None and self._graph.is_heterogeneous:
            return None
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != chunk.num_dst:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"{layer.name} returned {shape} for {chunk.num_dst} destinations: it has to "
                "return [num_dst, width]"
            )
        if (self._kept_dtype or found.dtype) not in KEPT_DTYPES:
            raise ConfigError(f"{layer.name} returned {found.dtype}: choose dtype=torch.float32")
        # waits for the device, so that what the chunk holds there is free for the next one
        return found.detach().to("cpu", self._kept_dtype or found.dtype)


def _filled(chunk: Chunk, tensors: list[Tensor]) -> Chunk:
    there = iter(tensors)
    return chunk.map(lambda _: next(there))


def _shape(rows: Tensor | None) -> _Shape | None:
    return None if rows is None else (rows.shape[1], dtype_name(rows.dtype))


def _no_rows(shape: _Shape) -> Tensor:
    return torch.empty((0, shape[0]), dtype=dtype_named(shape[1]))
