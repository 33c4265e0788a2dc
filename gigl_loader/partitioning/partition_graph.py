"""`partition_graph`: cut a graph in memory into a directory that `DistDataset.load` reads."""

import logging
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gigl_loader.dataset.format.directory import (
    Format,
    RowOrder,
    Target,
    check_format,
    check_order,
    complete_or_nothing,
)
from gigl_loader.dataset.format.view_writer import write_views
from gigl_loader.dataset.from_pyg.pyg_graph import (
    CheckedGraph,
    Cutter,
    Supervision,
    keep_neighbor_times,
    read_pyg,
)
from gigl_loader.dataset.lookup import FeatureDtype, check_feature_dtype, quantise
from gigl_loader.dataset.one_or_by_type import PyGGraph
from gigl_loader.dataset.partition.adjacency import compress
from gigl_loader.dataset.partition.build import contiguous_book, make_book
from gigl_loader.dataset.partition.checks import check_edge_dir, check_partitions
from gigl_loader.dataset.partition.doubts import check_enough_nodes
from gigl_loader.dataset.partition.frames import frame_attribute
from gigl_loader.dataset.partition.partition_view import Book, WithSplits
from gigl_loader.dataset.schema import (
    COMMUNITY,
    EdgeDir,
    EdgeType,
    FilePath,
    NodeType,
    check_file_names,
    check_type_names,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.partitioning.metis import (
    check_communities,
    communities_by_metis,
    cut_by_metis,
    import_metis,
)
from gigl_loader.runtime.progress import ProgressBar, showing

Method = Literal["contiguous", "random", "metis"]
METHODS = get_args(Method)

_log = logging.getLogger(__name__)


def partition_graph(
    data: PyGGraph,
    num_partitions: int,
    root: FilePath,
    *,
    method: Method = "contiguous",
    edge_dir: EdgeDir = "in",
    seed: int = 0,
    supervision: Supervision | None = None,
    progress: bool = True,
    format: Format = "mapped",
    overwrite: bool = False,
    time_attr: str | None = None,
    feature_dtype: FeatureDtype | None = None,
    order: RowOrder = "ids",
    communities: int | None = None,
) -> None:
    """Write ``data`` as ``num_partitions`` partitions below ``root``.

    The directory appears under its name when it is complete. The same arguments give the same
    partitions.

    Args:
        data: A PyG `Data` or `HeteroData`; `DistDataset.from_pyg` lists the attributes it reads.
        num_partitions: At least 1.
        root: Directory to write: a path that does not exist, or an empty directory; or a URL
            (``s3://bucket/folder``, ``gs://``, ``az://``), to which the partitions are uploaded
            from the cache of this machine when they are complete.
        method: ``"contiguous"``: runs of ids of equal length, with the fastest look-up of owners;
            ``"random"``: equal parts at random; ``"metis"``: few edges between partitions (all node
            types together as one graph), needs the extra ``metis``.
        edge_dir: An edge goes to the owner of its destination (``"in"``) or its source (``"out"``).
        seed: For ``"random"`` and ``"metis"``.
        supervision: Label edges, as in `DistDataset.from_pyg`; they go to their anchor's owner.
        progress: Show a progress bar (log lines where ``tqdm`` is not installed).
        format: ``"mapped"``: our own, which `DistDataset.load` maps or reads; ``"glt"``: that of
            graphlearn-torch's own classes.
        overwrite: Replace partitions at ``root`` when the new ones are complete.
        time_attr: A node attribute to sample by: edges then keep the times of neighbours in other
            partitions.
        feature_dtype: How to store node features, and the embeddings of a ``tf``: ``"int8"`` or
            ``"uint8"``, with scale and offset of each column, ``"float16"`` or ``"bfloat16"``; by
            node type, or one for all. Workers read and send the stored bytes; batches are float32
            again on the trainer's device. None, and types without an entry: unchanged.
        order: Order of the rows of nodes in a partition. ``"ids"``: ascending. ``"degree"``: nodes
            with most edges first, so that batches of a graph on disk touch fewer pages. Ids and
            batches stay the same. The index of rows takes 4 bytes per node of the partition
            (``"contiguous"``), or of the whole graph.
        communities: Also find about so many groups of nodes with many edges within, at least one in
            each partition, and write the group of each node, for loaders that take seeds by
            groups. Needs ``method="metis"``. Each partition is cut again, so partitions are the
            same as without; batches have no attribute of it. All node types are grouped together.
            None: find none.

    Raises:
        ConfigError: An argument or an attribute of ``data`` cannot work, or ``root`` holds files.
            Nothing was written.
        ObjectStorageError: Object storage failed; nothing there is read as a graph.
        ResourceError: The disk is full, or a limit is reached. The written files are removed.
        UsageError: Another process is writing to ``root``.
    """
    check_partitions(num_partitions, 0)
    check_edge_dir(edge_dir)
    if method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    check_format(format)
    check_order(order, format)
    check_communities(communities, num_partitions, method, METHODS)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise WrongTypeError(f"seed must be a non-negative int, got {seed!r}")
    # before the graph is read, which may take minutes
    metis = None
    if method == "metis" and (num_partitions > 1 or communities is not None):
        metis = import_metis("contiguous")
    # all errors of arguments come before anything is written
    target = Target(root, overwrite=overwrite, format=format)
    target.check()
    source = read_pyg(data, supervision)
    check_enough_nodes(sum(source.num_nodes.values()), communities)
    source.warn_of_doubts(num_partitions)
    keys: list[NodeType | EdgeType] = [*source.num_nodes, *source.edges, *source.label_edges]
    check_type_names(keys)
    check_file_names(keys)
    _store_in_fewer_bytes(source, feature_dtype, format)
    if time_attr is not None:
        keep_neighbor_times(source, edge_dir, time_attr)
    with (
        complete_or_nothing(target, progress=progress) as folder,
        showing("partition_graph", _bytes_to_write(source), shown=progress) as bar,
    ):
        bar.step("assigning nodes")
        books = _assign(source, num_partitions, method, seed, metis, communities)
        # all partitions need the owners at once; the partitions are cut one by one, each after the
        # previous one is on disk
        bar.step("assigning edges")
        cutter = Cutter(source, books, edge_dir, num_partitions, order)
        shares = _shares(cutter, num_partitions, bar)
        by_degree = order == "degree"
        write_views(folder, shares, format=format, by_degree=by_degree, method=method, seed=seed)


def _shares(cutter: Cutter, num_partitions: int, bar: ProgressBar) -> Iterator[WithSplits]:
    for partition_idx in range(num_partitions):
        bar.step(f"writing partition {partition_idx}")
        # the same view as for samplers is written: the checks and the order are the same
        yield cutter.cut(partition_idx)


# --- owners of nodes ------------------------------------------------------------------------------


def _assign(
    source: CheckedGraph,
    num_partitions: int,
    method: str,
    seed: int,
    metis: Any,
    communities: int | None,
) -> dict[NodeType, Book]:
    """Return the owners of nodes; their communities become an attribute of ``source``."""
    counts = source.num_nodes
    if metis is not None:
        tables = _assign_by_metis(source, num_partitions, seed, metis, communities)
    if method == "contiguous" or num_partitions == 1:
        return {t: contiguous_book(count, num_partitions) for t, count in counts.items()}
    if method == "random":
        generator = torch.Generator().manual_seed(seed)
        tables = [
            # positions in a permutation, modulo: part sizes differ by one node at most, unlike with
            # an independent draw per node
            torch.randperm(count, generator=generator, device="cpu").remainder_(num_partitions)
            for count in counts.values()
        ]
    return {t: make_book(table, num_partitions) for t, table in zip(counts, tables, strict=True)}


def _assign_by_metis(
    source: CheckedGraph, num_partitions: int, seed: int, metis: Any, communities: int | None
) -> list[Tensor]:
    """Return by node type ``[num_nodes]`` int64: METIS over all types as one undirected graph."""
    counts = list(source.num_nodes.values())
    starts, total = {}, 0
    for node_type, count in source.num_nodes.items():
        starts[node_type], total = total, total + count
    ends = [
        torch.stack([part.edge_index[0] + starts[src], part.edge_index[1] + starts[dst]])
        for (src, _, dst), part in source.edges.items()
    ]
    edges = torch.cat([torch.empty(2, 0, dtype=torch.int64, device="cpu"), *ends], dim=1)
    # METIS wants undirected edges, listed at both ends, and no loops
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    whole = compress(edges[0], edges[1], num_rows=total)
    graph = (whole.indptr.numpy(), whole.indices.numpy())
    owners = cut_by_metis(metis, *graph, num_partitions, seed)
    if communities is not None:
        groups = communities_by_metis(metis, *graph, owners, num_partitions, communities, seed)
        of_type = zip(source.num_nodes, torch.from_numpy(groups).split(counts), strict=True)
        source.node_attributes.update({(t, COMMUNITY): values for t, values in of_type})
    return list(torch.from_numpy(owners).split(counts))


def _bytes_to_write(source: CheckedGraph) -> int:
    tensors = [
        *(part.weights for part in source.edges.values() if part.weights is not None),
        *source.label_edges.values(),
        *source.node_features.values(),
        *source.node_labels.values(),
        *source.edge_features.values(),
        *source.node_attributes.values(),
        *source.edge_attributes.values(),
    ]
    # rows, columns, ids and owner of each edge, as in GLT's format: an upper bound
    ends = sum(4 * 8 * part.edge_index.size(1) for part in source.edges.values())
    ids = 8 * sum(source.num_nodes.values())
    return ends + ids + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# --- files ----------------------------------------------------------------------------------------


def _store_in_fewer_bytes(source: CheckedGraph, dtypes: FeatureDtype | None, format: str) -> None:
    name, attributes = frame_attribute("embedding"), source.node_attributes
    embeddings = {of: (of, name) for of in source.num_nodes if (of, name) in attributes}
    chosen = check_feature_dtype(dtypes, {**source.node_features, **embeddings})
    if chosen and format != "mapped":
        raise ConfigError(
            f'feature_dtype needs format="mapped": {format!r} has no place for scale and offset'
        )
    for node_type, dtype in chosen.items():
        places: tuple[tuple[str, dict[Any, Tensor], Any], ...] = (
            ("features", source.node_features, node_type),
            ("embeddings", source.node_attributes, embeddings.get(node_type)),
        )
        for what, rows, of in places:
            if of in rows:
                quantised = quantise(rows[of], dtype, f"{what} of node type {node_type!r}")
                rows[of], source.feature_scales[of] = quantised
