"""TFRecord files of ``tf.train.Example``, read without TensorFlow.

A record is its length (uint64), a checksum of these 8 bytes, its bytes, a checksum of those; all
little-endian. A checksum is a CRC-32C, rotated and shifted, so that a sum over data that holds sums
stays random. An example is a protocol buffer, a map from names to lists of one kind::

    Example.features = 1    Features.feature = 1 (repeated)    entry: key = 1, value = 2
    value: bytes_list = 1 | float_list = 2 | int64_list = 3    list: value = 1 (repeated)

Source:
    "TFRecord and tf.train.Example" and ``tensorflow/core/example/*.proto`` of TensorFlow;
    "Encoding" of Protocol Buffers; RFC 3720, B.4 (CRC-32C).
"""

import gzip
import zlib
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numba
import numpy as np

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array

_CHUNK_BYTES = 32 * 1024 * 1024
"""Read at a time; more only where a record is larger."""
_CRC_TABLE: Array = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _CRC_TABLE = (_CRC_TABLE >> 1) ^ (np.uint32(0x82F63B78) * (_CRC_TABLE & 1))
_KINDS = ("nothing", "text", "floats", "integers")
_NOTHING, _TEXT, _FLOATS = 0, 1, 2
_VARINT, _BYTES8, _SIZED, _BYTES4 = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""


def read_examples(
    file: Any,
    name: str,
    columns: Sequence[str],
    packed: Container[str] = (),
    optional: Container[str] = (),
) -> Iterator[dict[str, Array]]:
    """Yield the values of some features, chunk by chunk: ``[n, width]`` float32, int64 or uint8.

    Args:
        file: An open file.
        name: Its name; one that ends in ``.gz`` is compressed.
        columns: Names of the features, which every record has.
        packed: Those that are text, whose bytes are the values.
        optional: Those that no record may have; they are left out then.

    Raises:
        ConfigError: A checksum is wrong, the file ends within a record, or a record lacks a feature
            or has values of another kind or number; the message names file and record.
    """
    keys = [column.encode() for column in columns]
    key_ends = np.cumsum([len(key) for key in keys])
    joined = np.frombuffer(b"".join(keys), np.uint8)
    first, shapes = 0, None
    for data, spans in _records(file, name):
        lists = np.zeros((len(keys), spans.shape[1], 3), np.int64)
        bad = _find(data, spans, joined, key_ends, lists)
        if bad >= 0:
            raise ConfigError(f"{name}, record {first + bad} is no tf.train.Example")
        shapes = shapes or [
            (int(found[0, 0]), _decode(data, found[:1], 0, column in packed)[1][0])
            for column, found in zip(columns, lists, strict=True)
        ]
        values = {}
        for column, of_column, (kind, width) in zip(columns, lists, shapes, strict=True):
            out, counts = _decode(data, of_column, width, column in packed)
            wrong = np.flatnonzero((of_column[:, 0] != kind) | (counts != width))
            if column in optional and kind == _NOTHING and not wrong.size:
                continue
            is_expected = kind == _TEXT if column in packed else kind > _TEXT
            if wrong.size or not is_expected or width <= 0:
                row = int(wrong[0]) if wrong.size else 0
                raise ConfigError(
                    f"{name}, record {first + row}: feature {column!r} has {counts[row]} values "
                    f"({_KINDS[of_column[row, 0]]}), the first record has {width} "
                    f"({_KINDS[kind]}): each record must have "
                    + ("one text of as many bytes" if column in packed else "as many numbers")
                    + ", and at least one"
                )
            if kind == _FLOATS:
                out = out.astype(np.uint32).view(np.float32)
            values[column] = out.astype(np.uint8) if column in packed else out
        yield values
        first += spans.shape[1]


def _decode(data: Array, lists: Array, width: int, of_bytes: bool) -> tuple[Array, Array]:
    """Return the first ``width`` numbers of each list, and all counts.

    The numbers of floats are their bits. With ``of_bytes``, each list is one text, whose bytes they
    are.
    """
    out = np.zeros((len(lists), max(width, 0)), np.int64)
    counts = np.zeros(len(lists), np.int64)
    (_copy_text if of_bytes else _fill)(data, lists, out, counts)
    return out, counts


# --- records --------------------------------------------------------------------------------------


def _records(file: Any, name: str) -> Iterator[tuple[Array, Array]]:
    """Yield bytes, and starts and ends of the records in them, ``[2, n]``."""
    # By the name, as TensorFlow's readers are told: a plain file may begin with gzip's two bytes.
    file = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file
    row, rest = 0, b""
    while True:
        try:
            block = file.read(_CHUNK_BYTES)
        except (EOFError, OSError, zlib.error) as error:
            raise ConfigError(f"{name} is damaged after record {row}: {error}") from error
        if not block:
            break
        data = np.frombuffer(rest + block, np.uint8)
        spans, position, is_sound = _scan(data, _CRC_TABLE)
        row += spans.shape[1]
        if not is_sound:
            raise ConfigError(f"{name} is damaged: record {row} has a wrong checksum")
        if spans.size:
            yield data, spans
        rest = data[position:].tobytes()
    if rest:
        raise ConfigError(f"{name} is damaged: it ends within record {row}")


@numba.njit(cache=True, nogil=True)
def _crc(data: Any, start: Any, end: Any, table: Any) -> Any:
    # In 64 bits, which numba's and numpy's rules for mixed types agree on.
    low = np.uint64(0xFFFFFFFF)
    crc = low
    for i in range(start, end):
        crc = np.uint64(table[(crc ^ np.uint64(data[i])) & np.uint64(0xFF)]) ^ (crc >> np.uint64(8))
    crc ^= low
    rotated = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return ((rotated & low) + np.uint64(0xA282EAD8)) & low


@numba.njit(cache=True, nogil=True)
def _number(data: Any, start: Any, size: Any) -> Any:
    number = np.uint64(0)
    for i in range(size):
        number |= np.uint64(data[start + i]) << np.uint64(8 * i)
    return number


@numba.njit(cache=True, nogil=True)
def _scan(data: Any, table: Any) -> Any:
    """Return starts and ends of whole records, where the rest begins, and if all sums are right."""
    spans = np.empty((2, len(data) // 16), np.int64)  # no record is shorter than its frame
    position, count = np.int64(0), 0
    while len(data) - position >= 12:
        if _number(data, position + 8, 4) != _crc(data, position, position + 8, table):
            return spans[:, :count], position, False
        size, start = _number(data, position, 8), position + 12
        if size > np.uint64(len(data)) or start + np.int64(size) + 4 > len(data):
            break
        end = start + np.int64(size)
        if _number(data, end, 4) != _crc(data, start, end, table):
            return spans[:, :count], position, False
        spans[0, count], spans[1, count] = start, end
        position, count = end + 4, count + 1
    return spans[:, :count], position, True


# --- examples -------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _varint(data: Any, position: Any, end: Any) -> Any:
    """Return a number and the position after it; -1: it does not end."""
    value, shift = np.uint64(0), np.uint64(0)
    while position < end and shift < 70:
        byte = np.uint64(data[position])
        value |= (byte & np.uint64(0x7F)) << shift
        position, shift = position + 1, shift + np.uint64(7)
        if byte < 0x80:
            return value, position
    return value, -1


@numba.njit(cache=True, nogil=True)
def _field(data: Any, position: Any, end: Any) -> Any:
    """Return number, wire type, start and end of a field's content; end -1: it is damaged."""
    tag, position = _varint(data, position, end)
    number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
    start, stop = position, -1
    if position < 0:
        return number, wire, start, stop
    if wire == _VARINT:
        _, stop = _varint(data, position, end)
    elif wire == _BYTES8:
        stop = position + 8
    elif wire == _BYTES4:
        stop = position + 4
    elif wire == _SIZED:
        size, start = _varint(data, position, end)
        if start >= 0 and size <= np.uint64(end - start):
            stop = start + np.int64(size)
    return number, wire, start, (stop if stop <= end else -1)


@numba.njit(cache=True, nogil=True)
def _find(data: Any, spans: Any, keys: Any, key_ends: Any, lists: Any) -> Any:
    """Write kind, start and end of each list (kind 0: none) to ``lists[key, record]``.

    Returns the first record that cannot be read, or -1.
    """
    for row in range(spans.shape[1]):
        position, end = spans[0, row], spans[1, row]
        while position < end:
            number, wire, start, position = _field(data, position, end)
            entry = start
            while number == 1 and wire == _SIZED and 0 <= entry < position:
                inner, inner_wire, entry_start, entry = _field(data, entry, position)
                if entry < 0 or inner != 1 or inner_wire != _SIZED:
                    continue
                if not _enter(data, entry_start, entry, keys, key_ends, lists[:, row]):
                    return row
            if position < 0 or entry < 0:
                return row
    return -1


@numba.njit(cache=True, nogil=True)
def _enter(data: Any, position: Any, end: Any, keys: Any, key_ends: Any, lists: Any) -> Any:
    """Note the list of an entry, if it is wanted; return whether it could be read."""
    key_start, key_stop, kind, start, stop = 0, 0, 0, 0, 0
    while position < end:
        number, wire, content, position = _field(data, position, end)
        if position < 0:
            return False
        if number == 1 and wire == _SIZED:
            key_start, key_stop = content, position
        while number == 2 and wire == _SIZED and content < position:
            which, list_wire, list_start, content = _field(data, content, position)
            if content < 0:
                return False
            if 1 <= which <= 3 and list_wire == _SIZED:
                kind, start, stop = which, list_start, content
    first = 0
    for j in range(len(key_ends)):
        same = key_stop - key_start == key_ends[j] - first
        for i in range(key_stop - key_start if same else 0):
            same = same and data[key_start + i] == keys[first + i]
        if same:
            lists[j, 0], lists[j, 1], lists[j, 2] = kind, start, stop
        first = key_ends[j]
    return True


@numba.njit(cache=True, nogil=True)
def _fill(data: Any, lists: Any, out: Any, counts: Any) -> Any:
    """Write numbers to ``out``, as many as there is room for; count all, -1: they are damaged."""
    for row in range(len(lists)):
        kind, position, end = lists[row]
        while position < end:
            _, _, start, position = _field(data, position, end)
            # Several numbers without tags ("packed"), or one; a text is only counted.
            while start < position:
                value = np.uint64(0)
                if kind == _TEXT:
                    start = position
                elif kind == _FLOATS:
                    start += 4
                    if start > position:
                        position = -1
                    else:
                        value = _number(data, start - 4, 4)
                else:
                    value, start = _varint(data, start, position)
                    if start < 0:
                        position = -1
                if position >= 0 and counts[row] < out.shape[1]:
                    out[row, counts[row]] = np.int64(value)
                counts[row] += 1
            if position < 0:
                counts[row] = -1
                break


@numba.njit(cache=True, nogil=True)
def _copy_text(data: Any, lists: Any, out: Any, counts: Any) -> Any:
    """Write bytes to ``out``, as many as there is room for; count all, -1: it is not one text."""
    for row in range(len(lists)):
        _, position, end = lists[row]
        if position >= end:
            continue
        _, _, start, position = _field(data, position, end)
        if position != end:
            counts[row] = -1
            continue
        for i in range(min(position - start, out.shape[1])):
            out[row, i] = data[start + i]
        counts[row] = position - start
