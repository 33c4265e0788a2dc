"""Partition directories: GLT's format, and files beside it for data that GLT's format lacks.

GLT's part (read by GLT's ``load_partition`` too)::

    META  node_pb[/<type>].pt  edge_pb[/<type>].pt
    part<k>/graph[/<type>]/rows.pt cols.pt eids.pt [weights.pt]
    part<k>/node_feat[/<type>]/feats.pkl ids.pkl      part<k>/edge_feat[/<type>]/...

Ours, which GLT ignores::

    gigl_loader.json                                  see `GltExtras`
    part<k>/gigl_loader/node_labels/<type>.pt         {"values", "ids"}
    part<k>/gigl_loader/splits/<split>/<type>.pt      ids
    part<k>/gigl_loader/label_edges/<type>.pt         [2, n], anchors first
    part<k>/gigl_loader/node_attributes/<type>.pt     {"ids", "values": {name: [n, ...]}}
    part<k>/gigl_loader/edge_attributes/<type>.pt     the same; edge_weight as float32 is weights.pt
"""

import io
import pickle
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.format.directory import check_root
from gigl_loader.dataset.format.fetched_root import opened_root
from gigl_loader.dataset.format.mapped import (
    ROOT_FILE,
    damaged,
    is_mapped_format,
    read_header,
    read_manifest,
    typed,
)
from gigl_loader.dataset.format.mapped_reader import Edges, MappedPart
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.partition.adjacency import edges_of
from gigl_loader.dataset.partition.build import ViewBuilder, read_book
from gigl_loader.dataset.partition.checks import (
    check_ids,
    check_ownership,
    check_partitions,
    check_weights,
)
from gigl_loader.dataset.partition.frames import Frames
from gigl_loader.dataset.partition.partition_output import GraphPartitionData
from gigl_loader.dataset.partition.partition_view import Book, PartitionView, Splits, WithSplits
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    FilePath,
    NodeType,
    check_file_names,
    edge_type_str,
    expanded_end,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.files_of_others import inside, load_torch_file
from gigl_loader.runtime.memory.tensors import empty_shared
from gigl_loader.runtime.progress import note

EXTRAS_DIR = "gigl_loader"
_UNCHECKED_VERSION = 1
"""The version before the file had a checksum, and the graph an identity."""


def bytes_to_read(root: Any, partition_idx: int, edges: Edges = "own") -> int:
    """Return the approximate size of the files of one partition, for a progress bar."""
    paths = [*Path(root).glob("*_pb*"), Path(root) / "graph", Path(root) / f"part{partition_idx}"]
    if edges == "all":
        paths += [*Path(root).glob("part*/edges"), *Path(root).glob("part*/graph")]
    files = {file for path in paths for file in (path, *path.rglob("*")) if file.is_file()}
    return sum(file.stat().st_size for file in files)


def check_all_parts(root: Any) -> None:
    """Check that a directory has the folders of all partitions.

    Raises:
        ConfigError: One is missing; the message names it.
    """
    parts = [Path(root) / f"part{number}" for number in range(count_partitions(root))]
    if missing := [str(part) for part in parts if not part.is_dir()]:
        raise ConfigError(
            f'edges="all" reads the edges of all {len(parts)} partitions on each machine, and '
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: copy at least "
            'manifest.json and edges/ of each partition to this machine, or load with edges="own"'
        )


def read_partition(
    root: Path,
    partition_idx: int,
    edge_dir: EdgeDir | None,
    whole_node_label_file: Any = None,
    edges: Edges = "own",
) -> WithSplits:
    """Return one partition of a directory. See `DistDataset.load`."""
    if is_mapped_format(root):
        part = MappedPart(root, partition_idx, "mapped", edges=edges)
        return part.view(), part.splits()
    reader = _GltReader(root)
    check_partitions(reader.num_partitions, partition_idx)
    view, splits = reader.read(partition_idx, edge_dir, whole_node_label_file)
    others = range(reader.num_partitions) if edges == "all" else range(0)
    other_edges = {
        other: reader.read_edges(other, view.edge_dir) for other in others if other != partition_idx
    }
    return replace(view, other_edges=other_edges), splits


def read_edges(root: Path, partition_idx: int, edge_type: EdgeType, edge_dir: EdgeDir) -> Tensor:
    """Return the edges of a type that a partition of a directory owns, ``[2, num_edges]``."""
    if is_mapped_format(root):
        view = MappedPart(root, partition_idx, "mapped").view()
        return edges_of(view.adjacency[edge_type], view.edge_dir)
    reader = _GltReader(root)
    return reader.owned_edges(edge_type, partition_idx, edge_dir).edge_index


def count_partitions(root: FilePath, cache_dir: FilePath | None = None) -> int:
    """Return how many partitions a directory holds; its URL is taken, too."""
    with opened_root(root, (), cache_dir=cache_dir) as folder:
        if is_mapped_format(folder):
            return read_header(folder)[0].num_partitions
        return int(_load_meta(folder)["num_parts"])


@dataclass(frozen=True)
class GltExtras:
    """The manifest beside GLT's files."""

    edge_dir: EdgeDir
    node_labels: list[NodeType]
    splits: dict[str, list[NodeType]]
    label_edge_types: list[EdgeType]
    # directories of the first gigl_loader lack the following fields
    node_attributes: list[tuple[NodeType, list[str]]] = field(default_factory=list)
    edge_attributes: list[tuple[EdgeType, list[str]]] = field(default_factory=list)
    num_classes: dict[NodeType, int] = field(default_factory=dict)
    frames: Frames = field(default_factory=dict)
    flat_nodes: list[NodeType] = field(default_factory=list)
    """Types whose features had one dimension, which GLT's format cannot store."""
    flat_edges: list[EdgeType] = field(default_factory=list)
    run: str = ""
    """Digest of all partitions."""


def _read_extras(
    root: Path, node_types: list[NodeType], edge_types: list[EdgeType]
) -> tuple[GltExtras | None, GraphIdentity | None]:
    """Return the manifest and the identity of a directory; None: GLT wrote it, without them.

    Raises:
        ConfigError: The file is damaged or of another version, or names unknown types.
    """
    path = root / ROOT_FILE
    if not path.exists():
        return None, None
    content, digest = read_manifest(path, _UNCHECKED_VERSION)
    extras = typed(content, GltExtras, path)
    of_nodes = {
        *extras.node_labels,
        *extras.flat_nodes,
        *extras.num_classes,
        *(name for names in extras.splits.values() for name in names),
        *(name for name, _ in extras.node_attributes),
    }
    of_edges = {*extras.flat_edges, *(name for name, _ in extras.edge_attributes)}
    unknown = sorted(of_nodes - {*node_types}) + sorted(of_edges - {*edge_types})
    if unknown:
        raise ConfigError(f"{path} is damaged: it names types that META does not: {unknown}")
    return extras, GraphIdentity(extras.run, digest) if extras.run else None


class _GltReader:
    def __init__(self, root: Path) -> None:
        self.root = root
        meta = _load_meta(root)
        self.num_partitions: int = meta["num_parts"]
        self.heterogeneous = meta["data_cls"] != "homo"
        self.node_types: list[NodeType] = [DEFAULT_HOMOGENEOUS_NODE_TYPE]
        self.edge_types: list[EdgeType] = [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        if self.heterogeneous:
            self.node_types = list(meta["node_types"])
            self.edge_types = [tuple(edge_type) for edge_type in meta["edge_types"]]
            check_file_names([*self.node_types, *self.edge_types], root / "META")
        self.extras, self.identity = _read_extras(root, self.node_types, self.edge_types)
        self.node_books = {
            node_type: self._book(f"node_pb{self._suffix(node_type)}.pt")
            for node_type in self.node_types
        }
        self.num_nodes = {t: book.num_ids for t, book in self.node_books.items()}
        self.edge_books = {
            edge_type: self._book(name)
            for edge_type in self.edge_types
            if (root / (name := f"edge_pb{self._suffix(edge_type)}.pt")).exists()
        }  # GLT leaves edge books out if the graph is cached and has no edge features
        # GLT's graph_caching: every machine has the whole topology, and partitions only have
        # features
        self.cached = (root / "graph").is_dir() and not (root / "part0" / "graph").is_dir()

    def _suffix(self, key: NodeType | EdgeType) -> str:
        """Return the part of a path that names a type: empty in a homogeneous graph."""
        return f"/{type_str(key)}" if self.heterogeneous else ""

    def _book(self, name: str) -> Any:
        return read_book(self._tensor(self.root / name), self.num_partitions, str(self.root / name))

    def _tensor(self, path: Path, *, mapped: bool = False) -> Tensor:
        return load_tensor(inside(self.root, path), mapped=mapped)

    def part(self, partition_idx: int) -> Path:
        return self.root / f"part{partition_idx}"

    def read(self, partition_idx: int, edge_dir: EdgeDir | None, label_file: Any) -> WithSplits:
        if not self.part(partition_idx).is_dir():
            raise ConfigError(f"{self.part(partition_idx)} is missing: the directory is incomplete")
        extras = self.extras
        stated = None if extras is None else extras.edge_dir
        if stated and edge_dir and stated != edge_dir:
            raise ConfigError(
                f'{self.root} was partitioned for edge_dir="{stated}", not "{edge_dir}": leave '
                "edge_dir out, or partition the graph again"
            )
        # edges are the last resort: this reads the topology, perhaps of all partitions
        edge_dir = edge_dir or stated or self._choose_edge_dir(partition_idx)
        builder = self._with_edges(partition_idx, edge_dir)
        folder = self.part(partition_idx) / EXTRAS_DIR
        self._add_features(builder, "node", self.node_types)
        self._add_features(builder, "edge", self.edge_types)
        if extras is not None:
            self._add_extras(builder, folder, extras)
        if label_file is not None:
            self._add_label_file(builder, label_file)
        return builder.completed_view(), {} if extras is None else self._read_splits(folder, extras)

    def read_edges(self, partition_idx: int, edge_dir: EdgeDir) -> PartitionView:
        """Return a partition with its edges alone, and their attributes."""
        builder = self._with_edges(partition_idx, edge_dir)
        if self.extras is not None:
            of_edges = replace(self.extras, node_labels=[], node_attributes=[])
            self._add_extras(builder, self.part(partition_idx) / EXTRAS_DIR, of_edges)
        return builder.completed_view()

    def _with_edges(self, partition_idx: int, edge_dir: EdgeDir) -> ViewBuilder:
        """Begin the view of a partition."""
        extras, folder = self.extras, self.part(partition_idx) / EXTRAS_DIR
        view = PartitionView(
            self.heterogeneous,
            edge_dir,
            self.num_partitions,
            partition_idx,
            self.num_nodes,
            {},
            self.node_books,
            self.edge_books,
            identity=self.identity,
            # a part of the labels cannot tell the classes: if missing here, they are counted
            num_classes={} if extras is None else extras.num_classes,
            frames={} if extras is None else extras.frames,
        )
        builder = ViewBuilder(view)
        for edge_type in self.edge_types:
            # also where the directory states its direction: the part may be a copy from elsewhere
            edges = self.owned_edges(edge_type, partition_idx, edge_dir)
            builder.add_edges(edge_type, edges.edge_index, edges.edge_ids, edges.weights)
        for edge_type in () if extras is None else extras.label_edge_types:
            path = folder / "label_edges" / f"{edge_type_str(edge_type)}.pt"
            builder.add_labels(edge_type, self._tensor(path))
        return builder

    def _add_features(self, builder: ViewBuilder, kind: str, keys: Iterable[Any]) -> None:
        flat: Collection[Any] = ()
        if self.extras is not None:
            flat = self.extras.flat_nodes if kind == "node" else self.extras.flat_edges
        for key in keys:
            group = self.part(builder.view.partition_idx) / f"{kind}_feat"
            folder = Path(f"{group}{self._suffix(key)}")
            if (folder / "feats.pkl").exists() or (folder / "ids.pkl").exists():
                names = ("ids.pkl", "feats.pkl")
                feats, ids = _load_features(*(inside(self.root, folder / name) for name in names))
                # features that had one dimension, which GLT's format cannot store, get it back
                feats = feats.reshape(-1) if key in flat else feats
                builder.add_rows(f"{kind}_features", key, feats, ids)

    def _add_label_file(self, builder: ViewBuilder, files: Any) -> None:
        by_type = files if isinstance(files, dict) else {self.node_types[0]: files}
        for node_type, path in by_type.items():
            # of all nodes, so that there is no index: GLT loads the same file on every rank
            labels = load_tensor(Path(path))
            if labels.dim() == 0 or labels.size(0) != self.num_nodes.get(node_type):
                raise ConfigError(
                    f"{path} has labels of shape {tuple(labels.shape)} for "
                    f"{self.num_nodes.get(node_type)} nodes of type {node_type!r}"
                )
            builder.add_rows("node_labels", node_type, labels, None)

    def _add_extras(self, builder: ViewBuilder, folder: Path, extras: GltExtras) -> None:
        for node_type in extras.node_labels:
            saved = _torch_load(inside(self.root, folder / "node_labels" / f"{node_type}.pt"))
            builder.add_rows("node_labels", node_type, saved["values"], saved["ids"])
        groups: tuple[tuple[str, list[Any]], ...] = (
            ("node_attributes", extras.node_attributes),
            ("edge_attributes", extras.edge_attributes),
        )
        for kind, listed in groups:
            for key, names in listed:
                path = inside(self.root, folder / kind / f"{type_str(key)}.pt")
                saved = _torch_load(path)
                if not isinstance(saved, dict) or not set(names) <= set(saved.get("values", ())):
                    raise ConfigError(f"{path} is damaged: it does not hold {names}")
                for name in names:
                    builder.add_rows(kind, (key, name), saved["values"][name], saved.get("ids"))

    def _read_splits(self, folder: Path, extras: GltExtras) -> Splits:
        return {
            split: {t: self._tensor(folder / "splits" / split / f"{t}.pt") for t in node_types}
            for split, node_types in extras.splits.items()
        }

    # --- edges ------------------------------------------------------------------------------------

    def edges(self, edge_type: EdgeType, partition_idx: int) -> GraphPartitionData:
        """Return the edges in the files of a partition; all edges if the graph is cached."""
        base = self.root if self.cached else self.part(partition_idx)
        folder = Path(f"{base / 'graph'}{self._suffix(edge_type)}")
        ends = []
        for name, node_type in (("rows.pt", edge_type[0]), ("cols.pt", edge_type[2])):
            ids = self._tensor(folder / name, mapped=True)
            ends.append(check_ids(ids, self.num_nodes[node_type], str(folder / name)))
        if ends[0].numel() != ends[1].numel():
            raise ConfigError(
                f"{folder} is damaged: rows.pt has {ends[0].numel()} edges, "
                f"cols.pt has {ends[1].numel()}"
            )
        edge_ids, weights = None, None
        if (folder / "eids.pt").exists():
            edge_ids = check_ids(
                self._tensor(folder / "eids.pt", mapped=True), None, str(folder / "eids.pt")
            )
        elif self.cached:
            edge_ids = self._cached_edge_ids(edge_type, ends[0].numel())
        # positions are ids in one partition only: with two, both would have an edge 0
        elif self.num_partitions > 1:
            raise ConfigError(f"{folder / 'eids.pt'} is missing: the directory is incomplete")
        if (folder / "weights.pt").exists():
            weights = self._tensor(folder / "weights.pt", mapped=True)
            weights = check_weights(weights, ends[0].numel(), str(folder / "weights.pt"))
        # stack copies from the mapped files, so the directory may be removed from here on
        return GraphPartitionData(torch.stack(ends), edge_ids, weights)

    def _cached_edge_ids(self, edge_type: EdgeType, num_edges: int) -> Tensor:
        """Return edge ids for a cached graph saved without: features list them, in that order.

        GLT joins the partitions' edges in their order, and writes edge features by partition.
        """
        ids = []
        for partition_idx in range(self.num_partitions):
            path = Path(
                f"{self.part(partition_idx) / 'edge_feat'}{self._suffix(edge_type)}/ids.pkl"
            )
            ids += list(_load_stream(inside(self.root, path))) if path.exists() else []
        edge_ids = torch.cat(ids) if ids else torch.arange(num_edges, device="cpu")
        if edge_ids.numel() != num_edges:
            raise ConfigError(
                f"{self.root / 'graph'} has no eids.pt and {num_edges} edges of {edge_type}, but "
                f"there are edge features for {edge_ids.numel()}: partition the graph again"
            )
        return edge_ids

    # --- the direction, if the directory does not state it ----------------------------------------

    def _choose_edge_dir(self, partition_idx: int) -> EdgeDir:
        """Return the direction that fits the owners of the edges; ``"in"`` if both do.

        If a partition's edges fit both, the others are read, so that all partitions get one result.
        """
        # one owner has all edges by either rule; "in" is PyG's own direction
        if self.num_partitions == 1:
            return "in"
        # Ranks load different partitions and must agree. One partition may fit both directions (all
        # its edges are inside it) where another does not: the first that fits only one decides, in
        # any order. Two that differ would be no valid partitioning by either rule.
        others = [p for p in range(self.num_partitions) if p != partition_idx]
        # the files of a cached graph hold all edges, so every rank sees the same
        for candidate in [partition_idx] if self.cached else [partition_idx, *others]:
            fitting = self._fitting(candidate)
            if not fitting:
                raise ConfigError(
                    f"edges in partition {candidate} are assigned neither by source nor by "
                    "destination: partition the graph again"
                )
            if len(fitting) == 1:
                return fitting[0]
        return "in"

    def _fitting(self, partition_idx: int) -> list[EdgeDir]:
        fitting: list[EdgeDir] = ["in", "out"]
        for edge_type in self.edge_types:
            edges = self.edges(edge_type, partition_idx)
            wanted: Tensor | int = partition_idx
            if self.cached:
                # no file tells the owner of an edge: this type cannot decide
                if edge_type not in self.edge_books or edges.edge_ids is None:
                    continue
                wanted = self.edge_books[edge_type].owner(edges.edge_ids)
            fitting = [
                edge_dir
                for edge_dir in fitting
                if bool((self._owners(edge_type, edges, edge_dir) == wanted).all())
            ]
        return fitting

    def _owners(self, edge_type: EdgeType, edges: GraphPartitionData, edge_dir: EdgeDir) -> Tensor:
        end = expanded_end(edge_dir)
        book: Book = self.node_books[(edge_type[0], edge_type[2])[end]]
        return book.owner(edges.edge_index[end])

    def owned_edges(
        self, edge_type: EdgeType, partition_idx: int, edge_dir: EdgeDir
    ) -> GraphPartitionData:
        """Return the partition's own edges: those of a cached graph are picked, others checked."""
        edges = self.edges(edge_type, partition_idx)
        if self.num_partitions == 1:
            return edges
        owners = self._owners(edge_type, edges, edge_dir)
        if not self.cached:
            other = "out" if edge_dir == "in" else "in"
            check_ownership(
                owners,
                partition_idx,
                f"edges {edge_type} of partition {partition_idx}",
                f'they do not fit edge_dir="{edge_dir}"; try "{other}"',
            )
            return edges
        # GLT caches the whole topology with each partition; our workers ask the owner, and two
        # owners of a neighbour would draw it twice
        mine = (owners == partition_idx).nonzero().view(-1)
        weights = None if edges.weights is None else edges.weights[mine]
        # positions among all edges, before those of other partitions are removed: they are global
        edge_ids = (
            torch.arange(owners.numel(), device="cpu") if edges.edge_ids is None else edges.edge_ids
        )
        return GraphPartitionData(edges.edge_index[:, mine], edge_ids[mine], weights)


# --- files, read ----------------------------------------------------------------------------------


class _TensorUnpickler(pickle.Unpickler):
    """Reads numbers, strings, containers and tensors, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        # torch's function unpickles its argument without restriction: code again, one level below
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: load_torch_file(io.BytesIO(data))
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # torch's own restricted unpickler allows it, too: it makes a tensor over a storage.
            # A new function each time: a pickle may set the defaults of those that it is given.
            return lambda *args: torch._utils._rebuild_tensor_v2(*args)
        if (module, name) == ("collections", "OrderedDict"):
            # a tensor's backward hooks, which are empty
            return dict
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a partition directory")


def _open(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is missing: the partition directory is incomplete; copy it again or write it "
            "again with partition_graph"
        ) from error


def _load_meta(root: Path) -> dict[str, Any]:
    path = root / "META"
    check_root(root)
    with _open(path) as file:
        try:
            meta = _TensorUnpickler(file).load()
            wanted = {"num_parts", "data_cls", "node_types", "edge_types"}
            if not isinstance(meta, dict) or not wanted <= meta.keys():
                raise ValueError(f"it needs the keys {sorted(wanted)}")
        # a damaged pickle may raise any class of error
        except Exception as error:
            raise damaged(path, error) from error
    return meta


def _torch_load(path: Path, *, mapped: bool = False) -> Any:
    with _open(path):  # for the error
        pass
    try:
        # weights_only: a tensor may come from anywhere. "cpu": GLT's partitioners may have run on a
        # GPU that this machine lacks.
        return load_torch_file(path, "cpu", mmap=mapped)
    except Exception as error:
        raise damaged(path, error) from error
    finally:
        note(path.stat().st_size)


def load_tensor(path: Path, *, mapped: bool = False) -> Tensor:
    """Return the tensor in a file; ``mapped``: read from the file as needed, for a later copy."""
    value = _torch_load(path, mapped=mapped)
    if not isinstance(value, Tensor):
        raise ConfigError(f"{path} is damaged: it holds a {type(value).__name__}, not a tensor")
    return value


def _load_stream(path: Path) -> Iterator[Tensor]:
    """Yield the tensors that GLT appended to a file one after the other."""
    with _open(path) as file:
        # a pickle marks its own end, so there is no header; an end of file inside one is damage
        while file.peek(1):
            try:
                tensor = _TensorUnpickler(file).load()
            except Exception as error:
                raise damaged(path, error) from error
            if not isinstance(tensor, Tensor):
                raise ConfigError(f"{path} is damaged: it holds a {type(tensor).__name__}")
            note(tensor)
            yield tensor


def _load_features(ids_path: Path, path: Path) -> tuple[Tensor, Tensor]:
    """Return the rows in a file and their ids, read chunk by chunk into shared memory.

    Copies of other partitions' rows (GLT's feature cache) are not read: their owners have them.
    """
    parts = list(_load_stream(ids_path))
    ids = torch.cat(parts).long() if parts else torch.empty(0, dtype=torch.int64, device="cpu")
    feats, filled = torch.empty((0, 0), dtype=torch.float32, device="cpu"), 0
    for chunk in _load_stream(path):
        if filled == 0:
            # ids are read first, for the number of rows: joining chunks at the end would take twice
            # the memory
            feats = empty_shared((ids.numel(), *chunk.shape[1:]), chunk.dtype)
        size = chunk.size(0)
        # surplus rows are counted, but not written past the end, for the error below
        if filled + size <= ids.numel():
            feats[filled : filled + size] = chunk
        filled += size
    if filled != ids.numel():
        raise ConfigError(f"{path} is damaged: it has {filled} rows, for {ids.numel()} ids")
    # GLT's features always have two dimensions
    return feats.unsqueeze(1) if feats.dim() == 1 else feats, ids


def type_str(key: NodeType | EdgeType) -> str:
    """Return a type as GLT writes it in paths."""
    return key if isinstance(key, str) else edge_type_str(key)
