"""Training, validation and test nodes of a PyG graph, in each form that they come in."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.partition.checks import check_ids, check_mask, check_tensor
from gigl_loader.dataset.schema import SPLITS, NodeType, Split
from gigl_loader.errors import ConfigError

_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val", "valid"),
    "test": ("test",),
}
"""How PyG and OGB name each split."""
SPLIT_DICT = "split_idx"
"""What scripts for OGB call the dict that ``get_idx_split`` returns."""


def split_ids(
    store: Any, num_nodes: int, where: str, by_name: Mapping[str, Any] | None = None
) -> dict[Split, Tensor]:
    """Return the ids of each split that the nodes of ``store`` name, ascending.

    A split is a bool mask or a tensor of ids: ``train_mask``, ``train_idx``, or the entry of a dict
    ``split_idx``; ``val`` may be called ``valid``.

    Args:
        store: A store of nodes of a PyG graph.
        num_nodes: Its number of nodes.
        where: Its name in errors.
        by_name: Its part of the ``split_idx`` of a `HeteroData`.

    Raises:
        ConfigError: A split is malformed, or is given twice and differs.
    """
    splits: dict[Split, Tensor] = {}
    said: dict[Split, str] = {}
    for split, name, value in _given_splits(store, where, by_name):
        ids = _read(value, num_nodes, name)
        if split in splits and not torch.equal(splits[split], ids):
            raise ConfigError(f"{said[split]} and {name} name different nodes: give one of them")
        splits[split], said[split] = ids, name
    return splits


def by_type_of(data: Any) -> dict[NodeType, dict[str, Any]]:
    """Return a `HeteroData`'s own ``split_idx``, by node type first; empty if it has none."""
    given = data._global_store.get(SPLIT_DICT)
    splits: dict[NodeType, dict[str, Any]] = {}
    for name, by_type in given.items() if is_split_dict(given) else ():
        if not isinstance(by_type, Mapping) or not set(by_type) <= set(data.node_types):
            raise ConfigError(
                f"data.{SPLIT_DICT}[{name!r}] must be ids by node type, with some of "
                f"{sorted(data.node_types)}"
            )
        for node_type, ids in by_type.items():
            splits.setdefault(node_type, {})[name] = ids
    return splits


def is_split_dict(value: Any) -> bool:
    """Return whether ``value`` is a dict of splits, as of OGB."""
    names = {name for names in _NAMES.values() for name in names}
    return isinstance(value, Mapping) and bool(value) and set(value) <= names


def is_read_as_split(name: str, value: Any) -> bool:
    """Return whether an attribute of nodes is only a split: batches do not carry it."""
    if name == SPLIT_DICT:
        return is_split_dict(value)
    kinds = {
        f"{prefix}_{kind}"
        for names in _NAMES.values()
        for prefix in names
        for kind in ("mask", "idx")
    }
    # A mask has a row for each node, and batches carry it as every other attribute.
    return name in kinds and not is_mask(value)


def is_mask(value: Any) -> bool:
    """Return whether ``value`` holds bools, or two columns of something; both have a row per node.

    Ids are integers in one row.
    """
    if not isinstance(value, Tensor | np.ndarray):
        return False
    return "bool" in str(value.dtype) or value.ndim != 1


def names_of(split: Split) -> str:
    """Return the attributes that a split is read from, for messages."""
    return f"{split}_mask, {split}_idx or {SPLIT_DICT}"


def _given_splits(
    store: Any, where: str, by_name: Mapping[str, Any] | None
) -> Iterator[tuple[Split, str, Any]]:
    """Yield each (split, name of its attribute, value) that is there."""
    split_dict = store.get(SPLIT_DICT)
    if by_name and split_dict is not None:
        raise ConfigError(f"{where}.{SPLIT_DICT} and data.{SPLIT_DICT}: give one of them")
    by_name = by_name or (split_dict if is_split_dict(split_dict) else {})
    for split in SPLITS:
        for name in _NAMES[split]:
            for attribute in (f"{name}_mask", f"{name}_idx"):
                if store.get(attribute) is not None:
                    yield split, f"{where}.{attribute}", store[attribute]
            if by_name.get(name) is not None:
                yield split, f"{where}.{SPLIT_DICT}[{name!r}]", by_name[name]


def _read(value: Any, num_nodes: int, where: str) -> Tensor:
    tensor = check_tensor(value, where)
    if is_mask(tensor):
        return check_mask(tensor, num_nodes, where)
    if tensor.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"{where} must be bool, or int64 ids of nodes, got {tensor.dtype}")
    ids = check_ids(tensor.long(), num_nodes, where)
    ascending: Tensor = torch.unique(ids)  # a copy: the user may write to the tensor later
    # Also a mask of zeros and ones.
    if ascending.numel() < ids.numel():
        raise ConfigError(
            f"{where} must be bool, one for each of the {num_nodes} nodes, or ids, each node once"
        )
    return ascending
