"""A dataset as people look at it: types, counts, feature sizes and splits, a line for each type."""

from collections.abc import Mapping
from typing import Any

from gigl_loader.dataset.partition.build import owned_ids
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    Split,
    is_label_edge_type,
)

_NODE_COLUMNS = ("nodes", "count", "here", "x", "y", "train", "val", "test")
_EDGE_COLUMNS = ("edges", "here", "edge_attr", "weights")
_NONE = "-"


def summary_of(view: PartitionView, splits: Mapping[Split, Any], position: str) -> str:
    """Return the text of `DistDataset.summary`.

    Args:
        view: The partition.
        splits: Ids by the name of a split: of one type, by type, or None.
        position: Which partition it is.
    """
    nodes: list[tuple[str, ...]] = [_NODE_COLUMNS]
    for name, count in view.num_nodes.items():
        book = view.node_books.get(name)
        here = count if book is None else len(owned_ids(book, view.partition_idx))
        sizes = [_size(view.node_features.get(name)), _size(view.node_labels.get(name))]
        held = [_length(splits[split], name) for split in SPLITS]
        nodes.append((_shown(name), f"{count:,}", f"{here:,}", *sizes, *held))
    edges: list[tuple[str, ...]] = [_EDGE_COLUMNS]
    for kind, adjacency in view.adjacency.items():
        name = "all" if not view.is_heterogeneous else "__".join(kind)
        if is_label_edge_type(kind):
            name = f"labels {kind[1]}" if not view.is_heterogeneous else name
        weights = "yes" if adjacency.weights is not None else _NONE
        of = _size(view.edge_features.get(kind))
        edges.append((name, f"{adjacency.indices.numel():,}", of, weights))
    return "\n".join((position, "", *_table(nodes), "", *_table(edges)))


def _shown(node_type: str) -> str:
    return "all" if node_type == DEFAULT_HOMOGENEOUS_NODE_TYPE else node_type


def _size(rows: Any) -> str:
    """Return the columns and dtype of a matrix."""
    if rows is None:
        return _NONE
    columns = f"{rows.values.shape[1]} " if rows.values.dim() > 1 else ""
    return f"{columns}{rows.dtype}"


def _length(ids: Any, node_type: str) -> str:
    found = ids.get(node_type) if isinstance(ids, Mapping) else ids
    return _NONE if found is None else f"{len(found):,}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows with columns of one width: names to the left, all else to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
