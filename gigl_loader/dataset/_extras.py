"""What a directory in GLT's format says of our own files in it: see `_disk`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gigl_loader.dataset._manifest import ROOT_FILE, read_manifest, typed, write_manifest
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.dataset.schema import EdgeDir, EdgeType, NodeType, is_label_edge_type
from gigl_loader.dataset.view import PartitionView, Splits
from gigl_loader.errors import ConfigError

UNCHECKED_VERSION = 1
"""The version before the file had a checksum, and the graph an identity."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Extras:
    """The manifest beside GLT's files."""

    edge_dir: EdgeDir
    node_labels: list[NodeType]
    splits: dict[str, list[NodeType]]
    label_edge_types: list[EdgeType]
    # what follows is missing in directories of the first gigl_loader
    node_attributes: list[tuple[NodeType, list[str]]] = field(default_factory=list)
    edge_attributes: list[tuple[EdgeType, list[str]]] = field(default_factory=list)
    num_classes: dict[NodeType, int] = field(default_factory=dict)
    flat_nodes: list[NodeType] = field(default_factory=list)
    """Types whose features had one dimension, which GLT's format has no place for."""
    flat_edges: list[EdgeType] = field(default_factory=list)
    run: str = ""
    """Digest of all partitions."""


def read_extras(
    root: Path, node_types: list[NodeType], edge_types: list[EdgeType]
) -> tuple[Extras | None, GraphIdentity | None]:
    """Return what a directory says, and which graph it is; None: it does not, as GLT wrote it.

    Raises:
        ConfigError: The file is damaged or of another version, or names types that there are not.
    """
    path = root / ROOT_FILE
    if not path.exists():
        return None, None
    content, digest = read_manifest(path, UNCHECKED_VERSION)
    extras = typed(content, Extras, path)
    of_nodes = {
        *extras.node_labels, *extras.flat_nodes, *extras.num_classes,
        *(name for names in extras.splits.values() for name in names),
        *(name for name, _ in extras.node_attributes),
    }  # fmt: skip
    of_edges = {*extras.flat_edges, *(name for name, _ in extras.edge_attributes)}
    unknown = sorted(of_nodes - {*node_types}) + sorted(of_edges - {*edge_types})
    if unknown:
        raise ConfigError(f"{path} is damaged: it names types that META does not: {unknown}")
    return extras, GraphIdentity(extras.run, digest) if extras.run else None


def write_extras(folder: Path, view: PartitionView, splits: Splits, **made: Any) -> None:
    """Write what names our files; ``made``: how the directory was made."""
    content = {
        **made,
        "edge_dir": view.edge_dir,
        "node_labels": list(view.node_labels),
        "splits": {split: list(by_type) for split, by_type in splits.items()},
        "label_edge_types": [list(t) for t in view.adjacency if is_label_edge_type(t)],
        "node_attributes": [
            [node_type, sorted(named)]
            for node_type, named in attributes_by_type(view.node_attributes).items()
        ],
        "edge_attributes": [
            [list(edge_type), sorted(named)]
            for edge_type, named in attributes_by_type(view.edge_attributes).items()
        ],
        "num_classes": view.num_classes,
        "flat_nodes": [t for t, rows in view.node_features.items() if rows.values.dim() == 1],
        "flat_edges": [list(t) for t, rows in view.edge_features.items() if rows.values.dim() == 1],
    }
    write_manifest(folder / ROOT_FILE, content)


def attributes_by_type(attributes: Mapping[tuple[Any, str], _T]) -> dict[Any, dict[str, _T]]:
    """Return attributes by type, then by name."""
    found: dict[Any, dict[str, _T]] = {}
    for (key, name), value in attributes.items():
        found.setdefault(key, {})[name] = value
    return found
