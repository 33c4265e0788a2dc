"""Keyed random numbers in plain torch operators: bit for bit those of `sampling_kernels`.

torch has no shifts and few other operators for uint64. So here a uint64 is an int64 of the same
bits: sums and products wrap around alike, and bits that a right shift repeats from the sign are
masked.
"""

import torch
from torch import Tensor

from gigl_loader.sampler.kernels.weighted_kernels import LOGARITHM

_BITS = 1 << 64


def signed(value: int) -> int:
    """Return the int64 that has the bits of a uint64."""
    return value - _BITS if value >= _BITS >> 1 else value


_GAMMA = signed(0x9E3779B97F4A7C15)
_MIX_1 = signed(0xBF58476D1CE4E5B9)
_MIX_2 = signed(0x94D049BB133111EB)
_NODE = signed(0xD6E8FEB86659FD93)
_TO_UNIT = 2.0**-53


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Return uint64 ``values`` shifted to the right; torch's own shift repeats the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def mix(values: Tensor) -> Tensor:
    """Return a well-mixed uint64 of each uint64; see `gigl_loader.runtime.compiled.mix`."""
    values = (values ^ _shifted(values, 30)) * _MIX_1
    values = (values ^ _shifted(values, 27)) * _MIX_2
    return values ^ _shifted(values, 31)


def row_keys(keys: Tensor, ids: Tensor) -> Tensor:
    """Return the key of each of ``ids`` (int64) under ``keys``: uint64, of a shape that fits."""
    return mix(mix(ids * _NODE + _GAMMA) ^ keys)


def units(keys: Tensor, counters: Tensor) -> Tensor:
    """Return the ``counters``-th number of each row key, float64, uniform in [0, 1)."""
    # 53 bits are exact in a float64, and so is the product with a power of two.
    return _shifted(mix(keys + (counters + 1) * _GAMMA), 11).double() * _TO_UNIT


def exponentials(uniform: Tensor) -> Tensor:
    """Return ``-log(1 - uniform)`` of `units`: see `weighted_kernels.exponential`.

    One operator per step, so that nothing is fused: not to be compiled.
    """
    log = LOGARITHM
    bits = (1.0 - uniform).view(torch.int64)
    scaled = ((bits & log.fraction) | (log.exponent_of_one << 52)).view(torch.float64)
    large = scaled > log.sqrt_2
    exponent = ((bits >> 52) - log.exponent_of_one + large).double()
    scaled = torch.where(large, scaled * 0.5, scaled)
    ratio = (scaled - 1.0) / (scaled + 1.0)
    square = ratio * ratio
    fourth = square * square
    even = fourth * (log.series[1] + fourth * (log.series[3] + fourth * log.series[5]))
    odd = square * (
        log.series[0] + fourth * (log.series[2] + fourth * (log.series[4] + fourth * log.series[6]))
    )
    fraction = ratio * 2.0 + ratio * (even + odd)
    return -(exponent * log.ln_2_high + (exponent * log.ln_2_low + fraction))
