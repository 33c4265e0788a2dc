"""GiGL's arguments of a dataset that is made of parts, and its splitters."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigl_loader.dataset.partition.partition_output import PartitionOutput, by_type, labels_of
from gigl_loader.dataset.partition.partition_view import Splits
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    EdgeDir,
    NodeType,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.keyword_names import unknown_keyword
from gigl_loader.runtime.memory.tensors import share_tensor

_LABELS = (
    "give PartitionOutput(partitioned_positive_labels=..., partitioned_negative_labels=...) to "
    "build"
)
_PACKED = "feature_dtype= of partition_tables(...) stores rows in fewer bits"
_READ = "leave it out: it is read from the features"
OF_GIGL: dict[str, str] = {
    "node_quantized_feature_partition": _PACKED,
    "edge_quantized_feature_partition": _PACKED,
    "node_quantization_metadata": _PACKED,
    "edge_quantization_metadata": _PACKED,
    "positive_edge_label": _LABELS,
    "negative_edge_label": _LABELS,
    "node_feature_info": _READ,
    "edge_feature_info": _READ,
    "degree_tensor": "leave it out: the attribute of this name is computed on its first use",
    "edge_weights": "the topology of each graph has them; or give GraphPartitionData(weights=...)",
}
"""Arguments of GiGL's dataset that have no effect here, and what to do instead."""


def check_parts(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse arguments of GiGL's dataset that would have no effect here, and unknown names.

    Args:
        given: Further keywords; a value of None is GiGL's default.
        known: The names that the constructor has.

    Raises:
        ConfigError: One has no effect here; says what to do instead.
        WrongTypeError: A name is unknown.
    """
    for name, value in given.items():
        if name not in OF_GIGL:
            raise unknown_keyword("DistDataset", name, known)
        if value is not None:
            raise ConfigError(f"DistDataset(..., {name}=) has no use here: {OF_GIGL[name]}")


def cut_node_ids(
    node_ids: Any, counts: Mapping[str, Any], own: Mapping[NodeType, Tensor]
) -> Splits:
    """Return the splits that ``node_ids`` begin with.

    Args:
        node_ids: ``[n]`` int64, or a dict of them by type: ids for training, validation and
            testing, then all others of the partition. None: no splits.
        counts: How many are for each split, an int or a dict by type; None: no such split.
        own: The ids that the partition owns.

    Raises:
        ConfigError: Others than the partition's ids are among them, or a count has no ids.
    """
    ids = by_type(node_ids, DEFAULT_HOMOGENEOUS_NODE_TYPE)
    named = [f"{name}={count}" for name, count in counts.items() if count is not None]
    if node_ids is None and named:
        raise ConfigError(f"{', '.join(named)}: give node_ids, too, which they divide")
    splits: Splits = {}
    for name, some in ids.items():
        if name not in own or not torch.equal(some.sort().values, own[name]):
            raise ConfigError(
                f"node_ids of {name!r} are not the nodes that this partition owns, each once: "
                "node_partition_book tells which those are"
            )
    start = dict.fromkeys(ids, 0)
    for split in SPLITS:
        of_types = by_type(counts[f"num_{split}"], DEFAULT_HOMOGENEOUS_NODE_TYPE)
        for name, count in of_types.items():
            if name not in ids or not 0 <= count <= ids[name].numel() - start[name]:
                raise ConfigError(
                    f"num_{split}={count} of {name!r}: node_ids has no so many ids of that type, "
                    "after those of the splits before"
                )
            some = ids[name][start[name] : start[name] + count]
            splits.setdefault(split, {})[name] = share_tensor(some.sort().values)
            start[name] += count
    return splits


class EdgeTypeOfGiGL(NamedTuple):
    """An edge type as GiGL's splitters read it; equal to ours."""

    src_node_type: str
    relation: str
    dst_node_type: str


def split_by(
    splitter: Callable[..., Any], output: PartitionOutput, edge_dir: EdgeDir, own: Any
) -> Splits:
    """Return the splits of GiGL's splitter, or of an object like it.

    Args:
        splitter: Returns ids for training, validation and testing, or a dict of these by node type.
            One with an attribute ``should_convert_labels_to_edges`` takes ``edge_index=``, to split
            the anchors of edges; others ``node_ids=``.
        output: The partition's tensors.
        edge_dir: Of the dataset.
        own: Ids of the partition's nodes.

    Raises:
        ConfigError: What it returns is something else.
    """
    if not callable(splitter):
        raise ConfigError(f"splitter must be a function, got {type(splitter).__name__}")
    if not hasattr(splitter, "should_convert_labels_to_edges"):
        return splits_of(splitter(node_ids=own))
    edges: Any = output.partitioned_edge_index
    step = -1 if edge_dir == "in" else 1  # labels as the edges are stored
    labels = {
        EdgeTypeOfGiGL(*name[::step]): ends[[0, 1][::step]] for _, name, ends in labels_of(output)
    }
    if not labels and not isinstance(edges, Mapping):
        return splits_of(splitter(edge_index=edges.edge_index))
    main = edges if isinstance(edges, Mapping) else {DEFAULT_HOMOGENEOUS_EDGE_TYPE: edges}
    given = {
        EdgeTypeOfGiGL(*name) if type(name) is tuple else name: part.edge_index
        for name, part in main.items()
    }
    return splits_of(splitter(edge_index=labels | given))


def splits_of(found: Any) -> Splits:
    """Return what a splitter returned, by split and node type.

    Raises:
        ConfigError: It is no three tensors of ids, or a dict of these by node type.
    """
    splits: Splits = {}
    by_name = dict(found) if isinstance(found, Mapping) else found
    for name, ids in by_type(by_name, DEFAULT_HOMOGENEOUS_NODE_TYPE).items():
        if not isinstance(ids, tuple | list) or len(ids) != len(SPLITS):
            raise ConfigError(
                "a splitter returns ids for training, validation and testing, or a dict of these "
                f"by node type, got {type(ids).__name__} of {name!r}"
            )
        for split, some in zip(SPLITS, ids, strict=True):
            some = torch.as_tensor(some, device="cpu")
            if some.dim() != 1 or some.is_floating_point():
                raise ConfigError(
                    f"a splitter returned {split} ids of {name!r} that are no list of integers"
                )
            splits.setdefault(split, {})[str(name)] = share_tensor(some.long())
    return splits
