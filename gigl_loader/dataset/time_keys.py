"""Times as int64 keys of the same order, so that integers and floats are searched by one kernel."""

import numpy as np

from gigl_loader.memory.segments import Array

_LOWEST = np.iinfo(np.int64).min
_SIGN = np.int64(2**63 - 1)


def keys_of(times: Array, *, is_float: bool) -> Array:
    """Return ``[n]`` int64 that compare as ``times`` do.

    Source:
        The bits of an IEEE 754 number, read as an integer, ascend with it where it is positive and
        descend where it is negative.
    """
    if not is_float:
        return times.astype(np.int64, copy=False)
    bits: Array = (times.astype(np.float64) + 0.0).view(np.int64)  # -0.0 equals 0.0
    # all bits but the sign turned round: negative numbers ascend then, and stay below the others
    return np.where(bits < 0, bits ^ _SIGN, bits)


def earlier(times: Array, window: float, *, is_float: bool) -> Array:
    """Return the keys of ``times - window``; integers end at the lowest there is."""
    if is_float:
        return keys_of(times.astype(np.float64) - window, is_float=True)
    found = times.astype(np.int64, copy=False)
    whole = min(int(window), 2**63 - 1)  # integer times within 1.5 are those within 1
    # lifted first: the difference would wrap around to a time in the far future
    return np.maximum(found, _LOWEST + whole) - whole
