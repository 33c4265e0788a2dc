"""`DistDataset`: the partition of the graph that this process, or this machine, holds.

One set of tensors in shared memory serves all readers: `DistDataset.view` gives them to the
sampling workers, the attributes of GLT's class give the same tensors to code for GLT, and a pickle
for another process (``torch.multiprocessing``) carries file descriptors instead of the data.
"""

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NoReturn, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.dataset import glt_attributes
from gigl_loader.dataset.column_stats import col_stats_of, read_database_file
from gigl_loader.dataset.dataset_properties import DatasetProperties, make_schema, node_ids_of
from gigl_loader.dataset.format import glt_files
from gigl_loader.dataset.format.fetched_root import opened_root
from gigl_loader.dataset.format.mapped import is_mapped_format, read_header
from gigl_loader.dataset.format.mapped_reader import Edges, MappedPart, Memory, OriginalIds, Stamps
from gigl_loader.dataset.from_pyg.pyg_attributes import AnswersForPyG
from gigl_loader.dataset.from_pyg.pyg_graph import (
    CheckedGraph,
    Cutter,
    Supervision,
    keep_neighbor_times,
    read_pyg,
)
from gigl_loader.dataset.gigl_parts import check_parts, cut_node_ids, split_by
from gigl_loader.dataset.identity import identity_of
from gigl_loader.dataset.lookup import DistFeature, Kind
from gigl_loader.dataset.one_or_by_type import PyGGraph
from gigl_loader.dataset.partition.adjacency import weighted_view, with_times
from gigl_loader.dataset.partition.build import read_node_books
from gigl_loader.dataset.partition.checks import check_edge_dir, check_partitions, warn_of_doubts
from gigl_loader.dataset.partition.partition_output import (
    PartitionBook,
    PartitionOutput,
    read_output,
)
from gigl_loader.dataset.partition.partition_view import Book, PartitionView, Splits
from gigl_loader.dataset.placement import EdgesOn, FeaturesOn, KernelsBy, Placement, existing_device
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    DatasetSchema,
    EdgeDir,
    EdgeType,
    FilePath,
    NodeType,
    check_type_names,
    is_label_edge_type,
)
from gigl_loader.errors import (
    ConfigError,
    FileChangedError,
    NotReadyError,
    UsageError,
    WrongTypeError,
)
from gigl_loader.runtime import glt_classes
from gigl_loader.runtime.glt_classes import Feature, Graph
from gigl_loader.runtime.keyword_names import with_known_names
from gigl_loader.runtime.plain_values import check_flag
from gigl_loader.runtime.progress import showing


class DistDataset(AnswersForPyG, DatasetProperties, glt_classes.DistDataset):
    """One partition of a graph: topology, features, labels, splits, and the owners of all ids.

    Make one with `from_pyg`, `load` or `wrap`, or empty and then `build`. It has the attributes of
    GLT's class (``graph``, ``node_features``, ``node_pb``, ``get_graph()``...), over the same
    memory. A heterogeneous dataset, and a labeled-homogeneous one, has dicts by type everywhere; a
    homogeneous one has plain values.

    Label edges ``(anchor type, relation + suffix, label type)`` are given anchor first and are
    grouped by anchor, in both directions. Among ordinary edges (GLT's ``graph`` attribute,
    ``partitioned_edge_index``) they are stored like these: grouped by destination with
    ``edge_dir="in"``, so the type is ``(label type, relation + suffix, anchor type)`` there. Our
    own attributes (`view`, `schema`, `label_edges`) use the type that begins with the anchors.

    Args:
        rank: The partition of this dataset.
        world_size: Number of partitions.
        edge_dir: ``"in"``: nodes are expanded along incoming edges, ``"out"``: along outgoing ones.
            An edge is stored at the owner of the node that is expanded.
        graph_partition: GiGL's way to make one of parts: graphlearn-torch's ``Graph``, or a dict of
            them by edge type. None, or an empty dict: it is empty until `build`, which needs no
            other part.
        node_feature_partition: A ``Feature``, or a dict of them by type.
        edge_feature_partition: The same, of edges.
        node_labels: A ``Feature`` or a tensor with the labels of all nodes, or a dict by type.
        node_partition_book: The owner of each node, or a dict by type; for several partitions.
        edge_partition_book: The same, of edges.
        node_ids: ``[n]`` int64, the nodes of this partition, or a dict by type: the first
            ``num_train`` are for training, then come validation and testing.
        num_train: Ids for training in ``node_ids``, or a dict by type. None: no such split.
        num_val: The same for validation.
        num_test: The same for testing.
        max_labels_per_anchor_node: See the attribute.
        of_gigl: GiGL's further names, which have to be None: the error says what to do instead.

    Raises:
        ConfigError: A value cannot work.
    """

    graph = glt_attributes.ComputedOnUse()
    node_features = glt_attributes.ComputedOnUse()
    edge_features = glt_attributes.ComputedOnUse()
    node_labels = glt_attributes.ComputedOnUse()

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        edge_dir: EdgeDir = "in",
        graph_partition: Graph | Mapping[EdgeType, Graph] | None = None,
        *,
        node_feature_partition: Feature | Mapping[NodeType, Feature] | None = None,
        edge_feature_partition: Feature | Mapping[EdgeType, Feature] | None = None,
        node_labels: Feature | Tensor | Mapping[NodeType, Feature | Tensor] | None = None,
        node_partition_book: PartitionBook | Mapping[NodeType, PartitionBook] | None = None,
        edge_partition_book: PartitionBook | Mapping[EdgeType, PartitionBook] | None = None,
        node_ids: Tensor | Mapping[NodeType, Tensor] | None = None,
        num_train: int | dict[NodeType, int] | None = None,
        num_val: int | dict[NodeType, int] | None = None,
        num_test: int | dict[NodeType, int] | None = None,
        max_labels_per_anchor_node: int | None = None,
        **of_gigl: object,
    ) -> None:
        check_parts(of_gigl, DistDataset.__init__.__annotations__)
        check_partitions(world_size, rank)
        check_edge_dir(edge_dir)
        super().__init__(num_partitions=world_size, partition_idx=rank, edge_dir=edge_dir)
        self._view: PartitionView | None = None
        self._schema: DatasetSchema | None = None
        self._by_time: dict[str, PartitionView] = {}
        self._lookups: dict[Kind, tuple[Any, DistFeature]] = {}
        self._degrees: dict[NodeType, Tensor] | None = None
        self._mapped: MappedPart | None = None
        self._original: dict[NodeType | EdgeType, OriginalIds] = {}
        self.max_labels_per_anchor_node = max_labels_per_anchor_node
        self._weight_attr: str | None = None
        self._placement: Placement | None = None
        if graph_partition:
            self._take_parts(
                graph=graph_partition,
                node_features=node_feature_partition,
                edge_features=edge_feature_partition,
                node_labels=node_labels,
                node_pb=node_partition_book,
                edge_pb=edge_partition_book,
            )
            counts = {"num_train": num_train, "num_val": num_val, "num_test": num_test}
            splits = cut_node_ids(node_ids, counts, node_ids_of(self.view()))
            glt_attributes.set_splits(self, splits, typed=self.is_typed)

    def _take_parts(self, **parts: Any) -> None:
        """Fill this dataset with what is an attribute of graphlearn-torch's."""
        dataset = SimpleNamespace(
            num_partitions=self.num_partitions,
            partition_idx=self.partition_idx,
            edge_dir=self.edge_dir,
            **parts,
        )
        self._fill(*glt_attributes.read_glt(dataset))
        glt_attributes.keep_glt(self, dataset)

    # --- constructors -----------------------------------------------------------------------------

    def build(
        self, partition_output: PartitionOutput, splitter: Callable[..., Any] | None = None
    ) -> None:
        """Fill this dataset with the partition's tensors.

        Args:
            partition_output: Tensors with their global ids; see `PartitionOutput`.
            splitter: Makes the splits, as GiGL's do. It is called with ``node_ids=``, the nodes of
                this partition; or, if it has an attribute ``should_convert_labels_to_edges``, with
                ``edge_index=``, the edges of ``partition_output``, with its labels as edges are
                stored. Either is a dict by type for a graph of several types. It returns ids for
                training, validation and testing, or a dict of these by node type. None: no splits.

        Raises:
            ConfigError: A tensor is malformed, or has data of another partition; or the splitter
                returned something else.
            UsageError: This dataset is filled already.
        """
        if self._view is not None:
            raise UsageError("this DistDataset is built already: make a new one")
        view = read_output(
            partition_output,
            num_partitions=self.num_partitions,
            partition_idx=self.partition_idx,
            edge_dir=self.edge_dir,
        )
        warn_of_doubts(
            {name: rows.values for name, rows in view.node_features.items()},
            {name: rows.values for name, rows in view.edge_features.items()},
            {name: rows.values for name, rows in view.node_labels.items()},
            {},
        )
        splits: Splits = {}
        if splitter is not None:
            own: Any = node_ids_of(view)
            if make_schema(view).edge_types is None:
                (own,) = own.values()
            splits = split_by(splitter, partition_output, self.edge_dir, own)
        self._fill(view, splits)

    @classmethod
    def from_pyg(
        cls,
        data: PyGGraph,
        *,
        edge_dir: EdgeDir = "in",
        partition_book: PartitionBook | Mapping[NodeType, PartitionBook] | None = None,
        partition_idx: int = 0,
        num_partitions: int | None = None,
        supervision: Supervision | None = None,
        time_attr: str | None = None,
    ) -> "DistDataset":
        """Return a PyG graph in memory as a dataset: all of it, or the share of one partition.

        It reads ``x``, ``edge_index``, ``edge_attr``, ``edge_weight`` (or ``weights``), ``y`` with
        all columns, ``num_nodes``, and ``train_mask``, ``val_mask``, ``test_mask``, which also
        become the split ids. Batches carry every other tensor or array with a row per node or edge,
        by PyG's rules, under its name; masks and weights, too; and rows of mixed types, ``tf``
        (``torch_frame.TensorFrame``) without its ``y``. A warning names attributes that
        batches cannot carry. Edge ids are positions in ``edge_index``. Edge types of a `HeteroData`
        with the label suffixes become label edges.

        Args:
            data: A `Data` or `HeteroData`, with all nodes and edges.
            edge_dir: See the class.
            partition_book: ``[num_nodes]`` integer tensor, the owner of each node; for a
                `HeteroData` a dict of them by node type. None: everything is in one partition.
            partition_idx: The partition to keep.
            num_partitions: Their number. None: the number of partitions in the book.
            supervision: ``{edge_type: (positives, negatives or None)}``, each ``[2, n]`` int64 with
                the anchors in row 0. For a `Data` one such pair is enough.
            time_attr: A node attribute to sample by. With several partitions, name it here: edges
                then keep the times of neighbours in other partitions.

        Raises:
            ConfigError: An attribute is malformed; the message names it.
        """
        check_edge_dir(edge_dir)
        source = read_pyg(data, supervision)
        books: dict[NodeType, Book] = {}
        count = num_partitions or 1
        if partition_book is not None:
            books, count = read_node_books(
                partition_book, source.num_nodes, num_partitions, heterogeneous=source.heterogeneous
            )
        elif count > 1:
            raise ConfigError(f"num_partitions={count} needs a partition_book")
        check_partitions(count, partition_idx)
        source.warn_of_doubts()
        # with one partition, times of neighbours are found by node: all nodes are here
        if time_attr is not None and count > 1:
            keep_neighbor_times(source, edge_dir, time_attr)
        view, splits = Cutter(source, books, edge_dir, count).cut(partition_idx)
        return cls._made(view, splits, source=source)

    @classmethod
    @with_known_names
    def load(  # type: ignore[override, unused-ignore]  # other arguments than the base class
        cls,
        root: FilePath,
        partition_idx: int,
        *,
        edge_dir: EdgeDir | None = None,
        progress: bool | None = None,
        whole_node_label_file: FilePath | dict[NodeType, FilePath] | None = None,
        mmap: bool = False,
        verify: Literal["background", "now", "off"] = "background",
        memory: Memory | None = None,
        edges: Edges = "own",
        cache_dir: FilePath | None = None,
        cache_size: int | str | None = None,
    ) -> "DistDataset":
        """Return a partition from disk, or from object storage.

        It reads directories of `partition_tables`, `partition_graph` and GLT's partitioners.

        Args:
            root: The directory, or its URL: ``s3://bucket/folder``, ``gs://``, ``az://`` or
                ``file://``. The files of the partition, and those that all partitions share, are
                then copied to this machine first, unless they are there.
            partition_idx: The partition to read.
            edge_dir: None: that of the directory. GLT's directories show it by their edges
                (assigned by destination: ``"in"``; by source: ``"out"``; if both fit: ``"in"``).
            progress: Show a bar that moves as files are read (log lines where ``tqdm`` is not
                installed). None: a log line now and then, once it takes longer than five seconds.
                False: nothing.
            whole_node_label_file: As GLT's ``load`` takes it: a file with the labels of all nodes,
                or a dict of files by node type. Not for our own format, which has labels.
            mmap: Map the files instead of reading them into shared memory now. The page cache reads
                them as needed, so a graph may be larger than memory. They must not be changed while
                they are in use: see `check_files`. Not for GLT's format.
            verify: When to compare checksums: ``"now"``; in the ``"background"``, where a changed
                file is logged and is an error at the next use of the dataset; or ``"off"``. Sizes
                and runs are always compared. GLT's format has no checksums.
            memory: Deprecated: ``"mapped"`` is ``mmap=True``, ``"resident"`` the default.
            edges: ``"own"``: the partition's are here, and samplers ask other machines for
                neighbours of the nodes of other partitions. ``"all"``: the edges of all partitions
                are here, so only rows travel. ``root`` then needs the edges of all partitions; they
                take 4 bytes an edge (8 from 2**31 nodes on) and 8 a node of memory, or of the page
                cache with ``mmap``. Batches are the same. Some ranks or servers may have all edges
                and others their own.
            cache_dir: For a URL: where copies are kept, for all processes of this machine. None:
                ``GIGL_LOADER_CACHE_DIR`` of the environment, or ``gigl_loader`` in the user's
                cache.
            cache_size: For a URL: most bytes of all copies, also as ``"2TB"``; those are removed
                whose last use is longest ago and which no process uses. None: no limit.

        Raises:
            ConfigError: ``root`` does not exist, a file or partition is missing, damaged, changed
                or of another run, or the edges do not fit ``edge_dir``; the message names it.
            ObjectStorageError: Object storage failed, also after requests were repeated.
            ResourceError: The disk is too small for the copy; nothing was copied.
        """
        if edge_dir is not None:
            check_edge_dir(edge_dir)
        if memory is not None:
            if memory not in ("resident", "mapped"):
                raise ConfigError(f'memory must be "resident" or "mapped", got {memory!r}')
            mmap = memory == "mapped"
            warnings.warn(f"memory={memory!r} is now mmap={mmap}", DeprecationWarning, stacklevel=2)
        check_flag(mmap, "mmap")
        if verify not in ("background", "now", "off"):
            raise ConfigError(f'verify must be "background", "now" or "off", got {verify!r}')
        if edges not in get_args(Edges):
            raise ConfigError(f'edges must be "own" or "all", got {edges!r}')
        with opened_root(
            root,
            [partition_idx],
            edges,
            cache_dir=cache_dir,
            cache_size=cache_size,
            progress=progress,
        ) as folder:
            if edges == "all":
                glt_files.check_all_parts(folder)
            ours = is_mapped_format(folder)
            # GLT's directories only: a wrong path gets the error that names the path
            if mmap and not ours and (folder / "META").exists():
                raise ConfigError(
                    f"{root} is in GLT's format, which cannot be mapped: leave mmap out, or "
                    "partition the graph again"
                )
            # it lists all files, which is slow on a network disk
            total = glt_files.bytes_to_read(folder, partition_idx, edges) if progress else 0
            with showing(f"load partition {partition_idx}", total, shown=progress):
                if ours:
                    return cls._open(
                        folder,
                        partition_idx,
                        edge_dir,
                        whole_node_label_file,
                        "mapped" if mmap else "resident",
                        verify,
                        edges,
                    )
                return cls._made(
                    *glt_files.read_partition(
                        folder, partition_idx, edge_dir, whole_node_label_file, edges
                    )
                )

    @classmethod
    def from_database(
        cls,
        source: FilePath | Mapping[str, Any],
        upto: str | int | date | None = None,
        *,
        root: FilePath | None = None,
        num_partitions: int = 1,
        partition_idx: int = 0,
        mmap: bool = True,
        **options: Any,
    ) -> "DistDataset":
        """Return a database as a graph: tables are node types, foreign keys are edge types.

        The first call writes partitions, see `partition_database`; later ones map their files.

        Args:
            source: A folder as RelBench has them, a file of DuckDB or SQLite with declared keys, or
                a dict of Arrow tables or DataFrames with ``keys=``.
            upto: Rows up to this time, inclusive. None: the ``test_timestamp`` of the source, if it
                has one; ``"all"``: all rows.
            root: Where the partitions are kept. None: in the cache of this machine.
            num_partitions: Their number.
            partition_idx: The one to return.
            mmap: As for `load`.
            options: Further arguments of `partition_database`: ``keys``, ``kinds``, ``embed``,
                ``dangling``, ``stats_upto``, ``edge_dir``, ``memory``, ``overwrite``...

        Raises:
            ConfigError: A table, a key, a column or an argument cannot work; the message names it.
        """
        check_partitions(num_partitions, partition_idx)
        # By its public name: what writes partitions is above what reads them.
        from gigl_loader import partition_database

        written, _ = partition_database(source, root, num_partitions, upto=upto, **options)
        return cls.load(written, partition_idx, mmap=mmap)

    def task(self, task: object) -> Any:
        """Return a task of the database: ``dataset.task("user-churn").split("train")``.

        Args:
            task: The name of one in the source's folder, a directory with the ``manifest.yaml`` of
                a task, or a `Task` of your own.

        Returns:
            A `Task`, whose splits have the ids of this dataset.

        Raises:
            ConfigError: There is no such task, or its manifest or its database cannot be read.
            UsageError: The dataset is not made of a database.
        """
        # By its public name: seeds of loaders are above datasets.
        from gigl_loader import Task

        return Task.of(self, task, self.database)

    @property
    def database(self) -> dict[str, Any]:
        """What ``database.json`` says of the database that this is made of."""
        return read_database_file(None if self._mapped is None else self._mapped.root)

    @property
    def col_stats(self) -> dict[str, dict[str, dict[Any, Any]]]:
        """Statistics of the columns of a database, ``{table: {column: {StatType: value}}}``.

        As PyTorch Frame's encoders take them, and as RelBench's graph has them.
        """
        return col_stats_of(self.database)

    @classmethod
    def _open(
        cls,
        root: Path,
        partition_idx: int,
        edge_dir: EdgeDir | None,
        label_file: Any,
        memory: Memory,
        verify: str,
        edges: Edges,
    ) -> "DistDataset":
        part = MappedPart(root, partition_idx, memory, edges=edges)
        stated = part.header.edge_dir
        if edge_dir is not None and edge_dir != stated:
            raise ConfigError(
                f'{root} was partitioned for edge_dir="{stated}", not "{edge_dir}": leave '
                "edge_dir out, or partition the graph again"
            )
        if label_file is not None:
            raise ConfigError(
                f"whole_node_label_file is for directories of GLT's; the labels of {root} are in it"
            )
        if verify == "now":
            part.verify()
        dataset = cls._made(part.view(), part.splits(), part=part)
        if verify == "background":
            part.verify_in_background()
            # a thread that reads a large graph for nobody stops; at exit it ends as a daemon
            weakref.finalize(dataset, part.close).atexit = False
        return dataset

    @classmethod
    def _reopen(
        cls,
        root: Path,
        partition_idx: int,
        run: str,
        stamps: Stamps,
        splits: Splits,
        max_labels: int | None,
        weight_attr: str | None,
        edges: Edges,
    ) -> "DistDataset":
        # The pickle names a path: the directory may be replaced, or a file in it be changed, before
        # it is unpickled, and the receiver would then have another graph than the sender.
        if (latest := read_header(root)[0].run) != run:
            raise FileChangedError(
                f"{root} was rewritten while it was in use (run {latest}, not {run}): load it again"
            )
        part = MappedPart(root, partition_idx, "mapped", stamps, edges)
        return cls._made(part.view(), splits, max_labels, part=part).weighted_by(weight_attr)

    @classmethod
    def wrap(cls, dataset: glt_classes.Dataset) -> "DistDataset":
        """Return a plain GLT dataset as one of ours, without a copy if the order allows.

        Neighbours must ascend by (id, edge id) within a row; an adjacency in another order is
        copied, which is logged. A dataset of ours is returned unchanged.

        Raises:
            ConfigError: The dataset has no graph, or features that cannot be read on the CPU.
            WrongTypeError: It is no GLT dataset.
        """
        # ours is a subclass of GLT's
        if isinstance(dataset, DistDataset):
            return dataset
        if not isinstance(dataset, glt_classes.Dataset):
            made = "from_pyg(data) makes one of a PyG graph"
            if isinstance(dataset, str | os.PathLike):
                made = "load(path, partition_idx) reads a partition from a directory"
            raise WrongTypeError(
                f"dataset must be a DistDataset of gigl_loader or GLT, got "
                f"{type(dataset).__name__}; DistDataset.{made}"
            )
        view, splits = glt_attributes.read_glt(dataset)
        ours = cls._made(view, splits)
        glt_attributes.keep_glt(ours, dataset)
        return ours

    def weighted_by(self, name: str | None) -> "DistDataset":
        """Return this dataset with an edge attribute as weights, sharing everything else.

        None: the dataset itself.

        Raises:
            ConfigError: There is no such attribute, or it cannot be weights.
        """
        if name is None:
            return self
        # no copy of the tensors, and no __init__, which would empty the shared attributes
        weighted = object.__new__(type(self))
        weighted.__dict__.update(self.__dict__)
        weighted._view = weighted_view(self.view(), name)
        weighted._by_time, weighted._weight_attr = {}, name  # views by time have weights, too
        return weighted

    @classmethod
    def _made(
        cls,
        view: PartitionView,
        splits: Splits,
        max_labels: int | None = None,
        original: dict[NodeType | EdgeType, OriginalIds] | None = None,
        *,
        part: MappedPart | None = None,
        source: CheckedGraph | None = None,
    ) -> "DistDataset":
        dataset = cls(view.partition_idx, view.num_partitions, view.edge_dir)
        dataset._fill(view, splits, source)
        dataset._max_labels, dataset._mapped = max_labels, part
        dataset._original = (original or {}) if part is None else part.original_ids()
        return dataset

    def _fill(
        self, view: PartitionView, splits: Splits, source: CheckedGraph | None = None
    ) -> None:
        check_type_names([*view.num_nodes, *view.adjacency])
        if view.identity is None:
            view = replace(view, identity=identity_of(view, source))
        # the schema first: it decides whether attributes are dicts
        self._view, self._schema = view, make_schema(view)
        glt_attributes.set_glt(self, view, splits, typed=self.is_typed)

    # --- to other processes -----------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        # their current values: GLT's code may set train_idx and the others at any time
        splits = glt_attributes.read_splits(self)
        part = self._mapped
        # files instead of data: the other process maps the same pages of the page cache
        if part is not None and part.memory == "mapped":
            return (
                type(self)._reopen,
                (
                    part.root.absolute(),
                    self.partition_idx,
                    part.header.run,
                    part.stamps,
                    splits,
                    self._max_labels,
                    self._weight_attr,
                    part.edges,
                ),
            )
        if self._view is None:  # `build` fills it in the other process
            make = partial(type(self), max_labels_per_anchor_node=self._max_labels)
            return make, (self.partition_idx, self.num_partitions, self.edge_dir)
        return type(self)._made, (self._view, splits, self._max_labels, self._original)

    def share_ipc(self) -> tuple[Any, ...]:
        """Return the argument of `from_ipc_handle`, for use with ``ForkingPickler`` as in GLT."""
        return self.__reduce__()

    @classmethod
    def from_ipc_handle(cls, ipc_handle: tuple[Any, ...]) -> "DistDataset":
        """Undo `share_ipc`."""
        make, arguments = ipc_handle
        return cast("DistDataset", make(*arguments))

    # --- contents ---------------------------------------------------------------------------------

    def view(self) -> PartitionView:
        """Return the partition as sampling workers read it: tensors in shared memory, not copied.

        Raises:
            NotReadyError: The dataset is empty: `build` was not called.
            ConfigError: See `check_files`.
        """
        if self._view is None:
            raise NotReadyError(
                "this DistDataset is empty: call build() first, or use from_pyg/load"
            )
        self.check_files()
        return self._view

    def check_files(self) -> None:
        """Check that no file of this dataset has changed; loaders do as each epoch starts.

        It takes microseconds: the system tells size and time of each mapped file.

        Raises:
            ConfigError: A file differs from its checksum: the background comparison of `load`
                found it.
            FileChangedError: A mapped file was written to after `load`, or became shorter.
        """
        # at each use: the background comparison ends some time after `load`
        if self._mapped is not None:
            self._mapped.check()

    def view_by_time(self, time_attr: str) -> PartitionView:
        """Return `view` with its edges sorted by time; the sort runs once per attribute.

        Raises:
            ConfigError: There is no such attribute, or it cannot be a time.
        """
        view = self.view()
        if time_attr not in self._by_time:
            self._by_time[time_attr] = with_times(view, time_attr)
        return self._by_time[time_attr]

    # --- on a device ------------------------------------------------------------------------------

    def to(
        self,
        device: torch.device | str | int,
        *,
        features: FeaturesOn = "device",
        cache: int | str | None = None,
        kernels: KernelsBy | None = None,
        edges: EdgesOn | None = None,
    ) -> "DistDataset":
        """Move this dataset to a device, where loaders with ``num_workers=0`` then sample it.

        Edges, features and labels are copied there; the shared memory stays, as seeds, labels and
        negatives are found on the host. Batches are the same bit for bit. As with PyG's
        ``Data.to``, this dataset itself is changed, and returned. If it is a partition, loaders
        with ``exchange="collective"`` ask the devices of the other ranks for the rest.

        Args:
            device: A CUDA device; ``"cpu"`` takes the dataset back, and the copies are freed with
                the last loader that uses them.
            features: ``"host"``: features of nodes and edges lie in pinned memory of the host,
                which the device reads over its bus. For features larger than its memory.
            cache: With ``features="host"``: device memory for a cache of them, for each loader, as
                bytes (``"8GB"``) or as a share (``"20%"``). Batches are drawn ahead, so the cache
                keeps the rows that are needed again soonest. None: no cache.
            kernels: ``"torch"`` or ``"warp"``: the sampling kernels. None: Warp if it is installed
                (extra ``gpu``). Named with ``"cpu"``, the CPU does all work of a device: for tests
                and rehearsals.
            edges: ``"own"``: this partition's are on the device. ``"host"``: their ends and ids lie
                in pinned memory of the host, where Warp's kernels read them; torch's kernels let
                the host wait in each hop. ``"all"``, for a partition: the first loader gathers
                the edges of all partitions on each device; then only rows are asked of other
                devices, and neighbours in no hop. None: as `load` had them, ``"own"`` or ``"all"``.

        Raises:
            ConfigError: There is no such device, or not enough free memory on it; or ``kernels``
                names Warp, which is not installed.
            NotReadyError: The dataset is empty.
        """
        view = self.view()
        target = existing_device(device)
        if target.type == "cpu" and kernels is None:
            if features != "device" or cache is not None or edges not in (None, "own"):
                raise ConfigError(
                    f"features={features!r}, cache={cache!r} and edges={edges!r} are for a GPU: on "
                    "the CPU there is one memory; leave them out"
                )
            self._placement = None
            return self
        loaded: EdgesOn = "all" if view.other_edges else "own"
        placement = Placement(target, features, kernels, cache, edges or loaded)
        placement.copy_view(view)
        self._placement = placement
        return self

    @property
    def placement(self) -> Placement | None:
        """The device that loaders sample this dataset on; None: the host."""
        return self._placement

    # --- rows of all partitions -------------------------------------------------------------------

    def get_features(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the features of nodes of any partition. Collective: all ranks call it.

        Args:
            ids: ``[n]`` int64, global; each rank's own. Repeats are allowed, and so is an empty
                tensor.
            node_type: None if only one type has features.

        Raises:
            ConfigError: There is no such id or feature, or no rank holds some partition.
            PeerError: A rank ended.
        """
        return self._looked_up("node_features").get(ids, node_type)

    def get_labels(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the labels of nodes of any partition, like `get_features`."""
        return self._looked_up("node_labels").get(ids, node_type)

    def _looked_up(self, kind: Kind) -> DistFeature:
        # Looked up each time, as a process group may be created after the dataset, or replaced: a
        # look-up over the old group would hang.
        group = dist.group.WORLD if dist.is_initialized() else None
        if kind not in self._lookups or self._lookups[kind][0] is not group:
            self._lookups[kind] = group, DistFeature(self, kind)
        return self._lookups[kind][1]

    def verify(self) -> None:
        """Compare the files that this dataset was loaded from with their checksums.

        Raises:
            ConfigError: A file is missing or has changed; the message names it and the block.
            UsageError: The dataset was not loaded from a directory in our own format.
        """
        if self._mapped is None:
            raise UsageError(
                "only partitions of partition_tables and partition_graph have checksums"
            )
        self._mapped.verify()

    @property
    def has_checksums(self) -> bool:
        """Whether this is from a directory in our own format, whose files have checksums."""
        return self._mapped is not None

    def __getitem__(self, index: object) -> NoReturn:
        """Raise a `UsageError`: batches come from a loader, rows by id."""
        raise UsageError(
            "a DistDataset has no items: iterate over a loader of it, such as "
            "DistNeighborLoader(dataset, [10, 5]); get_features(ids) has rows of nodes"
        )

    def __repr__(self) -> str:
        """Show the partition: nodes of the whole graph, edges and splits of this partition."""
        position = f"partition {self.partition_idx} of {self.num_partitions}"
        if self._view is None:
            return f"DistDataset({position}, empty)"
        nodes: Any = self._view.num_nodes
        edges: Any = {t: a.indices.numel() for t, a in self._view.adjacency.items()}
        labels = ""
        if set(nodes) == {DEFAULT_HOMOGENEOUS_NODE_TYPE}:
            # one number for each: types of a homogeneous graph have no user names
            nodes = nodes[DEFAULT_HOMOGENEOUS_NODE_TYPE]
            of_labels = sum(count for name, count in edges.items() if is_label_edge_type(name))
            edges = sum(edges.values()) - of_labels
            labels = f", labels={of_labels}" if of_labels else ""
        else:
            edges = {"__".join(name): count for name, count in edges.items()}
        splits = "".join(
            f", {name}={_sizes_of(ids)}"
            for name in SPLITS
            if (ids := self.known_split(name)) is not None
        )
        return f"DistDataset({position}, nodes={nodes}, edges={edges}{labels}{splits})"


def _sizes_of(ids: Tensor | Mapping[NodeType, Tensor]) -> Any:
    """Return the number of ids, by type if they are."""
    if isinstance(ids, Mapping):
        if set(ids) == {DEFAULT_HOMOGENEOUS_NODE_TYPE}:
            return len(ids[DEFAULT_HOMOGENEOUS_NODE_TYPE])
        return {name: len(some) for name, some in ids.items()}
    return len(ids)
