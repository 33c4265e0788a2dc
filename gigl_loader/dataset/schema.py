"""Description of a dataset without its data: types, feature widths, direction, label edge types."""

import os
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from gigl_loader.errors import ConfigError, without_default_types

if TYPE_CHECKING:  # workers read this module and do without torch
    import torch

NodeType = str
EdgeType = tuple[str, str, str]
EdgeDir = Literal["in", "out"]
Split = Literal["train", "val", "test"]
FilePath = str | os.PathLike[str]

DEFAULT_HOMOGENEOUS_NODE_TYPE: NodeType = "default_homogeneous_node_type"
"""Node type that GiGL gives the nodes of a homogeneous graph."""
DEFAULT_HOMOGENEOUS_EDGE_TYPE: EdgeType = (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    "to",
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
)
"""Edge type that GiGL gives the edges of a homogeneous graph."""

SPLITS: tuple[Split, ...] = ("train", "val", "test")

NEIGHBOR_TIME = "_time_of_neighbor_"
"""Before the name of a node attribute: the attribute of edges that has its value of the neighbour,
which may be another partition's node. Batches do not have it."""

COMMUNITY = "_community"
"""Name of the node attribute with the communities that partitioning wrote, int64: dense ids from 0,
unique over the whole graph and all its types. Batches do not have it; a user's ``community`` is
another attribute."""

WEIGHT_NAMES = ("edge_weight", "weights")
"""What weights are called in a PyG graph; without a name they are carried as the first."""

POSITIVE, NEGATIVE = "positive", "negative"
"""The two signs of a label."""
PPR = "ppr"
"""Relation of the edges that a sampler by personalised PageRank makes, seed first."""

# GiGL's own suffixes: its edge types and its saved graphs work here by name.
_POSITIVE_SUFFIX = "_gigl_positive"
_NEGATIVE_SUFFIX = "_gigl_negative"


@dataclass(frozen=True)
class FeatureInfo:
    """Width and dtype of one feature matrix."""

    dim: int
    """Columns."""
    dtype: "torch.dtype"


@dataclass(frozen=True)
class DatasetSchema:
    """Shape of a dataset, the same for a local partition and for a graph store."""

    is_homogeneous_with_labeled_edge_type: bool
    """One node type and one message-passing edge type, plus label edge types."""
    edge_types: list[EdgeType] | None
    """All edge types, label edge types included; None for a homogeneous graph without labels."""
    node_feature_info: FeatureInfo | dict[NodeType, FeatureInfo] | None
    edge_feature_info: FeatureInfo | dict[EdgeType, FeatureInfo] | None
    edge_dir: EdgeDir
    """``"in"``: a node is expanded along its incoming edges; ``"out"``: along its outgoing ones."""
    node_attributes: "dict[NodeType, tuple[str, ...]]" = field(default_factory=dict)
    """By type, the further attributes of nodes that batches have (``train_mask``, ``time``...); a
    homogeneous graph is of the default types."""
    edge_attributes: "dict[EdgeType, tuple[str, ...]]" = field(default_factory=dict)
    """Names of further edge attributes (``edge_weight``...), by edge type."""
    num_classes: "dict[NodeType, int]" = field(default_factory=dict)
    """By type, the classes of its labels over all partitions, if known."""
    types_with_communities: "tuple[NodeType, ...]" = ()
    """Types whose nodes have communities, which partitioning found."""
    frames: "dict[str, tuple[Any, ...]]" = field(default_factory=dict)
    """By node type and by ``src__relation__dst``, the columns of rows of mixed types, which batches
    have as ``tf``: ``FrameGroup`` of ``gigl_loader.dataset.partition.frames``."""
    node_quantization_metadata: InitVar[Any] = None
    """GiGL's; None: batches have the floats of packed columns."""
    edge_quantization_metadata: InitVar[Any] = None

    def __post_init__(self, *quantization_metadata: Any) -> None:
        if any(quantization_metadata):
            raise ConfigError(
                "a DatasetSchema takes no quantization metadata: packed columns are read into "
                "floats, so batches have them as the other columns"
            )

    def __repr__(self) -> str:
        """Show the fields that say something, without the internal types of a homogeneous graph."""
        shown = {one.name: getattr(self, one.name) for one in fields(self)}
        values = [f"{name}={value!r}" for name, value in shown.items() if value not in ({}, ())]
        return without_default_types(f"DatasetSchema({', '.join(values)})")


def is_in_batches(attribute: str) -> bool:
    """Return whether batches have an attribute of nodes or edges of this name."""
    # Users' names are public names of Python. Those of `NEIGHBOR_TIME` and `COMMUNITY` are not, so
    # they never meet one of a user.
    return not attribute.startswith("_")


def plain_edge_type(edge_type: EdgeType) -> EdgeType:
    """Return ``edge_type`` as a tuple.

    Users may name types by a named tuple (GiGL's ``EdgeType`` is one), which equals the tuple; but
    its class would have to be imported by each receiver: workers, servers, files.
    """
    src, relation, dst = edge_type
    return (src, relation, dst)


def message_passing_to_positive_label(edge_type: EdgeType) -> EdgeType:
    """Return the label edge type that carries the positives of ``edge_type``."""
    src, relation, dst = edge_type
    return (src, relation + _POSITIVE_SUFFIX, dst)


def message_passing_to_negative_label(edge_type: EdgeType) -> EdgeType:
    """Return the label edge type that carries the negatives of ``edge_type``."""
    src, relation, dst = edge_type
    return (src, relation + _NEGATIVE_SUFFIX, dst)


LABEL_TYPES = {
    POSITIVE: message_passing_to_positive_label,
    NEGATIVE: message_passing_to_negative_label,
}
"""Functions from an edge type to that of its labels, by their sign."""


def label_to_message_passing(edge_type: EdgeType) -> EdgeType:
    """Undo `message_passing_to_positive_label`, or the function for negatives."""
    src, relation, dst = edge_type
    suffix = _POSITIVE_SUFFIX if relation.endswith(_POSITIVE_SUFFIX) else _NEGATIVE_SUFFIX
    return (src, relation.removesuffix(suffix), dst)


def is_label_edge_type(edge_type: EdgeType) -> bool:
    """Return whether ``edge_type`` only carries supervision and is never walked by sampling."""
    return edge_type[1].endswith((_POSITIVE_SUFFIX, _NEGATIVE_SUFFIX))


def is_labeled_homogeneous(num_nodes: dict[NodeType, int], edge_types: list[EdgeType]) -> bool:
    """Return whether there are only the default types and label edge types."""
    plain = [edge_type for edge_type in edge_types if not is_label_edge_type(edge_type)]
    return (
        set(num_nodes) == {DEFAULT_HOMOGENEOUS_NODE_TYPE}
        and plain == [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        and len(plain) < len(edge_types)
    )


def expanded_end(edge_dir: EdgeDir) -> int:
    """Return the row of an edge index that holds the expanded node."""
    return 1 if edge_dir == "in" else 0


def row_type(edge_type: EdgeType, edge_dir: EdgeDir) -> NodeType:
    """Return the type of the nodes by which edges are grouped; for label edges, the anchors."""
    by_source = edge_dir == "out" or is_label_edge_type(edge_type)
    return edge_type[0] if by_source else edge_type[2]


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """Return the reverse type of ``edge_type``, by GLT's naming.

    Source:
        graphlearn-torch 0.2.4, ``typing.reverse_edge_type``: adds ``rev_`` before the relation, or
        removes it; a type between nodes of one type keeps its name.
    """
    src, relation, dst = edge_type
    if src != dst:
        relation = relation[4:] if relation.startswith("rev_") else "rev_" + relation
    return (dst, relation, src)


def glt_edge_type(edge_type: EdgeType, edge_dir: EdgeDir) -> EdgeType:
    """Return the name of an edge type among the edges of GLT and GiGL; its own inverse.

    Label edges are grouped by anchor, their source. With ``edge_dir="in"`` edges are grouped by
    destination, so there both ends of a label edge type change positions.

    Source:
        GiGL, ``treat_labels_as_edges`` and its ``reverse_edge_type``: the relation is unchanged,
        without the ``rev_`` of GLT's own function.
    """
    if edge_dir == "in" and is_label_edge_type(edge_type):
        src, relation, dst = edge_type
        return (dst, relation, src)
    return edge_type


def edge_type_str(edge_type: EdgeType) -> str:
    """Return ``edge_type`` as one string, ``src__relation__dst``, as GLT names its files."""
    return "__".join(edge_type)


def check_type_names(types: Iterable[NodeType | EdgeType]) -> None:
    """Check that each type has a name of its own in messages and files.

    Raises:
        ConfigError: Two types have one name, or a name begins as our own keys of a message do.
    """
    known: dict[str, NodeType | EdgeType] = {}
    for one in types:
        name = one if isinstance(one, str) else edge_type_str(one)
        if name.startswith("#"):
            raise ConfigError(f"type {one!r} begins with '#', as keys of messages do: rename it")
        other = known.setdefault(name, one)
        if other != one:
            raise ConfigError(
                f"types {other!r} and {one!r} are both {name!r} in messages and files, so that "
                "one would have the edges of the other: rename one of them"
            )


def check_file_names(types: Iterable[Any], where: object = "the graph") -> None:
    """Check that types can be parts of paths below a directory.

    Raises:
        ConfigError: The name of one is empty or would lead elsewhere; ``where`` has it.
    """
    for one in types:
        name = one if isinstance(one, str) else edge_type_str(one)
        if name in ("", ".", "..") or set("/\0") & set(name):
            raise ConfigError(f"{where}: type {one!r} cannot be the name of a file: rename it")
