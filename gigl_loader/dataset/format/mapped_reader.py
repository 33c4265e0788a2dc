"""Opens a partition in the mapped format, and the dictionaries of its tables' ids."""

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.format.mapped import (
    EDGE_ROWS,
    LOOKUPS,
    PARQUET,
    ROOT_FILE,
    TABLE_COLUMN,
    ArraySpec,
    FileStamp,
    Header,
    Part,
    check_sizes,
    read_header,
    read_part,
    rows_at,
    verify_file,
)
from gigl_loader.dataset.format.mapped_files import MappedFiles, check_stamps
from gigl_loader.dataset.format.mapped_writer import allow_files
from gigl_loader.dataset.partition.checks import check_partitions
from gigl_loader.dataset.partition.partition_view import (
    ROW_KINDS,
    Adjacency,
    Book,
    PartitionView,
    Rows,
    Splits,
)
from gigl_loader.dataset.schema import (
    WEIGHT_NAMES,
    EdgeType,
    NodeType,
    edge_type_str,
    is_labeled_homogeneous,
    row_type,
)
from gigl_loader.errors import ConfigError, GiglLoaderError, WrongTypeError, needed
from gigl_loader.runtime.files_of_others import inside
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.memory.tensors import (
    as_array,
    bytes_of,
    dtype_named,
    empty_shared,
    share_tensor,
)
from gigl_loader.runtime.object_storage.folder_cache import distrust, hold, is_of_a_cache
from gigl_loader.runtime.progress import note
from gigl_loader.runtime.system import meminfo
from gigl_loader.runtime.threads import start_aside

Memory = Literal["resident", "mapped"]
Edges = Literal["own", "all"]
Stamps = list[dict[str, FileStamp]]

_COLUMNS = {"indptr": "int64", "indices": "int32 int64", "edge_ids": "int64", "weights": "float32"}
"""Arrays of edges, and their types."""
_CHECKED_NUMBERS = 2**22
"""Numbers in memory at a time while files are verified."""
_READ_BY_EACH_DRAW = ("indptr", "indices")
_log = logging.getLogger(__name__)


class OriginalIds:
    """The ids that nodes of a type had in their tables, stored with the partitions.

    A partition's nodes have their ids in order, so from node to table id is a look-up in an array,
    mapped on first use; text is stored as consecutive bytes with offsets. From table id to node is
    a search through a Parquet file of all pairs, block by block, for many ids at a time. The table
    rows of a type's edges are stored in the same way, without the search.

    Args:
        node_type: The type.
        shared: The root of the directory.
        bounds: ``[num_partitions]`` int64, one past the last id of each partition.
        folder: ``"ids"`` or ``"edge_rows"``.
    """

    def __init__(
        self, node_type: str, shared: Part, bounds: Sequence[int], folder: str = "ids"
    ) -> None:
        self._node_type, self._shared, self._folder = node_type, shared, folder
        self._ends = np.array(bounds, np.int64)
        self._starts = np.concatenate([[0], self._ends[:-1]]).astype(np.int64)
        self.is_text = self._name(0, "text") in shared.arrays
        self._mapped: dict[str, Array] = {}
        self._files = MappedFiles()
        self._is_compared = False

    def __getstate__(self) -> dict[str, Any]:
        # a pickle of a mapped array would contain the whole file
        return {**vars(self), "_mapped": {}, "_files": MappedFiles()}

    def _name(self, partition: int, what: str) -> str:
        return f"{self._folder}/{self._node_type}/part{partition}.{what}"

    def _array(self, partition: int, what: str) -> Array:
        name = self._name(partition, what)
        if name not in self._mapped:
            # on first use, long after `load`: by then another graph may have taken its place
            spec, path = self._shared.arrays[name], self._shared.path(name)
            self._mapped[name] = as_array(
                self._files.map(self._shared, path, spec.dtype, spec.shape)
            )
        return self._mapped[name]

    def to_original(self, ids: Array) -> Array:
        """Return the ids that nodes had in the tables.

        Args:
            ids: ``[n]`` int64, ids in the dataset, of any partition.

        Returns:
            ``[n]`` int64, or an array of `str` objects.

        Raises:
            ConfigError: There is no such node, or edge.
            FileChangedError: A file of these ids was changed after the dataset was loaded.
        """
        self._files.check()
        count = int(self._ends[-1])
        # numpy would take -1 for the last row, and search a missing partition
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise ConfigError(
                f"ids of {self._node_type!r} must be in [0, {count}), "
                f"got {ids.min()} to {ids.max()}"
            )
        values = np.empty(ids.shape, object if self.is_text else np.int64)
        owners = np.searchsorted(self._ends, ids, "right")
        # one read of each partition's file for all of its ids, not one per id
        for partition in np.unique(owners):
            at = np.flatnonzero(owners == partition)
            rows = ids[at] - self._starts[partition]
            values[at] = self._take(int(partition), rows)
        return values

    def _take(self, partition: int, rows: Array) -> Any:
        if not self.is_text:
            return self._array(partition, "values")[rows]
        ends, text = self._array(partition, "ends"), self._array(partition, "text")
        # `ends` has no leading 0: row 0 begins at the start of the text
        return [
            bytes(text[ends[row - 1] if row else 0 : ends[row]]).decode() for row in rows.tolist()
        ]

    def from_original(self, values: Any) -> Array:
        """Return the ids in the dataset of nodes given by their ids in the tables.

        Args:
            values: A sequence of `int` or `str`, or an array of them.

        Returns:
            ``[n]`` int64.

        Raises:
            ConfigError: An id is missing.
        """
        pa, compute, parquet = _import_pyarrow()
        try:
            wanted = pa.array(values, pa.string() if self.is_text else pa.int64())
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise WrongTypeError(
                f"ids of {self._node_type!r} are {'text' if self.is_text else 'integers'} in the "
                f"tables: {error}"
            ) from error
        # each block is searched for `keys` by hash; repeated ids would cost a search each
        keys = wanted.unique()
        nodes = np.full(len(keys), -1, np.int64)
        file = parquet.ParquetFile(self._pairs())
        # a block at a time: the dictionary of a large graph may be larger than memory
        for batch in file.iter_batches():
            positions = compute.index_in(batch.column("id"), keys)
            known = positions.is_valid().to_numpy(zero_copy_only=False)
            at = positions.drop_null().to_numpy()
            nodes[at] = batch.column("node").to_numpy()[known]
        missing = np.flatnonzero(nodes < 0)
        if missing.size:
            raise ConfigError(
                f"{missing.size} of these ids are no {self._node_type!r} of the tables, the first: "
                f"{keys[int(missing[0])].as_py()!r}"
            )
        # back from distinct ids to the requested ones, in their order
        return cast("Array", nodes[compute.index_in(wanted, keys).to_numpy()])

    def column(self) -> str:
        """Return the name of the column that has these ids in its table.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        _, _, parquet = _import_pyarrow()
        path = self._shared.folder / PARQUET.format(node_type=self._node_type)
        metadata = parquet.read_schema(path).field("id").metadata or {}
        return str(metadata.get(TABLE_COLUMN, b"id").decode())

    def _pairs(self) -> Path:
        """Return the file of all pairs, whose checksum is compared once."""
        name = PARQUET.format(node_type=self._node_type)
        path, spec = inside(self._shared.folder, name), self._shared.files.get(name)
        # here, where all of it is read: the background comparison may not have reached it
        if spec is not None and not self._is_compared:  # None: the previous format version
            _compare(self._shared.folder, path, spec)
            self._is_compared = True
        return path


def _import_pyarrow() -> Any:
    with needed('to look ids up needs pyarrow: run pip install "gigl_loader[tables]"'):
        import pyarrow as pa
        import pyarrow.compute as compute
        import pyarrow.parquet as parquet
    return pa, compute, parquet


class _PartReader:
    """The arrays of one partition's folder, as tensors.

    Args:
        part: The folder.
        header: The directory.
        files: Keeps the files that are mapped.
        memory: See `MappedPart`.
    """

    def __init__(self, part: Part, header: Header, files: MappedFiles, memory: Memory) -> None:
        self.part, self._header, self._files, self._memory = part, header, files, memory
        # features, labels and attributes of a type share one file; mapped once, it takes one
        # descriptor
        self._lookups: dict[str, Tensor | None] = {}

    def read(self, part: Part, name: str) -> Tensor:
        """Return an array of ``part``: its file mapped, or a copy in shared memory."""
        path, spec = part.path(name), part.arrays[name]
        if self._is_mapped(name):
            # one file per array: workers receive its descriptor and map the same pages
            return self._files.map(part, path, spec.dtype, spec.shape)
        # read directly into shared memory, instead of read and then copied
        target = empty_shared(spec.shape, dtype_named(spec.dtype))
        if spec.nbytes:
            _read_into(path, target, spec.nbytes)
        return target

    def _is_mapped(self, name: str) -> bool:
        return self._memory == "mapped"

    def tensor(self, name: str) -> Tensor | None:
        """Return an array of the partition; None: it has none of that name."""
        return self.read(self.part, name) if name in self.part.arrays else None

    def adjacency(self) -> dict[EdgeType, Adjacency]:
        """Return the edges by type."""
        by_type = {name: self._adjacency(name) for name in self._header.edge_types}
        return {name: edges for name, edges in by_type.items() if edges is not None}

    def _adjacency(self, edge_type: EdgeType) -> Adjacency | None:
        where = rows_at("edges", edge_type)
        columns = {column: self.tensor(f"{where}/{column}") for column in _COLUMNS}
        indptr, indices = columns["indptr"], columns["indices"]
        if indptr is None or indices is None:
            return None
        ranges = self.part.ranges.get(where, {})
        node_type, count = row_type(edge_type, self._header.edge_dir), indices.numel()
        first, end = 0, self._header.num_nodes[node_type]
        if "first_row" in ranges:
            bounds, k = self._header.node_bounds[node_type] or [end], int(self.part.folder.name[4:])
            first, end = [0, *bounds][k : k + 2]
        # kernels trust them: other offsets are other edges in silence, or memory of others
        fits = ranges.get("first_row", 0) == first and [indptr[0], indptr[-1]] == [0, count]
        for column, array in columns.items():
            length = end - first + 1 if column == "indptr" else count
            fits &= array is None or (
                array.shape == (length,) and str(array.dtype)[6:] in _COLUMNS[column]
            )
        if not fits:
            raise ConfigError(
                f"{self.part.path(where + '/indptr')} does not fit the {count} edges beside it, or "
                f"nodes {first} to {end}: partition the graph again"
            )
        return Adjacency(indptr, indices, columns["edge_ids"], columns["weights"], **ranges)

    def check_edges(self, stop: threading.Event) -> None:
        """Read all edges, until ``stop`` is set: offsets must ascend, and neighbours be nodes."""
        for edge_type in self._header.edge_types:
            node_type = row_type(edge_type, self._header.edge_dir)
            count = self._header.num_nodes[edge_type[2 if node_type == edge_type[0] else 0]]
            for column in ("indptr", "indices"):
                name = f"{rows_at('edges', edge_type)}/{column}"
                numbers = self.part.array(name) if name in self.part.arrays else np.empty(0)
                for start in range(0, numbers.size, _CHECKED_NUMBERS):
                    if stop.is_set():
                        return
                    some = numbers[start : start + _CHECKED_NUMBERS + 1]
                    fits = some.min() >= 0 and some.max() < count
                    if column == "indptr":
                        fits = (some[1:] >= some[:-1]).all()
                    if not fits:
                        raise ConfigError(
                            f"{self.part.path(name)} is no index of edges between {count} nodes, "
                            f"from number {start} on: partition the graph again"
                        )

    def _rows(self, kind: str, key: NodeType | EdgeType, name: str = "") -> Rows | None:
        text = key if isinstance(key, str) else edge_type_str(key)
        where = rows_at(kind, key, name)
        values = self.tensor(f"{where}/values")
        if values is None:
            return None
        ranges = self.part.ranges.get(where, {})
        whole = self._header.num_partitions == 1
        index, ids = self.tensor(f"{where}/index"), self.tensor(f"{where}/ids")
        if "lookup" in ranges:
            lookup = self._lookup(text)
            # Of nodes a position for each id from `first` on: O(1), and short if ids are a range.
            # Edge ids of a partition are scattered over the graph's, so they are listed and
            # searched instead.
            index, ids = (lookup, None) if kind.startswith("node") else (None, lookup)
        scales = self.tensor(f"{where}/scales")
        return Rows(values, index, whole, first=ranges.get("first", 0), ids=ids, scales=scales)

    def _lookup(self, text: str) -> Tensor | None:
        """Return the array that finds the rows of a type; the same tensor for all matrices."""
        if text not in self._lookups:
            self._lookups[text] = self.tensor(f"{LOOKUPS}/{text}")
        return self._lookups[text]

    def all_rows(self, kind: str, keys: list[Any]) -> dict[Any, Rows]:
        """Return the matrices ``kind`` by type, and attributes by type and name."""
        all_rows: dict[Any, Rows] = {}
        for key in keys:
            if not kind.endswith("attributes"):
                rows = self._rows(kind, key)
                all_rows |= {} if rows is None else {key: rows}
                continue
            # only files tell the names of attributes: types may have different ones
            start = rows_at(kind, key) + "/"
            for array in self.part.arrays:
                name, _, what = array.removeprefix(start).partition("/")
                if array.startswith(start) and what == "values":
                    rows = self._rows(kind, key, name)
                    all_rows |= {} if rows is None else {(key, name): rows}
        return all_rows


class _EdgesReader(_PartReader):
    """The edges of a partition whose rows are on another machine.

    Edge ids, weights and attributes are mapped in any case: not all loaders use them, and times
    are sorted into memory of their own.
    """

    def _is_mapped(self, name: str) -> bool:
        return super()._is_mapped(name) or not name.endswith(_READ_BY_EACH_DRAW)


class MappedPart:
    """One partition of a directory, opened. `view` and `splits` are built from its files.

    Args:
        root: The directory.
        partition_idx: The partition.
        memory: ``"mapped"``: tensors over the page cache; ``"resident"``: copies in shared memory.
        stamps: `stamps` of another process; its files must be the same.
        edges: ``"all"``: the view has the edges of all other partitions, too.

    Raises:
        ConfigError: A file is missing, has changed, or belongs to another run.
    """

    def __init__(
        self,
        root: Path,
        partition_idx: int,
        memory: Memory,
        stamps: "Stamps | None" = None,
        edges: Edges = "own",
    ) -> None:
        self.root, self.partition_idx, self.memory, self.edges = root, partition_idx, memory, edges
        # as long as this object lives: tables' ids are mapped on first use
        self._in_use = hold(root)
        self.header, self._shared = read_header(root)
        # before the partition's files are opened, which would be missing
        check_partitions(self.header.num_partitions, partition_idx)
        check_sizes(self._shared)
        self._files = MappedFiles()
        self._own = _PartReader(
            read_part(root, self.header, partition_idx), self.header, self._files, memory
        )
        others = range(self.header.num_partitions) if edges == "all" else range(0)
        self._others = {
            other: _EdgesReader(
                read_part(root, self.header, other, edges_only=True),
                self.header,
                self._files,
                memory,
            )
            for other in others
            if other != partition_idx
        }
        for part, known in zip(self._parts, stamps or [], strict=stamps is not None):
            check_stamps(part, known)
        # a descriptor for each array, and a second one while they are sent to workers
        allow_files(2 * sum(len(other.part.arrays) for other in self._others.values()))
        self._stop = threading.Event()
        self._failure: ConfigError | None = None

    @property
    def _parts(self) -> list[Part]:
        """All folders that are read."""
        return [self._shared, self._own.part, *(other.part for other in self._others.values())]

    def _book(self, kind: str, name: str, bounds: Any) -> Book:
        if bounds is not None:
            # one number per partition: it needs no file
            return Book(bounds=share_tensor(torch.tensor(bounds, dtype=torch.int64, device="cpu")))
        array = f"books/{kind}/{name}"
        return Book(table=self._own.read(self._shared, array))

    def view(self) -> PartitionView:
        """Return the partition as samplers read it.

        Raises:
            ConfigError: The manifest does not fit its files.
        """
        try:
            return self._view()
        except GiglLoaderError:
            raise
        # manifests before checksums may contain anything
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ConfigError(
                f"{self.root / ROOT_FILE} is damaged: {type(error).__name__}: {error}"
            ) from error

    def _view(self) -> PartitionView:
        header = self.header
        adjacency = self._own.adjacency()
        num_nodes: dict[NodeType, int] = dict(header.num_nodes)
        for node_type, count in num_nodes.items():
            last = (header.node_bounds[node_type] or [count])[-1]
            # its own ids take 8 bytes each
            if last != count or count * 8 > header.num_partitions * meminfo("MemTotal"):
                raise ConfigError(
                    f"{self.root / ROOT_FILE} says {count:,} nodes of {node_type!r}, which do not "
                    f"fit this machine's memory, or the {last:,} of all partitions"
                )
        rows: dict[str, Any] = {}
        for kind in ROW_KINDS:
            keys: list[Any] = list(adjacency) if kind.startswith("edge") else list(num_nodes)
            rows[kind] = self._own.all_rows(kind, keys)
        self._add_weights(rows["edge_attributes"], adjacency)
        labeled = is_labeled_homogeneous(num_nodes, list(adjacency))
        several = header.num_partitions > 1
        view = PartitionView(
            is_heterogeneous=header.heterogeneous and not labeled,
            edge_dir=header.edge_dir,
            num_partitions=header.num_partitions,
            partition_idx=self.partition_idx,
            num_nodes=num_nodes,
            adjacency=adjacency,
            node_books=self.node_books() if several else {},
            edge_books=self._edge_books(adjacency) if several else {},
            num_classes=dict(header.num_classes),
            frames=dict(header.frames),
            identity=header.identity,
            **rows,
        )
        others = {number: self._edges_of(number, view) for number in self._others}
        return replace(view, other_edges=others)

    def _edges_of(self, number: int, view: PartitionView) -> PartitionView:
        """Return another partition of the graph of ``view``, with its edges alone."""
        reader = self._others[number]
        adjacency = reader.adjacency()
        attributes = reader.all_rows("edge_attributes", list(adjacency))
        self._add_weights(attributes, adjacency)
        return view.with_edges_of(number, adjacency, attributes)

    def _add_weights(self, rows: dict[Any, Rows], adjacency: dict[EdgeType, Adjacency]) -> None:
        """Let batches carry weights if edge ids are positions: the array is the same."""
        whole = self.header.num_partitions == 1
        for edge_type, edges in adjacency.items():
            if edges.weights is not None and edges.first_edge is not None:
                weights = Rows(edges.weights, None, whole, first=edges.first_edge)
                # an attribute of that name takes precedence: the user may have given another type
                # than float32
                rows.setdefault((edge_type, WEIGHT_NAMES[0]), weights)

    def node_books(self) -> dict[NodeType, Book]:
        """Return the owners of nodes."""
        return {
            node_type: self._book("node", node_type, bounds)
            for node_type, bounds in self.header.node_bounds.items()
        }

    def _edge_books(self, adjacency: dict[EdgeType, Adjacency]) -> dict[EdgeType, Book]:
        bounds = self.header.edge_bounds
        return {
            edge_type: self._book("edge", name, bounds[name])
            for edge_type in adjacency
            if (name := edge_type_str(edge_type)) in bounds
        }

    def splits(self) -> Splits:
        """Return the split ids that this partition owns."""
        splits: Splits = {}
        for name in self._own.part.arrays:
            kind, _, rest = name.partition("/")
            if kind == "splits":
                split, _, node_type = rest.partition("/")
                ids = self._own.tensor(name)
                assert ids is not None
                splits.setdefault(split, {})[node_type] = share_tensor(ids)
        return splits

    def original_ids(self) -> dict[NodeType | EdgeType, OriginalIds]:
        """Return the dictionaries of the tables' ids; empty if the graph was not made from tables.

        By edge type, the table rows of edges, if they were kept.
        """
        dictionaries: dict[NodeType | EdgeType, OriginalIds] = {
            # partitions of tables own ranges of ids
            node_type: OriginalIds(
                node_type, self._shared, self.header.node_bounds[node_type] or []
            )
            for node_type in self.header.original_ids
        }
        for edge_type in self.header.edge_types:
            text = edge_type_str(edge_type)
            if EDGE_ROWS.format(edge_type=text, partition=0) in self._shared.arrays:
                bounds = self.header.edge_bounds[text] or []
                dictionaries[edge_type] = OriginalIds(text, self._shared, bounds, "edge_rows")
        return dictionaries

    # --- checksums --------------------------------------------------------------------------------

    def verify(self) -> None:
        """Compare all files that are read with their checksums, and read the edges."""
        for part in self._parts:
            for path, spec in part.paths():
                _compare(self.root, path, spec, self._stop)
        for reader in (self._own, *self._others.values()):
            reader.check_edges(self._stop)

    def verify_in_background(self) -> None:
        """Start the comparison; `check` raises its errors."""
        # a daemon: reading the rest of a large graph must not keep a script from ending
        # an interrupted comparison is the same as none
        start_aside("gigl_loader.verify", self._verify_quietly)

    def _verify_quietly(self) -> None:
        # for this thread only: Linux has a niceness per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # training comes first
        try:
            self.verify()
        except ConfigError as error:
            # Mapped files survive both. What came to their place belongs to another graph.
            if not any(part.is_removed_or_replaced() for part in self._parts):
                _log.error("%s", error)
                # kept for `check`: an exception in a thread would be lost
                self._failure = error
        except OSError as error:
            _log.warning("%s could not be compared with its checksums: %s", self.root, error)

    @property
    def stamps(self) -> "Stamps":
        """Stamps of the shared files and of each partition's, for another process."""
        return [part.stamps for part in self._parts]

    def check(self) -> None:
        """Raise the error that the background comparison found, or that of a mapped file.

        Raises:
            ConfigError: A file differed from its checksum.
            FileChangedError: A mapped file was changed after it was opened.
        """
        # First: a comparison that was under way during the change found it, too, and less of it.
        self._files.check()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the background comparison, if it is running."""
        self._stop.set()


def _compare(root: Path, path: Path, spec: ArraySpec, stop: threading.Event | None = None) -> None:
    """Compare a file of ``root`` with its checksums, as `verify_file` does.

    Raises:
        ConfigError: It has changed; if it is a copy of one in object storage, what is wrong in it
            is fetched by the next who loads it.
    """
    if not is_of_a_cache(root):
        return verify_file(path, spec, stop)
    try:
        verify_file(path, spec, stop, "load it again from its URL, which fetches what is damaged")
    except ConfigError:
        distrust(root)
        raise


def _read_into(path: Path, target: Tensor, nbytes: int) -> None:
    view = bytes_of(target)
    with path.open("rb", buffering=0) as file:
        filled = 0
        while filled < nbytes:
            # Linux reads at most 2 GiB per call
            count = file.readinto(view[filled:])
            if not count:
                raise ConfigError(f"{path} is shorter than its {nbytes} bytes: copy it again")
            filled += count
            note(count)
