"""Functions of GiGL's ``gigl.types.graph`` that no other code here needs; types are tuples."""

from collections.abc import Iterable, Mapping
from typing import Any

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    NodeType,
    is_label_edge_type,
    label_to_message_passing,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError


def to_homogeneous(x: Any) -> Any:
    """Return the one value of a dict by type; any other value, and None, as it is.

    Raises:
        ConfigError: The dict has no value, or several.
    """
    if not isinstance(x, Mapping):
        return x
    if len(x) != 1:
        raise ConfigError(f"to_homogeneous takes a dict of one type, got {list(x)}: choose one")
    return next(iter(x.values()))


def to_heterogeneous_node(x: Any) -> dict[NodeType, Any] | None:
    """Return a value as the dict of the default node type; a dict, and None, as it is."""
    return x if x is None or isinstance(x, dict) else {DEFAULT_HOMOGENEOUS_NODE_TYPE: x}


def to_heterogeneous_edge(x: Any) -> dict[EdgeType, Any] | None:
    """Return a value as the dict of the default edge type; a dict, and None, as it is."""
    return x if x is None or isinstance(x, dict) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: x}


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """Return ``edge_type`` with its ends swapped; graphlearn-torch's function also renames it."""
    src, relation, dst = edge_type
    return (dst, relation, src)


def label_edge_type_to_message_passing_edge_type(label_edge_type: EdgeType) -> EdgeType:
    """Return the edge type whose positives or negatives ``label_edge_type`` carries.

    Raises:
        ConfigError: It is no label edge type.
    """
    if not is_label_edge_type(label_edge_type):
        raise ConfigError(f"{label_edge_type} is no label edge type: it carries no labels")
    return label_to_message_passing(label_edge_type)


def select_label_edge_types(
    message_passing_edge_type: EdgeType, edge_entities: Iterable[EdgeType]
) -> tuple[EdgeType, EdgeType | None]:
    """Return the types of the positives and of the negatives of an edge type, among ``entities``.

    Returns:
        ``(positive, negative)``; the negative one is None if it is not among them.

    Raises:
        ConfigError: The positive one is not among them.
    """
    known = list(edge_entities)
    positive = message_passing_to_positive_label(message_passing_edge_type)
    negative = message_passing_to_negative_label(message_passing_edge_type)
    if positive not in known:
        raise ConfigError(
            f"{message_passing_edge_type} has no labels: {positive} is not in {known}"
        )
    return positive, negative if negative in known else None
