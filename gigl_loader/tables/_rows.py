"""Features, labels and splits of nodes, written at the position that a node's number gives them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigl_loader.dataset.mapped import Part, write_array
from gigl_loader.dataset.schema import NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.tables._job import Job
from gigl_loader.tables._nodes import Numbering, PartFiles, Placer, note_array, part_files
from gigl_loader.tables._order import Buckets, Positions
from gigl_loader.tables._source import (
    BATCH_ROWS,
    Table,
    TableFile,
    feature_type,
    in_type,
    is_list,
    matrix_in,
    number_type,
    stored_type,
    time_type,
    width_of,
)
from gigl_loader.tables.spec import NodeTable, columns_of, is_npy

_SPLITS = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
}  # fmt: skip


def _attribute(table: Table, column: str) -> str:
    """Return a column's name, fit for an attribute of a batch."""
    if not column.isidentifier() or column.startswith("_"):
        raise ConfigError(
            f"{table.where}: attribute {column!r} is no public Python name: rename the column"
        )
    return column


class _InPlace:
    """Writes rows in the order of ids.

    Args:
        out: Where partitions are written.
        names: Of the matrices.
        num_partitions: How many there are.
    """

    def __init__(self, out: Path, names: Iterable[str], num_partitions: int) -> None:
        self._out, self._names, self._count = out, names, num_partitions
        self._files: dict[str, PartFiles] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "_InPlace":
        for name in self._names:
            files = part_files(self._out, f"{name}/values", self._count)
            self._files[name] = self._stack.enter_context(files)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, rows: Mapping[str, Array], pieces: list[tuple[int, int, Array]]) -> None:
        """Write a batch: by name, ``[n, width]``; and where `Placer` says that it goes."""
        for name, found in rows.items():
            # `first` counts rows from the partition's first: a batch's rows of one partition are
            # neighbours there, so a piece is one write.
            for partition, first, positions in pieces:
                offset = first * found.shape[1] * found.itemsize
                self._files[name].write(partition, offset, found[positions])


class NodeRows:
    """Features, labels and splits of one node type.

    Args:
        job: The run.
        table: Of the nodes.
        spec: Its columns.
        node_type: Of the nodes.
    """

    def __init__(self, job: Job, table: Table, spec: NodeTable, node_type: NodeType) -> None:
        self._job, self._table, self._spec, self._node_type = job, table, spec, node_type
        self._beside: Array | None = None
        self._types: dict[str, tuple[np.dtype[Any], int]] = {}
        self._columns: dict[str, list[str]] = {}
        self._flat: set[str] = set()
        if spec.features is not None:
            self._add_features(spec)
        self._labels = f"node_labels/{node_type}"
        if spec.label is not None:
            self._add(self._labels, columns_of(spec.label), "labels")
            dtype, width = self._types[self._labels]
            if dtype.kind in "iub":  # losses want int64
                self._types[self._labels] = np.dtype(np.int64), width
        for column in columns_of(spec.attributes):
            self._add(f"node_attributes/{node_type}/{_attribute(table, column)}", [column], column)
        if spec.time is not None:
            where = f"node_attributes/{node_type}/time"
            self._types[where] = time_type(table, spec.time), 1
            self._columns[where] = [spec.time]
        for where, columns in self._columns.items():  # one number a node, as PyG has it
            if len(columns) == 1 and not is_list(table.type_of(columns[0])):
                self._flat |= set() if where.startswith("node_features") else {where}
        if spec.split is not None:
            table.type_of(spec.split)  # raises where there is no such column

    @property
    def attributes(self) -> dict[str, int]:
        """Numbers that a node has of each attribute, by its name."""
        where = f"node_attributes/{self._node_type}/"
        return {
            name.removeprefix(where): width
            for name, (_, width) in self._types.items()
            if name.startswith(where)
        }

    def _add_features(self, spec: NodeTable) -> None:
        where = f"node_features/{self._node_type}"
        if is_npy(spec.features):
            self._open_beside(str(spec.features))
        else:
            self._add(where, columns_of(spec.features), "features")
        dtype, width = self._types[where]
        self._types[where] = feature_type(self._table, dtype, spec.feature_dtype), width

    def _open_beside(self, path: str) -> None:
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._table.where}: features {path}: {error}") from error
        if found.ndim not in (1, 2) or len(found) != self._table.num_rows:
            raise ConfigError(
                f"{self._table.where}: features {path} have shape {found.shape}, the table has "
                f"{self._table.num_rows} rows: give one row of features for each"
            )
        # Mapped, and read in batches: it may be larger than memory, and its rows go to partitions.
        self._beside = found.reshape(len(found), -1)
        self._types[f"node_features/{self._node_type}"] = found.dtype, self._beside.shape[1]

    def _add(self, kind: str, columns: list[str], what: str) -> None:
        dtype = stored_type(number_type(self._table, columns, what))
        self._types[kind] = dtype, width_of(self._table, columns)
        self._columns[kind] = columns

    @property
    def has_rows(self) -> bool:
        """Whether nodes have features, labels or attributes."""
        return bool(self._types)

    def write(
        self, out: Path, numbering: Numbering, parts: list[Part], positions: Positions | None
    ) -> int | None:
        """Write the rows to their partitions and note them in the manifests.

        Args:
            out: Where partitions are written.
            numbering: Of the nodes.
            parts: The manifests of the partitions.
            positions: Where rows lie in a partition; None: in the order of ids.

        Returns:
            The number of classes, as `DistDataset.num_classes` counts them; None: there are none.
        """
        widths = {name: width * dtype.itemsize for name, (dtype, width) in self._types.items()}
        buckets = None if positions is None else Buckets(positions, widths)
        # By degree, the steps have the size of a bucket in their names: a run that goes on with
        # another memory deals rows again, to buckets of another size.
        step, highest = f"rows/{self._node_type if buckets is None else buckets.name}", -1
        with self._job.stage(f"rows {self._node_type}", self._table.num_rows) as progress:
            for i, file in enumerate(self._table.files):
                make = partial(self._write_file, out, numbering, file, i, buckets)
                # Noted with the step: labels of files that were done before are not read again.
                highest = max(highest, self._job.step(f"{step}/{i}", make))
                progress(file.num_rows)
        if buckets is not None:
            buckets.place(len(self._table.files))
        self._note(out, numbering, parts, positions)
        return self._num_classes(highest)

    def _note(
        self, out: Path, numbering: Numbering, parts: list[Part], positions: Positions | None
    ) -> None:
        counts = np.diff(numbering.ends, prepend=0)
        for k, part in enumerate(parts):
            folder = out / f"part{k}"
            for where, (dtype, width) in self._types.items():
                shape = (int(counts[k]),) if where in self._flat else (int(counts[k]), width)
                note_array(part, folder, f"{where}/values", dtype.name, shape)
                part.ranges[where] = {"first": int(numbering.starts[k])}
                if positions is not None:
                    positions.note(part, k, where)
            if self._spec.split is not None:
                self._write_splits(folder, part, k)

    def _num_classes(self, highest: int) -> int | None:
        if self._labels not in self._types:
            return None
        # Several labels a node are one for each class; a single fraction is no class.
        dtype, width = self._types[self._labels]
        if width > 1:
            return width
        return highest + 1 if dtype.kind == "i" else None

    def _write_file(
        self, out: Path, numbering: Numbering, file: TableFile, i: int, buckets: Buckets | None
    ) -> int:
        """Return the highest label, -1 where there is none."""
        table, spec, count = self._table, self._spec, len(numbering.ends)
        placer = Placer(numbering, table, file)
        columns = [*columns_of(spec.split), *(c for found in self._columns.values() for c in found)]
        columns = list(dict.fromkeys(columns))  # one may be label and attribute
        highest = -1
        splits: dict[str, list[Array]] = {}
        with _InPlace(out, self._types, count) if buckets is None else buckets.sink(i) as sink:
            for row, batch in self._batches(file, columns):
                numbers, pieces = placer.next(row, batch.num_rows)
                rows = {kind: self._rows(kind, file, row, batch) for kind in self._types}
                labels = rows.get(self._labels)
                if labels is not None and labels.size and labels.dtype.kind == "i":
                    highest = max(highest, int(labels.max()))
                sink.add(rows, pieces)
                if spec.split is not None:
                    self._split(splits, file, row, batch.column(spec.split), numbers, numbering)
        self._keep_splits(i, splits)
        return highest

    def _batches(self, file: TableFile, columns: list[str]) -> Iterator[tuple[int, Any]]:
        if columns:
            yield from self._table.batches(file, columns)
            return
        for row in range(0, file.num_rows, BATCH_ROWS):
            empty = pa.nulls(min(BATCH_ROWS, file.num_rows - row))
            # Features beside the table alone: only how many rows there are is needed of it.
            yield row, pa.record_batch([empty], ["none"])

    def _rows(self, kind: str, file: TableFile, row: int, batch: Any) -> Array:
        dtype, width = self._types[kind]
        if kind not in self._columns and self._beside is not None:
            start = file.first_row + row
            # A copy: what is read of a mapping while it is written out is read page by page.
            found = np.array(self._beside[start : start + batch.num_rows])
            columns = [str(self._spec.features)]
        else:
            columns = self._columns[kind]
            hint = " (give nodes without a label -1)" if kind == self._labels else ""
            found = matrix_in(self._table, file, columns, row, batch, width, hint=hint)
        return in_type(self._table, file, columns, row, found, dtype)

    # --- splits -----------------------------------------------------------------------------------

    def _split(
        self, splits: dict[str, list[Array]], file: TableFile, row: int, values: Any,
        numbers: Array, numbering: Numbering,
    ) -> None:  # fmt: skip
        texts = values.cast(pa.string())  # it may be a dictionary, or all nulls
        for text in pc.unique(texts).to_pylist():
            if not text:
                continue
            at = np.flatnonzero(pc.equal(texts, text).fill_null(False).to_numpy(False))
            split = _SPLITS.get(text)
            if split is None:
                self._table.refuse(
                    file, str(self._spec.split), row + at,
                    'must hold "train", "val", "test" or nothing', [text] * len(at),
                )  # fmt: skip
            mine = numbers[at]
            for k in np.unique(np.searchsorted(numbering.ends, mine, "right")):
                owned = mine[np.searchsorted(numbering.ends, mine, "right") == k]
                splits.setdefault(f"{split}.{k}", []).append(owned)

    def _keep_splits(self, i: int, splits: dict[str, list[Array]]) -> None:
        # In a file for each file of the table, since its step may not be run again; and below
        # scratch, since a split of a partition is complete when all files are done.
        folder = self._job.folder / "splits" / self._node_type
        folder.mkdir(parents=True, exist_ok=True)
        joined: dict[str, Any] = {name: np.concatenate(found) for name, found in splits.items()}
        np.savez(folder / f"{i}.npz", **joined)

    def _write_splits(self, folder: Path, part: Part, k: int) -> None:
        found: dict[str, list[Array]] = {split: [] for split in ("train", "val", "test")}
        for i in range(len(self._table.files)):
            with np.load(self._job.folder / "splits" / self._node_type / f"{i}.npz") as kept:
                for split, ids in found.items():
                    if f"{split}.{k}" in kept:
                        ids.append(kept[f"{split}.{k}"])
        for split, pieces in found.items():
            # Sorted, and there even if empty: a table with a split column has all three.
            owned: Array = np.sort(np.concatenate([np.empty(0, np.int64), *pieces]))
            write_array(folder, part, f"splits/{split}/{self._node_type}", owned)
