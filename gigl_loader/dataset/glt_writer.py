"""Writes partitions in graphlearn-torch's format, and beside its files ours: see `disk`."""

import pickle
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from gigl_loader.dataset._pieces import SPLITS, WEIGHT_NAMES
from gigl_loader.dataset.build import book_table, contiguous_book, ids_of
from gigl_loader.dataset.disk import EXTRAS_DIR, type_str
from gigl_loader.dataset.identity import content_digest, digest_of
from gigl_loader.dataset.mapped import ROOT_FILE, write_manifest
from gigl_loader.dataset.neighbours import edges_of
from gigl_loader.dataset.progress import note
from gigl_loader.dataset.schema import EdgeType, NodeType, edge_type_str, is_label_edge_type
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows, Splits, WithSplits

# What a reader of features holds beside the matrix that it fills; GLT reads chunks of any size.
CHUNK_BYTES = 64 * 1024 * 1024

_T = TypeVar("_T")


def write_glt(
    folder: Path, shares: Iterable[WithSplits], *, books_of: Path | None = None, **made: Any
) -> None:
    """Write all partitions, in order, in graphlearn-torch's format.

    Args:
        folder: An empty directory.
        shares: All partitions, the last of which says how many they are.
        books_of: A directory in this format with the same nodes and edge ids, whose books are
            copied: edges may have been left out, and books are of all ids.
        made: How they were made.
    """
    digests = []
    for found, splits in shares:
        # GLT's format has a place for weights, from which they are carried again
        view = replace(_without_weights(found), identity=None)
        _write_partition(folder, view, splits)
        digests.append(content_digest([view, splits], whole=True))
    if books_of is None:
        _write_books(folder, view)
    else:
        _copy_books(books_of, folder)
    run = digest_of(" ".join(digests).encode())
    _write_root(folder, view, splits, run=run, **made)
    # last: without it, the directory is no partition to GLT or to us
    _write_meta(
        folder,
        num_partitions=view.num_partitions,
        heterogeneous=view.is_heterogeneous,
        node_types=list(view.num_nodes),
        edge_types=[t for t in view.adjacency if not is_label_edge_type(t)],
    )


def _write_books(folder: Path, view: PartitionView) -> None:
    nodes, edges = dict(view.node_books), dict(view.edge_books)
    if (
        view.num_partitions == 1
    ):  # a view of one partition has no books; GLT wants them all the same
        nodes = {t: contiguous_book(count, 1) for t, count in view.num_nodes.items()}
        edges = {
            t: contiguous_book(found.indices.numel(), 1)
            for t, found in view.adjacency.items()
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
    """Write what names our files; ``made``: how the directory was made."""
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
        "flat_nodes": [t for t, rows in view.node_features.items() if rows.values.dim() == 1],
        "flat_edges": [list(t) for t, rows in view.edge_features.items() if rows.values.dim() == 1],
    }
    write_manifest(folder / ROOT_FILE, content)


def _by_type(attributes: Mapping[tuple[Any, str], _T]) -> dict[Any, dict[str, _T]]:
    """Return attributes by type, then by name."""
    found: dict[Any, dict[str, _T]] = {}
    for (key, name), value in attributes.items():
        found.setdefault(key, {})[name] = value
    return found


def _write_meta(root: Path, *, num_partitions: int, heterogeneous: bool, node_types: list[NodeType],
               edge_types: list[EdgeType]) -> None:  # fmt: skip
    """Write the file that makes a directory readable: the last one to write."""
    meta = {
        "num_parts": num_partitions,
        "data_cls": "hetero" if heterogeneous else "homo",
        "node_types": node_types if heterogeneous else None,
        "edge_types": edge_types if heterogeneous else None,
    }
    with (root / "META").open("wb") as file:
        pickle.dump(meta, file, pickle.HIGHEST_PROTOCOL)


def save_tensor(path: Path, tensor: Tensor) -> None:
    """Write one tensor (not the storage that it may be a part of)."""
    # torch.save writes the whole storage behind a view: one row of a matrix would be all of it
    _save(path, tensor.clone())
    note(tensor)


def _save(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # a file of Python's says why it could not be written
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
        edge_ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel()))
        # as features of edges lie: GLT's own files have both in one order
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
    """Return ``view`` without the attributes that say what the weights of the edges do."""
    kept = {
        (edge_type, name): rows
        for (edge_type, name), rows in view.edge_attributes.items()
        # by two names a graph has two attributes, and what is read is given the first alone
        if name != WEIGHT_NAMES[0]
        or (edge_type, WEIGHT_NAMES[1]) in view.edge_attributes
        or not _are_weights(rows, view.adjacency[edge_type])
    }
    return replace(view, edge_attributes=kept)


def _are_weights(rows: Rows, adjacency: Adjacency) -> bool:
    if adjacency.weights is None or rows.values.dtype != adjacency.weights.dtype:
        return False
    ids = adjacency.edge_ids_at(torch.arange(adjacency.indices.numel()))
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
        ("node_attributes", view.node_attributes), ("edge_attributes", view.edge_attributes),
    ):  # fmt: skip
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
        ids = torch.arange(values.size(0))
    # at least 1: a matrix may have no columns, or no rows
    row_bytes = max(1, values[:1].numel() * values.element_size())
    step = max(1, CHUNK_BYTES // row_bytes)
    with (folder / "feats.pkl").open("wb") as feats, (folder / "ids.pkl").open("wb") as id_file:
        # one empty chunk where there are no rows: the reader takes width and type from it
        for start in range(0, max(ids.numel(), 1), step):
            chunk = values[start : start + step]
            pickle.dump(chunk.reshape(-1, 1) if chunk.dim() == 1 else chunk.clone(), feats)
            note(chunk)
            pickle.dump(ids[start : start + step].clone(), id_file)
