"""Ids of the tables and back, over files that are written here by hand."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from gigl_loader.dataset.format.mapped import PARQUET, Part
from gigl_loader.dataset.format.mapped_reader import OriginalIds
from gigl_loader.dataset.format.mapped_writer import write_array
from gigl_loader.errors import ConfigError, WrongTypeError

NAMES = [["b", "", "äö"], [], ["zz", "a"]]
"""By partition, in the order of the nodes; partition 1 has none."""
NUMBERS = [[7, -3, 10**12], [], [0, 5]]


def _dictionary(root: Path, values: list[list]) -> OriginalIds:
    shared = Part(root)
    for index, part in enumerate(values):
        where = f"ids/user/part{index}"
        if isinstance(values[0][0], str):
            encoded = [name.encode() for name in part]
            text = np.frombuffer(b"".join(encoded), np.uint8)
            write_array(shared, f"{where}.text", text)
            ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
            write_array(shared, f"{where}.ends", ends)
        else:
            write_array(shared, f"{where}.values", np.array(part, np.int64))
    return OriginalIds("user", shared, list(np.cumsum([len(part) for part in values])))


def _write_pairs(root: Path, values: list[list]) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    flat = [value for part in values for value in part]
    table = pa.table({"id": pa.array(flat), "node": pa.array(range(len(flat)), pa.int64())})
    parquet.write_table(table, root / PARQUET.format(node_type="user"), row_group_size=2)


@pytest.mark.parametrize("values", [NAMES, NUMBERS], ids=["text", "integers"])
def test_there_and_back(tmp_path: Path, values: list[list]) -> None:
    found = _dictionary(tmp_path, values)
    flat = [value for part in values for value in part]
    assert found.is_text == isinstance(flat[0], str)
    assert found.to_original(np.arange(5)).tolist() == flat
    assert found.to_original(np.array([4, 0, 4, 2])).tolist() == [flat[i] for i in (4, 0, 4, 2)]
    assert found.to_original(np.empty(0, np.int64)).tolist() == []
    _write_pairs(tmp_path, values)
    asked = [flat[i] for i in (3, 1, 3, 0)]
    assert found.from_original(asked).tolist() == [3, 1, 3, 0]
    assert found.from_original([]).tolist() == []


@pytest.mark.parametrize("ids", [[5], [-1], [0, 9]])
def test_nodes_that_there_are_not(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"ids of 'user' must be in \[0, 5\)"):
        _dictionary(tmp_path, NUMBERS).to_original(np.array(ids))


def test_ids_that_no_table_has(tmp_path: Path) -> None:
    found = _dictionary(tmp_path, NAMES)
    _write_pairs(tmp_path, NAMES)
    with pytest.raises(ConfigError, match=r"2 of these ids are no 'user' .* the first: 'x'"):
        found.from_original(["a", "x", "x", "y"])
    with pytest.raises(WrongTypeError, match="ids of 'user' are text in the tables"):
        found.from_original([1])


def test_a_pickle_has_no_file_in_it(tmp_path: Path) -> None:
    numbers = [[*range(100_000)], [], [0, 5]]
    found = _dictionary(tmp_path, numbers)
    assert found.to_original(np.array([99_999])).tolist() == [99_999]
    data = pickle.dumps(found)
    assert len(data) < 10_000
    assert pickle.loads(data).to_original(np.array([99_998])).tolist() == [99_998]
