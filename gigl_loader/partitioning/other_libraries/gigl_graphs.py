"""Graphs that GiGL's data preprocessor wrote, as tables: metadata in YAML, rows in TFRecords.

The task's file has ``graphMetadata`` (types and their numbers) and the place of the preprocessed
metadata, which name the columns and files of each type. Both are protocol buffers in YAML.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

from gigl_loader.dataset.schema import EdgeType, FilePath, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.other_libraries.foreign_graphs import (
    ForeignGraph,
    TensorNames,
    arrow_table,
    draft_of,
    keep,
)
from gigl_loader.partitioning.other_libraries.tfrecords import read_examples
from gigl_loader.partitioning.tables.spec import EdgeTable, NodeTable
from gigl_loader.runtime.files_of_others import inside
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.object_storage.file_systems import file_system_of
from gigl_loader.runtime.yaml_files import read_yaml

_log = logging.getLogger(__name__)
_EXACT = 2**24
"""Largest integer up to which float32, GiGL's type of features, has all of them."""


RECORDS = r".*-of-.*\.tfrecord(\.gz)?$"
"""GiGL's pattern of names of files with records."""


def read_gigl(path: FilePath, folder: Path, given: TensorNames) -> ForeignGraph:
    """Return a preprocessed graph as tables, whose files are written below ``folder``.

    Nodes are in the order of their ids, so ids that count from 0 stay what they are.

    Args:
        path: The YAML file of a task, or its URL.
        folder: A directory without other files.
        given: No names: the metadata have them.

    Raises:
        ConfigError: A file is missing, damaged, or has something that tables cannot hold.
    """
    if any(given.values()):
        raise ConfigError("GiGL's metadata name features and labels: leave out options of columns")
    return read_records(*metadata_of(Message.read(str(path))), folder)


def metadata_of(task: "Message") -> tuple["Message", "Message"]:
    """Return the types of a task's graph, and its preprocessed metadata."""
    rows = Message.read(task["sharedConfig"].text("preprocessedMetadataUri"))
    return task["graphMetadata"], rows


def read_records(
    metadata: "Message",
    rows: "Message",
    folder: Path,
    pattern: str = RECORDS,
    share: tuple[int, int] | None = None,
) -> ForeignGraph:
    """Return the records of a graph as tables, or a rank's share of them.

    Args:
        metadata: ``graphMetadata``.
        rows: Preprocessed metadata; also ``tfrecordUriPattern``, and of edges
            ``weightKey``, the feature that is their weight.
        folder: A directory without other files.
        pattern: A regular expression that names of files with records match from the start.
        share: A rank and the number of ranks, of which each reads a run of the files of each type,
            which may have no rows. None: all, and nodes in the order of their ids.

    Raises:
        ConfigError: As `read_gigl`.
    """
    nodes = rows["condensedNodeTypeToPreprocessedMetadata"]
    edges = rows["condensedEdgeTypeToPreprocessedMetadata"]
    graph = ForeignGraph()
    for number, node_type in metadata.numbered("condensedNodeTypeMap", "nodeTypes"):
        output = nodes[number]
        ids = {"_id": output.text("nodeIdKey")}
        place = inside(folder, f"nodes/{node_type}")
        table = _RecordTable(output, place, ids, pattern, share, labels=True)
        graph.nodes[str(node_type)] = NodeTable(
            table.files, id="_id", features=table.features, label=table.label
        )
    for number, names in metadata.numbered("condensedEdgeTypeMap", "edgeTypes"):
        edge_type = Message(names, metadata.where).edge_type()
        output = edges[number]
        ids = {"_src": output.text("srcNodeIdKey"), "_dst": output.text("dstNodeIdKey")}
        graph.edges[edge_type] = []
        for kind, supervision in (("main", None), ("positive",) * 2, ("negative",) * 2):
            if f"{kind}EdgeInfo" not in output:
                continue
            place = inside(folder, f"edges/{edge_type_str(edge_type)}/{kind}")
            info, is_main = output[f"{kind}EdgeInfo"], kind == "main"
            table = _RecordTable(info, place, ids, pattern, share, features=is_main)
            graph.edges[edge_type].append(
                EdgeTable(
                    table.files,
                    src="_src",
                    dst="_dst",
                    features=table.features,
                    weight=table.weight,
                    supervision=supervision,  # type: ignore[arg-type]  # one of these words
                )
            )
        if not graph.edges[edge_type]:
            raise ConfigError(f"{output.where} has no mainEdgeInfo")
    return graph


class Message:
    """A protocol buffer in YAML, whose fields have either spelling of their names.

    Args:
        content: A dict.
        where: Its place, for errors.
    """

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, dict):
            raise ConfigError(f"{where} must have fields by name, got {type(content).__name__}")
        self.where, self.content = where, content

    @classmethod
    def read(cls, uri: str) -> "Message":
        """Return the content of a YAML file."""
        files, path = file_system_of(uri)
        return cls(read_yaml(uri, partial(files.open, path)), uri)

    def get(self, name: str) -> Any:
        """Return the value of a field; None: it is not given."""
        other = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        return self.content.get(name, self.content.get(other))

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> "Message":
        # Numbers as keys are numbers in some files and text in others.
        value = self.get(name)
        if value is None and name.isdigit():
            value = self.content.get(int(name))
        if value is None:
            raise ConfigError(
                f"{self.where} has no {name}; it has {', '.join(map(str, self.content))}"
            )
        return Message(value, f"{self.where}, {name}")

    def text(self, name: str) -> str:
        """Return the value of a field that is text."""
        value = self.get(name)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{self.where}: {name} must be text, got {value!r}")
        return value

    def edge_type(self) -> EdgeType:
        """Return the edge type that this message names."""
        return self.text("srcNodeType"), self.text("relation"), self.text("dstNodeType")

    def numbered(self, by_number: str, listed: str) -> Iterator[tuple[str, Any]]:
        """Yield (number, value): of a map by number or, where it is not given, of a list."""
        values = self.get(by_number) or dict(enumerate(self.get(listed) or []))
        yield from sorted((str(number), value) for number, value in values.items())


class _RecordTable:
    """The TFRecords of a type, written as Parquet: a file for each.

    Args:
        output: Their metadata.
        folder: For the files.
        ids: The features that are ids, by their column.
        pattern: Of the names of files.
        share: A rank and the number of ranks, of which each has a run of the files; or None.
        features: Whether features are read.
        labels: Whether labels are read.
    """

    def __init__(
        self,
        output: Message,
        folder: Path,
        ids: dict[str, str],
        pattern: str,
        share: tuple[int, int] | None,
        *,
        features: bool = True,
        labels: bool = False,
    ) -> None:
        self._ids, self._where = ids, output.where
        self._features = list(output.get("featureKeys") or []) if features else []
        self._labels = list(output.get("labelKeys") or []) if labels else []
        left_out = {*(output.get("featureKeys") or []), *(output.get("labelKeys") or [])}
        if left_out := left_out - {*self._features, *self._labels}:
            _log.warning(
                "%s: %s left out: edges have no labels, and label edges no features",
                output.where,
                ", ".join(sorted(left_out)),
            )
        self._width = output.get("featureDim") if self._features else None
        self._weight = output.get("weightKey") if features else None
        if self._weight:
            if self._weight not in self._features:
                raise ConfigError(f"{output.where} has no feature {self._weight!r} for weights")
            self._features.remove(self._weight)
            self._width = None if self._width is None else self._width - 1
        quantised = "quantizedFeatureMetadata"
        is_quantised = features and quantised in output
        self._quantised = _Quantised(output[quantised]) if is_quantised else None
        self.features = "features" if self._features else None
        self.label = "label" if self._labels else None
        self.weight = "weight" if self._weight else None
        self.files: list[str] = []
        self._last_id: int | None = -1
        """Of a node; None: ids do not ascend."""
        pattern = output.get("tfrecordUriPattern") or pattern
        files, names = _record_files(output.text("tfrecordUriPrefix"), output.where, pattern)
        rank, count = share or (0, 1)
        for number in np.array_split(np.arange(len(names)), count)[rank]:
            self._convert(files, names[number], folder / f"{number:06}.parquet")
        if share is not None:
            return
        if not self.files:
            raise ConfigError(f"{output.where}: its TFRecords are empty")
        if self._last_id is None:
            self.files = [_sorted_by_id(self.files, folder)]

    def _convert(self, files: Any, name: str, path: Path) -> None:
        """Write the rows of a file, if there are any."""
        columns, optional = [*self._ids.values(), *self._features, *self._labels], []
        columns += [self._weight] if self._weight else []
        packed = [self._quantised.key] if self._quantised else []
        if self._quantised:
            optional = [key for key in self._features if key not in self._ids.values()]
        draft, writer = draft_of(path), None
        with files.open(name, "rb") as file:
            columns = list(dict.fromkeys([*columns, *packed]))
            for values in read_examples(file, name, columns, packed, optional):
                rows = arrow_table(self._rows(values, name))
                writer = writer or pq.ParquetWriter(draft, rows.schema)
                writer.write_table(rows)
        if writer is not None:
            writer.close()
            self.files.append(keep(draft, path))

    def _rows(self, values: dict[str, Array], name: str) -> dict[str, Array]:
        rows: dict[str, Array] = {}
        for column, key in self._ids.items():
            if values[key].dtype != np.int64 or values[key].shape[1] != 1:
                raise ConfigError(f"{name}: {key!r} must hold one integer, the id of a node")
            rows[column] = values[key][:, 0]
        if self._last_id is not None and (ids := rows.get("_id")) is not None and ids.size:
            ascend = ids[0] > self._last_id and bool((np.diff(ids) > 0).all())
            self._last_id = int(ids[-1]) if ascend else None
        if self._weight:
            weights = _as_float(values[self._weight], self._weight, name)
            if weights.shape[1] != 1:
                raise ConfigError(f"{name}: {self._weight!r} must hold one number, a weight")
            rows["weight"] = weights[:, 0]
        if self._features:
            if self._quantised:
                rows["features"] = self._quantised.rows(values, self._features, name)
            else:
                rows["features"] = np.concatenate(
                    [_as_float(values[key], key, name) for key in self._features], axis=1
                )
            if self._width not in (None, rows["features"].shape[1]):
                raise ConfigError(
                    f"{name} has {rows['features'].shape[1]} features, {self._where} says "
                    f"featureDim: {self._width}"
                )
        if self._labels:
            labels = np.concatenate([values[key] for key in self._labels], axis=1)
            rows["label"] = labels[:, 0] if labels.shape[1] == 1 else labels
        return rows


class _Quantised:
    """Features whose codes lie packed in bytes, the first code in the highest bits.

    Args:
        message: ``quantizedFeatureMetadata``.

    Source:
        GiGL at fee4ba50, ``gigl/common/utils/feature_quantization/torch_ops.py``.
    """

    def __init__(self, message: Message) -> None:
        self.key = message.text("packedFeatureKey")
        self._columns = message.get("quantizedFeatureIndices") or []
        """Of the features, in the order of their codes."""
        if not _are_columns(self._columns):
            raise ConfigError(
                f"{message.where}: quantizedFeatureIndices must name columns, each once, got "
                f"{self._columns!r}"
            )
        given = [name for name in ("singleBitState", "multiBitState") if name in message]
        if len(given) != 1:
            raise ConfigError(f"{message.where} must have a singleBitState or a multiBitState")
        state = message[given[0]]
        if given == ["singleBitState"]:
            self._bits = 1
            self._values = np.array([_real(state, "negMean"), _real(state, "posMean")])
            return
        self._bits = state.get("bits")
        if self._bits not in (2, 4, 8):
            raise ConfigError(f"{state.where}: bits must be 2, 4 or 8, got {self._bits!r}")
        low, high = _real(state, "clipMin"), _real(state, "clipMax")
        # Each step in float32, as there.
        share = np.arange(2**self._bits, dtype=np.float32) / np.float32(2**self._bits - 1)
        self._values = low + share * np.float32(float(high) - float(low))

    def rows(self, values: dict[str, Array], features: Sequence[str], name: str) -> Array:
        """Return the rows of all features.

        Args:
            values: Of the packed key, and of the features that records have.
            features: Names of all, in the order of their columns.
            name: Of the file, for errors.
        """
        # A feature that records lack is quantised, and GiGL quantises numbers alone.
        widths = [values[key].shape[1] if key in values else 1 for key in features]
        ends, last = np.cumsum(widths), max(self._columns)
        if last >= ends[-1]:
            raise ConfigError(
                f"{name} has {ends[-1]} features, quantizedFeatureIndices name column {last}"
            )
        is_coded = np.isin(np.arange(ends[-1]), self._columns)
        rows = np.empty((len(values[self.key]), ends[-1]), np.float32)
        rows[:, self._columns] = self._unpacked(values[self.key], name)
        for key, end, width in zip(features, ends, widths, strict=True):
            own = is_coded[end - width : end]
            if own.any() and not own.all():
                raise ConfigError(
                    f"{name}: feature {key!r} has {width} columns, of which "
                    f"quantizedFeatureIndices name {own.sum()}: all or none must be quantised"
                )
            if not own.any() and key not in values:
                raise ConfigError(
                    f"{name}: feature {key!r} is not there, and quantizedFeatureIndices do not "
                    f"name its column {end - width}"
                )
            if not own.any():
                rows[:, end - width : end] = _as_float(values[key], key, name)
        return rows

    def _unpacked(self, packed: Array, name: str) -> Array:
        count, per_byte = len(self._columns), 8 // self._bits
        size = -(-count // per_byte)
        if packed.shape[1] != size:
            raise ConfigError(
                f"{name}: {self.key!r} has {packed.shape[1]} bytes, but {count} features of "
                f"{self._bits} bits have {size}"
            )
        shifts = np.arange(8 - self._bits, -1, -self._bits, dtype=np.uint8)
        codes = packed[:, :, None] >> shifts & np.uint8(2**self._bits - 1)
        unpacked: Array = self._values[codes.reshape(len(packed), -1)[:, :count]]
        return unpacked


def _are_columns(values: Any) -> bool:
    """Return whether values are numbers of columns, each once."""
    if not isinstance(values, list) or not values:
        return False
    return all(type(one) is int and one >= 0 for one in values) and len({*values}) == len(values)


def _real(message: Message, name: str) -> np.float32:
    value = message.get(name) or 0.0  # files of Protocol Buffers leave out zeros
    if type(value) not in (int, float):
        raise ConfigError(f"{message.where}: {name} must be a number, got {value!r}")
    return np.float32(value)


def _as_float(values: Array, key: str, name: str) -> Array:
    """Return features as float32, the type that they have in GiGL."""
    if values.dtype == np.int64 and np.abs(values).max(initial=0) > _EXACT:
        raise ConfigError(f"{name}: feature {key!r} has integers above 2^24, which float32 lacks")
    return values.astype(np.float32, copy=False)


def _sorted_by_id(names: Sequence[str], folder: Path) -> str:
    """Write the rows of files in the order of their ids; return the file."""
    path = folder / "sorted.parquet"
    draft = draft_of(path)
    with duckdb.connect() as engine:
        engine.execute("SET memory_limit = '2GB'; SET threads = 1")
        engine.execute(f"SET temp_directory = '{folder / 'spilled'}'")
        engine.execute(
            f"COPY (SELECT * FROM read_parquet({list(names)}) ORDER BY _id) TO '{draft}' "
            "(FORMAT parquet)"
        )
    return keep(draft, path)


def _record_files(prefix: str, where: str, pattern: str) -> tuple[Any, Sequence[str]]:
    """Return the file system and the TFRecord files of a type, in order, as GiGL chooses them.

    Those of one directory whose names match; else those whose paths begin with ``prefix``.
    """
    files, path = file_system_of(prefix)
    is_folder = files.isdir(path)
    found = files.glob(f"{path.rstrip('/')}/*" if is_folder else f"{path}*")
    names = sorted(name for name in found if re.match(pattern, name.rpartition("/")[2]))
    if not names:
        others = sorted(name.rpartition("/")[2] for name in found)[:3]
        raise ConfigError(
            f"{where}: there is no file at {prefix} whose name matches {pattern!r}"
            + (f"; there are {', '.join(others)}" if others else "")
        )
    return files, names
