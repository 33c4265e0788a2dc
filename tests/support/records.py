"""TFRecords of `tf.train.Example`, encoded by hand."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def _crc(data: bytes) -> int:
    """Return the masked CRC-32C of TFRecord, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """Return a record of a TFRecord file."""
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", _crc(size)) + data + struct.pack("<I", _crc(data))


def sized(number: int, content: bytes) -> bytes:
    """Return a field of Protocol Buffers with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Return a number of Protocol Buffers."""
    value, out = value % 2**64, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def example(**lists: bytes) -> bytes:
    """Return an example of encoded lists; ``a=b"..."``: content of the value message."""
    entries = [sized(1, sized(1, name.encode()) + sized(2, value)) for name, value in lists.items()]
    return sized(1, b"".join(entries))


def ints(*values: int, packed: bool = True) -> bytes:
    """Return the content of a value with integers."""
    if packed:
        return sized(3, sized(1, b"".join(map(varint, values))))
    return sized(3, b"".join(b"\x08" + varint(value) for value in values))


def floats(*values: float, packed: bool = True) -> bytes:
    """Return the content of a value with floats."""
    raw = [struct.pack("<f", value) for value in values]
    return sized(2, sized(1, b"".join(raw)) if packed else b"".join(b"\x0d" + r for r in raw))


def texts(*values: bytes) -> bytes:
    """Return the content of a value with texts."""
    return sized(1, b"".join(sized(1, value) for value in values))


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows: an int, bytes, a float or a list of floats by the name of its feature."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b""
    for row in rows:
        content += record(example(**{name: _encoded(value) for name, value in row.items()}))
    path.write_bytes(content)


def _encoded(value: Any) -> bytes:
    if isinstance(value, int):
        return ints(value)
    if isinstance(value, bytes):
        return texts(value)
    return floats(*(value if isinstance(value, list) else [value]))
