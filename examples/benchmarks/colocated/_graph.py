"""The graph that every contestant loads: made once, kept as ``.npy`` files, mapped by each process.

Needs numpy alone, so that it runs in the environment of any contestant.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 22


@dataclass(frozen=True)
class GraphSpec:
    """A random graph: edge ends drawn uniformly, so in-degrees follow a Poisson law."""

    nodes: int = 1_000_000
    edges: int = 20_000_000
    dim: int = 100
    """Columns of the float32 feature matrix."""

    @property
    def name(self) -> str:
        """Name of the folder that holds this graph."""
        return f"n{self.nodes}-e{self.edges}-d{self.dim}"


@dataclass(frozen=True)
class GraphArrays:
    """The graph as arrays mapped from disk."""

    indptr: NDArray[np.int64]
    """``[nodes + 1]``: row ``v`` holds the edges that point to ``v``."""
    indices: NDArray[np.int64]
    """``[edges]``: where each edge comes from, ascending within a row."""
    x: NDArray[np.float32]
    """``[nodes, dim]``; column 0 is the node id and column 1 is ``id % 997``, for checks."""


def build(spec: GraphSpec, cache: Path) -> Path:
    """Return the folder of ``spec`` under ``cache``, made now if it is not there yet."""
    folder = cache / spec.name
    if (folder / "spec.json").exists():
        return folder
    half_done = cache / f".{spec.name}.{os.getpid()}"
    half_done.mkdir(parents=True)
    rng = np.random.default_rng(0)
    _write_edges(spec, half_done, rng)
    _write_features(spec, half_done, rng)
    (half_done / "spec.json").write_text(json.dumps(asdict(spec)))
    if folder.exists():
        shutil.rmtree(folder)
    half_done.rename(folder)
    return folder


def _write_edges(spec: GraphSpec, folder: Path, rng: np.random.Generator) -> None:
    target = rng.integers(0, spec.nodes, spec.edges, dtype=np.int64)
    degrees = np.bincount(target, minlength=spec.nodes)
    del target
    indptr = np.zeros(spec.nodes + 1, dtype=np.int64)
    np.cumsum(degrees, out=indptr[1:])
    np.save(folder / "indptr.npy", indptr)
    indices = np.lib.format.open_memmap(
        folder / "indices.npy", mode="w+", dtype=np.int64, shape=(spec.edges,)
    )
    row = 0
    while row < spec.nodes:  # whole rows at a time: sorted within each
        stop = int(np.searchsorted(indptr, indptr[row] + _CHUNK, side="left"))
        stop = min(max(stop, row + 1), spec.nodes)
        count = int(indptr[stop] - indptr[row])
        source = rng.integers(0, spec.nodes, count, dtype=np.int64)
        owner = np.repeat(np.arange(stop - row), degrees[row:stop])
        source = np.sort(owner * spec.nodes + source) % spec.nodes
        indices[indptr[row] : indptr[stop]] = source
        row = stop
    indices.flush()


def _write_features(spec: GraphSpec, folder: Path, rng: np.random.Generator) -> None:
    x = np.lib.format.open_memmap(
        folder / "x.npy", mode="w+", dtype=np.float32, shape=(spec.nodes, spec.dim)
    )
    step = max(1, _CHUNK // max(spec.dim, 1))
    for start in range(0, spec.nodes, step):
        stop = min(start + step, spec.nodes)
        x[start:stop] = rng.random((stop - start, spec.dim), dtype=np.float32)
        ids = np.arange(start, stop)
        x[start:stop, 0] = ids
        x[start:stop, 1] = ids % 997
    x.flush()


def load(folder: Path) -> GraphArrays:
    """Map the arrays of a graph that `build` wrote (copy-on-write: nobody changes the files)."""
    return GraphArrays(
        indptr=np.load(folder / "indptr.npy", mmap_mode="c"),
        indices=np.load(folder / "indices.npy", mmap_mode="c"),
        x=np.load(folder / "x.npy", mmap_mode="c"),
    )
