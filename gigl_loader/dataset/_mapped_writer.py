"""Writes partitions that are in memory in our own format, which `_mapped_io` reads."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset._mapped import (
    LOOKUPS,
    ArraySpec,
    Part,
    note_file,
    read_header,
    seal,
    write_array,
)
from gigl_loader.dataset._mapped_io import ids_of
from gigl_loader.dataset._pieces import (
    Pieces,
    expanded_end,
    make_view,
    with_weights,
)
from gigl_loader.dataset.parts import FeaturePartitionData
from gigl_loader.dataset.schema import (
    EdgeType,
    NodeType,
    edge_type_str,
    is_label_edge_type,
)
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows
from gigl_loader.memory.tensors import (
    as_array,
    dtype_name,
)

# Up to it, neighbours and look-ups take 4 bytes each, and not the 8 of torch's ids.
_INT32_IDS = 2**31 - 1


class MappedWriter:
    """Writes the partitions of a graph that is in memory.

    Args:
        root: An empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
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

    def add(self, pieces: Pieces) -> None:
        """Write a partition: the next one."""
        # partitions come in order, and one at a time: all of them need not fit into memory
        folder, part = self._root / f"part{len(self._parts)}", Part()
        folder.mkdir(parents=True, exist_ok=True)
        # what samplers will read is what is written: the checks and the order are the same
        view = make_view(pieces)
        for edge_type, adjacency in view.adjacency.items():
            self._add_edges(folder, part, pieces, edge_type, adjacency)
        self._add_rows(folder, part, pieces, view)
        for split, by_type in pieces.splits.items():
            for node_type, ids in by_type.items():
                write_array(folder, part, f"splits/{split}/{node_type}", ids.numpy())
        self._parts.append(part)

    def _add_rows(self, folder: Path, part: Part, pieces: Pieces, view: PartitionView) -> None:
        lookups = _Lookups(folder, part)
        of_nodes: list[tuple[str, dict[Any, Rows]]] = [
            ("node_features", view.node_features), ("node_labels", view.node_labels),
            ("node_attributes", view.node_attributes),
        ]  # fmt: skip
        for kind, by_key in of_nodes:
            for key, rows in by_key.items():
                node_type, name = (key, "") if isinstance(key, str) else key
                where = f"{kind}/{node_type}/{name}" if name else f"{kind}/{node_type}"
                _write_rows(lookups, where, node_type, rows, pieces.row_order.get(node_type))
        of_edges: list[tuple[str, dict[Any, FeaturePartitionData]]] = [
            ("edge_features", pieces.edge_features), ("edge_attributes", with_weights(pieces)),
        ]  # fmt: skip
        for kind, parts in of_edges:
            for key, given in parts.items():
                edge_type, name = (key, "") if len(key) == 3 else key
                text = edge_type_str(edge_type)
                where = f"{kind}/{text}/{name}" if name else f"{kind}/{text}"
                _write_edge_rows(lookups, where, text, given)

    def _add_edges(
        self, folder: Path, part: Part, pieces: Pieces, edge_type: EdgeType, found: Adjacency
    ) -> None:
        where, label = f"edges/{edge_type_str(edge_type)}", is_label_edge_type(edge_type)
        # label edges are grouped by anchor, their source, whatever the direction
        end = 0 if label else expanded_end(pieces.edge_dir)
        row_type, col_type = (edge_type[0], edge_type[2])[:: -1 if end else 1]
        indptr, book = found.indptr, pieces.node_books.get(row_type)
        if book is not None and book.bounds is not None and pieces.num_partitions > 1:
            bounds = [0, *book.bounds.tolist()]
            first, last = bounds[pieces.partition_idx], bounds[pieces.partition_idx + 1]
            # nodes of others have no edge here, so that offsets begin at 0 all the same; 8 bytes
            # for each node of the graph would be in every partition
            indptr = indptr[first : last + 1]
            part.ranges[where] = {"first_row": first}
        narrow = pieces.num_nodes[col_type] <= _INT32_IDS
        indices = found.indices.to(torch.int32) if narrow else found.indices
        write_array(folder, part, f"{where}/indptr", indptr.numpy())
        write_array(folder, part, f"{where}/indices", indices.numpy())
        if found.edge_ids is not None and not label:
            write_array(folder, part, f"{where}/edge_ids", found.edge_ids.numpy())
        if found.weights is not None:
            write_array(folder, part, f"{where}/weights", found.weights.numpy())

    def finish(self, pieces: Pieces, **made: Any) -> None:
        """Write the books and the manifests.

        Args:
            pieces: The last partition.
            made: How the directory was made.
        """
        node_bounds = {t: self._bounds("node", t, b) for t, b in pieces.node_books.items()}
        for node_type, count in pieces.num_nodes.items():
            # one partition has no books, and both `node_books` and original ids ask where ids end
            node_bounds.setdefault(node_type, [count])
        edge_bounds = {
            edge_type_str(t): self._bounds("edge", edge_type_str(t), book)
            for t, book in pieces.edge_books.items()
        }
        header = {
            **made,
            "edge_dir": pieces.edge_dir,
            "heterogeneous": pieces.heterogeneous,
            "num_partitions": pieces.num_partitions,
            "num_nodes": pieces.num_nodes,
            "node_bounds": node_bounds,
            "edge_types": [list(t) for t in (*pieces.edges, *pieces.label_edges)],
            "edge_bounds": edge_bounds,
            "original_ids": self._original,
            "num_classes": pieces.num_classes,
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
    lookups: _Lookups, where: str, node_type: NodeType, rows: Rows, order: Tensor | None
) -> None:
    ids, values, index = ids_of(rows), rows.values, rows.index
    first = None if ids is None else _first_of_range(ids)
    if first is not None:
        # all ids of a range are here: the row follows from the id, or from a look-up of that length
        lookups.part.ranges[where] = {"first": first}
    if order is not None:
        values = values[rows.locate(order)]
        count = len(order) if first is not None or index is None else len(index)
        # as long as the partition where it owns a range, as the graph where its ids are strewn
        index = torch.full((count,), -1)
        index[order - (first or 0)] = torch.arange(len(order))
    elif ids is not None and first is not None:
        # rows in the order of ids need no look-up: better sorted once here than looked up in each
        # batch
        values, index = values[torch.argsort(ids)], None
    if index is not None:
        index = index.to(torch.int32) if len(values) <= _INT32_IDS else index
        lookups.add(where, node_type, index, "index")
    _write_values(lookups, where, values)
    if rows.scales is not None:
        write_array(lookups.folder, lookups.part, f"{where}/scales", rows.scales.numpy())


def _first_of_range(ids: Tensor) -> int | None:
    """Return the lowest of some ids, 0 of none, if all up to the highest are there, else None."""
    if not ids.numel():
        return 0
    first = int(ids.min())
    return first if int(ids.max()) - first + 1 == ids.numel() else None


def _write_edge_rows(lookups: _Lookups, where: str, text: str, given: FeaturePartitionData) -> None:
    values, ids = given.feats, given.ids
    if ids is not None:
        # readers search for ids, which have to ascend
        order = torch.argsort(ids)
        lookups.add(where, text, ids[order], "ids")
        values = values[order]
    _write_values(lookups, where, values)
