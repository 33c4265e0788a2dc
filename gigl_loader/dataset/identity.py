"""Which graph a partition is of, by digests; and the hash of numbers that draws are made of."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from gigl_loader.memory.segments import Array

_WHOLE_BYTES = 16 * 1024 * 1024
"""Size up to which an array is read whole, which takes some milliseconds."""
_PIECE_BYTES = 4096
_PIECES = _WHOLE_BYTES // _PIECE_BYTES
"""Pieces that are read of a larger array, evenly spread: as many bytes in all."""
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class GraphIdentity:
    """The same for all partitions of a graph, and for each copy of them; another for another one.

    Of a directory in our own format both are exact. Of other datasets they say as much as this
    process sees: see ``identity_of``.
    """

    run: str
    """Which cut of the graph it is: of a directory the run that wrote it, else a digest of types,
    counts and partition books."""
    digest: str
    """Digest of what all partitions hold: of a directory, of its manifest, which has those of all
    files; else of the tensors that every partition's process has in hand; empty: of none."""


def digest_of(data: bytes | memoryview) -> str:
    """Return the digest of some bytes, in hex."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def content_digest(value: Any, *, whole: bool = False) -> str:
    """Return a digest of arrays and plain values, in dicts, sequences and dataclasses.

    Args:
        value: The arrays, numpy's or torch's.
        whole: Read all bytes of large ones, too: a second for each GB. Else 16 MiB of each, evenly
            spread, so that another array is noticed and a single changed number may not be.
    """
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, leaf in _leaves("", value):
        if not isinstance(leaf, np.ndarray) and not hasattr(leaf, "data_ptr"):
            found.update(f"{name} {leaf!r}\n".encode())
            continue
        array = _as_array(leaf)
        # of the tensor: numpy knows bfloat16 by its bits alone
        found.update(f"{name} {leaf.dtype} {array.shape}\n".encode())
        data = array.reshape(-1).view(np.uint8)
        if whole or data.nbytes <= _WHOLE_BYTES:
            found.update(data.data)
            continue
        for start in np.linspace(0, data.nbytes - _PIECE_BYTES, _PIECES).astype(np.int64).tolist():
            found.update(data[start : start + _PIECE_BYTES].data)
    return found.hexdigest()


def _as_array(leaf: Any) -> Array:
    if isinstance(leaf, np.ndarray):
        found: Array = np.ascontiguousarray(leaf)
        return found
    from gigl_loader.memory.tensors import as_array  # torch is loaded: this is a tensor

    return as_array(leaf)


GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Step of SplitMix64's counter: 2 ** 64 by the golden ratio."""


def mixed(state: Array) -> Array:
    """Return a hash of each number (``[n]`` uint64), which depends on all of its bits.

    Source:
        The finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
        generators" (OOPSLA 2014), with the constants of Stafford's variant 13.
    """
    # arrays of uint64 wrap around
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Array = state ^ (state >> np.uint64(31))
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        # by name: two processes may have filled a dict in another order
        for key in sorted(value, key=str):
            yield from _leaves(f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _leaves(f"{name}/{number}", one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _leaves(f"{name}/{field.name}", getattr(value, field.name))
    else:
        yield name, value


def identity_of(view: Any, source: Any = None) -> GraphIdentity:
    """Return the identity of a partition that came from no directory in our own format.

    Args:
        view: The partition, as a `PartitionView`.
        source: The whole graph, where this process has it: all of its partitions have the same
            identity then. None: they have, but for what their counts and books do not tell.
    """
    run = content_digest(
        [
            view.num_partitions, view.edge_dir, view.num_nodes, view.node_books, view.edge_books,
            sorted(view.adjacency),
        ]
    )  # fmt: skip
    if source is None and view.num_partitions == 1:
        source = replace(view, identity=None)
    return GraphIdentity(run, "" if source is None else content_digest(source))
