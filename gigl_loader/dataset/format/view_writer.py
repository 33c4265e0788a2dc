"""Writes views of partitions, in our own format or in graphlearn-torch's: see `mapped`, `disk`."""

import pickle
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gigl_loader.dataset.format.glt_files import EXTRAS_DIR, type_str
from gigl_loader.dataset.format.mapped import (
    LOOKUPS,
    ROOT_FILE,
    ArraySpec,
    Part,
    read_header,
    rows_at,
    write_manifest,
)
from gigl_loader.dataset.format.mapped_writer import index_type, seal, write_array
from gigl_loader.dataset.identity import content_digest
from gigl_loader.dataset.partition.adjacency import edge_ids_of, edges_of
from gigl_loader.dataset.partition.build import book_table, contiguous_book, ids_of
from gigl_loader.dataset.partition.frames import as_json
from gigl_loader.dataset.partition.partition_view import (
    Adjacency,
    Book,
    PartitionView,
    Rows,
    Splits,
    WithSplits,
    kinds_of,
)
from gigl_loader.dataset.schema import (
    SPLITS,
    WEIGHT_NAMES,
    EdgeType,
    NodeType,
    edge_type_str,
    expanded_end,
    is_label_edge_type,
)
from gigl_loader.runtime.digests import digest_of
from gigl_loader.runtime.memory.tensors import as_array, dtype_name
from gigl_loader.runtime.progress import note

# Memory of a feature reader besides its matrix; GLT reads chunks of any size.
CHUNK_BYTES = 64 * 1024 * 1024

_T = TypeVar("_T")


def write_views(
    folder: Path,
    shares: Iterable[WithSplits],
    *,
    format: str,
    source: Path | None = None,
    by_degree: bool = False,
    **made: Any,
) -> None:
    """Write all partitions, in order.

    Args:
        folder: An empty directory.
        shares: All partitions; the last one tells their number.
        format: ``"mapped"`` or ``"glt"``.
        source: A directory in this format with the same nodes and edge ids. Data that views lack is
            copied from it: the ids of tables, and for GLT's format the books, which include removed
            edges.
        by_degree: Node rows are not in the order of ids.
        made: How they were made.
    """
    if format == "glt":
        _write_glt(folder, shares, source, **made)
        return
    shared = Part(folder)
    original_ids = [] if source is None else _keep_original_ids(shared, source)
    parts: list[Part] = []
    # partitions come in order, and one at a time: they may exceed memory together
    for view, splits in shares:
        parts.append(_write_part(Part(folder / f"part{len(parts)}"), view, splits, by_degree))
    node_bounds = {t: _bounds(shared, "node", t, book) for t, book in view.node_books.items()}
    for node_type, count in view.num_nodes.items():
        # one partition has no books, but `node_books` and original ids need the ends of ids
        node_bounds.setdefault(node_type, [count])
    edge_bounds = {
        t: _bounds(shared, "edge", edge_type_str(t), book) for t, book in view.edge_books.items()
    }
    seal(
        shared,
        parts,
        edge_dir=view.edge_dir,
        heterogeneous=view.is_heterogeneous,
        num_nodes=view.num_nodes,
        node_bounds=node_bounds,
        edge_types=list(view.adjacency),
        edge_bounds=edge_bounds,
        original_ids=original_ids,
        num_classes=view.num_classes,
        frames=view.frames,
        **made,
    )


# --- our own format -------------------------------------------------------------------------------


def _keep_original_ids(shared: Part, source: Path) -> list[NodeType]:
    """Copy the dictionaries of the tables' ids from another directory; return their types."""
    header, others = read_header(source)
    for name, spec in others.arrays.items():
        if name.startswith("ids/"):
            # without checksums: `seal` computes those of the copies
            shared.arrays[name] = ArraySpec(spec.dtype, spec.shape)
    if header.original_ids:
        shutil.copytree(source / "ids", shared.folder / "ids")
        for path in (shared.folder / "ids").rglob("*.parquet"):
            shared.note_file(str(path.relative_to(shared.folder)))
    return header.original_ids


def _write_part(part: Part, view: PartitionView, splits: Splits, by_degree: bool) -> Part:
    """Write a partition; rows of nodes keep their order.

    ``by_degree``: it has a look-up even if ids ascend by chance, as in `partition_tables`.
    """
    part.folder.mkdir(parents=True, exist_ok=True)
    for edge_type, adjacency in view.adjacency.items():
        _add_adjacency(part, view, edge_type, adjacency)
    lookups: _Lookups = {}
    for kind in kinds_of("node"):
        for key, rows in getattr(view, kind).items():
            node_type, name = (key, "") if isinstance(key, str) else key
            where = rows_at(kind, node_type, name)
            _write_rows(part, lookups, where, node_type, rows, by_degree)
    for kind in kinds_of("edge"):
        for key, rows in getattr(view, kind).items():
            edge_type, name = (key, "") if len(key) == 3 else key
            where = rows_at(kind, edge_type, name)
            _write_edge_rows(part, lookups, where, edge_type_str(edge_type), rows)
    for split, by_type in splits.items():
        for node_type, ids in by_type.items():
            write_array(part, f"splits/{split}/{node_type}", ids.numpy())
    return part


def _bounds(shared: Part, kind: str, name: str, book: Book) -> list[int] | None:
    """Return the range ends of a book; None: it has no ranges, and a table was written."""
    if book.bounds is not None:
        return list(book.bounds.tolist())
    assert book.table is not None
    write_array(shared, f"books/{kind}/{name}", book.table.numpy())
    return None


def _add_adjacency(part: Part, view: PartitionView, edge_type: EdgeType, edges: Adjacency) -> None:
    where, label = rows_at("edges", edge_type), is_label_edge_type(edge_type)
    # label edges are grouped by anchor, their source, in both directions
    end = 0 if label else expanded_end(view.edge_dir)
    row_type, col_type = (edge_type[0], edge_type[2])[:: -1 if end else 1]
    indptr, book = edges.indptr, view.node_books.get(row_type)
    if book is not None and book.bounds is not None:
        bounds = [0, *book.bounds.tolist()]
        first, last = bounds[view.partition_idx], bounds[view.partition_idx + 1]
        # other partitions' nodes have no edge here, so offsets begin at 0 anyway; a longer array
        # would cost 8 bytes per node of the graph in every partition
        indptr = indptr[first - edges.first_row : last + 1 - edges.first_row]
        part.ranges[where] = {"first_row": first}
    indices = edges.indices.numpy().astype(index_type(view.num_nodes[col_type]), copy=False)
    write_array(part, f"{where}/indptr", indptr.numpy())
    write_array(part, f"{where}/indices", indices)
    if edges.has_edge_ids and not label:
        write_array(part, f"{where}/edge_ids", edge_ids_of(edges).numpy())
    if edges.weights is not None:
        write_array(part, f"{where}/weights", edges.weights.numpy())


_Lookups = dict[str, Tensor]
"""By type, the array that finds its rows: written once, for all matrices that share it."""


def _write_lookup(
    part: Part, lookups: _Lookups, where: str, text: str, lookup: Tensor, name: str
) -> None:
    """Enter ``lookup`` as the index of the rows at ``where``, of the type ``text``."""
    # matrices of a type usually have the same rows, and the first one decides
    if text not in lookups:
        write_array(part, f"{LOOKUPS}/{text}", lookup.numpy())
        lookups[text] = lookup
    # a matrix with other rows than the rest (labels of some nodes) gets its own
    if torch.equal(lookups[text], lookup):
        part.ranges.setdefault(where, {})["lookup"] = 1
    else:
        write_array(part, f"{where}/{name}", lookup.numpy())


def _write_values(part: Part, where: str, values: Tensor) -> None:
    write_array(part, f"{where}/values", as_array(values), dtype_name(values.dtype))


def _write_rows(
    part: Part, lookups: _Lookups, where: str, node_type: NodeType, rows: Rows, by_degree: bool
) -> None:
    # as long as the graph if the partition's ids are scattered
    ids, index = ids_of(rows), rows.index
    first = None if ids is None else _first_of_range(ids)
    if ids is not None and first is not None:
        # all ids of a range are here: the id gives the row, directly or through a look-up
        if not rows.whole:
            part.ranges[where] = {"first": first}
        index = None
        if by_degree or bool((ids.diff() < 0).any()):
            index = torch.empty_like(ids)
            index[ids - first] = torch.arange(ids.numel(), device="cpu")
    if ids is None and by_degree:
        index = torch.arange(len(rows.values), device="cpu")
    if index is not None:
        narrow = torch.from_numpy(index.numpy().astype(index_type(len(rows.values)), copy=False))
        _write_lookup(part, lookups, where, node_type, narrow, "index")
    _write_values(part, where, rows.values)
    if rows.scales is not None:
        write_array(part, f"{where}/scales", rows.scales.numpy())


def _first_of_range(ids: Tensor) -> int | None:
    """Return the lowest of some ids (0 if empty) if all up to the highest are there, else None."""
    if not ids.numel():
        return 0
    first = int(ids.min())
    return first if int(ids.max()) - first + 1 == ids.numel() else None


def _write_edge_rows(part: Part, lookups: _Lookups, where: str, text: str, rows: Rows) -> None:
    values, ids = rows.values, ids_of(rows)
    if ids is not None:
        # readers search for ids, which must ascend
        order = torch.argsort(ids)
        _write_lookup(part, lookups, where, text, ids[order], "ids")
        values = values[order]
    _write_values(part, where, values)


# --- graphlearn-torch's format: see `disk` --------------------------------------------------------


def _write_glt(
    folder: Path, shares: Iterable[WithSplits], books_of: Path | None, **made: Any
) -> None:
    digests = []
    for share, splits in shares:
        # GLT's format has a place for weights, and batches carry them from there
        view = replace(_without_weights(share), identity=None)
        _write_partition(folder, view, splits)
        digests.append(content_digest([view, splits], whole=True))
    if books_of is None:
        _write_books(folder, view)
    else:
        _copy_books(books_of, folder)
    run = digest_of(" ".join(digests).encode())
    _write_root(folder, view, splits, run=run, **made)
    # last: without it, the directory is no partition to GLT or to us
    edge_types = [t for t in view.adjacency if not is_label_edge_type(t)]
    meta = {
        "num_parts": view.num_partitions,
        "data_cls": "hetero" if view.is_heterogeneous else "homo",
        "node_types": list(view.num_nodes) if view.is_heterogeneous else None,
        "edge_types": edge_types if view.is_heterogeneous else None,
    }
    with (folder / "META").open("wb") as file:
        pickle.dump(meta, file, pickle.HIGHEST_PROTOCOL)


def _write_books(folder: Path, view: PartitionView) -> None:
    nodes, edges = dict(view.node_books), dict(view.edge_books)
    if view.num_partitions == 1:  # a view of one partition has no books, but GLT wants them
        nodes = {t: contiguous_book(count, 1) for t, count in view.num_nodes.items()}
        edges = {
            t: contiguous_book(adjacency.indices.numel(), 1)
            for t, adjacency in view.adjacency.items()
            if not is_label_edge_type(t)
        }
    kinds: list[tuple[str, dict[Any, Book]]] = [("node_pb", nodes), ("edge_pb", edges)]
    for kind, books in kinds:
        for key, book in books.items():
            name = f"{kind}/{type_str(key)}.pt" if view.is_heterogeneous else f"{kind}.pt"
            save_tensor(folder / name, book_table(book))


def _copy_books(root: Path, folder: Path) -> None:
    for path in [*root.glob("node_pb*"), *root.glob("edge_pb*")]:
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name)


def _write_root(folder: Path, view: PartitionView, splits: Splits, **made: Any) -> None:
    """Write the names of our files; ``made``: how the directory was made."""
    content = {
        **made,
        "edge_dir": view.edge_dir,
        "node_labels": list(view.node_labels),
        "splits": {split: list(by_type) for split, by_type in splits.items()},
        "label_edge_types": [list(t) for t in view.adjacency if is_label_edge_type(t)],
        "node_attributes": [
            [node_type, sorted(named)]
            for node_type, named in _by_type(view.node_attributes).items()
        ],
        "edge_attributes": [
            [list(edge_type), sorted(named)]
            for edge_type, named in _by_type(view.edge_attributes).items()
        ],
        "num_classes": view.num_classes,
        **as_json(view.frames),
        "flat_nodes": [t for t, rows in view.node_features.items() if rows.values.dim() == 1],
        "flat_edges": [list(t) for t, rows in view.edge_features.items() if rows.values.dim() == 1],
    }
    write_manifest(folder / ROOT_FILE, content)


def _by_type(attributes: Mapping[tuple[Any, str], _T]) -> dict[Any, dict[str, _T]]:
    """Return attributes by type, then by name."""
    by_type: dict[Any, dict[str, _T]] = {}
    for (key, name), value in attributes.items():
        by_type.setdefault(key, {})[name] = value
    return by_type


def save_tensor(path: Path, tensor: Tensor) -> None:
    """Write one tensor (not the storage that it may be a part of)."""
    # torch.save writes the whole storage of a view: one row of a matrix would be all of it
    _save(path, tensor.clone())
    note(tensor)


def _save(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # Python's file errors name the reason
        torch.save(values, file)


def _write_partition(root: Path, view: PartitionView, splits: Splits) -> None:
    """Write the files of one partition."""
    part = root / f"part{view.partition_idx}"

    def sub(key: NodeType | EdgeType) -> str:
        return type_str(key) if view.is_heterogeneous else ""

    for edge_type, adjacency in view.adjacency.items():
        if is_label_edge_type(edge_type):
            path = part / EXTRAS_DIR / "label_edges" / f"{edge_type_str(edge_type)}.pt"
            save_tensor(path, edges_of(adjacency, "out"))
            continue
        folder = part / "graph" / sub(edge_type)
        edge_ids = edge_ids_of(adjacency)
        # in the order of edge features: GLT's own files have both in one order
        order = torch.argsort(edge_ids)
        edges = edges_of(adjacency, view.edge_dir)[:, order]
        save_tensor(folder / "rows.pt", edges[0])
        save_tensor(folder / "cols.pt", edges[1])
        save_tensor(folder / "eids.pt", edge_ids[order])
        if adjacency.weights is not None:
            save_tensor(folder / "weights.pt", adjacency.weights[order])
    for node_type, rows in view.node_features.items():
        _write_features(part / "node_feat" / sub(node_type), rows)
    for edge_type, rows in view.edge_features.items():
        _write_features(part / "edge_feat" / sub(edge_type), rows)
    _write_extras(part / EXTRAS_DIR, view, splits)


def _without_weights(view: PartitionView) -> PartitionView:
    """Return ``view`` without the attributes that repeat the weights of the edges."""
    kept = {
        (edge_type, name): rows
        for (edge_type, name), rows in view.edge_attributes.items()
        # with two names a graph has two attributes, and a reader gets only the first
        if name != WEIGHT_NAMES[0]
        or (edge_type, WEIGHT_NAMES[1]) in view.edge_attributes
        or not _are_weights(rows, view.adjacency[edge_type])
    }
    return replace(view, edge_attributes=kept)


def _are_weights(rows: Rows, adjacency: Adjacency) -> bool:
    if adjacency.weights is None or rows.values.dtype != adjacency.weights.dtype:
        return False
    ids = edge_ids_of(adjacency)
    return torch.equal(rows.values[rows.locate(ids)], adjacency.weights)


def _write_extras(folder: Path, view: PartitionView, splits: Splits) -> None:
    for node_type, rows in view.node_labels.items():
        path = folder / "node_labels" / f"{node_type}.pt"
        _save(path, {"values": rows.values.clone(), "ids": ids_of(rows)})
        note(rows.values)
    for split in SPLITS:
        for node_type, ids in splits.get(split, {}).items():
            save_tensor(folder / "splits" / split / f"{node_type}.pt", ids)
    for group, attributes in (
        ("node_attributes", view.node_attributes),
        ("edge_attributes", view.edge_attributes),
    ):
        for key, named in _by_type(attributes).items():
            known = ids_of(next(iter(named.values())))
            values = {name: rows.values.clone() for name, rows in named.items()}
            _save(folder / group / f"{type_str(key)}.pt", {"values": values, "ids": known})
            for rows in named.values():
                note(rows.values)


def _write_features(folder: Path, rows: Rows) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values, ids = rows.values, ids_of(rows)
    if ids is None:
        ids = torch.arange(values.size(0), device="cpu")
    # at least 1: a matrix may have no columns, or no rows
    row_bytes = max(1, values[:1].numel() * values.element_size())
    step = max(1, CHUNK_BYTES // row_bytes)
    with (folder / "feats.pkl").open("wb") as feats, (folder / "ids.pkl").open("wb") as id_file:
        # one empty chunk if there are no rows: the reader takes width and type from it
        for start in range(0, max(ids.numel(), 1), step):
            chunk = values[start : start + step]
            pickle.dump(chunk.reshape(-1, 1) if chunk.dim() == 1 else chunk.clone(), feats)
            note(chunk)
            pickle.dump(ids[start : start + step].clone(), id_file)
