"""Compiled loops over integers of a few bits each, packed into 64-bit words, least bits first."""

import numpy as np

from gigl_loader.runtime.compiled import jit

_ONE = np.uint64(1)
_WORD_BITS = np.uint64(64)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@jit
def survey(values):
    """Return (least, most, whether they ascend, the widest step) of one or more int64 values."""
    least = most = before = values[0]
    ascending = True
    widest = np.uint64(0)
    for i in range(1, values.shape[0]):
        value = values[i]
        if value < before:
            ascending = False
        else:
            # Unsigned: the distance of two int64 may exceed the largest int64.
            widest = max(widest, np.uint64(value) - np.uint64(before))
        least = min(least, value)
        most = max(most, value)
        before = value
    return least, most, ascending, widest


@jit
def pack(values, first, bits, steps, words):
    """Write ``values - first`` into ``words``, ``bits`` bits each; ``steps``: differences."""
    width = np.uint64(bits)
    filled = np.uint64(0)
    word = np.uint64(0)
    at = 0
    before = first
    for i in range(values.shape[0]):
        # Modulo 2 ** 64, as in `unpack`, which undoes an overflow here.
        number = np.uint64(values[i]) - np.uint64(before)
        if steps:
            before = values[i]
        word |= number << filled
        filled += width
        # The number may extend past the end of the word: its upper bits begin the next one.
        if filled >= _WORD_BITS:
            words[at] = word
            at += 1
            filled -= _WORD_BITS
            word = np.uint64(0)
            # If it ends with the word nothing is left, and a shift by 64 bits is undefined.
            if filled > np.uint64(0):
                word = number >> (width - filled)
    if filled > np.uint64(0):
        words[at] = word


@jit
def unpack(words, first, bits, steps, out):
    """Undo `pack`."""
    # A shift by 64 has no defined result, so 64 bits are a separate case.
    mask = _ALL if bits == 64 else (_ONE << np.uint64(bits)) - _ONE
    before = np.uint64(first)
    for i in range(out.shape[0]):
        position = i * bits
        at = position >> 6
        shift = np.uint64(position & 63)
        number = words[at] >> shift
        # Only then: after the very last number there is no next word.
        if shift + np.uint64(bits) > _WORD_BITS:
            number |= words[at + 1] << (_WORD_BITS - shift)
        value = before + (number & mask)
        out[i] = np.int64(value)
        if steps:
            before = value


@jit
def find_runs(values, starts):
    """Write the starts of runs of equal values; return their number, -1 if they do not fit."""
    num_runs = 0
    for i in range(values.shape[0]):
        if i == 0 or values[i] != values[i - 1]:
            if num_runs == starts.shape[0]:
                return -1
            starts[num_runs] = i
            num_runs += 1
    return num_runs


@jit
def repeat(values, counts, out):
    """Write each value as often as its count says; return whether that fills ``out``."""
    at = 0
    for i in range(values.shape[0]):
        count = counts[i]
        # Compared with the remaining room, not added up: counts of another machine may overflow.
        if count < 0 or count > out.shape[0] - at:
            return False
        for j in range(at, at + count):
            out[j] = values[i]
        at += count
    return at == out.shape[0]


def load() -> None:
    """Call every kernel once: compiles it, or loads it from Numba's cache on disk."""
    values, words = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    survey(values)
    for steps in (False, True):
        pack(values, 0, 1, steps, words)
        unpack(words, 0, 1, steps, values)
    find_runs(values, values.copy())
    repeat(values, values.copy(), values.copy())
