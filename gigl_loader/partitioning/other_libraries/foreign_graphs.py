"""Partitions that DGL, GraphStorm and PyG wrote, as tables: their tensors, ids and owners.

A reader writes a Parquet file for each type in each partition, one at a time, and describes them as
`NodeTable` and `EdgeTable`. The owner of a node is a column, and rows come in the order of DGL's
ids: with ``method="column"`` nodes keep the ids that they have there.
"""

import filecmp
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.dataset.format.mapped import damaged
from gigl_loader.dataset.schema import EdgeType, NodeType, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.other_libraries.dgl_files import read_graph, read_tensors
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable
from gigl_loader.runtime.files_of_others import inside, load_torch_file
from gigl_loader.runtime.memory.segments import Array

_log = logging.getLogger(__name__)
_ID, _PARTITION, _SPLIT, _SRC, _DST = (" id", " partition", " split", " src", " dst")
"""Columns of our own; a name that begins with a space is no tensor's."""
_MASKS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}


OF_NODES, OF_EDGES = ("features", "label", "time"), ("edge_features", "weight", "edge_time")
"""What tensors of nodes and of edges may be, by the names of the command's options."""
TensorNames = Mapping[str, Sequence[str]]
"""By these, names of tensors: each type takes those that it has, side by side."""


@dataclass
class ForeignGraph:
    """A graph of another library, as tables."""

    nodes: dict[NodeType, NodeTable] = field(default_factory=dict)
    edges: dict[EdgeType, list[EdgeTable]] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[Any, Any]:
        """Nodes and edges for `partition_tables`; one type of each is a homogeneous graph."""
        if len(self.nodes) == len(self.edges) == 1:
            return next(iter(self.nodes.values())), next(iter(self.edges.values()))
        return self.nodes, self.edges


def count_foreign(library: str, path: Path) -> int | None:
    """Return the number of partitions that a library wrote; None: GiGL writes none.

    Raises:
        ConfigError: Their description is missing or damaged.
    """
    if library == "gigl":
        return None
    file, content = (
        _dgl_config(path)
        if library == "dgl"
        else (path / "META.json", _read_json(path / "META.json"))
    )
    try:
        return int(content["num_parts"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(file, error) from error


# --- tables of partitions -------------------------------------------------------------------------


class _Tables:
    """Writes the nodes and edges of partitions, and describes the files.

    Args:
        folder: For the files.
        given: Names that the user gave.
        defaults: Names in this library's own examples.
    """

    def __init__(self, folder: Path, given: TensorNames, defaults: TensorNames) -> None:
        self._folder, self._given = folder, given
        self._names = {**defaults, **{option: names for option, names in given.items() if names}}
        for options in (OF_NODES, OF_EDGES):
            names = [name for option in options for name in self._names.get(option, ())]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"{', '.join(twice)} is named for two uses of {options}")
        self._files: dict[Any, list[str]] = {}
        self._columns: dict[Any, set[str]] = {}
        self._tensors: set[str] = set()

    def add_nodes(
        self, node_type: NodeType, k: int, ids: Array, tensors: Mapping[str, Array], where: str
    ) -> None:
        """Write the nodes of a type in partition ``k``; ``tensors`` have a row for each."""
        others = {name for name in tensors if name.isidentifier() and not name.startswith("_")}
        rows = self._kept_tensors(node_type, tensors, len(ids), OF_NODES, others, where)
        if masks := {split: rows.pop(name) for name, split in _MASKS.items() if name in rows}:
            rows[_SPLIT] = _splits(masks, where)
        rows |= {_ID: ids, _PARTITION: np.full(len(ids), k)}
        self._add(node_type, self._folder / "nodes" / node_type / f"{k:04}.parquet", rows)

    def add_edges(
        self, edge_type: EdgeType, k: int, ends: Array, tensors: Mapping[str, Array], where: str
    ) -> None:
        """Write the edges of a type in partition ``k``: ``[2, num_edges]`` ids, and tensors."""
        rows = self._kept_tensors(edge_type, tensors, ends.shape[1], OF_EDGES, set(), where)
        rows |= {_SRC: ends[0], _DST: ends[1]}
        folder = self._folder / "edges" / edge_type_str(edge_type)
        self._add(edge_type, folder / f"{k:04}.parquet", rows)

    def _kept_tensors(
        self,
        key: Any,
        tensors: Mapping[str, Array],
        count: int,
        options: Sequence[str],
        others: set[str],
        where: str,
    ) -> dict[str, Any]:
        """Return the tensors to keep: those of ``options`` and ``others``."""
        named = [self._names.get(option, ()) for option in options]
        chosen = {name for names in named for name in names}
        rows: dict[str, Any] = {}
        for name, values in tensors.items():
            fits = values.ndim == 1 or (values.ndim == 2 and values.shape[1] > 0)
            if values.shape[:1] != (count,) or (name in chosen and not fits):
                raise ConfigError(
                    f"{where}: {name} has the shape {values.shape}; it must be "
                    f"[{count}] or [{count}, width]"
                )
            if name in chosen | others and fits:
                rows[name] = values
        self._tensors |= {*tensors}
        left_out = sorted(set(tensors) - set(rows))
        if left_out and key not in self._columns:  # once, for the first partition
            _log.warning(
                "%s: %s left out: of edges, --edge-features, --weight and --edge-time are kept; of "
                "nodes, tensors of one or two dimensions whose name an attribute may have",
                where,
                ", ".join(left_out),
            )
        for names in named:
            parts = [rows.pop(name) for name in names if name in rows]
            if parts:
                rows[names[0]] = parts[0] if len(parts) == 1 else np.column_stack(parts)
        return rows

    def _add(self, key: Any, path: Path, rows: Mapping[str, Any]) -> None:
        draft = draft_of(inside(self._folder, path))  # types are names in files of others
        pq.write_table(arrow_table(rows), draft, row_group_size=1_000_000)
        self._files.setdefault(key, []).append(keep(draft, path))
        self._columns.setdefault(key, set()).update(rows)

    def graph(self, where: Path) -> ForeignGraph:
        """Return the tables."""
        given = {name for names in self._given.values() for name in names}
        if unknown := sorted(given - self._tensors):
            raise ConfigError(
                f"{where} has no tensors {', '.join(unknown)}; it has "
                f"{', '.join(sorted(self._tensors))}"
            )
        graph = ForeignGraph()
        for key, files in self._files.items():
            columns = self._columns[key]
            features, label, time, edge_features, weight, edge_time = (
                next((name for name in self._names.get(option, ())[:1] if name in columns), None)
                for option in (*OF_NODES, *OF_EDGES)
            )
            if isinstance(key, tuple):
                graph.edges[key] = [
                    EdgeTable(
                        files,
                        src=_SRC,
                        dst=_DST,
                        features=edge_features,
                        weight=weight,
                        time=edge_time,
                    )
                ]
                continue
            own = {_ID, _PARTITION, _SPLIT, features, label, time}
            graph.nodes[key] = NodeTable(
                files,
                id=_ID,
                partition=_PARTITION,
                features=features,
                label=label,
                time=time,
                split=_SPLIT if _SPLIT in columns else None,
                attributes=sorted(columns - own),
            )
        return graph


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
        if isinstance(values, np.ndarray):
            # A copy: values from a file lie at any byte, which Arrow does not take.
            columns[name] = pa.array(values.flatten())
            if values.ndim == 2:
                width = values.shape[1]
                columns[name] = pa.FixedSizeListArray.from_arrays(columns[name], width)
        else:
            columns[name] = values
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
        return load_torch_file(path, "cpu", mmap=True)
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
            rows += [
                (start, end, number, first)
                for (start, end), first in zip(given, self.starts[key][:-1], strict=True)
                if end > start
            ]
        self._rows = np.array(sorted(rows), np.int64).reshape(-1, 4)

    def split(self, ids: Array, where: str) -> tuple[Array, Array]:
        """Return the numbers of the types, and the ids in their types."""
        at = np.searchsorted(self._rows[:, 0], ids, "right") - 1
        if ids.size and ((at < 0).any() or (ids >= self._rows[at, 1]).any()):
            raise ConfigError(f"{where} has ids outside the ranges of its JSON file")
        rows = self._rows[at]
        return rows[:, 2], ids - rows[:, 0] + rows[:, 3]


def read_dgl(path: Path, folder: Path, given: TensorNames) -> ForeignGraph:
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
            {name: inside(config_path.parent, file) for name, file in config[f"part-{k}"].items()}
            for k in range(count)
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(config_path, error) from error
    names = {"features": ["feat"], "label": ["label"], "edge_features": ["feat"]}
    tables = _Tables(folder, given, names)
    originals = _original_ids(config_path.parent, nodes, parts)
    for k, files in enumerate(parts):
        if missing := {"part_graph", "node_feats", "edge_feats"} - {*files}:
            raise ConfigError(
                f"{config_path}: partition {k} has no {', '.join(sorted(missing))}; GraphBolt's "
                "graphs need DGL: write the partitions with use_graphbolt=False"
            )
        where = str(files["node_feats"])
        by_type = _by_type(read_tensors(files["node_feats"]), nodes.starts, where)
        for node_type, starts in nodes.starts.items():
            ids = originals[node_type][starts[k] : starts[k + 1]]
            tables.add_nodes(node_type, k, ids, by_type[node_type], f"{where}, {node_type}")
        _add_dgl_edges(tables, k, files, nodes, edges, originals)
    return tables.graph(path)


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
    tables: _Tables,
    k: int,
    files: Mapping[str, Path],
    nodes: _IdRanges,
    edges: _IdRanges,
    originals: Mapping[str, Array],
) -> None:
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


def read_pyg(path: Path, folder: Path, given: TensorNames) -> ForeignGraph:
    """Return the partitions of ``torch_geometric.distributed.Partitioner`` as tables.

    Args and errors are those of `read_dgl`; ``path`` is the directory.
    """
    meta_path = path / "META.json"
    meta = _read_json(meta_path)
    names = {"features": ["x"], "label": ["y"], "edge_features": ["edge_attr"]}
    tables = _Tables(folder, given, names)
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
                    tables,
                    edge_type,
                    k,
                    graph[edge_type] if typed else graph,
                    edges.get(edge_type, {}) if typed else edges,
                    part,
                )
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(part, error) from error
    return tables.graph(path)


def _add_pyg_nodes(
    tables: _Tables, node_type: NodeType, k: int, stored: Mapping[str, Any], part: Path
) -> None:
    # Ids in the type are apart only where there are several types.
    ids = _array(stored["id"] if node_type else stored["global_id"])
    tensors = {name: _array(v) for name, v in stored["feats"].items() if v is not None}
    if "time" in stored:  # of all nodes
        tensors["time"] = _array(stored["time"])[ids]
    tables.add_nodes(node_type or "_N", k, ids, tensors, f"{part}, nodes {node_type}".rstrip())


def _add_pyg_edges(
    tables: _Tables,
    edge_type: EdgeType,
    k: int,
    graph: Mapping[str, Any],
    stored: Mapping[str, Any],
    part: Path,
) -> None:
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
