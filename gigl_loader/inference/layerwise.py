"""`full_graph_inference`: every embedding once, layer by layer, in memory that a chunk needs."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.progress import ProgressLine
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.exchange import RankExchange
from gigl_loader.inference.kept import KeptTensors
from gigl_loader.inference.layers import Layer, LayerFunction, layers_of
from gigl_loader.inference.parquet import ParquetRows, ToOriginal, check_parquet
from gigl_loader.inference.results import Results, model_digest
from gigl_loader.inference.run import KEPT_DTYPES, LayerRun
from gigl_loader.inference.sources import GraphSource, PartitionGraph, StoredGraph
from gigl_loader.remote.dataset import RemoteDistDataset

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 8 << 20
"""Rows that a chunk reads: the chunk before, the next one and what is exchanged take that, too."""
# At least: a chunk's fixed costs (a round of exchanges, a call of the layer) would outweigh fewer
# rows. At most: where features are narrow, a chunk's edges take more memory than the rows that
# _CHUNK_BYTES counts.
_CHUNK_ROWS = (256, 8192)


@dataclass(frozen=True)
class NodeEmbeddings:
    """Embeddings that `full_graph_inference` computed on this rank."""

    ids: Tensor
    """``[num_own]`` int64, global ids, ascending."""
    values: Tensor
    """``[num_own, width]``, a row for each of them; in a mapped file where ``out`` was given."""
    path: Path | None
    """The file, ``.npy`` or ``.parquet``."""


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
) -> NodeEmbeddings | dict[NodeType, NodeEmbeddings]:
    """Compute the embedding of every node from all of its neighbours, layer by layer.

    For graphs and widths that `full_graph` has no memory for: a layer is computed in chunks of
    destination rows, and what it gives is written to a file before the next one reads it. All ranks
    call this together; rows of neighbours that other ranks computed come by ``all_to_all``, chunk
    by chunk. Of a graph store, the servers send edges and features, and each compute process
    computes a range of the nodes; it keeps the edges that came for the layers after the first one,
    in memory, or with ``out`` in a file there that is gone with the process.

    With ``out``, a run that was killed goes on where it was when it is started again in the same
    way: finished chunks are kept, if a digest says that they are whole.

    Args:
        model_or_layers: A `BasicGNN` of PyG in evaluation mode, with ``jk=None`` or ``"last"``. Or
            a list, with an item for each layer: layers of PyG (``HeteroConv`` on a heterogeneous
            graph), or callables ``(x_src, edge_index, num_dst) -> x_dst``: in ``x_src`` the
            ``num_dst`` destinations come first, ``edge_index`` counts its rows. On a heterogeneous
            graph all of these are dicts by type, with the destinations of one type at a time. A
            callable that has parameters named ``edge_weight``, ``edge_attr`` or ``n_id`` (global
            ids of the rows of ``x_src``) is given these, too.
        dataset: This rank's partition; ranks that hold the same one share its nodes. Or a graph
            store.
        out: A folder; each rank writes ``part-RANK.npy`` and ``part-RANK.ids.npy``, or
            ``part-RANK.parquet``; on a heterogeneous graph in a folder for each node type. Files
            have these names when they are complete; what begins with ``_`` is of use to a run that
            goes on, and can be removed. Meanwhile it holds the layer before too. None: all stays in
            memory.
        batch_size: Destination rows of a chunk. Its in-neighbours have to fit in memory about five
            times; None: what makes that 8 MiB for the features, by the mean number of neighbours.
        device: Where layers compute; None: where the model's parameters are.
        dtype: Of what is kept of every layer: float16, float32 or float64; None: as computed.
        format: ``"parquet"``: columns ``id`` (as in the tables that the graph was made of, else
            the same as ``node``; of a graph store, which does not tell, left out), ``node`` (global
            id in the dataset) and ``embedding``, written as they are computed.
        edge_weight: Give layers of PyG that take them the graph's edge weights; None: no, with a
            warning where there are some and a layer takes them.
        edge_attr: Give layers of PyG that take them the graph's edge features.
        progress: Write a line with rows per second to stderr, on rank 0; None: on a terminal.
        group: Process group of the ranks; None: the default one, or a single process.

    Returns:
        This rank's embeddings; on a heterogeneous graph by node type, of those that the last layer
        computes.

    Raises:
        ConfigError: The model or graph does not fit, or ``out`` holds what another run computed.
        UsageError: The model is in training mode.
        PeerError: A rank ended, or a storage server.
    """
    _check(out, batch_size, dtype, format)
    exchange = RankExchange(group, "layers were computed")
    # arguments were checked before: from here on ranks wait for each other
    graph = _graph(dataset, exchange)
    _check_graph(graph, edge_weight, edge_attr)
    # each rank by its own partition: sizes may differ, see ChunkReader.read
    batch_size = batch_size or _chunk_rows(graph)
    layers = layers_of(model_or_layers, graph, (bool(edge_weight), edge_attr))
    if edge_weight is None and exchange.rank == 0:
        _warn_of_weights(model_or_layers, graph)
    # without parameters: as torch.empty makes it, float32 on the CPU
    first = next(iter(_parameters(model_or_layers)), torch.empty(0))
    run = LayerRun(
        graph, exchange, layers, batch_size, torch.device(device or first.device), first.dtype,
        dtype,
    )  # fmt: skip
    # All that decides a row's bits and where it stands. Functions count by their number only: what
    # they do cannot be told.
    identity = {
        "model": model_digest(model_or_layers), "data": graph.digest(), "batch_size": batch_size,
        "ranks": exchange.size, "layers": len(layers), "dtype": str(dtype),
        "edges": [bool(edge_weight), edge_attr],
    }  # fmt: skip
    shown = exchange.rank == 0 and (sys.stderr.isatty() if progress is None else progress)
    line = ProgressLine(len(layers) * run.num_rows, shown=shown)
    ending = f".{format}"
    with ExitStack() as stack:
        results = _results(graph, exchange.rank, out, identity, ending, stack)
        # After digest() and bytes_per_node(), which asked for samples of nodes: from now on edges
        # are kept by the first id of a range.
        if isinstance(graph, StoredGraph):
            _keep_edges(graph, layers, out, stack)
        files = {}
        if format == "parquet":
            files = _parquet_files(results, graph, dataset, batch_size, stack)
        values = run.compute(results, files, line)
    found = {
        name: NodeEmbeddings(graph.owners.own[name], rows, results[name].path())
        for name, rows in values.items()
    }
    return found if graph.is_heterogeneous else found[DEFAULT_HOMOGENEOUS_NODE_TYPE]


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
    return int(min(max(_CHUNK_BYTES / graph.bytes_per_node(), least), most))


def _check_graph(graph: GraphSource, edge_weight: bool | None, edge_attr: bool) -> None:
    if not graph.is_heterogeneous and not graph.features():
        raise ConfigError("the dataset has no node features to start from")
    for name, wanted, there in (
        ("edge_weight", edge_weight, graph.weighted), ("edge_attr", edge_attr, graph.with_attr)
    ):  # fmt: skip
        if wanted and not there:
            raise ConfigError(f"{name}=True, and the graph's edges have none")


def _warn_of_weights(model: Any, graph: GraphSource) -> None:
    if graph.weighted and getattr(model, "supports_edge_weight", False):
        logger.warning(
            "the graph's edges have weights and %s takes them, but they are not read: give "
            "full_graph_inference edge_weight=True, or False to say so", type(model).__name__,
        )  # fmt: skip


def _parameters(model: Any) -> list[Tensor]:
    modules = [model] if isinstance(model, torch.nn.Module) else model
    return [p for m in modules if isinstance(m, torch.nn.Module) for p in m.parameters()]


def _results(
    graph: GraphSource,
    rank: int,
    out: Any,
    identity: dict[str, Any],
    ending: str,
    stack: ExitStack,
) -> dict[NodeType, Results]:
    """Return where rows of each type go; a folder for each where there are types."""
    found = {}
    for name, own in sorted(graph.owners.own.items()):
        folder = None if out is None else Path(out)
        if folder is not None and graph.is_heterogeneous:
            # a type's name may have a slash in it
            folder = folder / quote(name, safe="")
        found[name] = Results(folder, rank, own, identity, ending)
        stack.callback(found[name].close)
    return found


def _keep_edges(graph: StoredGraph, layers: list[Layer], out: Any, stack: ExitStack) -> None:
    norms = {norm for layer in layers for norm in layer.norms.values()}
    if len(layers) + len(norms) < 2:  # edges are read once
        return
    kept = KeptTensors(None if out is None else Path(out))
    stack.callback(kept.close)
    # what any layer reads is fetched with the first one, or the edges would be fetched twice
    weight = any(layer.weight for layer in layers) or any(norm.weighted for norm in norms)
    graph.keep_edges(kept, weight=weight, attr=any(layer.attr for layer in layers))


def _parquet_files(
    results: Mapping[NodeType, Results], graph: GraphSource, dataset: Any, batch_size: int,
    stack: ExitStack,
) -> dict[NodeType, ParquetRows]:  # fmt: skip
    found = {}
    for name, result in results.items():
        path, draft = result.path(), result.draft
        assert path is not None
        assert draft is not None
        ids = graph.owners.own[name]
        found[name] = ParquetRows(path, draft, ids, batch_size, _original_ids(dataset, name))
        stack.callback(found[name].close)
    return found


def _original_ids(dataset: Any, node_type: NodeType) -> ToOriginal | None:
    """Return what gives nodes the ids of their tables; None: it is not known here."""
    if isinstance(dataset, RemoteDistDataset):
        return None
    local = DistDataset.wrap(dataset)
    if not local.has_original_ids:
        return lambda ids: ids.numpy()
    return partial(local.to_original, node_type=node_type)
