"""Features, labels and splits of nodes, written at the position of the node's number."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigl_loader.dataset.format.mapped import LOOKUPS, ArraySpec, Part, rows_at
from gigl_loader.dataset.format.mapped_writer import PartFiles, allow_files, new_file, write_array
from gigl_loader.dataset.partition.doubts import IGNORED_LABEL, low_labels, warn_of
from gigl_loader.dataset.partition.frames import attributes_of
from gigl_loader.dataset.schema import NEIGHBOR_TIME, EdgeDir, EdgeType, NodeType, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.resumable import ResumableJob
from gigl_loader.partitioning.stages.degree_order import Buckets, Positions
from gigl_loader.partitioning.stages.node_ids import Numbering, Placer
from gigl_loader.partitioning.tables.spec import (
    FrameNodes,
    NodeTable,
    TableGraph,
    columns_of,
    is_npy,
)
from gigl_loader.partitioning.tables.table_files import (
    Table,
    TableFile,
    count_not_numbers,
    doubts_of_columns,
    feature_type,
    in_type,
    is_list,
    matrix_in,
    number_type,
    stored_type,
    time_type,
    width_of,
)
from gigl_loader.runtime.memory.segments import Array

_BYTE = np.dtype(np.uint8)
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def _attribute(table: Table, column: str) -> str:
    """Return a column's name, suitable as an attribute of a batch."""
    if not column.isidentifier() or column.startswith("_"):
        raise ConfigError(
            f"{table.where}: attribute {column!r} is no public Python name: rename the column"
        )
    return column


class _InPlace(ExitStack):
    """Writes rows in the order of ids.

    Args:
        parts: The partitions.
        names: Names of the matrices.
    """

    def __init__(self, parts: list[Part], names: Iterable[str]) -> None:
        super().__init__()
        self._files = {
            name: self.enter_context(PartFiles([part.path(f"{name}/values") for part in parts]))
            for name in names
        }

    def add(self, rows: Mapping[str, Array], pieces: list[tuple[int, int, Array]]) -> None:
        """Write a batch: by name, ``[n, width]``; and the places from `Placer`."""
        for name, matrix in rows.items():
            # `first` counts rows from the partition's first: a batch's rows of one partition are
            # consecutive there, so a piece is one write.
            for partition, first, positions in pieces:
                offset = first * matrix.shape[1] * matrix.itemsize
                self._files[name].write(partition, offset, matrix[positions])


@dataclass
class _Found:
    """What was found in the rows of a file."""

    highest: int = -1
    """The highest label; -1: there is none."""
    low: int = 0
    """Labels below -1 that do not mean "no label"."""
    lowest: int = 0
    not_numbers: dict[str, dict[str, int]] = field(default_factory=dict)
    """By ``"features"`` and ``"labels"``: values that are NaN, by column."""

    def add_labels(self, labels: Array) -> None:
        """Look at the labels of some rows."""
        if labels.size and labels.dtype.kind == "i":
            self.highest = max(self.highest, int(labels.max()))
            low = labels[(labels < -1) & (labels != IGNORED_LABEL)]
            if low.size:
                self.low, self.lowest = self.low + low.size, min(self.lowest, int(low.min()))


class NodeRows:
    """Features, labels and splits of one node type.

    Args:
        job: The run.
        table: Table of the nodes.
        spec: Its columns.
        node_type: Their type.
    """

    def __init__(
        self, job: ResumableJob, table: Table, spec: NodeTable, node_type: NodeType
    ) -> None:
        self._job, self._table, self._spec, self._node_type = job, table, spec, node_type
        self._beside: dict[str, Array] = {}
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
        for where, columns in self._columns.items():  # one number per node, as in PyG
            if len(columns) == 1 and not is_list(table.type_of(columns[0])):
                self._flat |= set() if where.startswith("node_features") else {where}
        self._add_frame(spec)
        if spec.split is not None:
            table.type_of(spec.split)  # raises if there is no such column

    @property
    def attributes(self) -> dict[str, int]:
        """Numbers per node of each attribute, by its name."""
        where = f"node_attributes/{self._node_type}/"
        return {
            name.removeprefix(where): width
            for name, (_, width) in self._types.items()
            if name.startswith(where)
        }

    def _add_frame(self, spec: NodeTable) -> None:
        """Add the rows of mixed types, as attributes."""
        for name in attributes_of(spec.frame) if isinstance(spec, FrameNodes) else ():
            where = f"node_attributes/{self._node_type}/{name}"
            if pa.types.is_fixed_size_binary(kind := self._table.type_of(name)):
                self._types[where], self._columns[where] = (_BYTE, kind.byte_width), [name]
            else:
                self._add(where, [name], name)

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
            features = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # numpy reads its head as Python: any class
            raise ConfigError(f"{self._table.where}: features {path}: {error}") from error
        if features.ndim not in (1, 2) or len(features) != self._table.num_rows:
            raise ConfigError(
                f"{self._table.where}: features {path} have shape {features.shape}, the table has "
                f"{self._table.num_rows} rows: give one row of features for each"
            )
        # Mapped, and read in batches: it may exceed memory, and its rows go to partitions.
        where = f"node_features/{self._node_type}"
        self._beside[where] = features.reshape(len(features), -1)
        self._types[where] = features.dtype, self._beside[where].shape[1]

    def add_attribute(self, name: str, values: Array) -> None:
        """Add an attribute that is no column: ``[rows]``, an integer for each row of the table."""
        where = f"node_attributes/{self._node_type}/{name}"
        self._beside[where] = values.reshape(-1, 1)
        self._types[where] = np.dtype(np.int64), 1
        self._flat.add(where)

    def _add(self, kind: str, columns: list[str], what: str) -> None:
        dtype = stored_type(number_type(self._table, columns, what))
        self._types[kind] = dtype, width_of(self._table, columns)
        self._columns[kind] = columns

    @property
    def has_rows(self) -> bool:
        """Whether nodes have features, labels or attributes."""
        return bool(self._types)

    def write(
        self, numbering: Numbering, parts: list[Part], positions: Positions | None
    ) -> int | None:
        """Write the rows to their partitions and enter them in the manifests.

        Args:
            numbering: Of the nodes.
            parts: The partitions.
            positions: Positions of rows in a partition; None: in the order of ids.

        Returns:
            The number of classes, as `DistDataset.num_classes` counts them; None: there are none.
        """
        widths = {name: width * dtype.itemsize for name, (dtype, width) in self._types.items()}
        buckets = None if positions is None else Buckets(positions, widths)
        # By degree, the steps have the size of a bucket in their names: a resumed run with another
        # memory limit deals rows again, to buckets of another size.
        step = f"rows/{self._node_type if buckets is None else buckets.name}"
        found = list[_Found]()
        with self._job.work_on(f"rows {self._node_type}", self._table.num_rows) as progress:
            for i, file in enumerate(self._table.files):
                make = partial(self._write_file, parts, numbering, file, i, buckets)
                # Noted with the step: values of files from an earlier run are not read again.
                found.append(_Found(**self._job.step(f"{step}/{i}", make)))
                progress(file.num_rows)
        if buckets is not None:
            buckets.write_rows(len(self._table.files))
        self._note(numbering, parts, positions)
        warn_of(self._doubts(found))
        return self._num_classes(max((one.highest for one in found), default=-1))

    def _doubts(self, found: list["_Found"]) -> list[str]:
        """Return what is likely a mistake in the values of all files."""
        where, rows, texts = self._table.where, self._table.num_rows, list[str]()
        for kind, what in (
            (f"node_features/{self._node_type}", "features"),
            (self._labels, "labels"),
        ):
            if kind in self._types:
                counts = [one.not_numbers.get(what, {}) for one in found]
                total = rows * self._types[kind][1]
                texts += doubts_of_columns(f"{what} of {where}", total, counts)
        if low := sum(one.low for one in found):
            lowest = min(one.lowest for one in found)
            texts.append(low_labels(f"labels of {where}", low, lowest))
        return texts

    def _note(self, numbering: Numbering, parts: list[Part], positions: Positions | None) -> None:
        counts = np.diff(numbering.ends, prepend=0)
        for k, part in enumerate(parts):
            for where, (dtype, width) in self._types.items():
                shape = (int(counts[k]),) if where in self._flat else (int(counts[k]), width)
                part.note_array(f"{where}/values", dtype.name, shape)
                part.ranges[where] = {"first": int(numbering.starts[k])}
                if positions is not None:
                    positions.note(k, where)
            if self._spec.split is not None:
                self._write_splits(part, k)

    def _num_classes(self, highest: int) -> int | None:
        if self._labels not in self._types:
            return None
        # Several labels per node are one per class; a single fraction is no class.
        dtype, width = self._types[self._labels]
        if width > 1:
            return width
        return highest + 1 if dtype.kind == "i" else None

    def _write_file(
        self,
        parts: list[Part],
        numbering: Numbering,
        file: TableFile,
        i: int,
        buckets: Buckets | None,
    ) -> dict[str, Any]:
        """Return the fields of `_Found`."""
        table, spec = self._table, self._spec
        placer = Placer(numbering, table, file)
        columns = [*columns_of(spec.split), *(c for names in self._columns.values() for c in names)]
        columns = list(dict.fromkeys(columns))  # one may be label and attribute
        found = _Found()
        splits: dict[str, list[Array]] = {}
        with _InPlace(parts, self._types) if buckets is None else buckets.sink(i) as sink:
            for row, batch in self._batches(file, columns):
                numbers, pieces = placer.next(row, batch.num_rows)
                rows = {kind: self._rows(kind, file, row, batch) for kind in self._types}
                for what in ("features", "labels"):
                    kind = f"node_{what}/{self._node_type}"
                    if kind in rows:
                        counts = found.not_numbers.setdefault(what, {})
                        count_not_numbers(counts, self._names(kind), rows[kind])
                if self._labels in rows:
                    found.add_labels(rows[self._labels])
                sink.add(rows, pieces)
                if spec.split is not None:
                    self._split(splits, file, row, batch.column(spec.split), numbers, numbering)
        self._keep_splits(i, splits)
        return asdict(found)

    def _names(self, kind: str) -> list[str]:
        """Return the columns of a matrix, or the file that it is in."""
        return [str(self._spec.features)] if kind in self._beside else self._columns[kind]

    def _batches(self, file: TableFile, columns: list[str]) -> Iterator[tuple[int, Any]]:
        if columns:
            yield from self._table.batches(file, columns)
            return
        most = ResumableJob.sizes.table_rows
        for row in range(0, file.num_rows, most):
            empty = pa.nulls(min(most, file.num_rows - row))
            # Features only in a file beside the table: only the number of rows matters.
            yield row, pa.record_batch([empty], ["none"])

    def _rows(self, kind: str, file: TableFile, row: int, batch: Any) -> Array:
        dtype, width = self._types[kind]
        columns = self._names(kind)
        if kind in self._beside:
            start = file.first_row + row
            # A copy: writing directly from a mapping would read it page by page.
            values = np.array(self._beside[kind][start : start + batch.num_rows])
        else:
            hint = " (give nodes without a label -1)" if kind == self._labels else ""
            values = matrix_in(self._table, file, columns, row, batch, width, hint=hint)
        return in_type(self._table, file, columns, row, values, dtype)

    # --- splits -----------------------------------------------------------------------------------

    def _split(
        self,
        splits: dict[str, list[Array]],
        file: TableFile,
        row: int,
        values: Any,
        numbers: Array,
        numbering: Numbering,
    ) -> None:
        texts = values.cast(pa.string())  # values may be a dictionary, or all nulls
        for text in pc.unique(texts).to_pylist():
            if not text:
                continue
            at = np.flatnonzero(pc.equal(texts, text).fill_null(False).to_numpy(False))
            split = _SPLITS.get(text)
            if split is None:
                self._table.refuse(
                    file,
                    str(self._spec.split),
                    row + at,
                    'must hold "train", "val", "test" or nothing',
                    [text] * len(at),
                )
            mine = numbers[at]
            for k in np.unique(np.searchsorted(numbering.ends, mine, "right")):
                owned = mine[np.searchsorted(numbering.ends, mine, "right") == k]
                splits.setdefault(f"{split}.{k}", []).append(owned)

    def _keep_splits(self, i: int, splits: dict[str, list[Array]]) -> None:
        # One file per table file, since its step may not be repeated; and in scratch, since a split
        # of a partition is complete only after all files.
        folder = self._job.folder / "splits" / self._node_type
        folder.mkdir(parents=True, exist_ok=True)
        joined: dict[str, Any] = {name: np.concatenate(pieces) for name, pieces in splits.items()}
        np.savez(folder / f"{i}.npz", **joined)

    def _write_splits(self, part: Part, k: int) -> None:
        splits: dict[str, list[Array]] = {split: [] for split in ("train", "val", "test")}
        for i in range(len(self._table.files)):
            with np.load(self._job.folder / "splits" / self._node_type / f"{i}.npz") as kept:
                for split, ids in splits.items():
                    if f"{split}.{k}" in kept:
                        ids.append(kept[f"{split}.{k}"])
        for split, pieces in splits.items():
            # Sorted, and present even if empty: a table with a split column has all three.
            owned: Array = np.sort(np.concatenate([np.empty(0, np.int64), *pieces]))
            write_array(part, f"splits/{split}/{self._node_type}", owned)


# --- times of neighbours, beside the edges that lead to them --------------------------------------


def check_time_attr(graph: TableGraph, rows: Mapping[NodeType, NodeRows], time_attr: str) -> None:
    """Check that nodes or edges have the attribute, one number each.

    Raises:
        ConfigError: They have not.
    """
    of_nodes = {t for t, node_rows in rows.items() if time_attr in node_rows.attributes}
    for node_type in sorted(of_nodes):
        if rows[node_type].attributes[time_attr] != 1:
            raise ConfigError(
                f"time_attr={time_attr!r} of nodes {node_type!r} has "
                f"{rows[node_type].attributes[time_attr]} numbers each: a time is one number"
            )
    of_edges = time_attr == "time" and any(graph.edges[t].time for t in graph.walked)
    if not of_nodes and not of_edges:
        known = sorted({name for node_rows in rows.values() for name in node_rows.attributes})
        raise ConfigError(
            f"time_attr={time_attr!r} is no attribute of nodes (there are {known}), and no table "
            'of edges has a time, whose name would be "time"'
        )


def write_neighbor_times(
    job: ResumableJob,
    parts: list[Part],
    graph: TableGraph,
    ends: Mapping[NodeType, Array],
    edge_dir: EdgeDir,
    time_attr: str,
) -> None:
    """Let the edges of each partition carry the times of their neighbours.

    Args:
        job: The run.
        parts: The partitions, with edges and node attributes already written.
        graph: The tables.
        ends: By node type, one past the last number of each partition.
        edge_dir: The direction, which tells the neighbour among the ends.
        time_attr: The attribute.
    """
    for edge_type in graph.walked:
        neighbor = edge_type[0] if edge_dir == "in" else edge_type[2]
        kept = f"{rows_at('node_attributes', neighbor, time_attr)}/values"
        if kept not in parts[0].arrays:  # the type lacks the attribute, in all parts
            continue
        key = edge_type_str(edge_type)
        where = rows_at("edge_attributes", edge_type, NEIGHBOR_TIME + time_attr)
        with job.work_on(f"times {key}", _edges(parts, key)) as progress:
            for k, part in enumerate(parts):
                count = part.arrays[f"edges/{key}/indices"].shape[0]
                write = partial(_write, parts, k, kept, where, edge_type, ends[neighbor])
                job.step(f"times/{key}/{k}", write)
                part.arrays[f"{where}/values"] = ArraySpec(part.arrays[kept].dtype, (count,))
                part.ranges[where] = {"first": part.ranges[f"edges/{key}"]["first_edge"]}
                progress(count)


def _edges(parts: list[Part], key: str) -> int:
    return sum(part.arrays[f"edges/{key}/indices"].shape[0] for part in parts)


def _write(
    parts: list[Part], k: int, kept: str, where: str, edge_type: EdgeType, ends: Array
) -> None:
    """Write the times of one partition's neighbours; only their own times are read."""
    # One number per node, so rows are positions in the file. Mapped: neighbours of a partition are
    # in all others, in no order, and all times together are those of the whole graph.
    allow_files(2 * len(parts))  # a mapping keeps a descriptor of its file
    times = [other.array(kept).reshape(-1) for other in parts]
    positions = f"{LOOKUPS}/{kept.split('/')[1]}"  # if rows are not in the order of ids
    ordered = [other.array(positions) for other in parts if positions in other.arrays]
    # By degree, all partitions have look-ups, else none: a look-up is indexed by its owner.
    starts = np.concatenate([[0], ends[:-1]])
    most = ResumableJob.sizes.table_rows
    neighbors = parts[k].array(f"{rows_at('edges', edge_type)}/indices")
    with new_file(parts[k].path(f"{where}/values")) as file:
        for first in range(0, len(neighbors), most):
            asked = neighbors[first : first + most].astype(np.int64)
            owners = np.searchsorted(ends, asked, "right")
            asked_times = np.empty(len(asked), times[0].dtype)
            for owner in np.unique(owners):  # one read per mapping for all of its nodes
                mine = owners == owner
                rows = asked[mine] - starts[owner]
                asked_times[mine] = times[owner][ordered[owner][rows] if ordered else rows]
            file.write(asked_times.data)
