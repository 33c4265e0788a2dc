"""What a link-prediction loader is to predict, checked before anything starts."""

from collections.abc import Sequence
from typing import Any

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    message_passing_to_positive_label,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError

SupervisionEdgeType = EdgeType | list[EdgeType] | None


def supervision_types(schema: DatasetSchema, given: Any) -> list[EdgeType]:
    """Return the supervision edge types, each with positives in the dataset.

    Args:
        schema: What the dataset holds.
        given: One type, a list of them, or None: the default type of a labeled-homogeneous dataset.

    Raises:
        ConfigError: Nothing is named, or what is named has no label edges: names those that have.
    """
    known = schema.edge_types or []
    labeled = labeled_types(known)
    if not labeled:
        raise ConfigError(
            "the dataset has no positive label edges: give them as supervision= of "
            "DistDataset.from_pyg or partition_graph, or as partitioned_positive_labels"
        )
    if given is None:
        if not schema.is_homogeneous_with_labeled_edge_type:
            raise ConfigError(
                f"the graph is heterogeneous: supervision_edge_type must be given, of {labeled}"
            )
        given = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    # A list and not any sequence: an edge type is a tuple itself.
    chosen = given if isinstance(given, list) else [given]
    if not chosen:
        raise ConfigError(f"supervision_edge_type is an empty list: name one or more of {labeled}")
    for edge_type in chosen:
        _check_type(edge_type)
        if is_label_edge_type(edge_type):
            raise ConfigError(
                f"supervision_edge_type {edge_type} is a label edge type: name what is predicted, "
                f"without the suffix: {labeled}"
            )
        if tuple(edge_type) not in labeled:
            src, relation, dst = edge_type
            hint = ""
            if (dst, relation, src) in labeled and schema.edge_dir == "in":
                hint = (
                    ". Label edges among the edges (partitioned_edge_index) are stored as all "
                    f'edges are, so with edge_dir="in" they end at their anchors: if {src!r} are '
                    "the anchors, turn them, or give them as partitioned_positive_labels"
                )
            raise ConfigError(
                f"supervision_edge_type {edge_type} has no positive label edges in the dataset; "
                f"these have: {labeled}{hint}"
            )
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"supervision_edge_type names a type twice: {chosen}")
    return [plain_edge_type(edge_type) for edge_type in chosen]


def labeled_types(known: Sequence[EdgeType]) -> list[EdgeType]:
    """Return the supervision edge types that have positives among the edge types ``known``."""
    found = []
    for edge_type in known:
        if is_label_edge_type(edge_type):
            src, relation, dst = edge_type
            # GiGL's suffix; the comparison below keeps out negatives, and relations that only look
            # alike.
            plain = (src, relation.rpartition("_gigl_")[0], dst)
            if message_passing_to_positive_label(plain) == edge_type:
                found.append(plain)
    return found


def check_anchor_type(supervision: Sequence[EdgeType], anchor_type: NodeType) -> None:
    """Raise `ConfigError` unless the anchors are the sources of all that is predicted."""
    for edge_type in supervision:
        if edge_type[0] != anchor_type:
            hint = ""
            if edge_type[2] == anchor_type:
                hint = " (anchors are sources: name the type from the anchors to the label nodes)"
            raise ConfigError(
                f"input_nodes are of type {anchor_type!r}, but supervision_edge_type {edge_type} "
                f"starts at {edge_type[0]!r}{hint}"
            )


def excluded_types(
    known: Sequence[EdgeType], supervision: Sequence[EdgeType], exclude: Any
) -> tuple[EdgeType, ...]:
    """Return the message-passing edge types to keep copies of the positives out of.

    Args:
        known: All edge types of the dataset.
        supervision: What is predicted.
        exclude: True: all that connect the two node types of a supervision edge type, in either
            direction; or the types.

    Raises:
        ConfigError: A type is not walked, or connects other node types.
        WrongTypeError: ``exclude`` is neither.
    """
    # Unordered: a copy of a positive may be stored in the other direction, under another relation.
    ends = {frozenset((src, dst)) for src, _, dst in supervision}
    could = [
        edge_type
        for edge_type in known
        if not is_label_edge_type(edge_type) and frozenset((edge_type[0], edge_type[2])) in ends
    ]
    if isinstance(exclude, bool):
        return tuple(could) if exclude else ()
    if not isinstance(exclude, Sequence) or isinstance(exclude, str):
        raise WrongTypeError(
            f"exclude_supervision must be True, False or a list of edge types, got {exclude!r}"
        )
    for edge_type in exclude:
        if edge_type not in could:
            raise ConfigError(
                f"exclude_supervision names {edge_type}, which cannot hold copies of "
                f"{supervision}; these can: {could}"
            )
    return tuple(plain_edge_type(edge_type) for edge_type in exclude)


def _check_type(edge_type: Any) -> None:
    parts = edge_type if isinstance(edge_type, tuple) else ()
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise WrongTypeError(
            "supervision_edge_type must be (anchor type, relation, label type) or a list of these, "
            f"got {edge_type!r}"
        )
