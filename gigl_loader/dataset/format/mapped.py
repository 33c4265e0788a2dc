"""The mapped format: bare arrays in files, and manifests with their types, shapes and checksums.

::

    gigl_loader.json                     version, run, books, digests of all manifests
    books/<node|edge>/<type>.bin         owners, where a partition does not own a range of ids
    ids/<type>/part<k>.*.bin             the ids of the tables, in order: see `OriginalIds`
    ids/<type>.parquet                   the same, for the way back and for other tools
    part<k>/manifest.json                version, run, arrays
    part<k>/edges/<type>/{indptr,indices,edge_ids,weights}.bin
    part<k>/{node_features,node_labels,edge_features}/<type>/{values,index,ids,scales}.bin
    part<k>/lookup/<type>.bin            where rows are that do not follow their ids
    part<k>/splits/<split>/<type>.bin

An array file has the array's numbers, little-endian, in C order; a file starts at a page, so mapped
arrays are aligned. The run id is the digest of all written data: it differs between the parts of
two runs, and stays the same if a killed run continues.

A manifest is JSON under a checksum of its own: its first entry is the checksum of all bytes after
it, so a changed byte is detected anywhere. Manifests of the first two formats have none, which
their version shows. Neither this module nor the table writer imports torch.
"""

import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.partition.frames import Frames
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType, check_file_names, edge_type_str
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.digests import DIGEST_BYTES, digest_of
from gigl_loader.runtime.files_of_others import check_bytes, inside
from gigl_loader.runtime.memory.segments import Array, nbytes_of, storage_dtype

ROOT_FILE = "gigl_loader.json"
"""The manifest of a directory, in both formats."""
FORMAT_VERSION = 3
_HEAD = re.compile(rb'\{\n "checksum": "([0-9a-f]{32})",\n')

T = TypeVar("T")
_log = logging.getLogger(__name__)


def write_manifest(path: Path, content: Mapping[str, Any]) -> str:
    """Write a manifest, whole or not at all; return its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"format_version": FORMAT_VERSION, **content}, indent=1).encode()
    body = body.removeprefix(b"{\n") + b"\n"
    data = b'{\n "checksum": "' + digest_of(body).encode() + b'",\n' + body
    # a concurrent reader, also after a kill, sees the whole old file or the whole new one
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(data)
    os.replace(draft, path)
    return digest_of(data)


def read_manifest(path: Path, unchecked: int) -> tuple[dict[str, Any], str]:
    """Return the contents of a manifest, and the digest of the file.

    Args:
        path: The file.
        unchecked: An older version that is also accepted: it had no checksum.

    Raises:
        ConfigError: It is missing, damaged, has changed, or is of another version.
    """
    try:
        check_bytes(path.stat().st_size, path)
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is missing: the partition directory is incomplete; copy it again"
        ) from error
    head = _HEAD.match(data)
    if head is not None and digest_of(data[head.end() :]) != head[1].decode():
        raise ConfigError(
            f"{path} has changed since it was written: it does not match its checksum; copy the "
            "file again, or partition the graph again"
        )
    try:
        content: dict[str, Any] = json.loads(data)
        version = content["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, error) from error
    # before anything else is read: another version may have other keys
    if version not in (FORMAT_VERSION, unchecked):
        raise ConfigError(
            f"{path} has format version {version}, this gigl_loader reads {unchecked} and "
            f"{FORMAT_VERSION}: partition the graph again"
        )
    # without its checksum, a file of this version would pass as an old one without checksum
    if (version == FORMAT_VERSION) != (head is not None):
        raise ConfigError(f"{path} is damaged: its first lines are not a checksum; copy it again")
    if version == unchecked:
        _log.warning(
            "%s is of format version %d, which has no checksums: a damaged file is not noticed, "
            "and partitions of two runs are not told apart; partition the graph again",
            *(path, version),
        )
    return content, digest_of(data)


def typed(content: Any, kind: type[T], path: Path) -> T:
    """Return the contents of a manifest as a dataclass.

    Raises:
        ConfigError: An entry is missing, or has another type.
    """
    try:
        return msgspec.convert(content, analysed(kind))
    except msgspec.ValidationError as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> ConfigError:
    """Return the error of a file that cannot be read."""
    return ConfigError(f"{path} is damaged: {type(error).__name__}: {error}")


UNCHECKED_VERSION = 2
"""The version before manifests had a checksum, and parquet files were in them."""
PART_FILE = "manifest.json"
BLOCK_BYTES = 64 * 1024 * 1024
"""Bytes of a file under one checksum: the precision of damage reports."""

LOOKUPS = "lookup"
"""Folder of the arrays that find the rows of a type, shared by several matrices."""

PARQUET = "ids/{node_type}.parquet"
"""Path of the pairs (``id``, ``node``) of a type, ascending by ``node``."""
TABLE_COLUMN = b"gigl_loader.table_column"
"""Key in the metadata of the field ``id`` there: the name of the column in the source table."""
EDGE_ROWS = "edge_rows/{edge_type}/part{partition}.values"
"""Array with the table row of each edge of a partition, in the order of edge ids."""

_READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class ArraySpec:
    """Type and shape of an array on disk."""

    dtype: str
    """torch's name of the type."""
    shape: tuple[int, ...]
    blake2b: tuple[str, ...] = ()
    """Checksum of each `BLOCK_BYTES` of the file, in hex; empty before `seal` of one that was not
    written whole."""

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return nbytes_of(self.dtype, self.shape)


class FileStamp(NamedTuple):
    """What the system notes of a file: it differs once the file is written to, or another one."""

    size: int
    inode: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileStamp":
        """Return the stamp in what `os.stat` or `os.fstat` found."""
        return cls(status.st_size, status.st_ino, status.st_mtime_ns)


@dataclass
class Part:
    """A folder with a manifest: a partition, or the root with the shared data of all partitions."""

    folder: Path
    arrays: dict[str, ArraySpec] = field(default_factory=dict)
    """By name: the path of the file below the directory, without ``.bin``."""
    ranges: dict[str, dict[str, int]] = field(default_factory=dict)
    """By folder of arrays: the id of their first row or edge."""
    files: dict[str, ArraySpec] = field(default_factory=dict)
    """Files of other formats, as bytes; by the path below the directory."""
    stamps: dict[str, FileStamp] = field(default_factory=dict)
    """Stamps of the files that `check_sizes` has looked at, by path below the directory."""

    def path(self, name: str) -> Path:
        """Return the file of an array; see `inside`."""
        return inside(self.folder, f"{name}.bin")

    def paths(self) -> Iterator[tuple[Path, ArraySpec]]:
        """Yield all files below the folder; see `inside`."""
        yield from ((self.path(name), spec) for name, spec in self.arrays.items())
        yield from ((inside(self.folder, name), spec) for name, spec in self.files.items())

    def is_removed_or_replaced(self) -> bool:
        """Return whether files that `check_sizes` noted are gone, or others are in their place."""
        for path, _ in self.paths():
            known = self.stamps.get(str(path.relative_to(self.folder)))
            try:
                if known is not None and path.stat().st_ino != known.inode:
                    return True
            except FileNotFoundError:
                return True
        return False

    def array(self, name: str) -> Array:
        """Return an array of the manifest, mapped: its numbers, or their bits."""
        spec, path = self.arrays[name], self.path(name)
        dtype = storage_dtype(spec.dtype)
        # mmap(2) refuses an empty file; a partition may lack a type
        empty = spec.nbytes == 0
        return np.empty(spec.shape, dtype) if empty else np.memmap(path, dtype, "r", 0, spec.shape)

    def note_array(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Enter an array that is written piece by piece; create its file if it has no bytes."""
        # otherwise no writer would create an empty file that the manifest names
        if not self.path(name).exists():
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).touch()
        self.arrays[name] = ArraySpec(dtype, shape)

    def note_file(self, name: str) -> None:
        """Enter a file of another kind; ``name``: its path below the folder."""
        self.files[name] = ArraySpec("uint8", ((self.folder / name).stat().st_size,))


@dataclass(frozen=True)
class Header:
    """The graph, from `ROOT_FILE`."""

    run: str
    parts: list[str]
    """Digest of the manifest of each partition."""
    edge_dir: EdgeDir
    heterogeneous: bool
    num_partitions: int
    num_nodes: dict[str, int]
    node_bounds: dict[str, list[int] | None]
    """By node type, one past the last id of each partition; None: a file has the owners."""
    edge_types: list[tuple[str, str, str]]
    edge_bounds: dict[str, list[int] | None]
    """By the text of the edge type, one past the last edge id of each partition, or None."""
    original_ids: list[str] = field(default_factory=list)
    """Types whose nodes had other ids in their tables."""
    num_classes: dict[str, int] = field(default_factory=dict)
    frames: Frames = field(default_factory=dict)
    identity: GraphIdentity = field(default=GraphIdentity("", ""))
    """Not in the file."""


def rows_at(kind: str, key: NodeType | EdgeType, name: str = "") -> str:
    """Return the path of a matrix's arrays, below a partition.

    Args:
        kind: The field of `PartitionView`.
        key: Node type or edge type.
        name: The name of an attribute.
    """
    where = f"{kind}/{key if isinstance(key, str) else edge_type_str(key)}"
    return f"{where}/{name}" if name else where


# --- checksums ------------------------------------------------------------------------------------


def block_digests(path: Path, nbytes: int, stop: threading.Event | None = None) -> list[str]:
    """Return the checksums of the blocks of a file; fewer if ``stop`` was set meanwhile."""
    digests: list[str] = []
    # one buffer for the whole file: memory use does not depend on the size of the file
    buffer = memoryview(bytearray(min(_READ_BYTES, max(nbytes, 1))))
    # unbuffered: Python's own buffer would copy each byte once more
    with path.open("rb", buffering=0) as file:
        for start in range(0, nbytes, BLOCK_BYTES):
            left = min(BLOCK_BYTES, nbytes - start)
            block = hashlib.blake2b(digest_size=DIGEST_BYTES)
            while left:
                # between reads: a dataset that is closed does not wait for the rest of a block
                if stop is not None and stop.is_set():
                    return digests
                count = file.readinto(buffer[: min(left, len(buffer))])
                if not count:
                    raise ConfigError(f"{path} is shorter than its {nbytes} bytes: copy it again")
                block.update(buffer[:count])
                left -= count
            digests.append(block.hexdigest())
    return digests


def digests_in_memory(array: Array) -> tuple[str, ...]:
    """Return the checksums of the blocks of the file that an array in C order is written to."""
    data = array.reshape(-1).view(np.uint8).data
    blocks = range(0, data.nbytes, BLOCK_BYTES)
    return tuple(digest_of(data[start : start + BLOCK_BYTES]) for start in blocks)


def check_size(path: Path, spec: ArraySpec) -> FileStamp:
    """Check that a file exists and is whole, by its size; return its stamp."""
    try:
        stamp = FileStamp.of(path.stat())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is missing: the partition directory is incomplete; copy it again"
        ) from error
    # Mapped memory is read without a check: past the end of a file that is too short, the kernel
    # sends SIGBUS, which ends the process without a message.
    if stamp.size != spec.nbytes:
        raise ConfigError(
            f"{path} has {stamp.size} bytes, its manifest says {spec.nbytes}: it was changed or "
            "not copied whole; copy it again"
        )
    return stamp


def verify_file(
    path: Path,
    spec: ArraySpec,
    stop: threading.Event | None = None,
    advice: str = "copy the file again, or partition the graph again",
) -> None:
    """Compare a file of a manifest with its checksums.

    Args:
        path: The file.
        spec: What the manifest says of it.
        stop: Once it is set, the rest is not compared.
        advice: What to do if a block is wrong.

    Raises:
        ConfigError: It is missing or has changed; the message names it, and the block.
    """
    check_size(path, spec)
    # only the blocks that were read: with `stop` set, the rest is not compared
    for number, digest in enumerate(block_digests(path, spec.nbytes, stop)):
        if digest != spec.blake2b[number]:
            start = number * BLOCK_BYTES
            end = min(start + BLOCK_BYTES, spec.nbytes)
            raise ConfigError(
                f"{path} has changed since it was written: bytes {start} to {end} do not match "
                f"their checksum; {advice}"
            )


# --- manifests, read ------------------------------------------------------------------------------


def is_mapped_format(root: Path) -> bool:
    """Return whether ``root`` is a directory in this format, of this or another version."""
    if (root / "META").exists():
        return False
    try:
        # Not as JSON: a damaged file is of this format, too, and its error should say so. The extra
        # file of GLT's format names label edges, even if META is missing.
        return b'"label_edge_types":' not in (root / ROOT_FILE).read_bytes()
    except OSError:
        return False


def read_header(root: Path) -> tuple[Header, Part]:
    """Return the contents of `ROOT_FILE`, and the arrays that all partitions share.

    Raises:
        ConfigError: It is damaged, or of another version.
    """
    path = root / ROOT_FILE
    content, digest = read_manifest(path, UNCHECKED_VERSION)
    header = typed(content, Header, path)
    header = replace(header, identity=GraphIdentity(header.run, digest))
    if not header.num_partitions == len(header.parts) > 0:
        raise ConfigError(
            f"{path} is damaged: it has {len(header.parts)} of {header.num_partitions} partitions"
        )
    ends = {end for src, _, dst in header.edge_types for end in (src, dst)}
    named = {*header.original_ids, *header.num_classes, *header.num_nodes, *ends}
    if not named <= set(header.num_nodes) <= set(header.node_bounds):
        raise ConfigError(
            f"{path} is damaged: its node types are {sorted(named)} in one place and "
            f"{sorted(header.node_bounds)} in another"
        )
    check_file_names([*header.num_nodes, *header.edge_types], path)
    for bounds in (*header.node_bounds.values(), *header.edge_bounds.values()):
        if bounds is not None and (
            len(bounds) != header.num_partitions or sorted([0, *bounds]) != [0, *bounds]
        ):
            raise ConfigError(f"{path} is damaged: partitions do not end at {bounds}")
    return header, _part_of(content, path)


def read_part(root: Path, header: Header, partition_idx: int, *, edges_only: bool = False) -> Part:
    """Return the manifest of a partition; the sizes of its files are checked.

    Args:
        root: The directory.
        header: Its contents.
        partition_idx: The partition.
        edges_only: Only arrays of edges: others need not be on this machine.

    Raises:
        ConfigError: A file is missing or has another size, or the partition is of another run.
    """
    part = read_part_manifest(root, header, partition_idx, edges_only=edges_only)
    check_sizes(part)
    return part


def read_part_manifest(
    root: Path, header: Header, partition_idx: int, *, edges_only: bool = False
) -> Part:
    """Return what `read_part` does, of a partition whose other files need not be there.

    Raises:
        ConfigError: It is missing, damaged or of another run.
    """
    path = root / f"part{partition_idx}" / PART_FILE
    manifest, digest = read_manifest(path, UNCHECKED_VERSION)
    # before the digest, which also differs then, but does not name the reason
    if manifest.get("run") != header.run:
        raise ConfigError(
            f"{path.parent} is of another run than {root / ROOT_FILE} (run {manifest.get('run')}, "
            f"not {header.run}): copy all partitions from one directory"
        )
    if digest != header.parts[partition_idx]:
        raise ConfigError(
            f"{path} has changed since it was written, or is of another partition: copy "
            f"{path.parent} again"
        )
    part = _part_of(manifest, path)
    if edges_only:
        part.arrays, part.files = dict(_edge_arrays(part)), {}
    return part


def _edge_arrays(part: Part) -> Iterator[tuple[str, ArraySpec]]:
    """Yield what draws read: edges, and attributes that may be times or weights."""
    places = {name: name.split("/") for name in part.arrays}
    with_attributes = {place[1] for place in places.values() if place[0] == "edge_attributes"}
    for name, (folder, key, *_) in places.items():
        finds_attributes = folder == LOOKUPS and key in with_attributes
        if folder in ("edges", "edge_attributes") or finds_attributes:
            yield name, part.arrays[name]


def check_sizes(part: Part) -> None:
    """Check that the files of a manifest exist and are whole, by their sizes; note their stamps."""
    for path, spec in part.paths():
        part.stamps[str(path.relative_to(part.folder))] = check_size(path, spec)


@dataclass(frozen=True)
class _Body:
    arrays: dict[str, ArraySpec]
    ranges: dict[str, dict[str, int]]
    files: dict[str, ArraySpec] = field(default_factory=dict)


def _part_of(content: Mapping[str, Any], path: Path) -> Part:
    body = typed(content, _Body, path)
    for name, spec in (*body.arrays.items(), *body.files.items()):
        try:
            blocks = -(-spec.nbytes // BLOCK_BYTES)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} is damaged: {name} is {spec.dtype!r}") from error
        if len(spec.blake2b) != blocks or min(spec.shape, default=0) < 0:
            raise ConfigError(f"{path} is damaged: {name} has {len(spec.blake2b)} checksums")
    return Part(path.parent, body.arrays, body.ranges, body.files)
