"""Node features in a SQLite file, as a PyG ``FeatureStore`` that gigl_loader's workers open.

A row of the table ``features`` is a node: its id, and its features as bytes of float32. Another
database differs in `_get_tensor` alone.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, TensorAttr

_AT_ONCE = 500
"""Parameters of one query; SQLite before 3.32 takes at most 999."""


class SqliteFeatures(FeatureStore):
    """The features of all nodes of a homogeneous graph, read by id."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = sqlite3.connect(f"file:{path}?mode=ro", uri=True)

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        ids: list[int] = attr.index.tolist()
        found: dict[int, bytes] = {}
        for first in range(0, len(ids), _AT_ONCE):
            some = ids[first : first + _AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT id, x FROM features WHERE id IN ({marks})"
            found.update(self._file.execute(query, some))
        missing = [one for one in ids if one not in found]
        if missing:
            raise LookupError(f"no features of nodes {missing[:5]}")
        rows = [np.frombuffer(found[one], np.float32) for one in ids]
        return torch.from_numpy(np.stack(rows))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        count, nbytes = self._file.execute(
            "SELECT count(*), max(length(x)) FROM features"
        ).fetchone()
        return (count, nbytes // 4)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the one attribute that there is."""
        return [TensorAttr(None, "x")]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError("opened for reading: write_features writes")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError("opened for reading")


def write_features(path: str, rows: Iterable[Tensor]) -> None:
    """Write a file for `SqliteFeatures`: ``rows`` are the features of nodes 0, 1, 2..."""
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE features (id INTEGER PRIMARY KEY, x BLOB NOT NULL)")
        values = ((i, row.float().numpy().tobytes()) for i, row in enumerate(rows))
        file.executemany("INSERT INTO features VALUES (?, ?)", values)
    file.close()
