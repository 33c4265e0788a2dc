"""What one partition is made of before it becomes a dataset: tensors with their global ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from gigl_loader.dataset.schema import EdgeType, NodeType, plain_edge_type

_T = TypeVar("_T")


class RangeBook(Protocol):
    """A partition book of ranges, as GLT's ``RangePartitionBook``: upper bounds by partition."""

    partition_bounds: Tensor
    """``[num_partitions]`` int64: partition ``p`` owns the ids from bound ``p - 1`` up to ``p``."""


PartitionBook = Tensor | RangeBook
"""``[num_ids]`` integer tensor, the owner of each id; or ranges."""


@dataclass(frozen=True)
class GraphPartitionData:
    """The edges of one type that one partition owns."""

    edge_index: Tensor
    """``[2, num_edges]`` int64, global ids, row 0 sources, row 1 destinations."""
    edge_ids: Tensor | None = None
    """``[num_edges]`` int64, global edge ids. None: positions, which one partition allows."""
    weights: Tensor | None = None
    """``[num_edges]`` floating point, finite and not negative; kept as float32."""


@dataclass(frozen=True)
class FeaturePartitionData:
    """The rows of one feature (or label) matrix that one partition owns."""

    feats: Tensor
    """``[num_rows, num_columns]``, any dtype."""
    ids: Tensor | None = None
    """``[num_rows]`` int64, the global id of each row. None: row ``i`` belongs to id ``i``."""
    scales: Tensor | None = None
    """What makes float32 of ``feats``; see `gigl_loader.dataset.quantised`. None: nothing."""


@dataclass(frozen=True)
class PartitionOutput:
    """Everything that `DistDataset.build` takes.

    Each field is one value for a homogeneous graph, a dict by node or edge type, or None.
    """

    node_partition_book: PartitionBook | Mapping[NodeType, PartitionBook] | None = None
    """``[num_nodes]`` integer tensor (the owner of each node) or a GLT ``RangePartitionBook``."""
    edge_partition_book: PartitionBook | Mapping[EdgeType, PartitionBook] | None = None
    """The same for edge ids; needed where there are edge features in several partitions."""
    partitioned_edge_index: GraphPartitionData | dict[EdgeType, GraphPartitionData] | None = None
    """Edges stored at the owner of the node that is expanded: the destination where the dataset's
    ``edge_dir`` is ``"in"``, the source where it is ``"out"``.

    Label edge types may be among them, at the owner of their anchor and stored as all edges are:
    ``(anchor type, relation, label type)`` with the anchors in row 0 where ``edge_dir`` is
    ``"out"``, ``(label type, relation, anchor type)`` with the anchors in row 1 where it is
    ``"in"``, also between nodes of one type. GiGL keeps them so."""
    partitioned_node_features: (
        FeaturePartitionData | dict[NodeType, FeaturePartitionData] | None
    ) = None
    partitioned_edge_features: (
        FeaturePartitionData | dict[EdgeType, FeaturePartitionData] | None
    ) = None
    partitioned_positive_labels: Tensor | dict[EdgeType, Tensor] | None = None
    """``[2, num_labels]`` int64 by supervision edge type ``(anchor type, relation, label type)``:
    row 0 anchors, row 1 label nodes, whatever the ``edge_dir``; the anchors are this partition's.
    """
    partitioned_negative_labels: Tensor | dict[EdgeType, Tensor] | None = None
    """As the positives."""
    partitioned_node_labels: FeaturePartitionData | dict[NodeType, FeaturePartitionData] | None = (
        None
    )


def by_type(value: _T | dict[Any, _T] | None, default_type: Any) -> dict[Any, _T]:
    """Return a field of `PartitionOutput` as a dict; a single value belongs to ``default_type``."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        return {default_type: value}
    return {plain_edge_type(k) if isinstance(k, tuple) else k: v for k, v in value.items()}
