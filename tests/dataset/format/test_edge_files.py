"""Files of edges of an author who made their checksums fit: kernels trust what is in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format import mapped_reader
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array
from tests.dataset.dataset_reference import BUYS, RING, SHOP, E, N, write
from tests.dataset.format.sealed import seal_again

_EDGES = f"edges/{'__'.join(E)}"


def _change(root: Path, column: str, change: Callable[[Array], Array], dtype: str = "") -> None:
    """Change an array of edges of partition 0, and what the manifests say of it."""

    def note(content: dict[str, Any]) -> None:
        spec = content["arrays"][f"{_EDGES}/{column}"]
        path = root / "part0" / f"{_EDGES}/{column}.bin"
        numbers = change(np.fromfile(path, spec["dtype"]))
        numbers.tofile(path)
        spec["shape"], spec["dtype"] = list(numbers.shape), dtype or spec["dtype"]

    seal_again(root, part=note)


CHANGES: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "moved by 2^40": ("indptr", lambda offsets: offsets + 2**40),
    "first is not 0": ("indptr", lambda offsets: np.maximum(offsets, 1)),
    "reversed": ("indptr", lambda offsets: offsets[::-1].copy()),
    "one row less": ("indptr", lambda offsets: np.delete(offsets, 1)),
    "one row more": ("indptr", lambda offsets: np.append(offsets, offsets[-1])),
    "last is less": ("indptr", lambda offsets: np.append(offsets[:-1], offsets[-1] - 1)),
    "no offsets": ("indptr", lambda offsets: offsets[:0]),
    "fewer neighbours": ("indices", lambda ids: ids[:-1]),
    "fewer ids": ("edge_ids", lambda ids: ids[1:]),
    "more weights": ("weights", lambda weights: np.append(weights, weights)),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_arrays_of_edges_that_do_not_fit_are_refused_when_opened(
    tmp_path: Path, change: str, mmap: bool, count: int
) -> None:
    root = write(RING, tmp_path, count)
    _change(root, *CHANGES[change])
    with pytest.raises(ConfigError, match=r"indptr\.bin does not fit|is damaged"):
        DistDataset.load(root, 0, mmap=mmap, verify="off")


@pytest.mark.parametrize(("column", "dtype"), [("indptr", "float64"), ("edge_ids", "float64")])
def test_arrays_of_edges_of_another_type_are_refused(
    tmp_path: Path, column: str, dtype: str
) -> None:
    root = write(RING, tmp_path, 1)
    _change(root, column, lambda numbers: numbers, dtype)
    with pytest.raises(ConfigError, match=r"indptr\.bin does not fit"):
        DistDataset.load(root, 0, verify="off")


def test_edges_of_other_partitions_are_checked_too(tmp_path: Path) -> None:
    root = write(RING, tmp_path)
    _change(root, *CHANGES["moved by 2^40"])
    with pytest.raises(ConfigError, match=r"part0.*indptr\.bin does not fit"):
        DistDataset.load(root, 1, edges="all")
    DistDataset.load(root, 1)


def test_rows_of_another_range_are_refused(tmp_path: Path) -> None:
    root = write(RING, tmp_path)

    def move(content: dict[str, Any]) -> None:
        content["ranges"][_EDGES]["first_row"] = 1

    seal_again(root, part=move)
    with pytest.raises(ConfigError, match=r"indptr\.bin does not fit"):
        DistDataset.load(root, 0)


@pytest.mark.parametrize("edges", ["own", "all"])
@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("indptr", lambda offsets: np.append(np.where(offsets[:-1] > 0, 2**40, 0), offsets[-1])),
        ("indices", lambda ids: np.full_like(ids, 8)),
        ("indices", lambda ids: np.full_like(ids, -1)),
    ],
)
def test_numbers_of_edges_are_read_when_files_are_verified(
    tmp_path: Path, constants, column: str, change: Callable[[Array], Array], edges: Any
) -> None:

    constants(mapped_reader, _CHECKED_NUMBERS=2)
    root = write(RING, tmp_path)
    partition = 0 if edges == "own" else 1
    DistDataset.load(root, partition, edges=edges, verify="now")
    _change(root, column, change)
    with pytest.raises(ConfigError, match=rf"part0.*{column}\.bin is no index of edges"):
        DistDataset.load(root, partition, edges=edges, verify="now")
    with pytest.raises(ConfigError, match="is no index of edges"):
        DistDataset.load(root, partition, edges=edges, verify="off").verify()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edges_between_types_are_verified(tmp_path: Path, edge_dir: Any) -> None:
    """Label edges are grouped by their source in both directions."""
    root = write(SHOP, tmp_path, edge_dir=edge_dir)
    assert BUYS in DistDataset.load(root, 0, verify="now").view().adjacency


@pytest.mark.parametrize("ends", [False, True])
def test_more_nodes_than_could_be_are_refused(tmp_path: Path, ends: bool) -> None:
    root = write(RING, tmp_path, 1)

    def claim(content: dict[str, Any]) -> None:
        content["edge_types"] = []
        content["num_nodes"][N] = 2**40
        content["node_bounds"][N] = [2**40 if ends else 8]

    seal_again(root, header=claim)
    with pytest.raises(ConfigError, match=r"says 1,099,511,627,776 nodes"):
        DistDataset.load(root, 0)
