"""`full_graph_inference`: every embedding once, layer by layer, in the memory of one chunk."""

import logging
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from urllib.parse import quote

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.batch.device.prefetch import DevicePrefetcher
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.inference.graph_sources import (
    GraphSource,
    KeptTensors,
    PartitionGraph,
    StoredGraph,
)
from gigl_loader.inference.layers import (
    Chunk,
    ChunkReader,
    Layer,
    LayerFunction,
    LayerInputs,
    layers_of,
)
from gigl_loader.inference.modules import Norm
from gigl_loader.inference.rank_rows import MappedRanks, OwnedRows, RowSource
from gigl_loader.inference.results import (
    Destination,
    ParquetRows,
    Results,
    TableIds,
    check_parquet,
    model_digest,
)
from gigl_loader.inference.uploaded_layers import LayerUploads
from gigl_loader.runtime.memory.tensors import (
    dtype_name,
    dtype_named,
    each_tensor,
    give_back_freed,
    share_tensor,
)
from gigl_loader.runtime.progress import ProgressLine
from gigl_loader.runtime.ranks.collectives import RankExchange, report_failure_to_ranks

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 8 << 20
"""Rows that a chunk reads: the previous chunk, the next one and exchanged rows take it, too."""
# At least: with fewer rows, a chunk's fixed costs (a round of exchanges, a call of the layer) would
# dominate. At most: with narrow features, a chunk's edges take more memory than the rows that
# _CHUNK_BYTES counts.
_CHUNK_ROWS = (256, 8192)


@dataclass(frozen=True)
class NodeEmbeddings:
    """Embeddings that `full_graph_inference` computed on this rank."""

    ids: Tensor
    """``[num_own]`` int64, global ids, ascending."""
    values: Tensor
    """``[num_own, width]``, one row per id; in a mapped file if ``out`` was given."""
    path: Path | str | None
    """The file, ``.npy`` or ``.parquet``; its URL in object storage."""

    def __repr__(self) -> str:
        where = "" if self.path is None else f", {str(self.path)!r}"
        nodes, width = self.values.shape
        return f"NodeEmbeddings(nodes={nodes}, width={width}, {self.values.dtype}{where})"


if TYPE_CHECKING:  # see `gigl_loader.dataset.one_or_by_type`
    Embeddings: TypeAlias = Any
else:
    Embeddings = NodeEmbeddings | dict[NodeType, NodeEmbeddings]


def full_graph_inference(
    model_or_layers: torch.nn.Module | Sequence[LayerFunction],
    dataset: DistDataset | RemoteDistDataset,
    *,
    out: str | Path | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    format: Literal["npy", "parquet"] = "npy",
    edge_weight: bool | None = None,
    edge_attr: bool = False,
    progress: bool | None = None,
    group: dist.ProcessGroup | None = None,
) -> Embeddings:
    """Compute the embedding of every node from all of its neighbours, layer by layer.

    For graphs and widths that do not fit into memory with `full_graph`. Each layer is computed in
    chunks of destination rows, and written to a file before the next layer reads it. All ranks call
    this together. Those of one machine read each other's rows in place; else they exchange rows of
    neighbours by ``all_to_all``, chunk by chunk. With a graph store, the servers send edges and
    features, and each compute process computes a range of the nodes. It keeps the edges for the
    layers after the first one: in memory, or with ``out`` in a file there that ends with the
    process.

    With ``out``, a killed run continues when it is started again in the same way. Finished chunks
    are kept if their digest matches; at a URL, a run on another machine has the finished layers.

    Args:
        model_or_layers: PyG's ``BasicGNN`` in evaluation mode, with ``jk=None`` or ``"last"``, and
            without a ``forward`` of its own. Or a list, with an item for each layer: layers of PyG
            (``HeteroConv`` on a heterogeneous graph), or callables ``(x_src, edge_index, num_dst)
            -> x_dst``. ``x_src`` has the ``num_dst`` destinations first, and ``edge_index`` counts
            its rows. On a heterogeneous graph all of these are dicts by type, with the destinations
            of one type at a time. A callable may also have the parameters ``edge_weight``,
            ``edge_attr`` and ``n_id`` (global ids of the rows of ``x_src``).
        dataset: This rank's partition; ranks with the same one share its nodes. Or a graph store.
        out: A folder, or its URL (``s3://bucket/folder``, ``gs://``, ``az://``), to which results
            are uploaded from the cache of this machine when all ranks have theirs, and
            ``_manifest.json`` last. Each rank writes ``part-RANK.npy`` and
            ``part-RANK.ids.npy``, or ``part-RANK.parquet``; on a heterogeneous graph in a folder
            for each node type. Only complete files have these names. Files that begin with ``_``
            serve a later run, and may be deleted. During the run it also holds the layer before.
            None: all stays in memory.
        batch_size: Destination rows of a chunk, whose in-neighbours have to fit in memory about
            five times. None: as many as have 8 MiB of features, by the mean number of neighbours.
        device: Device of the layers; None: that of the model's parameters.
        dtype: Type of the stored rows of every layer: float16, float32 or float64; None: as
            computed.
        format: ``"parquet"``: the ids of the nodes' table, under the name that their column has
            there (``id``, equal to ``node``, if the graph was not made from tables; missing with a
            graph store), ``node`` (global id in the dataset) and ``embedding``. If the table's
            column has one of these two names, ours has a ``_`` more.
        edge_weight: Whether PyG's layers get the graph's edge weights; None: no, with a warning if
            there are weights and a layer takes them.
        edge_attr: Whether PyG's layers get the graph's edge features.
        progress: Write a line with rows per second to stderr, on rank 0; None: on a terminal.
        group: Process group of the ranks; None: the default one, or a single process.

    Returns:
        This rank's embeddings; on a heterogeneous graph by node type, for the types that the last
        layer computes.

    Raises:
        ConfigError: The model or graph does not fit, or ``out`` holds results of another run; a URL
            with complete results is refused.
        ObjectStorageError: Object storage failed; called again, only the upload is repeated.
        UsageError: The model is in training mode.
        PeerError: A rank ended, or a storage server.
    """
    _check(out, batch_size, dtype, format)
    with report_failure_to_ranks("could not begin its inference", group):
        destination = Destination(out)
    exchange = RankExchange(group, "layers were computed")
    # arguments were checked before: from here on ranks wait for each other
    graph = _graph(dataset, exchange)
    _check_graph(graph, edge_weight, edge_attr)
    _check_rows(graph, dataset)
    # each rank by its own partition: sizes may differ, see ChunkReader.read
    batch_size = batch_size or _chunk_rows(graph)
    layers = layers_of(model_or_layers, graph, (bool(edge_weight), edge_attr))
    if edge_weight is None and exchange.rank == 0:
        _warn_of_weights(model_or_layers, graph)
    # without parameters, torch's defaults: float32 on the CPU
    first = next(iter(_parameters(model_or_layers)), torch.empty(0, device="cpu"))
    run = LayerRun(
        graph,
        exchange,
        layers,
        batch_size,
        torch.device(device or first.device),
        first.dtype,
        dtype,
    )
    # Everything that determines a row's bits and position. Functions only count by their number:
    # their code cannot be compared.
    identity = {
        "model": model_digest(model_or_layers),
        "data": graph.digest(),
        "batch_size": batch_size,
        "ranks": exchange.size,
        "layers": len(layers),
        "dtype": str(dtype),
        "edges": [bool(edge_weight), edge_attr],
    }
    shown = exchange.rank == 0 and (sys.stderr.isatty() if progress is None else progress)
    line = ProgressLine(len(layers) * run.num_rows, shown=shown)
    ending = f".{format}"
    with ExitStack() as stack:
        # Some ranks may have a part of another run, and others none.
        with report_failure_to_ranks("could not begin its inference", group):
            folder = destination.folder
            results = _results(graph, exchange.rank, folder, identity, ending, stack)
            # After digest() and bytes_with_neighbors(), which fetched samples of nodes: from now on
            # edges are kept by the first id of a range.
            if isinstance(graph, StoredGraph):
                _keep_edges(graph, layers, folder, stack)
            files = {}
            if format == "parquet":
                files = _parquet_files(results, graph, dataset, batch_size, stack)
        uploads = LayerUploads.of(destination, exchange, group)
        values = run.compute(results, files, line, uploads)
    destination.publish(exchange, group)
    embeddings = {
        name: NodeEmbeddings(
            graph.owners.own_ids[name], rows, destination.name_of(results[name].path())
        )
        for name, rows in values.items()
    }
    return embeddings if graph.is_heterogeneous else embeddings[DEFAULT_HOMOGENEOUS_NODE_TYPE]


def _graph(dataset: Any, exchange: RankExchange) -> GraphSource:
    if isinstance(dataset, RemoteDistDataset):
        return StoredGraph(dataset, exchange)
    return PartitionGraph(DistDataset.wrap(dataset), exchange)


def _check(out: Any, batch_size: int | None, dtype: Any, format: str) -> None:
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ConfigError(f"batch_size must be an integer above 0, got {batch_size!r}")
    if dtype is not None and dtype not in KEPT_DTYPES:
        raise ConfigError(f"dtype must be one of {KEPT_DTYPES} or None, got {dtype}")
    if format not in ("npy", "parquet"):
        raise ConfigError(f'format must be "npy" or "parquet", got {format!r}')
    if format == "parquet":
        check_parquet()
        if out is None:
            raise ConfigError('format="parquet" needs out=, the folder to write to')


def _chunk_rows(graph: GraphSource) -> int:
    least, most = _CHUNK_ROWS
    return int(min(max(_CHUNK_BYTES / graph.bytes_with_neighbors(), least), most))


def _check_graph(graph: GraphSource, edge_weight: bool | None, edge_attr: bool) -> None:
    if not graph.is_heterogeneous and not graph.features():
        raise ConfigError("the dataset has no node features to start from")
    for name, wanted, is_held in (
        ("edge_weight", edge_weight, graph.weighted),
        ("edge_attr", edge_attr, graph.with_attr),
    ):
        if wanted and not is_held:
            raise ConfigError(f"{name}=True, and the graph's edges have none")


def _check_rows(graph: GraphSource, dataset: Any) -> None:
    """Refuse types whose rows are of mixed types alone: layers start from matrices."""
    remote = isinstance(dataset, RemoteDistDataset)
    schema = dataset.fetch_schema() if remote else DistDataset.wrap(dataset).schema
    framed = {name for name in graph.owners.own_ids if name in schema.frames}
    if alone := sorted(framed - set(graph.features())):
        raise ConfigError(
            f"full_graph_inference starts from x, and nodes of {alone} have rows of mixed types "
            "(tf) instead: encode them first, and build a dataset with the vectors as x; or run "
            "the model in full_graph(model, dataset), whose data have tf"
        )


def _warn_of_weights(model: Any, graph: GraphSource) -> None:
    if graph.weighted and getattr(model, "supports_edge_weight", False):
        logger.warning(
            "the graph's edges have weights and %s takes them, but they are not read: give "
            "full_graph_inference edge_weight=True, or False to say so",
            type(model).__name__,
        )


def _parameters(model: Any) -> list[Tensor]:
    modules = [model] if isinstance(model, torch.nn.Module) else model
    return [p for m in modules if isinstance(m, torch.nn.Module) for p in m.parameters()]


def _results(
    graph: GraphSource,
    rank: int,
    out: Path | None,
    identity: dict[str, Any],
    ending: str,
    stack: ExitStack,
) -> dict[NodeType, Results]:
    """Return the folder for the rows of each type; one per type if there are types."""
    results = {}
    for name, ids in sorted(graph.owners.own_ids.items()):
        folder = out
        if folder is not None and graph.is_heterogeneous:
            # the name of a type may contain a slash
            folder = folder / quote(name, safe="")
        results[name] = Results(folder, rank, ids, identity, ending)
        stack.callback(results[name].close)
    return results


def _keep_edges(
    graph: StoredGraph, layers: list[Layer], folder: Path | None, stack: ExitStack
) -> None:
    norms = {norm for layer in layers for norm in layer.norms.values()}
    if len(layers) + len(norms) < 2:  # edges are read once
        return
    kept = KeptTensors(folder)
    stack.callback(kept.close)
    # the inputs of all layers are fetched with the first one, or edges would be fetched twice
    weight = any(layer.weight for layer in layers) or any(norm.weighted for norm in norms)
    graph.keep_edges(kept, weight=weight, attr=any(layer.attr for layer in layers))


def _parquet_files(
    results: Mapping[NodeType, Results],
    graph: GraphSource,
    dataset: Any,
    batch_size: int,
    stack: ExitStack,
) -> dict[NodeType, ParquetRows]:
    files = {}
    for name, result in results.items():
        path, draft = result.path(), result.draft
        assert path is not None
        assert draft is not None
        ids = graph.owners.own_ids[name]
        files[name] = ParquetRows(path, draft, ids, batch_size, _original_ids(dataset, name))
        stack.callback(files[name].close)
    return files


def _original_ids(dataset: Any, node_type: NodeType) -> TableIds | None:
    """Return the ids of the nodes' table; None: not known here."""
    if isinstance(dataset, RemoteDistDataset):
        return None
    local = DistDataset.wrap(dataset)
    if not local.has_original_ids:
        return TableIds("id", lambda ids: ids.numpy())
    column = local.original_id_column(node_type)
    return TableIds(column, partial(local.to_original, node_type=node_type))


# --- one call: layer by layer, type by type, chunk by chunk ---------------------------------------

KEPT_DTYPES = (torch.float16, torch.float32, torch.float64)
"""The dtypes in which rows may be kept."""

_GIVE_BACK_EVERY = 16
"""Interval in chunks for returning freed memory to the kernel: small arrays are spread over the
heaps of two threads, and malloc kept 25 MiB of them, more than a whole chunk."""

_Shape = tuple[int, str]
"""Width and dtype of rows."""


class _Download:
    """A copy of ``rows`` on the host, under way.

    Args:
        rows: On the device of the layers, written by its current stream.
        dtype: Type of the copy.
    """

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        rows = rows.to(dtype)  # on the device: what is copied is converted there
        self._event: Any = None
        if rows.device.type != "cuda":
            self._host = rows.to("cpu")
            return
        self._host = torch.empty(rows.shape, dtype=dtype, pin_memory=True, device="cpu")
        self._host.copy_(rows, non_blocking=True)
        self._event = torch.cuda.Event(blocking=True)  # a host that waits for it sleeps
        self._event.record(torch.cuda.current_stream(rows.device))

    def come(self) -> Tensor:
        """Return the copy, once it is complete."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


def _num_late(device: torch.device) -> int:
    """Return how many chunks are computed while the copy of an output is under way."""
    return int(device.type == "cuda")


@dataclass(frozen=True)
class _Output:
    """The rows that a layer gives for one chunk."""

    chunk: int
    start: int
    stop: int
    rows: _Download | None
    """None: the layer has none for this type."""


class LayerRun:
    """Computes layers over a graph.

    Args:
        graph: Structure and features.
        exchange: The ranks.
        layers: In order.
        batch_size: Destination rows of a chunk.
        device: The device of the layers.
        compute_dtype: The dtype of their computation.
        kept_dtype: The dtype of stored rows; None: as computed.
    """

    def __init__(
        self,
        graph: GraphSource,
        exchange: RankExchange,
        layers: list[Layer],
        batch_size: int,
        device: torch.device,
        compute_dtype: torch.dtype,
        kept_dtype: torch.dtype | None,
    ) -> None:
        self._graph, self._exchange, self._layers = graph, exchange, layers
        self._device, self._compute_dtype, self._kept_dtype = device, compute_dtype, kept_dtype
        # sorted, like all loops over types here: reading is collective
        self._readers = {
            name: ChunkReader(graph, name, exchange, batch_size)
            for name in sorted(graph.owners.own_ids)
        }
        self._ranks = MappedRanks(graph.owners, exchange)
        self._degrees: dict[Norm, RowSource] = {}
        self._chunks_since_freed = 0

    @property
    def num_rows(self) -> int:
        """Nodes of this rank, of all types."""
        return sum(reader.own_ids.numel() for reader in self._readers.values())

    def compute(
        self,
        results: Mapping[NodeType, Results],
        files: Mapping[NodeType, ParquetRows],
        line: ProgressLine,
        uploads: LayerUploads | None = None,
    ) -> dict[NodeType, Tensor]:
        """Return the rows of the last layer, by type. Collective.

        Args:
            results: Storage of the rows, by type.
            files: Parquet files for the last layer, by type.
            line: The display of progress.
            uploads: Finished layers in object storage; None: there are none.
        """
        give_back_freed()  # from all earlier work
        # a layer is continued only if all ranks have the whole previous one, of all types
        first, computed = self._resume(results, uploads)
        last = len(self._layers) - 1
        line.skip(first * self.num_rows)
        if first:  # the layer before is in the files of an earlier run
            self._keep(first - 1, results, uploads)  # the run before may have ended before it did
        for index in range(first, last + 1):
            # only here: all types of a layer read the layer before
            before = {n: results[n].offered(index - 1, rows) for n, rows in computed.items()}
            sources = self._ranks.map(
                {name: OwnedRows(rows) for name, rows in before.items()}
                if index
                else self._graph.features()
            )
            computed = {}
            for name in self._readers:
                rows = self._layer(index, name, sources, results[name], files.get(name), line)
                if rows is not None:
                    computed[name] = rows
            self._keep(index, results, uploads)
        for name, rows in computed.items():
            if name in files:
                files[name].finish(rows)
        # after all ranks have ended the last layer: `_layer` ends with an exchange between them
        for result in results.values():
            result.finish(last)
        line.end()
        return computed

    def _keep(
        self, layer: int, results: Mapping[NodeType, Results], uploads: LayerUploads | None
    ) -> None:
        """Keep a finished layer in place of the one before. Collective."""
        if uploads is not None and layer < len(self._layers) - 1:
            uploads.keep(layer, results.values())
        for result in results.values():  # all ranks have finished and no longer read it
            result.forget(layer - 1)

    # -- results of an earlier run -----------------------------------------------------------------

    def _resume(
        self, results: Mapping[NodeType, Results], uploads: LayerUploads | None
    ) -> tuple[int, dict[NodeType, Tensor]]:
        """Return (the first layer to compute, the rows of the previous one). Collective."""
        last = len(self._layers) - 1
        # The last one first: files of earlier layers were removed. Every rank decides from the
        # values of all, so that they begin with the same layer.
        for layer in range(last, -1, -1):
            rows, state = self._found(layer, results)
            if uploads is not None and layer < last:
                lacking = [results[name] for name, (whole, _, _) in state.items() if not whole]
                if uploads.fetch(layer, lacking):
                    rows, state = self._found(layer, results)
            everyone = self._exchange.gather(state, dict[str, tuple[bool, bool, _Shape | None]])
            if all(whole for of_rank in everyone for whole, _, _ in of_rank.values()):
                shapes = {name: self._shape_of(name, everyone) for name in results}
                kept = {
                    # this rank has no node of a type, but others have rows of it
                    name: _no_rows(shape) if (own_rows := rows[name]) is None else own_rows
                    for name, shape in shapes.items()
                    if shape is not None
                }
                if kept:
                    return layer + 1, kept
        return 0, {}

    def _found(
        self, layer: int, results: Mapping[NodeType, Results]
    ) -> tuple[dict[NodeType, Tensor | None], dict[NodeType, tuple[bool, bool, _Shape | None]]]:
        """Return a layer's rows on this machine and their states, see `_state`, by type."""
        is_last = layer == len(self._layers) - 1
        rows = {name: result.existing(layer, last=is_last) for name, result in results.items()}
        states = {name: self._state(layer, name, results[name], rows[name]) for name in results}
        return rows, states

    def _state(
        self, layer: int, name: NodeType, results: Results, rows: Tensor | None
    ) -> tuple[bool, bool, _Shape | None]:
        """Return (whether all is there, whether nothing is expected, shape and type of rows)."""
        if results.has_nothing(layer):
            return True, True, None
        done = self._done(results, layer, name, rows)
        return len(done) == self._readers[name].num_chunks, False, _shape(rows)

    @staticmethod
    def _shape_of(name: NodeType, everyone: list[Any]) -> _Shape | None:
        return next((state[name][2] for state in everyone if state[name][2] is not None), None)

    def _done(self, results: Results, layer: int, name: NodeType, rows: Tensor | None) -> set[int]:
        return set() if rows is None else results.finished(layer, rows, self._readers[name].bounds)

    # -- one layer of one type --------------------------------------------------------------------

    def _layer(
        self,
        index: int,
        name: NodeType,
        sources: Mapping[NodeType, RowSource],
        results: Results,
        file: ParquetRows | None,
        line: ProgressLine,
    ) -> Tensor | None:
        """Return the rows of a layer; None: it computes nothing for this type. Collective."""
        layer, reader, last = self._layers[index], self._readers[name], len(self._layers) - 1
        rows = results.existing(index, last=index == last)
        done = self._done(results, index, name, rows)
        if index == last and len(done) < reader.num_chunks:
            results.withdraw(index)
        line.skip(sum(stop - start for start, stop in map(reader.bounds, done)))
        nothing = results.has_nothing(index)
        for output in self._outputs(layer, reader, self._reads(layer, name, sources), done):
            # no collective calls here: the reader's thread makes its own at the same time
            nothing = output.rows is None
            if output.rows is not None:
                values = output.rows.come()
                if rows is None:
                    # the width is known with the first chunk only
                    rows = results.create(index, values.shape[1], values.dtype, last=index == last)
                rows[output.start : output.stop] = values
                # the digest is of the bytes in the file, in the stored dtype
                results.note(index, output.chunk, rows[output.start : output.stop])
                if file is not None and index == last:
                    # including the chunks that an earlier run computed: steps go up
                    file.advance(rows, output.stop)
                del values
            line.add(output.stop - output.start, f"layer {index + 1} of {last + 1}")
            del output  # frees its memory before the read after next
            self._give_back()
        if nothing and not results.has_nothing(index):
            results.note_nothing(index)
        # also the point at which every rank has finished reading the layer before
        known = self._exchange.gather(_shape(rows), _Shape | None)
        shape = next((of_rank for of_rank in known if of_rank is not None), None)
        if rows is None and shape is not None:  # this rank has no node of the type
            rows = results.create(index, shape[0], dtype_named(shape[1]), last=index == last)
        return rows

    def _give_back(self) -> None:
        self._chunks_since_freed += 1
        if self._chunks_since_freed >= _GIVE_BACK_EVERY:
            self._chunks_since_freed = 0
            give_back_freed()

    def _reads(
        self, layer: Layer, name: NodeType, sources: Mapping[NodeType, RowSource]
    ) -> LayerInputs:
        # sorted by text: the order of a set differs between ranks, and rows are exchanged norm by
        # norm
        norms = {norm for norm in layer.norms.values() if norm.edge_type[2] == name}
        degrees = {norm: self._degrees_of(norm, name) for norm in sorted(norms, key=str)}
        return LayerInputs(sources, layer.weight, layer.attr, degrees)

    def _degrees_of(self, norm: Norm, name: NodeType) -> RowSource:
        if norm not in self._degrees:
            # structure() without edge features sends no request, so each rank may have another
            # number of chunks; the empty part is for a rank without any
            reader, parts = self._readers[name], [torch.empty(0, device="cpu")]
            reads = LayerInputs(
                {name: OwnedRows(torch.empty(0, device="cpu"))}, weight=norm.weighted
            )
            for index in range(reader.num_chunks):
                chunk = reader.structure(index, *reader.bounds(index), reads)
                edges = chunk.edges[norm.edge_type]
                num_rows = chunk.n_id[name].numel()
                parts.append(norm.degrees(edges.edge_index, edges.weights, num_rows, chunk.num_dst))
            known = self._ranks.map({name: OwnedRows(share_tensor(torch.cat(parts)))})
            self._degrees[norm] = known[name]
        return self._degrees[norm]

    def _outputs(
        self, layer: Layer, reader: ChunkReader, reads: LayerInputs, done: set[int]
    ) -> Iterator[_Output]:
        """Yield the outputs of chunks, late ones while the next chunk is computed."""
        late: deque[_Output] = deque()
        for chunk in self._on_device(layer, reader, reads, done):
            rows = self._checked(layer(chunk), chunk, layer)
            copied = None if rows is None else _Download(rows, self._kept_dtype or rows.dtype)
            late.append(_Output(chunk.index, chunk.start, chunk.stop, copied))
            del chunk, rows, copied
            while len(late) > _num_late(self._device):
                yield late.popleft()
        yield from late

    def _on_device(
        self, layer: Layer, reader: ChunkReader, reads: LayerInputs, done: set[int]
    ) -> Iterator[Chunk]:
        waiting: list[Chunk] = []  # their tensors are copied ahead

        def parts() -> Iterator[list[Tensor]]:
            for chunk in reader.read(reads, done):
                tensors: list[Tensor] = []
                # The prefetcher takes lists of tensors; a chunk waits here until its own come back,
                # in order.
                waiting.append(self._prepared(chunk, ids=layer.ids))
                each_tensor(waiting[-1], tensors.append)
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
        pin = self._device.type == "cuda"
        return cast("Chunk", each_tensor(chunk, Tensor.pin_memory) if pin else chunk)

    def _checked(self, output: Any, chunk: Chunk, layer: Layer) -> Tensor | None:
        if output is None and self._graph.is_heterogeneous:
            return None
        if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != chunk.num_dst:
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ConfigError(
                f"{layer.name} returned {shape} for {chunk.num_dst} destinations: it has to "
                "return [num_dst, width]"
            )
        if (self._kept_dtype or output.dtype) not in KEPT_DTYPES:
            raise ConfigError(f"{layer.name} returned {output.dtype}: choose dtype=torch.float32")
        return output.detach()


def _filled(chunk: Chunk, tensors: list[Tensor]) -> Chunk:
    replacements = iter(tensors)
    return cast("Chunk", each_tensor(chunk, lambda _: next(replacements)))


def _shape(rows: Tensor | None) -> _Shape | None:
    return None if rows is None else (rows.shape[1], dtype_name(rows.dtype))


def _no_rows(shape: _Shape) -> Tensor:
    return torch.empty((0, shape[0]), dtype=dtype_named(shape[1]), device="cpu")
