"""Opens a partition in the format that is mapped; `mapped_writer` writes it."""

import logging
import os
import threading
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gigl_loader.dataset._checks import check_partitions
from gigl_loader.dataset._pieces import WEIGHT_NAMES, is_labeled_homogeneous
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.mapped import (
    LOOKUPS,
    ROOT_FILE,
    ArraySpec,
    array_path,
    check_sizes,
    names_below,
    read_header,
    read_part,
    verify,
)
from gigl_loader.dataset.original_ids import EDGE_ROWS, OriginalIds
from gigl_loader.dataset.progress import note
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType, edge_type_str
from gigl_loader.dataset.view import Adjacency, Book, PartitionView, Rows, Splits
from gigl_loader.errors import ConfigError, GiglLoaderError
from gigl_loader.memory.tensors import (
    bytes_of,
    dtype_named,
    empty_shared,
    map_file,
    share_tensor,
)
from gigl_loader.threads import new_thread, nothing_hangs_on_it

Memory = Literal["resident", "mapped"]

_COLUMNS = ("indptr", "indices", "edge_ids", "weights")
_ROWS = ("node_features", "node_labels", "edge_features", "node_attributes", "edge_attributes")
_log = logging.getLogger(__name__)


class MappedPart:
    """One partition of a directory, opened. `view` and `splits` are made of its files.

    Args:
        root: The directory.
        partition_idx: The partition.
        memory: ``"mapped"``: tensors over the page cache; ``"resident"``: copies in shared memory.

    Raises:
        ConfigError: A file is missing, has changed, or is of another run.
    """

    def __init__(self, root: Path, partition_idx: int, memory: Memory) -> None:
        self.root, self.partition_idx, self.memory = root, partition_idx, memory
        self._header, self._shared = read_header(root)
        self.identity: GraphIdentity = self._header.identity
        # before files of the partition are looked for, which would be missing
        check_partitions(self._header.num_partitions, partition_idx)
        check_sizes(root, self._shared)
        self._part = read_part(root, self._header, partition_idx)
        # features, labels and attributes of a type share one file; mapped once, it is one
        # descriptor
        self._lookups: dict[str, Tensor | None] = {}
        self.run: str = self._header.run
        self.edge_dir: EdgeDir = self._header.edge_dir
        self._stop = threading.Event()
        self._failure: ConfigError | None = None

    def _tensor(self, folder: Path, spec: ArraySpec, name: str) -> Tensor:
        path = array_path(folder, name)
        if self.memory == "mapped":
            # a file for each array: workers are sent its descriptor and map the same pages
            return map_file(path, spec.dtype, spec.shape)
        # read into the memory that workers see, not read and then shared
        target = empty_shared(spec.shape, dtype_named(spec.dtype))
        if spec.nbytes:
            _read_into(path, target, spec.nbytes)
        return target

    def _own(self, name: str) -> Tensor | None:
        spec = self._part.arrays.get(name)
        folder = self.root / f"part{self.partition_idx}"
        return None if spec is None else self._tensor(folder, spec, name)

    def _adjacency(self, edge_type: EdgeType) -> Adjacency | None:
        where = f"edges/{edge_type_str(edge_type)}"
        found = {column: self._own(f"{where}/{column}") for column in _COLUMNS}
        indptr, indices = found["indptr"], found["indices"]
        if indptr is None or indices is None:
            return None
        ranges = self._part.ranges.get(where, {})
        return Adjacency(
            indptr, indices, found["edge_ids"], found["weights"], **ranges,
        )  # fmt: skip

    def _rows(self, kind: str, key: NodeType | EdgeType, name: str = "") -> Rows | None:
        text = key if isinstance(key, str) else edge_type_str(key)
        where = f"{kind}/{text}/{name}" if name else f"{kind}/{text}"
        values = self._own(f"{where}/values")
        if values is None:
            return None
        ranges = self._part.ranges.get(where, {})
        whole = self._header.num_partitions == 1
        index, ids = self._own(f"{where}/index"), self._own(f"{where}/ids")
        if "lookup" in ranges:
            lookup = self._lookup(text)
            # Of nodes a position for each id from `first` on: O(1), and short where ids are a
            # range. Edge ids of a partition are strewn over those of the graph, so they are listed
            # and searched instead.
            index, ids = (lookup, None) if kind.startswith("node") else (None, lookup)
        scales = self._own(f"{where}/scales")
        return Rows(values, index, whole, first=ranges.get("first", 0), ids=ids, scales=scales)

    def _lookup(self, text: str) -> Tensor | None:
        """Return what finds the rows of a type; the same tensor for all matrices."""
        if text not in self._lookups:
            self._lookups[text] = self._own(f"{LOOKUPS}/{text}")
        return self._lookups[text]

    def _all_rows(self, kind: str, keys: list[Any]) -> dict[Any, Rows]:
        found: dict[Any, Rows] = {}
        for key in keys:
            if not kind.endswith("attributes"):
                rows = self._rows(kind, key)
                found |= {} if rows is None else {key: rows}
                continue
            text = key if isinstance(key, str) else edge_type_str(key)
            # names of attributes are known from the files alone: types may have different ones
            for below in names_below(self._part, f"{kind}/{text}"):
                name, _, what = below.partition("/")
                rows = self._rows(kind, key, name) if what == "values" else None
                found |= {} if rows is None else {(key, name): rows}
        return found

    def _book(self, kind: str, name: str, found: Any) -> Book:
        if found is not None:
            # of one number for each partition: it needs no file
            return Book(bounds=share_tensor(torch.tensor(found, dtype=torch.int64)))
        array = f"books/{kind}/{name}"
        return Book(table=self._tensor(self.root, self._shared.arrays[array], array))

    def view(self) -> PartitionView:
        """Return the partition as samplers read it.

        Raises:
            ConfigError: The manifest does not fit its files.
        """
        try:
            return self._view()
        except GiglLoaderError:
            raise
        # of a manifest of before there were checksums, which may say anything
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise ConfigError(
                f"{self.root / ROOT_FILE} is damaged: {type(error).__name__}: {error}"
            ) from error

    def _view(self) -> PartitionView:
        header = self._header
        adjacency = {t: a for t in header.edge_types if (a := self._adjacency(t)) is not None}
        num_nodes: dict[NodeType, int] = dict(header.num_nodes)
        rows: dict[str, dict[Any, Rows]] = {}
        for kind in _ROWS:
            keys: list[Any] = list(adjacency) if kind.startswith("edge") else list(num_nodes)
            rows[kind] = self._all_rows(kind, keys)
        self._add_weights(rows["edge_attributes"], adjacency)
        labeled = is_labeled_homogeneous(num_nodes, list(adjacency))
        several = header.num_partitions > 1
        return PartitionView(
            is_heterogeneous=header.heterogeneous and not labeled,
            edge_dir=self.edge_dir,
            num_partitions=header.num_partitions,
            partition_idx=self.partition_idx,
            num_nodes=num_nodes,
            adjacency=adjacency,
            node_books=self.node_books() if several else {},
            edge_books=self._edge_books(adjacency) if several else {},
            node_features=rows["node_features"],
            node_labels=rows["node_labels"],
            edge_features=rows["edge_features"],
            node_attributes=rows["node_attributes"],
            edge_attributes=rows["edge_attributes"],
            num_classes=dict(header.num_classes),
            identity=self.identity,
        )

    def _add_weights(self, rows: dict[Any, Rows], adjacency: dict[EdgeType, Adjacency]) -> None:
        """Let batches carry weights where edge ids are positions: the array is the same."""
        whole = self._header.num_partitions == 1
        for edge_type, edges in adjacency.items():
            if edges.weights is not None and edges.first_edge is not None:
                weights = Rows(edges.weights, None, whole, first=edges.first_edge)
                # an attribute of that name wins: it may have another type than float32, as the user
                # gave it
                rows.setdefault((edge_type, WEIGHT_NAMES[0]), weights)

    def node_books(self) -> dict[NodeType, Book]:
        """Return the owners of nodes."""
        return {
            node_type: self._book("node", node_type, bounds)
            for node_type, bounds in self._header.node_bounds.items()
        }

    def _edge_books(self, adjacency: dict[EdgeType, Adjacency]) -> dict[EdgeType, Book]:
        bounds = self._header.edge_bounds
        return {
            edge_type: self._book("edge", name, bounds[name])
            for edge_type in adjacency
            if (name := edge_type_str(edge_type)) in bounds
        }

    def splits(self) -> Splits:
        """Return the split ids that this partition owns."""
        found: Splits = {}
        for name in self._part.arrays:
            kind, _, rest = name.partition("/")
            if kind == "splits":
                split, _, node_type = rest.partition("/")
                ids = self._own(name)
                assert ids is not None
                found.setdefault(split, {})[node_type] = share_tensor(ids)
        return found

    def original_ids(self) -> dict[NodeType | EdgeType, OriginalIds]:
        """Return the dictionaries of the tables' ids; empty where the graph was no table.

        By edge type, the rows that edges had in their tables, where these were kept.
        """
        found: dict[NodeType | EdgeType, OriginalIds] = {
            # partitions of tables own ranges of ids
            node_type: OriginalIds(
                self.root, node_type, self._shared, self._header.node_bounds[node_type] or []
            )
            for node_type in self._header.original_ids
        }
        for edge_type in self._header.edge_types:
            text = edge_type_str(edge_type)
            if EDGE_ROWS.format(edge_type=text, partition=0) in self._shared.arrays:
                bounds = self._header.edge_bounds[text] or []
                found[edge_type] = OriginalIds(self.root, text, self._shared, bounds, "edge_rows")
        return found

    # --- checksums --------------------------------------------------------------------------------

    def verify(self) -> None:
        """Compare all files of the partition, and what partitions share, with their checksums."""
        verify(self.root, self._shared, self._stop)
        verify(self.root / f"part{self.partition_idx}", self._part, self._stop)

    def verify_in_background(self) -> None:
        """Begin to compare; `check` raises what is found."""
        # a daemon: to read a large graph to its end should not keep a script from ending
        # what is not compared is as it was without a comparison
        new_thread(
            target=self._verify_quietly, name="gigl_loader.verify", on_death=nothing_hangs_on_it
        ).start()

    def _verify_quietly(self) -> None:
        # of this thread alone: Linux has a niceness for each
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # training comes first
        try:
            self.verify()
        except ConfigError as error:
            # from `_check_size`: the directory was removed or replaced; what is mapped stays
            gone = isinstance(error.__cause__, FileNotFoundError)
            if not gone:  # what is open stays, also where the directory is removed
                _log.error("%s", error)
                # kept for `check`: an exception of a thread would reach nobody
                self._failure = error
        except OSError as error:
            _log.warning("%s could not be compared with its checksums: %s", self.root, error)

    def check(self) -> None:
        """Raise what the background has found.

        Raises:
            ConfigError: A file has changed.
        """
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the comparison in the background, if one is under way."""
        self._stop.set()


def _read_into(path: Path, target: Tensor, nbytes: int) -> None:
    view = bytes_of(target)
    with path.open("rb", buffering=0) as file:
        filled = 0
        while filled < nbytes:
            # Linux reads at most 2 GiB at a time, whatever it is asked for
            count = file.readinto(view[filled:])
            if not count:
                raise ConfigError(f"{path} is shorter than its {nbytes} bytes: copy it again")
            filled += count
            note(count)
