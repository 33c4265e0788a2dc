"""Checks of user input for datasets: each raises `ConfigError` before any work is done."""

import warnings
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.partition import doubts
from gigl_loader.dataset.partition.partition_view import Splits
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError, WrongTypeError, without_default_types
from gigl_loader.runtime.memory.segments import Array


def check_tensor(value: Any, where: str) -> Tensor:
    """Return ``value`` as a dense CPU tensor without gradient; numpy arrays may be mapped files."""
    # PyG keeps arrays as given: `x` of a graph from a file may be one
    if isinstance(value, np.ndarray):
        value = _of_array(value, where)
    if not isinstance(value, Tensor):
        raise WrongTypeError(f"{where} must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        raise ConfigError(f"{where} is sparse ({value.layout}): pass value.to_dense()")
    if value.is_quantized:
        raise ConfigError(
            f"{where} is quantised ({value.dtype}), which samplers cannot read: pass "
            "value.dequantize(), or value.int_repr() and its scale apart"
        )
    if value.is_meta:
        raise ConfigError(
            f"{where} is on the meta device, which holds shapes and no data: load the data first"
        )
    # with its gradient, each copy would be recorded and keep the user's operations alive
    return value.detach().cpu()


def _of_array(value: Array, where: str) -> Tensor:
    # torch warns about read-only arrays (a mapped file, or another owner's), and refuses arrays
    # with negative strides
    if not value.flags.writeable or min(value.strides, default=0) < 0:
        value = value.copy()
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError) as error:
        raise WrongTypeError(f"{where} is a numpy array of {value.dtype}: {error}") from error


def check_ids(value: Any, num_ids: int | None, where: str) -> Tensor:
    """Return ``value`` where it is ``[n]`` int64 in ``[0, num_ids)`` (None: no upper limit)."""
    ids = check_tensor(value, where)
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise ConfigError(f"{where} must be 1-D int64, got {tuple(ids.shape)} {ids.dtype}")
    if ids.numel():
        _check_range(ids, num_ids, where)
    return ids


def _check_range(ids: Tensor, num_ids: int | None, where: str) -> None:
    # one pass for both; a comparison and `any` would write a mask of all ids, twice
    low, high = (int(limit) for limit in torch.aminmax(ids))
    if low < 0:
        raise ConfigError(f"{where} has the negative id {low}: ids count from 0")
    if num_ids is not None and high >= num_ids:
        raise ConfigError(
            f"{where} has id {high}, but there are {num_ids} nodes (ids 0 to {num_ids - 1}): "
            "fix the ids or set num_nodes"
        )


def check_edge_index(value: Any, num_src: int | None, num_dst: int | None, where: str) -> Tensor:
    """Return ``value`` as int64 where it is ``[2, num_edges]`` integers with all ids in range."""
    edge_index = check_tensor(value, where)
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ConfigError(f"{where} must have shape [2, num_edges], got {tuple(edge_index.shape)}")
    if edge_index.dtype in (torch.int32, torch.int16, torch.int8, torch.uint8):
        edge_index = edge_index.long()
    if edge_index.dtype != torch.int64:
        raise ConfigError(f"{where} must be int64, got {edge_index.dtype}: pass it as .long()")
    for row, num_ids, end in ((0, num_src, "sources"), (1, num_dst, "destinations")):
        # aminmax has no minimum of an empty tensor
        if edge_index.size(1):
            _check_range(edge_index[row], num_ids, f"{where}, row {row} ({end}),")
    return edge_index


def check_matrix(value: Any, num_rows: int, what: str, where: str) -> Tensor:
    """Return ``value`` if it has ``num_rows`` rows; other dimensions are free, 1-D included."""
    matrix = check_tensor(value, where)
    if matrix.dim() == 0 or matrix.size(0) != num_rows:
        raise ConfigError(
            f"{where} must have one row per {what}: {num_rows} expected, "
            f"got shape {tuple(matrix.shape)}"
        )
    return matrix


def check_weights(value: Any, num_edges: int, where: str) -> Tensor:
    """Return ``value`` as ``[num_edges]`` float32 where it is finite and not negative."""
    weights = check_tensor(value, where)
    if weights.numel() != num_edges or weights.dim() not in (1, 2):
        raise ConfigError(
            f"{where} must have one value per edge: {num_edges} expected, "
            f"got shape {tuple(weights.shape)}"
        )
    # [num_edges, 1] is common for `edge_attr` of PyG's datasets. Checked as float32, since a finite
    # float64 may be infinite there.
    weights = weights.reshape(-1).to(torch.float32)
    if not bool(torch.isfinite(weights).all()):
        raise ConfigError(f"{where} has NaN or infinite values: weights must be finite")
    # 0 is allowed: an edge that is never drawn. With negative weights, cumulative weights would not
    # ascend, which the search for a drawn edge relies on.
    if weights.numel() and float(weights.min()) < 0:
        raise ConfigError(f"{where} has the negative value {float(weights.min())}: use 0 or more")
    return weights


def check_mask(value: Any, num_nodes: int, where: str) -> Tensor:
    """Return the ids that a ``[num_nodes]`` bool mask selects, ascending."""
    mask = check_tensor(value, where)
    if mask.dtype != torch.bool:
        raise ConfigError(f"{where} must be bool, got {mask.dtype}")
    if mask.dim() != 1:
        raise ConfigError(
            f"{where} has shape {tuple(mask.shape)}, expected [{num_nodes}]: "
            "with several splits pick one column"
        )
    if mask.numel() != num_nodes:
        raise ConfigError(f"{where} has {mask.numel()} entries for {num_nodes} nodes")
    return mask.nonzero().view(-1)


def check_partitions(num_partitions: Any, partition_idx: Any) -> None:
    """Check a partition count and an index into it."""
    # True is a Python int, and would be partition 1 by accident
    for name, value in (("num_partitions", num_partitions), ("partition_idx", partition_idx)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongTypeError(f"{name} must be an int, got {value!r}")
    if num_partitions < 1:
        raise ConfigError(f"num_partitions must be at least 1, got {num_partitions}")
    if not 0 <= partition_idx < num_partitions:
        raise ConfigError(
            f"partition_idx must be in [0, {num_partitions}) for {num_partitions} partition(s), "
            f"got {partition_idx}"
        )


def check_edge_dir(edge_dir: Any) -> None:
    """Check an edge direction."""
    if edge_dir not in ("in", "out"):
        raise ConfigError(f'edge_dir must be "in" or "out", got {edge_dir!r}')


def check_edge_type(edge_type: Any, where: str) -> EdgeType:
    """Return ``edge_type`` if it consists of three strings."""
    if (
        not isinstance(edge_type, tuple)
        or len(edge_type) != 3
        or not all(isinstance(part, str) for part in edge_type)
    ):
        raise WrongTypeError(
            f"{where}: an edge type is a tuple (source, relation, destination) of strings, "
            f"got {edge_type!r}"
        )
    return edge_type


def warn_of_doubts(
    node_features: Mapping[NodeType, Tensor],
    edge_features: Mapping[EdgeType, Tensor],
    node_labels: Mapping[NodeType, Tensor],
    splits: Splits,
    *further: str,
) -> None:
    """Warn once of what is likely a mistake in a graph: see `doubts`.

    For graphs that are in memory and copied anyway: it reads each value once. Files are not read
    for it; ``gigl-loader diagnose --graph`` does that.

    Args:
        node_features: ``[num_nodes, ...]`` by node type.
        edge_features: ``[num_edges, ...]`` by edge type.
        node_labels: ``[num_nodes, ...]`` by node type.
        splits: Ids by split and node type, ascending.
        further: Doubts that are known already.
    """
    matrices = (("features", node_features), ("features", edge_features), ("labels", node_labels))
    texts = [*further]
    texts += [
        doubts.not_numbers(f"{what} of {name!r}", values.numel(), _not_numbers_by_column(values))
        for what, by_type in matrices
        for name, values in by_type.items()
        if count_not_numbers(values)
    ]
    for node_type, labels in node_labels.items():
        if labels.dtype in (torch.int8, torch.int16, torch.int32, torch.int64) and labels.numel():
            low = labels[(labels < -1) & (labels != doubts.IGNORED_LABEL)]
            if low.numel():
                what = f"labels of {node_type!r}"
                texts.append(doubts.low_labels(what, low.numel(), int(low.min())))
    for one, other in combinations(splits, 2):
        for node_type in sorted(set(splits[one]) & set(splits[other])):
            ids = splits[one][node_type], splits[other][node_type]
            if count := int(torch.isin(*ids, assume_unique=True).sum()):
                texts.append(doubts.overlap(repr(node_type), count, one, other))
    doubts.warn_of(texts)


def _not_numbers_by_column(values: Tensor) -> dict[int | str, int]:
    # a vector is one column; with more dimensions, columns are those of a row laid flat
    columns = values.reshape(values.size(0), -1)
    return dict(enumerate(torch.isnan(columns).sum(0).tolist()))


def count_not_numbers(values: Tensor) -> int:
    """Return how many values are NaN."""
    if values.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return 0
    # One pass without a mask in memory, for all graphs that have none: a minimum of NaN is NaN.
    if not values.numel() or not bool(torch.isnan(torch.aminmax(values).min)):
        return 0
    return int(torch.isnan(values).sum())


def warn_not_carried(reasons: Mapping[str, str], *, stacklevel: int) -> None:
    """Warn that batches will lack something, by name; ``stacklevel``: of the caller to blame."""
    if reasons:
        text = "; ".join(f"{name} ({why})" for name, why in reasons.items())
        # all names in one warning: filters show one warning per line of code
        text = without_default_types(f"batches will not carry: {text}")
        warnings.warn(text, stacklevel=stacklevel + 1)


def check_ownership(owner: Tensor, partition_idx: int, what: str, hint: str) -> None:
    """Check that all of ``owner`` (``[n]``, partitions) is ``partition_idx``."""
    # all of them: the number tells a few stray edges from a wrong direction
    wrong = (owner != partition_idx).nonzero().view(-1)
    if wrong.numel():
        other = int(owner[wrong[0]])
        raise ConfigError(
            f"{what}: {wrong.numel()} of {owner.numel()} belong to other partitions (the one at "
            f"position {int(wrong[0])} to partition {other}, not {partition_idx}); {hint}"
        )
