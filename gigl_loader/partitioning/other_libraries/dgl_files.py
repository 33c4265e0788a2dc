"""DGL's binary files, read without DGL: a dict of tensors, and the graph of a partition.

Sizes are uint64, numbers little-endian. A text is its size and UTF-8 bytes; a list is its size and
items; a tensor is a magic number, 0, device, rank, dtype, shape, bytes and the values::

    tensors   magic, count, [(name, tensor)]
    graph     magic, version 2, kind 2, count, zeros up to 4096; position of the first graph
              at that position: magic, meta graph, [relation], [number of nodes]
              [[(name, tensor)] of nodes], [[(name, tensor)] of edges], [type], [type]
    relation  magic, saved formats, allowed formats, for each saved one: meta graph, matrix
    matrix    magic, columns, rows, two tensors (of ends, or pointer and ends), edge ids, flags
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from gigl_loader.dataset.format.mapped import damaged
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array

_T = TypeVar("_T")
_TENSORS, _GRAPHS, _TENSOR = 0xDD5A9FBE3FA2443F, 0xDD2E4FF046B4A13F, 0xDD5E40F096B4A13F
_HETERO, _META, _RELATION = 0xDD589FBE35224ABF, 0xDD3C5FFE20046ABF, 0xDD2E60F0F6B4A127
_COMPRESSED, _PAIRS = 0xDD6CD31205DFF127, 0xDD61FFD305DFF127
_COO, _CSR, _CSC = 1, 2, 4
"""Bits of the saved formats, in the order of the file."""
_BFLOAT16 = 4, 16
_DTYPES = {
    (code, bits): np.dtype(f"<{kind}{bits // 8}")
    for code, kind in enumerate("iuf")
    for bits in (8, 16, 32, 64)
    if (kind, bits) != ("f", 8)
} | {_BFLOAT16: np.dtype("<u2")}
"""By DGL's code of a kind and the bits."""


@dataclass(frozen=True)
class DglGraph:
    """A graph of one node type and one edge type, as DGL stores each partition."""

    edge_index: Array
    """``[2, num_edges]``: row 0 sources, row 1 destinations; column ``i`` is edge ``i``."""
    nodes: dict[str, Array]
    """By name, ``[num_nodes, ...]``."""
    edges: dict[str, Array]
    """By name, ``[num_edges, ...]``."""


def read_tensors(path: Path) -> dict[str, Array]:
    """Return the tensors that ``dgl.data.utils.save_tensors`` wrote; their values stay on disk.

    Raises:
        ConfigError: The file is missing, damaged or another one.
    """
    return _read(path, _tensors_in)


def read_graph(path: Path) -> DglGraph:
    """Return the one graph that ``dgl.save_graphs`` wrote; its values stay on disk.

    Raises:
        ConfigError: The file is missing, damaged, or holds something else.
    """
    return _read(path, _graph_in)


def _read(path: Path, content: "Callable[[_Cursor], _T]") -> _T:
    try:
        return content(_Cursor(np.memmap(path, np.uint8, "r")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    # Numbers that are not what they should be lead to any of these, never past the file's end.
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        raise damaged(path, error) from error


class _Cursor:
    """A position in the bytes of a file, and what is read from there on."""

    def __init__(self, data: Array) -> None:
        self._data, self.position = data, 0

    def take(self, size: int) -> Array:
        end = self.position + size
        if not self.position <= end <= len(self._data):
            raise ValueError(f"it ends at byte {len(self._data)}, before byte {end}")
        self.position, start = end, self.position
        return self._data[start:end]

    def number(self, kind: str = "Q") -> int:
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)).tobytes())[0])

    def expect(self, magic: int, what: str) -> None:
        if (number := self.number()) != magic:
            raise ValueError(f"there is no {what} at byte {self.position - 8} ({number:#x})")

    def text(self) -> str:
        return self.take(self.number()).tobytes().decode()

    def several(self, item: Callable[[], _T]) -> list[_T]:
        # A wrong count ends the file, and so the loop: an item takes at least a byte.
        return [item() for _ in range(self.number())]

    def tensor(self) -> Array:
        self.expect(_TENSOR, "tensor")
        self.take(16)  # reserved, and the device, which is the CPU in all files
        rank, code, bits = self.number("i"), self.number("B"), self.number("B")
        if self.number("H") != 1 or (code, bits) not in _DTYPES:
            raise ValueError(f"a tensor has the type {code} of {bits} bits, which numpy lacks")
        shape = [self.number() for _ in range(rank)]
        values = self.take(self.number()).view(_DTYPES[code, bits])
        if (code, bits) == _BFLOAT16:  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(shape)

    def named_tensors(self) -> dict[str, Array]:
        return dict(self.several(lambda: (self.text(), self.tensor())))


def _tensors_in(file: _Cursor) -> dict[str, Array]:
    file.expect(_TENSORS, "dict of tensors")
    file.number()  # the count, which the list has again
    return file.named_tensors()


def _graph_in(file: _Cursor) -> DglGraph:
    file.expect(_GRAPHS, "graph of DGL")
    version, kind, count = file.number(), file.number(), file.number()
    if (version, kind, count) != (2, 2, 1):
        raise ValueError(
            f"it holds {count} graphs of kind {kind} in version {version}, not one "
            "of kind 2 in version 2"
        )
    file.position = 4096
    file.position = file.number()
    file.expect(_HETERO, "graph")
    _skip_meta(file)
    relations = file.several(lambda: _relation(file))
    counts = file.several(file.number)
    nodes, edges = file.several(file.named_tensors), file.several(file.named_tensors)
    if not len(relations) == len(nodes) == len(edges) == len(counts) == 1:
        raise ValueError(f"it has {len(nodes)} node types and {len(relations)} edge types, not one")
    ends = relations[0]
    if ends.size and not 0 <= ends.min() <= ends.max() < counts[0]:
        raise ValueError(f"an edge ends at none of its {counts[0]} nodes")
    return DglGraph(ends, nodes[0], edges[0])


def _skip_meta(file: _Cursor) -> None:
    file.expect(_META, "graph of types")
    _compressed(file)


def _relation(file: _Cursor) -> Array:
    file.expect(_RELATION, "relation")
    saved = file.number()
    file.number()  # formats that DGL may make of it
    if not saved >> 32 or not saved & (_COO | _CSR | _CSC):
        raise ValueError(f"a relation is saved in unknown formats ({saved:#x})")
    forms = []
    for bit in (_COO, _CSR, _CSC):
        if saved & bit:
            _skip_meta(file)
            ends = _pairs(file) if bit == _COO else _compressed(file)
            forms.append(ends[::-1] if bit == _CSC else ends)
    return forms[0]  # the same edges in each


def _pairs(file: _Cursor) -> Array:
    file.expect(_PAIRS, "list of edges")
    file.take(16)  # columns and rows
    rows, columns, edge_ids = file.tensor(), file.tensor(), file.tensor()
    file.take(2)  # whether they are sorted
    return _by_edge_id(rows, columns, edge_ids)


def _compressed(file: _Cursor) -> Array:
    file.expect(_COMPRESSED, "compressed matrix")
    file.take(16)
    pointer, columns, edge_ids = file.tensor(), file.tensor(), file.tensor()
    file.take(1)
    return _by_edge_id(np.repeat(np.arange(len(pointer) - 1), np.diff(pointer)), columns, edge_ids)


def _by_edge_id(rows: Array, columns: Array, edge_ids: Array) -> Array:
    ends = np.stack([rows, columns]).astype(np.int64, copy=False)
    if not edge_ids.size:  # the position is the id
        return ends
    ordered = np.full_like(ends, -1)  # no node: what no id fills is refused
    ordered[:, edge_ids] = ends
    return ordered
