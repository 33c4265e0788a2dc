"""`full_graph_inference`: every embedding once, layer by layer, in memory that a chunk needs."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.quantised import widened
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.dataset.view import PartitionView
from gigl_loader.device.prefetch import DevicePrefetcher
from gigl_loader.errors import ConfigError
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.chunks import Chunk, ChunkReader, Matrix
from gigl_loader.inference.graph import message_types
from gigl_loader.inference.layers import Layer, LayerFunction, degrees, layers_of
from gigl_loader.inference.parquet import check_parquet, write_parquet
from gigl_loader.inference.progress import ProgressLine
from gigl_loader.inference.results import Results, model_digest
from gigl_loader.inference.shares import NodeShares
from gigl_loader.memory.tensors import dtype_name, dtype_named

_SAMPLE_ROWS = 4096
_DTYPES = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class NodeEmbeddings:
    """What `full_graph_inference` computed on this rank."""

    ids: Tensor
    """``[num_own]`` int64, global ids, ascending."""
    values: Tensor
    """``[num_own, width]``, a row for each of them; in a mapped file where ``out`` was given."""
    path: Path | None
    """The file, ``.npy`` or ``.parquet``."""


def full_graph_inference(
    model_or_layers: torch.nn.Module | Sequence[LayerFunction],
    dataset: DistDataset,
    *,
    out: str | Path | None = None,
    batch_size: int = 8192,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    format: Literal["npy", "parquet"] = "npy",
    progress: bool | None = None,
    group: dist.ProcessGroup | None = None,
) -> NodeEmbeddings:
    """Compute the embedding of every node from all of its neighbours, layer by layer.

    For graphs and widths that `full_graph` has no memory for: a layer is computed in chunks of
    destination rows, and what it gives is written to a file before the next one reads it. All ranks
    call this together; rows of neighbours that other ranks own come by ``all_to_all``, chunk by
    chunk. The graph is homogeneous, and its edges go without weights and features.

    With ``out``, a run that was killed goes on where it was when it is started again in the same
    way: finished chunks are kept, if a digest says that they are whole.

    Args:
        model_or_layers: A `BasicGNN` of PyG in evaluation mode, with ``jk=None`` or ``"last"``. Or
            a list of callables ``(x_src, edge_index, num_dst) -> x_dst``, one for each layer: in
            ``x_src`` the ``num_dst`` destinations come first, ``edge_index`` counts its rows.
        dataset: This rank's partition. Ranks that hold the same one share its nodes.
        out: A folder; each rank writes ``part-RANK.npy`` and ``part-RANK.ids.npy``, or
            ``part-RANK.parquet``. Meanwhile it holds the layer before too. None: all stays in
            memory.
        batch_size: Destination rows of a chunk. Its in-neighbours have to fit in memory.
        device: Where layers compute; None: where the model's parameters are.
        dtype: Of what is kept of every layer: float16, float32 or float64; None: as computed.
        format: ``"parquet"``: columns ``id`` and ``embedding``, written when all is computed.
        progress: Write a line with rows per second to stderr, on rank 0; None: on a terminal.
        group: Process group of the ranks; None: the default one, or a single process.

    Raises:
        ConfigError: The model or graph does not fit, or ``out`` holds what another run computed.
        UsageError: The model is in training mode.
        PeerError: A rank ended.
    """
    layers = layers_of(model_or_layers)
    dataset = DistDataset.wrap(dataset)
    _check(dataset.view(), out, batch_size, dtype, format)
    first = next(iter(_parameters(model_or_layers)), torch.empty(0))
    run = _Run(
        dataset,
        RankExchange(group, "layers were computed"),
        batch_size,
        torch.device(device or first.device),
        first.dtype,
        dtype,
    )
    identity = {
        "model": model_digest(model_or_layers), "data": run.data_digest(), "batch_size": batch_size,
        "ranks": run.exchange.size, "layers": len(layers), "dtype": str(dtype),
    }  # fmt: skip
    folder = None if out is None else Path(out)
    results = Results(folder, run.exchange.rank, run.reader.own, identity)
    shown = run.exchange.rank == 0 and (sys.stderr.isatty() if progress is None else progress)
    try:
        values = run.compute(layers, results, shown=shown)
    finally:
        results.close()
    path = results.path()
    if format == "parquet":
        path = results.path(".parquet")
        assert path is not None
        write_parquet(path, run.reader.own, values, batch_size)
    return NodeEmbeddings(run.reader.own, values, path)


def _check(view: PartitionView, out: Any, batch_size: int, dtype: Any, format: str) -> None:
    if view.is_heterogeneous:
        raise ConfigError(
            "full_graph_inference computes homogeneous graphs; full_graph() computes heterogeneous "
            "ones"
        )
    if DEFAULT_HOMOGENEOUS_NODE_TYPE not in view.node_features:
        raise ConfigError("the dataset has no node features to start from")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size must be an integer above 0, got {batch_size!r}")
    if dtype is not None and dtype not in _DTYPES:
        raise ConfigError(f"dtype must be one of {_DTYPES} or None, got {dtype}")
    if format not in ("npy", "parquet"):
        raise ConfigError(f'format must be "npy" or "parquet", got {format!r}')
    if format == "parquet":
        check_parquet()
        if out is None:
            raise ConfigError('format="parquet" needs out=, the folder to write to')


def _parameters(model: Any) -> list[Tensor]:
    modules = [model] if isinstance(model, torch.nn.Module) else model
    return [p for m in modules if isinstance(m, torch.nn.Module) for p in m.parameters()]


class _Run:
    """One call of `full_graph_inference`."""

    def __init__(
        self, dataset: DistDataset, exchange: RankExchange, batch_size: int, device: torch.device,
        compute_dtype: torch.dtype, kept_dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        self.exchange = exchange
        self._view = dataset.view()
        self._device, self._compute_dtype, self._kept_dtype = device, compute_dtype, kept_dtype
        shares = NodeShares(self._view, exchange)
        (name,) = message_types(self._view).values()
        self.reader = ChunkReader(
            self._view.adjacency[name], DEFAULT_HOMOGENEOUS_NODE_TYPE, shares, exchange, batch_size
        )
        features = self._view.node_features[DEFAULT_HOMOGENEOUS_NODE_TYPE]
        values = widened(features.values, features.scales)
        self._features = Matrix(values, features.locate(self.reader.own))
        self._degrees: dict[bool, Tensor] = {}

    def data_digest(self) -> str:
        """Return what tells this graph from another, without reading all of it."""
        step = max(self.reader.own.numel() // _SAMPLE_ROWS, 1)
        places = torch.arange(0, self.reader.own.numel(), step)
        (adjacency,) = (self._view.adjacency[n] for n in message_types(self._view).values())
        edges = adjacency.indices
        sums = f"{edges.numel()} {int(edges.sum())} {int(edges[::997].sum())}"
        return f"{model_digest([_Holder(self._features.take(places))])} {sums}"

    def compute(self, layers: list[Layer], results: Results, *, shown: bool) -> Tensor:
        """Return the rows of the last layer."""
        last = len(layers) - 1
        first, rows = self._resume(results, last)
        line = ProgressLine(len(layers) * self.reader.own.numel(), shown=shown)
        line.skip(first * self.reader.own.numel())
        source = self._features if rows is None else Matrix(rows)
        for index in range(first, len(layers)):
            rows = self._layer(layers[index], index, last, source, results, line)
            if index > 0:  # read for the last time: all ranks have ended this layer
                results.forget(index - 1)
            source = Matrix(rows)
        line.end()
        assert rows is not None
        return rows

    def _resume(self, results: Results, last: int) -> tuple[int, Tensor | None]:
        """Return (the first layer to compute, the rows of the one before). Collective."""
        for layer in range(last, -1, -1):
            rows = results.existing(layer, last=layer == last)
            done = self._done(results, layer, rows)
            width = None if rows is None else rows.shape[1]
            whole = len(done) == self.reader.num_chunks
            known = self.exchange.gather((whole, width), tuple[bool, int | None])
            widths = [width for _, width in known if width is not None]
            if widths and all(whole for whole, _ in known):
                return layer + 1, torch.empty((0, widths[0])) if rows is None else rows
        return 0, None

    def _layer(
        self, layer: Layer, index: int, last: int, source: Matrix, results: Results,
        line: ProgressLine,
    ) -> Tensor:  # fmt: skip
        rows = results.existing(index, last=index == last)
        done = self._done(results, index, rows)
        for number in done:
            start, stop = self.reader.bounds(number)
            line.skip(stop - start)
        matrices = [source]
        if layer.with_degrees:
            matrices.append(Matrix(self._degrees_with(layer.self_loops)))
        for chunk in self._on_device(matrices, done):
            found = self._checked(layer(chunk), chunk, index)
            found = found.detach().to("cpu", self._kept_dtype or found.dtype)
            if rows is None:
                rows = results.create(index, found.shape[1], found.dtype, last=index == last)
            rows[chunk.start : chunk.stop] = found
            results.note(index, chunk.index, rows[chunk.start : chunk.stop])
            line.add(chunk.num_dst, f"layer {index + 1} of {last + 1}")
        # also the point at which every rank has finished reading the layer before
        shape = None if rows is None else (rows.shape[1], dtype_name(rows.dtype))
        known = self.exchange.gather(shape, tuple[int, str] | None)
        if rows is None:  # this rank has no node
            width, name = next((k for k in known if k is not None), (0, "float32"))
            rows = results.create(index, width, dtype_named(name), last=index == last)
        return rows

    def _done(self, results: Results, layer: int, rows: Tensor | None) -> set[int]:
        return set() if rows is None else results.finished(layer, rows, self.reader.bounds)

    def _on_device(self, matrices: list[Matrix], done: set[int]) -> Any:
        def parts() -> Any:
            for chunk in self.reader.read(matrices, done):
                x = chunk.x.to(self._compute_dtype)
                yield (
                    (chunk.index, chunk.start, chunk.stop),
                    [
                        t.pin_memory() if self._device.type == "cuda" else t
                        for t in (x, chunk.edge_index, chunk.indptr, *chunk.extra)
                    ],
                )

        with torch.no_grad():
            for (index, start, stop), tensors in DevicePrefetcher(parts(), self._device):
                x, edge_index, indptr, *extra = tensors
                yield Chunk(index, start, stop, x, edge_index, indptr, extra)

    def _checked(self, found: Any, chunk: Chunk, index: int) -> Tensor:
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != chunk.num_dst:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(
                f"layer {index} returned {shape} for {chunk.num_dst} destinations: it has to "
                "return [num_dst, width]"
            )
        if (self._kept_dtype or found.dtype) not in _DTYPES:
            raise ConfigError(f"layer {index} returned {found.dtype}: choose dtype=torch.float32")
        return found

    def _degrees_with(self, loops: bool) -> Tensor:
        if loops not in self._degrees:
            parts = [torch.empty(0)]
            for index in range(self.reader.num_chunks):
                start, stop = self.reader.bounds(index)
                edge_index, _, nodes = self.reader.structure(start, stop)
                parts.append(degrees(edge_index, nodes.numel(), stop - start, loops=loops))
            self._degrees[loops] = torch.cat(parts)
        return self._degrees[loops]


class _Holder(torch.nn.Module):
    """A tensor as a module, to take its digest."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)
