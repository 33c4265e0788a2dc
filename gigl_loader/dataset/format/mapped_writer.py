"""Writes directories in the mapped format: arrays, whole or piece by piece, and manifests.

Does not import torch, which the table writer never needs. Views are written with it, too: see
`view_writer`.
"""

import json
import os
import resource
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import numpy as np

from gigl_loader.dataset.format.mapped import (
    PART_FILE,
    ROOT_FILE,
    ArraySpec,
    Part,
    block_digests,
    check_size,
    digests_in_memory,
    write_manifest,
)
from gigl_loader.dataset.partition.frames import FrameColumns, as_json
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType, edge_type_str
from gigl_loader.errors import UsageError
from gigl_loader.runtime.digests import digest_of
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.progress import note

_INT32_IDS = 2**31 - 1
_SPARE_FILES = 64
"""Open files besides those of partitions: of an engine, of tables and of libraries."""


def index_type(num_ids: int) -> "np.dtype[Any]":
    """Return the type for stored ids or rows: 4 bytes up to 2**31 - 1 of them."""
    return np.dtype(np.int32 if num_ids <= _INT32_IDS else np.int64)


def new_file(path: Path) -> BinaryIO:
    """Open an empty file to write; its directory is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def write_numbers(path: Path, array: Array) -> None:
    """Write the numbers of an array to a new file, in C order: `numpy.fromfile` reads them."""
    # a slice of columns or a transposed matrix is in another order
    array = np.ascontiguousarray(array)
    with new_file(path) as file:
        # numpy's `tofile` raises errors without errno, which identifies a full disk; `tobytes`
        # copies
        file.write(array.reshape(-1).view(np.uint8).data)


def write_npy(path: Path, array: Array) -> None:
    """Write an array as `numpy.save` does, with errors that identify a full disk."""
    with new_file(path) as file:
        # numpy writes through what is no file of Python's, else it takes `tofile`
        np.save(cast("Any", SimpleNamespace(write=file.write)), array)


def write_array(part: Part, name: str, array: Array, dtype: str = "") -> None:
    """Write an array and enter it in the manifest.

    Args:
        part: The folder and its manifest.
        name: Name of the array.
        array: Its numbers, or their bits.
        dtype: torch's name of the type, if numpy's differs.
    """
    shape, array = tuple(array.shape), np.ascontiguousarray(array)
    # beside the write: both release the GIL, and the file is not read again
    with ThreadPoolExecutor(1) as beside:
        sums = beside.submit(digests_in_memory, array)
        write_numbers(part.path(name), array)
    note(int(array.nbytes))
    part.arrays[name] = ArraySpec(dtype or array.dtype.name, shape, sums.result())


class PartFiles(ExitStack):
    """The files of one array in all partitions, written at any offset, until it is closed.

    Args:
        paths: By partition.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self._fds: list[int] = []
        allow_files(len(paths))
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Never truncated: several steps may write, each its rows between those of the others,
            # perhaps of an earlier run.
            self._fds.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            self.callback(os.close, self._fds[-1])

    def write(self, partition: int, offset: int, array: Array) -> None:
        """Write an array's bytes at ``offset`` bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        # Linux writes 2 GiB at most in one call, and less after a signal.
        while data:
            written = os.pwrite(self._fds[partition], data, offset)
            data, offset = data[written:], offset + written


def allow_files(count: int) -> None:
    """Let this process open ``count`` more files: the soft limit is often 1,024.

    Raises:
        UsageError: The hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        held = len(os.listdir("/proc/self/fd"))
    except OSError:  # the look itself needs a descriptor: all are in use
        held = soft
    need = held + count + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard != resource.RLIM_INFINITY and need > hard:
        raise UsageError(
            f"{need} files have to be open at a time, and this process may have {hard}: raise "
            "ulimit -n and call again to continue, or make fewer partitions"
        )
    # No more than needed: programs that use select() break on descriptors past 1,023, and this is
    # the caller's process.
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def seal(
    shared: Part,
    parts: Sequence[Part],
    *,
    edge_dir: EdgeDir,
    heterogeneous: bool,
    num_nodes: Mapping[NodeType, int],
    node_bounds: Mapping[NodeType, list[int] | None],
    edge_types: Sequence[EdgeType],
    edge_bounds: Mapping[EdgeType, list[int] | None],
    original_ids: Sequence[NodeType],
    num_classes: Mapping[NodeType, int],
    frames: Mapping[str, FrameColumns] | None = None,
    **made: Any,
) -> str:
    """Write the manifests of a directory with complete arrays; return the run id.

    Args:
        shared: The root, with the shared data of all partitions.
        parts: The partitions.
        edge_dir: See `Header`, as for the following arguments.
        heterogeneous: See there.
        num_nodes: See there.
        node_bounds: See there.
        edge_types: See there.
        edge_bounds: See there.
        original_ids: See there.
        num_classes: See there.
        frames: See there; None: there are none.
        made: How the directory was made.
    """
    # hashlib releases the GIL while it hashes, so threads of one process suffice
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, 8))) as pool:
        bodies = [_manifest_body(part, pool) for part in (shared, *parts)]
    body = {
        **made,
        "edge_dir": edge_dir,
        "heterogeneous": heterogeneous,
        "num_partitions": len(parts),
        "num_nodes": num_nodes,
        "node_bounds": node_bounds,
        "edge_types": [list(edge_type) for edge_type in edge_types],
        "edge_bounds": {edge_type_str(t): bounds for t, bounds in edge_bounds.items()},
        "original_ids": list(original_ids),
        "num_classes": num_classes,
        **as_json(frames or {}),
        **bodies[0],
    }
    # from checksums, names and counts: no time, host or random number, so two runs with the same
    # result have the same id
    run = digest_of(json.dumps([body, *bodies[1:]]).encode())
    digests = []
    for k, part in enumerate(parts):
        manifest = {"run": run, "partition": k, **bodies[k + 1]}
        # The root file is last: it makes the directory readable. It has the digests of the others,
        # so a swapped part is detected even if both are of one run.
        digests.append(write_manifest(part.folder / PART_FILE, manifest))
    write_manifest(shared.folder / ROOT_FILE, {"run": run, **body, "parts": digests})
    return run


def _digests_of_file(path: Path, spec: ArraySpec) -> Sequence[str]:
    # of an array that was written piece by piece, or copied: the others have theirs
    return spec.blake2b or block_digests(path, spec.nbytes)


def _manifest_body(part: Part, pool: ThreadPoolExecutor) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for kind, specs in (("arrays", part.arrays), ("files", part.files)):
        # by name: the run id must not depend on the order of writing
        paths = {
            name: part.path(name) if kind == "arrays" else part.folder / name
            for name in sorted(specs)
        }
        for name, path in paths.items():
            check_size(path, specs[name])
        sums = pool.map(_digests_of_file, paths.values(), [specs[name] for name in paths])
        body[kind] = {
            name: {"dtype": specs[name].dtype, "shape": specs[name].shape, "blake2b": digests}
            for name, digests in zip(paths, sums, strict=True)
        }
    return {**body, "ranges": dict(sorted(part.ranges.items()))}
