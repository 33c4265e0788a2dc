"""A hash of a batch: equal where batches are equal, bit for bit, on any machine and device."""

import hashlib
from typing import Any

from torch import Tensor, strided
from torch_geometric.data import Data, HeteroData

from gigl_loader.errors import ConfigError
from gigl_loader.memory.tensors import bytes_of
from gigl_loader.testing._reference import batch_tensors


def batch_digest(batch: Data | HeteroData) -> str:
    """Return the sha256 of all that a batch holds, as 64 hexadecimal digits.

    Names, and of tensors dtype, shape and bytes, count; the order of attributes, the device and
    strides do not. Two batches with one digest are the same bit for bit.

    Args:
        batch: From any loader; attributes may be tensors, numbers, texts, None, and lists, tuples
            and dicts of these.

    Raises:
        ConfigError: An attribute is of another type, or a sparse tensor.
    """
    # a Data and a HeteroData without stores have the same attributes
    found = hashlib.sha256(b"HeteroData" if isinstance(batch, HeteroData) else b"Data")
    for name, value in sorted(batch_tensors(batch).items()):
        _add(found, name, name)
        _add(found, value, name)
    return found.hexdigest()


def _add(found: Any, value: object, where: str) -> None:
    """Feed ``value`` to the hash, its type and length first, so that no two values read alike."""
    if isinstance(value, Tensor):
        if value.layout != strided:
            raise ConfigError(f"batch_digest takes dense tensors: {where} is {value.layout}")
        found.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        # a conjugated or negated view has other bytes than its values
        found.update(bytes_of(value.detach().cpu().resolve_conj().resolve_neg().contiguous()))
    elif isinstance(value, dict):
        found.update(f"dict {len(value)};".encode())
        # by repr: keys of a dict may be of several types, which do not compare
        for name, one in sorted(value.items(), key=lambda item: repr(item[0])):
            _add(found, name, where)
            _add(found, one, where)
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)};".encode())
        for one in value:
            _add(found, one, where)
    # repr of a float tells all its bits
    elif value is None or isinstance(value, bool | int | float | str):
        text = repr(value).encode()
        found.update(f"{type(value).__name__} {len(text)};".encode() + text)
    else:
        raise ConfigError(
            f"batch_digest cannot hash {where}, a {type(value).__name__}: it takes tensors, "
            "numbers, texts, and lists, tuples and dicts of these"
        )
