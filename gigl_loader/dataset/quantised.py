"""Quantized features: how columns of float32 become integers or short floats, and back.

::

    stored = round((x - least) / scale) + lowest        least, scale: of the column
    x'     = stored * scale + offset                    offset = least - lowest * scale

`float16` and `bfloat16` are stored as they round; batches have float32 again either way.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, NodeType
from gigl_loader.errors import ConfigError

DTYPES = ("int8", "uint8", "float16", "bfloat16")
FeatureDtype = str | torch.dtype | Mapping[NodeType, str | torch.dtype]
"""A name among `DTYPES`, or torch's own, for the features of all node types, or by type."""

# Steps between the 256 values of a byte.
_LEVELS = 255
# Rows that are float64 at a time, so that a matrix is not held in eight bytes a number.
_ROWS = 1 << 16


def quantise(values: Tensor, dtype: str, where: str) -> tuple[Tensor, Tensor]:
    """Return features as they are stored, and what gives them back.

    An integer column is off by at most half of its scale, 1/510 of its range, and the rounding of
    float32; a column of one value is exact.

    Args:
        values: ``[num_rows, ...]`` floating point, finite.
        dtype: One of `DTYPES`.
        where: Whose features, for errors.

    Returns:
        (``[num_rows, ...]`` of that type, ``[2, ...]`` float32: scale and offset of each column;
        ``[0]`` of a short float, which has none).

    Raises:
        ConfigError: They are not floating point, not finite, or too large to be given back.
    """
    if not values.is_floating_point():
        raise ConfigError(f"{where} are {values.dtype}, and stored as they are: no feature_dtype")
    kind = getattr(torch, dtype)
    if not bool(torch.isfinite(values).all()):
        raise ConfigError(f"{where} are not finite: they cannot be stored as {dtype}")
    if kind.is_floating_point:
        stored = values.to(kind)
        if not bool(torch.isfinite(stored).all()):
            hint = ": store bfloat16" if dtype == "float16" else ""
            raise ConfigError(f"{where} have values above what {dtype} holds{hint}")
        return stored, torch.empty(0)
    if values.size(0) == 0:
        return values.to(kind), torch.zeros((2, *values.shape[1:]))
    lowest = torch.iinfo(kind).min
    # float64: most - least of two float32 may be infinite, or lose what small ranges consist of
    least, most = (limit.double() for limit in torch.aminmax(values, dim=0))
    scale = (most - least) / _LEVELS
    scales = torch.stack([scale, least - lowest * scale]).float()
    # both ends as `widened` will compute them, in float32
    ends = [level * scales[0] + scales[1] for level in (lowest, lowest + _LEVELS)]
    if not bool(torch.isfinite(torch.stack(ends)).all()):  # batches would have infinities
        raise ConfigError(f"{where} have values too far apart for {dtype} and float32: scale them")
    stored = torch.empty(values.shape, dtype=kind)
    # a column of one value: no division by zero, and all of its levels are the lowest
    steps = torch.where(scale > 0, scale, 1.0)
    for start in range(0, values.size(0), _ROWS):
        rows = values[start : start + _ROWS].double()
        # a level past the last, by rounding, would wrap around in 8 bits
        levels = ((rows - least) / steps).round().clamp(0, _LEVELS) + lowest
        stored[start : start + _ROWS] = levels.to(kind)
    return stored, scales


def widened(stored: Tensor, scales: Tensor | None) -> Tensor:
    """Return features as float32 on the device that they are on; None: as they are."""
    if scales is None:
        return stored
    values = stored.to(torch.float32)
    if scales.numel():
        scale, offset = scales.to(values.device)
        # in place: `stored.to` made a copy already
        values.mul_(scale).add_(offset)
    return values


def check_feature_dtype(
    feature_dtype: FeatureDtype | None, features: Mapping[NodeType, Any]
) -> dict[NodeType, str]:
    """Return by node type how features are to be stored; types that are not named stay.

    Raises:
        ConfigError: A type has no features, or a dtype is not one of `DTYPES`.
    """
    if feature_dtype is None:
        return {}
    if not isinstance(feature_dtype, Mapping):
        # types that have features: the others have nothing to be stored
        feature_dtype = dict.fromkeys(features, feature_dtype)
    chosen = {
        node_type: str(dtype).removeprefix("torch.") for node_type, dtype in feature_dtype.items()
    }
    for node_type, dtype in chosen.items():
        if node_type not in features:
            known = [name for name in features if name != DEFAULT_HOMOGENEOUS_NODE_TYPE]
            raise ConfigError(
                f"feature_dtype names {node_type!r}, of which there are no features; "
                + (f"there are of {known}" if known else "give one name, such as 'int8'")
            )
        if dtype not in DTYPES:
            raise ConfigError(f"feature_dtype must be one of {DTYPES}, got {dtype!r}")
    return chosen
