"""Partitions that DGL, GraphStorm and PyG wrote, as tables: their tensors, ids and owners.

A reader writes a Parquet file for each type in each partition, one at a time, and describes them as
`NodeTable` and `EdgeTable`. The owner of a node is a column, and rows come in the order of DGL's
ids: with ``method="column"`` nodes keep the ids that they have there.
"""

import filecmp
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.mapped import damaged
from gigl_loader.dataset.schema import EdgeType, NodeType, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array
from gigl_loader.tables.dgl_files import read_graph, read_tensors
from gigl_loader.tables.spec import EdgeTable, NodeTable, TableDtype

_log = logging.getLogger(__name__)
_ID, _PARTITION, _SPLIT, _SRC, _DST = (
    " id", " partition", " split", " src", " dst",
)  # fmt: skip
"""Columns of our own; a name that begins with a space is no tensor's."""
_MASKS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


@dataclass(frozen=True, kw_only=True)
class ForeignColumns:
    """The tensors with a meaning, by name: each type takes those that it has, side by side.

    Features and labels that are not named are called as in the library's own examples.
    """

    features: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    time: str | None = None
    feature_dtype: TableDtype | None = None
    weight: str | None = None
    edge_features: tuple[str, ...] = ()
    edge_time: str | None = None

    def of_nodes(self) -> tuple[str, ...]:
        """Return the names of tensors of nodes."""
        return *self.features, *self.label, *([self.time] if self.time else [])

    def of_edges(self) -> tuple[str, ...]:
        """Return the names of tensors of edges."""
        return *self.edge_features, *(name for name in (self.weight, self.edge_time) if name)

    def with_defaults(self, features: str, label: str, edge_features: str) -> "ForeignColumns":
        """Return the names, with those of a library where none are given."""
        return replace(
            self, features=self.features or (features,), label=self.label or (label,),
            edge_features=self.edge_features or (edge_features,),
        )  # fmt: skip


@dataclass
class ForeignGraph:
    """A graph of another library, as tables."""

    num_partitions: int | None
    """Of the library's own; the owners are a column of the nodes. None: it has no partitions."""
    nodes: dict[NodeType, NodeTable] = field(default_factory=dict)
    edges: dict[EdgeType, list[EdgeTable]] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Any, Any]:
        """Nodes and edges for `partition_tables`; one type of each is a homogeneous graph."""
        if len(self.nodes) == len(self.edges) == 1:
            return next(iter(self.nodes.values())), next(iter(self.edges.values()))
        return self.nodes, self.edges


# --- tables of partitions -------------------------------------------------------------------------


class _Tables:
    """Writes the nodes and edges of partitions, and describes the files.

    Args:
        folder: For the files.
        columns: What the tensors are.
    """

    def __init__(self, folder: Path, columns: ForeignColumns) -> None:
        self._folder, self._columns = folder, columns
        self._files: dict[Any, list[str]] = {}
        self._names: dict[Any, set[str]] = {}
        self._tensors: set[str] = set()

    def add_nodes(
        self, node_type: NodeType, k: int, ids: Array, tensors: Mapping[str, Array], where: str
    ) -> None:
        """Write the nodes of a type in partition ``k``; ``tensors`` have a row for each."""
        columns, chosen = self._columns, self._columns.of_nodes()
        kept = {n for n in tensors if n.isidentifier() and not n.startswith("_")} | {*chosen}
        rows = self._checked(tensors, len(ids), kept, chosen, where)
        masks = {split: rows.pop(name) for name, split in _MASKS.items() if name in rows}
        if masks:
            rows[_SPLIT] = _splits(masks, where)
        _put_together(rows, columns.features)
        _put_together(rows, columns.label)
        rows |= {_ID: ids, _PARTITION: np.full(len(ids), k)}
        self._add(node_type, self._folder / "nodes" / node_type / f"{k:04}.parquet", rows)

    def add_edges(
        self, edge_type: EdgeType, k: int, ends: Array, tensors: Mapping[str, Array], where: str
    ) -> None:
        """Write the edges of a type in partition ``k``: ``[2, num_edges]`` ids, and tensors."""
        chosen = self._columns.of_edges()
        rows = self._checked(tensors, ends.shape[1], {*chosen}, chosen, where)
        _put_together(rows, self._columns.edge_features)
        rows |= {_SRC: ends[0], _DST: ends[1]}
        folder = self._folder / "edges" / edge_type_str(edge_type)
        self._add(edge_type, folder / f"{k:04}.parquet", rows)

    def _checked(
        self, tensors: Mapping[str, Array], count: int, kept: set[str], chosen: Iterable[str],
        where: str,
    ) -> dict[str, Array]:  # fmt: skip
        """Return the tensors to keep; others are named in a warning."""
        rows: dict[str, Array] = {}
        for name, values in tensors.items():
            fits = values.ndim == 1 or (values.ndim == 2 and values.shape[1] > 0)
            if values.shape[:1] != (count,) or (name in chosen and not fits):
                raise ConfigError(
                    f"{where}: {name} has the shape {values.shape}; it must be [{count}] or "
                    f"[{count}, numbers of a row]"
                )
            if name in kept and fits:
                rows[name] = values
        if left_out := sorted(set(tensors) - set(rows)):
            _log.warning(
                "%s: %s left out: of edges, --edge-features, --weight and --edge-time are kept; of "
                "nodes, tensors of one or two dimensions whose name an attribute may have",
                where, ", ".join(left_out),
            )  # fmt: skip
        self._tensors |= {*tensors}
        return rows

    def _add(self, key: Any, path: Path, rows: Mapping[str, Any]) -> None:
        draft = draft_of(path)
        pq.write_table(arrow_table(rows), draft, row_group_size=1_000_000)
        self._files.setdefault(key, []).append(keep(draft, path))
        self._names.setdefault(key, set()).update(rows)

    def graph(self, num_partitions: int, given: ForeignColumns, where: Path) -> ForeignGraph:
        """Return the tables; ``given`` are the names that the user gave."""
        if unknown := sorted({*given.of_nodes(), *given.of_edges()} - self._tensors):
            raise ConfigError(
                f"{where} has no tensors {', '.join(unknown)}; it has "
                f"{', '.join(sorted(self._tensors))}"
            )
        graph, columns = ForeignGraph(num_partitions), self._columns
        for key, files in self._files.items():
            names = self._names[key]
            features, label, edge_features, time, weight, edge_time = (
                next((name for name in wanted if name in names), None)
                for wanted in (
                    columns.features, columns.label, columns.edge_features, [columns.time],
                    [columns.weight], [columns.edge_time],
                )
            )  # fmt: skip
            if isinstance(key, tuple):
                graph.edges[key] = [EdgeTable(files, src=_SRC, dst=_DST, features=edge_features,
                                              weight=weight, time=edge_time)]  # fmt: skip
                continue
            own = {_ID, _PARTITION, _SPLIT, features, label, time}
            graph.nodes[key] = NodeTable(
                files, id=_ID, partition=_PARTITION, features=features, label=label, time=time,
                feature_dtype=columns.feature_dtype if features else None,
                split=_SPLIT if _SPLIT in names else None, attributes=sorted(names - own),
            )  # fmt: skip
        return graph


def _put_together(rows: dict[str, Array], names: Iterable[str]) -> None:
    """Put some columns side by side, under the name of the first one."""
    given = [name for name in names if name in rows]
    if len(given) > 1:
        parts = [rows.pop(name) for name in given]
        rows[given[0]] = np.column_stack(parts)


def draft_of(path: Path) -> Path:
    """Return where to write a file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_suffix(".draft")


def keep(draft: Path, path: Path) -> str:
    """Give a written file its name, and return that.

    One with the same bytes stays as it is, with its time: a run that was killed takes it for
    unchanged, and goes on.
    """
    if path.exists() and filecmp.cmp(draft, path, shallow=False):
        draft.unlink()
    else:
        draft.replace(path)
    return str(path)


def arrow_table(rows: Mapping[str, Any]) -> Any:
    """Return a ``pyarrow.Table`` of columns with a number or a list of numbers for each row."""
    columns = {}
    for name, values in rows.items():
        if isinstance(values, pa.Array):
            columns[name] = values
        else:
            # A copy: values from a file lie at any byte, which Arrow does not take.
            flat = pa.array(values.flatten())
            is_flat = values.ndim == 1
            columns[name] = (
                flat if is_flat else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
            )
    return pa.table(columns)


def _splits(masks: Mapping[str, Array], where: str) -> Any:
    """Return the split of each node as text, or null."""
    given = np.stack([mask.astype(bool) for mask in masks.values()])
    count = given.sum(axis=0)
    if (count > 1).any():
        row = int(np.flatnonzero(count > 1)[0])
        raise ConfigError(f"{where}: node {row} is in several of the masks {', '.join(masks)}")
    return pa.array(np.array(list(masks))[given.argmax(axis=0)], pa.string(), mask=count == 0)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise damaged(path, error) from error


def _plain_dict(*_: Any) -> dict[Any, Any]:
    return {}


# PyG saves some ``defaultdict``, which torch's restricted reader neither knows nor can fill.
_plain_dict.__module__, _plain_dict.__qualname__ = "collections", "defaultdict"
_plain_dict.__name__ = _plain_dict.__qualname__  # torch 2.4 goes by this


def _load(path: Path) -> Any:
    """Return what ``torch.save`` wrote: tensors in dicts and lists; nothing in the file is run."""
    import torch  # takes seconds, and other formats do without

    # Instead of what others have allowed: PyG allows the class itself, which then fails.
    others = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals([_plain_dict, dict])
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle may raise any class of error
        raise damaged(path, error) from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(others)


def _array(tensor: Any) -> Array:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32."""
    array: Array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return array


# --- DGL and GraphStorm ---------------------------------------------------------------------------


class _IdRanges:
    """DGL's ids of all types in one sequence: partition by partition a range of each type.

    Args:
        ranges: By type ``[[start, end], ...]``, one for each partition.
    """

    def __init__(self, ranges: Mapping[Any, list[list[int]]]) -> None:
        self.starts: dict[Any, Array] = {}
        """By type, ``[partitions + 1]``: of the type's own ids."""
        rows = []
        for number, (key, given) in enumerate(ranges.items()):
            sizes = np.array([end - start for start, end in given], np.int64)
            self.starts[key] = np.concatenate([[0], np.cumsum(sizes)])
            # An empty range shares its start with the next, which a search would miss.
            rows += [(start, end, number, first) for (start, end), first
                     in zip(given, self.starts[key][:-1], strict=True) if end > start]  # fmt: skip
        self._rows = np.array(sorted(rows), np.int64).reshape(-1, 4)

    def split(self, ids: Array, where: str) -> tuple[Array, Array]:
        """Return the numbers of the types, and the ids in their types."""
        at = np.searchsorted(self._rows[:, 0], ids, "right") - 1
        if ids.size and ((at < 0).any() or (ids >= self._rows[at, 1]).any()):
            raise ConfigError(f"{where} has ids outside the ranges of its JSON file")
        rows = self._rows[at]
        return rows[:, 2], ids - rows[:, 0] + rows[:, 3]


def read_dgl(path: Path, folder: Path, given: ForeignColumns) -> ForeignGraph:
    """Return DGL's or GraphStorm's partitions as tables, whose files are written below ``folder``.

    Args:
        path: The JSON file that ``dgl.distributed.partition_graph`` wrote, or its directory.
        folder: A directory without other files.
        given: Names of tensors.

    Raises:
        ConfigError: A file is missing, damaged, or has something that tables cannot hold.
    """
    config_path, config = _dgl_config(path)
    try:
        count = int(config["num_parts"])
        nodes = _IdRanges(_by_number(config["node_map"], config["ntypes"]))
        edges = _IdRanges(_by_number(config["edge_map"], config["etypes"]))
        parts = [
            {name: config_path.parent / file for name, file in config[f"part-{k}"].items()}
            for k in range(count)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(config_path, error) from error
    tables = _Tables(folder, given.with_defaults("feat", "label", "feat"))
    originals = _original_ids(config_path.parent, nodes, parts)
    for k, files in enumerate(parts):
        if "part_graph" not in files:
            raise ConfigError(
                f"{config_path}: partition {k} has {', '.join(files)} and no part_graph; files of "
                "GraphBolt need DGL: write the partitions with use_graphbolt=False"
            )
        where = str(files["node_feats"])
        by_type = _by_type(read_tensors(files["node_feats"]), nodes.starts, where)
        for node_type, starts in nodes.starts.items():
            ids = originals[node_type][starts[k] : starts[k + 1]]
            tables.add_nodes(node_type, k, ids, by_type[node_type], f"{where}, {node_type}")
        _add_dgl_edges(tables, k, files, nodes, edges, originals)
    return tables.graph(count, given, path)


def _dgl_config(path: Path) -> tuple[Path, Any]:
    """Return the description of partitions: the file itself, or the one in a directory."""
    # GraphStorm writes other JSON files beside it.
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    configs = [(file, content) for file in files if "part-0" in (content := _read_json(file))]
    if len(configs) != 1:
        raise ConfigError(
            f"{path} must be or hold one JSON file of DGL's partition_graph, with the key part-0; "
            f"there are {len(configs)}"
        )
    return configs[0]


def _by_number(ranges: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    return dict(sorted(ranges.items(), key=lambda item: numbers[item[0]]))


def _by_type(
    tensors: Mapping[str, Array], types: Iterable[str], where: str
) -> dict[str, dict[str, Array]]:
    """Return tensors by type and name; DGL joins the two by a slash."""
    by_type: dict[str, dict[str, Array]] = {key: {} for key in types}
    for joined, values in tensors.items():
        key, _, name = joined.partition("/")
        if key not in by_type:
            raise ConfigError(f"{where} has {joined}, and no type {key!r}")
        by_type[key][name] = values
    return by_type


def _original_ids(folder: Path, nodes: _IdRanges, parts: list[dict[str, Path]]) -> dict[str, Array]:
    """Return by type the ids before partitioning where files tell them, else DGL's own."""
    originals = {key: np.arange(starts[-1]) for key, starts in nodes.starts.items()}
    if (whole := folder / "node_mapping.pt").exists():  # GraphStorm on one machine
        mapping = _load(whole)
        mapping = mapping if isinstance(mapping, dict) else {next(iter(originals)): mapping}
        read = {key: _array(ids) for key, ids in mapping.items()}
    else:  # DGL's and GraphStorm's distributed pipeline
        files = [part["node_feats"].with_name("orig_nids.dgl") for part in parts]
        if not all(file.exists() for file in files):
            return originals
        pieces = [read_tensors(file) for file in files]
        read = {key: np.concatenate([ids[key] for ids in pieces]) for key in pieces[0]}
    for key, ids in originals.items():
        if key not in read or len(read[key]) != len(ids):
            raise ConfigError(f"{folder}: the original ids of {key!r} are not {len(ids)}")
    return read


def _add_dgl_edges(
    tables: _Tables, k: int, files: Mapping[str, Path], nodes: _IdRanges, edges: _IdRanges,
    originals: Mapping[str, Array],
) -> None:  # fmt: skip
    where = str(files["part_graph"])
    graph = read_graph(files["part_graph"])
    try:
        own = np.flatnonzero(graph.edges["inner_edge"])  # others belong to other partitions
        kinds, ids = edges.split(graph.edges["_ID"][own], where)
        node_ids = graph.nodes["_ID"]
    except KeyError as error:
        raise damaged(Path(where), error) from error
    types = list(nodes.starts)
    by_type = _by_type(read_tensors(files["edge_feats"]), edges.starts, str(files["edge_feats"]))
    for number, (name, starts) in enumerate(edges.starts.items()):
        edge_type = tuple(name.split(":"))
        if len(edge_type) != 3 or not {edge_type[0], edge_type[2]} <= set(types):
            raise ConfigError(f"edge type {name!r} must be two of {types} around its relation")
        # In the order of ids, which is that of the features.
        chosen = np.flatnonzero(kinds == number)
        chosen = chosen[np.argsort(ids[chosen])]
        if not np.array_equal(ids[chosen], np.arange(starts[k], starts[k + 1])):
            raise ConfigError(f"{where} is damaged: it lacks edges of {name}")
        ends = []
        for row, node_type in enumerate((edge_type[0], edge_type[2])):
            end_types, end_ids = nodes.split(node_ids[graph.edge_index[row, own[chosen]]], where)
            if (end_types != types.index(node_type)).any():
                raise ConfigError(f"{where} is damaged: an edge of {name} ends at another type")
            ends.append(originals[node_type][end_ids])
        tables.add_edges(edge_type, k, np.stack(ends), by_type[name], f"{where}, {name}")


# --- PyG ------------------------------------------------------------------------------------------


def read_pyg(path: Path, folder: Path, given: ForeignColumns) -> ForeignGraph:
    """Return the partitions of ``torch_geometric.distributed.Partitioner`` as tables.

    Args and errors are those of `read_dgl`; ``path`` is the directory.
    """
    meta_path = path / "META.json"
    meta = _read_json(meta_path)
    tables = _Tables(folder, given.with_defaults("x", "y", "edge_attr"))
    try:
        typed, count = meta["is_hetero"], int(meta["num_parts"])
        node_types = list(meta["node_types"]) if typed else [""]
        edge_types = [tuple(t) for t in meta["edge_types"]] if typed else [("", "", "")]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(meta_path, error) from error
    for k in range(count):
        part = path / f"part_{k}"
        graph, nodes, edges = (
            _load(part / f"{name}.pt") for name in ("graph", "node_feats", "edge_feats")
        )
        try:
            for node_type in node_types:
                _add_pyg_nodes(tables, node_type, k, nodes[node_type] if typed else nodes, part)
            for edge_type in edge_types:
                _add_pyg_edges(
                    tables, edge_type, k, graph[edge_type] if typed else graph,
                    edges.get(edge_type, {}) if typed else edges, part,
                )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(part, error) from error
    return tables.graph(count, given, path)


def _add_pyg_nodes(
    tables: _Tables, node_type: NodeType, k: int, stored: Mapping[str, Any], part: Path
) -> None:
    # Ids in the type are apart only where there are several types.
    ids = _array(stored["id"] if node_type else stored["global_id"])
    owners = part.parent / (f"node_map/{node_type}.pt" if node_type else "node_map.pt")
    if not np.array_equal(np.sort(ids), np.flatnonzero(_array(_load(owners)) == k)):
        raise ConfigError(f"{part} is damaged: its nodes {node_type} are not those of {owners}")
    tensors = {name: _array(v) for name, v in stored["feats"].items() if v is not None}
    if "time" in stored:  # of all nodes
        tensors["time"] = _array(stored["time"])[ids]
    tables.add_nodes(node_type or "_N", k, ids, tensors, f"{part}, nodes {node_type}".rstrip())


def _add_pyg_edges(
    tables: _Tables, edge_type: EdgeType, k: int, graph: Mapping[str, Any],
    stored: Mapping[str, Any], part: Path,
) -> None:  # fmt: skip
    ends = np.stack([_array(graph["row"]), _array(graph["col"])])
    where = f"{part}, edges {edge_type_str(edge_type) if edge_type[0] else ''}".rstrip(", ")
    tensors = {name: _array(v) for name, v in stored.get("feats", {}).items() if v is not None}
    if "edge_time" in stored:
        tensors["edge_time"] = _array(stored["edge_time"])
    if "global_id" in stored:
        # In the type, where those of the graph count all types: in one order, they differ by one
        # number.
        apart = np.diff(_array(graph["edge_id"]) - _array(stored["global_id"]))
        if apart.any():
            raise ConfigError(f"{where}: features are in another order than edges")
    edge_type = edge_type if edge_type[0] else ("_N", "_E", "_N")
    tables.add_edges(edge_type, k, ends, tensors, where)
