"""Graphs that other libraries write for `test_foreign`, by formula, so that both sides know them.

`foreign/write_dgl.py` and `foreign/write_records.py` wrote the archives beside them, where DGL and
TensorFlow are installed; here they are not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

NODES = {"user": 20, "item": 12}
EDGES = {("item", "rev", "user"): 25, ("user", "buys", "item"): 40, ("user", "knows", "user"): 30}
BUYS = ("user", "buys", "item")


@dataclass
class Case:
    """A graph, rows in the order of its own ids."""

    nodes: dict[str, dict[str, Any]]
    edges: dict[tuple[str, str, str], dict[str, Any]]
    """``ends`` is ``[2, num_edges]``."""


def typed() -> Case:
    """Return users and items, with repeated edges and nodes without edges."""
    nodes = {node_type: _nodes(count) for node_type, count in NODES.items()}
    del nodes["item"]["label"], nodes["item"]["train_mask"], nodes["item"]["val_mask"]
    return Case(nodes, {key: _edges(key, count) for key, count in EDGES.items()})


def plain() -> Case:
    """Return a graph of one type."""
    edges = _edges(("user", "knows", "user"), 50)
    return Case({"_N": _nodes(20)}, {("_N", "_E", "_N"): edges})


def _nodes(count: int) -> dict[str, Any]:
    row = np.arange(count)
    return {
        "feat": (row[:, None] * 1.25 + np.arange(3)).astype(np.float32),
        "label": row % 4,
        "age": (row * 3 % 17).astype(np.int32),
        "train_mask": row % 3 == 0,
        "val_mask": row % 3 == 1,
    }


def _edges(key: tuple[str, str, str], count: int) -> dict[str, Any]:
    row = np.arange(count)
    # The last users and items have no edges.
    src, dst = (NODES[end] - 1 for end in (key[0], key[2]))
    return {
        "ends": np.stack([row * 7 % src, (row * row + row // 3) % dst]),
        "score": (row / 4 + 0.5).astype(np.float32),
        "feat": np.stack([row, -row], axis=1).astype(np.float32),
    }
