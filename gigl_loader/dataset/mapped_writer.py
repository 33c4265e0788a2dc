"""Writes partitions in our own format, which `mapped_reader` reads."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset._pieces import expanded_end
from gigl_loader.dataset.build import ids_of
from gigl_loader.dataset.mapped import (
    LOOKUPS,
    ArraySpec,
    Part,
    note_file,
    read_header,
    seal,
    write_array,
)
from gigl_loader.dataset.schema import (
    EdgeType,
    NodeType,
    edge_type_str,
    is_label_edge_type,
)
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows, Splits
from gigl_loader.memory.tensors import (
    as_array,
    dtype_name,
)

# Up to it, neighbours and look-ups take 4 bytes each, and not the 8 of torch's ids.
_INT32_IDS = 2**31 - 1


class MappedWriter:
    """Writes the partitions of a graph, one after the other.

    Args:
        root: An empty directory.
        by_degree: Rows of nodes lie in an order of their own: they are looked up in each partition,
            also where they ascend by chance, as `partition_tables` has it.
    """

    def __init__(self, root: Path, *, by_degree: bool = False) -> None:
        self._root, self._by_degree = root, by_degree
        self._parts: list[Part] = []
        self._shared = Part()
        self._original: list[NodeType] = []

    def keep_original_ids(self, source: Path) -> None:
        """Copy the dictionaries of the tables' ids from another directory with the same nodes."""
        header, shared = read_header(source)
        self._original = header.original_ids
        for name, spec in shared.arrays.items():
            if name.startswith("ids/"):
                # without checksums: `seal` makes those of the copies
                self._shared.arrays[name] = ArraySpec(spec.dtype, spec.shape)
        if self._original:
            shutil.copytree(source / "ids", self._root / "ids")
            for path in (self._root / "ids").rglob("*.parquet"):
                note_file(self._root, self._shared, str(path.relative_to(self._root)))

    def add(self, view: PartitionView, splits: Splits) -> None:
        """Write a partition, the next one; rows of nodes stay in the order in which they are."""
        # partitions come in order, and one at a time: all of them need not fit into memory
        folder, part = self._root / f"part{len(self._parts)}", Part()
        folder.mkdir(parents=True, exist_ok=True)
        for edge_type, adjacency in view.adjacency.items():
            self._add_edges(folder, part, view, edge_type, adjacency)
        self._add_rows(folder, part, view)
        for split, by_type in splits.items():
            for node_type, ids in by_type.items():
                write_array(folder, part, f"splits/{split}/{node_type}", ids.numpy())
        self._parts.append(part)

    def _add_rows(self, folder: Path, part: Part, view: PartitionView) -> None:
        lookups = _Lookups(folder, part)
        for kind in ("node_features", "node_labels", "node_attributes"):
            by_key: dict[Any, Rows] = getattr(view, kind)
            for key, rows in by_key.items():
                node_type, name = (key, "") if isinstance(key, str) else key
                where = f"{kind}/{node_type}/{name}" if name else f"{kind}/{node_type}"
                _write_rows(lookups, where, node_type, rows, self._by_degree)
        for kind in ("edge_features", "edge_attributes"):
            by_key = getattr(view, kind)
            for key, rows in by_key.items():
                edge_type, name = (key, "") if len(key) == 3 else key
                text = edge_type_str(edge_type)
                where = f"{kind}/{text}/{name}" if name else f"{kind}/{text}"
                _write_edge_rows(lookups, where, text, rows)

    def _add_edges(
        self, folder: Path, part: Part, view: PartitionView, edge_type: EdgeType, found: Adjacency
    ) -> None:
        where, label = f"edges/{edge_type_str(edge_type)}", is_label_edge_type(edge_type)
        # label edges are grouped by anchor, their source, whatever the direction
        end = 0 if label else expanded_end(view.edge_dir)
        row_type, col_type = (edge_type[0], edge_type[2])[:: -1 if end else 1]
        indptr, book = found.indptr, view.node_books.get(row_type)
        if book is not None and book.bounds is not None:
            bounds = [0, *book.bounds.tolist()]
            first, last = bounds[view.partition_idx], bounds[view.partition_idx + 1]
            # nodes of others have no edge here, so that offsets begin at 0 all the same; 8 bytes
            # for each node of the graph would be in every partition
            indptr = indptr[first - found.first_row : last + 1 - found.first_row]
            part.ranges[where] = {"first_row": first}
        narrow = view.num_nodes[col_type] <= _INT32_IDS
        indices = found.indices.to(torch.int32) if narrow else found.indices
        write_array(folder, part, f"{where}/indptr", indptr.numpy())
        write_array(folder, part, f"{where}/indices", indices.numpy())
        if found.has_edge_ids and not label:
            edge_ids = found.edge_ids_at(torch.arange(indices.numel()))
            write_array(folder, part, f"{where}/edge_ids", edge_ids.numpy())
        if found.weights is not None:
            write_array(folder, part, f"{where}/weights", found.weights.numpy())

    def finish(self, view: PartitionView, **made: Any) -> None:
        """Write the books and the manifests.

        Args:
            view: The last partition; books and counts are the same in all of them.
            made: How the directory was made.
        """
        node_bounds = {t: self._bounds("node", t, b) for t, b in view.node_books.items()}
        for node_type, count in view.num_nodes.items():
            # one partition has no books, and both `node_books` and original ids ask where ids end
            node_bounds.setdefault(node_type, [count])
        edge_bounds = {
            edge_type_str(t): self._bounds("edge", edge_type_str(t), book)
            for t, book in view.edge_books.items()
        }
        header = {
            **made,
            "edge_dir": view.edge_dir,
            "heterogeneous": view.is_heterogeneous,
            "num_partitions": view.num_partitions,
            "num_nodes": view.num_nodes,
            "node_bounds": node_bounds,
            "edge_types": [list(t) for t in view.adjacency],
            "edge_bounds": edge_bounds,
            "original_ids": self._original,
            "num_classes": view.num_classes,
        }
        seal(self._root, header, self._shared, self._parts)

    def _bounds(self, kind: str, name: str, book: Book) -> list[int] | None:
        """Return where the ranges of a book end; None: they do not, a table was written."""
        if book.bounds is not None:
            return list(book.bounds.tolist())
        assert book.table is not None
        write_array(self._root, self._shared, f"books/{kind}/{name}", book.table.numpy())
        return None


class _Lookups:
    """Writes the array that finds the rows of a type once, for all matrices that share it."""

    def __init__(self, folder: Path, part: Part) -> None:
        self.folder, self.part = folder, part
        # first come: matrices of a type have the same rows as a rule, and the first one says which
        self._written: dict[str, Tensor] = {}

    def add(self, where: str, text: str, lookup: Tensor, own: str) -> None:
        """Note that the rows at ``where``, of the type ``text``, are found by ``lookup``."""
        known = self._written.get(text)
        if known is None:
            write_array(self.folder, self.part, f"{LOOKUPS}/{text}", lookup.numpy())
            self._written[text] = known = lookup
        # a matrix may have other rows than the rest (labels of some nodes), and has its own then
        if torch.equal(known, lookup):
            self.part.ranges.setdefault(where, {})["lookup"] = 1
        else:
            write_array(self.folder, self.part, f"{where}/{own}", lookup.numpy())


def _write_values(lookups: _Lookups, where: str, values: Tensor) -> None:
    name, array = f"{where}/values", as_array(values)
    write_array(lookups.folder, lookups.part, name, array, dtype_name(values.dtype))


def _write_rows(
    lookups: _Lookups, where: str, node_type: NodeType, rows: Rows, by_degree: bool
) -> None:
    # as long as the graph where the ids of the partition are strewn
    ids, index = ids_of(rows), rows.index
    first = None if ids is None else _first_of_range(ids)
    if ids is not None and first is not None:
        # all ids of a range are here: the row follows from the id, or from a look-up of that length
        if not rows.whole:
            lookups.part.ranges[where] = {"first": first}
        index = None
        if by_degree or bool((ids.diff() < 0).any()):
            index = torch.empty_like(ids)
            index[ids - first] = torch.arange(ids.numel())
    if ids is None and by_degree:
        index = torch.arange(len(rows.values))
    if index is not None:
        index = index.to(torch.int32) if len(rows.values) <= _INT32_IDS else index
        lookups.add(where, node_type, index, "index")
    _write_values(lookups, where, rows.values)
    if rows.scales is not None:
        write_array(lookups.folder, lookups.part, f"{where}/scales", rows.scales.numpy())


def _first_of_range(ids: Tensor) -> int | None:
    """Return the lowest of some ids, 0 of none, if all up to the highest are there, else None."""
    if not ids.numel():
        return 0
    first = int(ids.min())
    return first if int(ids.max()) - first + 1 == ids.numel() else None


def _write_edge_rows(lookups: _Lookups, where: str, text: str, rows: Rows) -> None:
    values, ids = rows.values, ids_of(rows)
    if ids is not None:
        # readers search for ids, which have to ascend
        order = torch.argsort(ids)
        lookups.add(where, text, ids[order], "ids")
        values = values[order]
    _write_values(lookups, where, values)
