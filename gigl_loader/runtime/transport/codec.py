"""Objects to bytes and back: a msgpack header for small values, arrays beside it unchanged.

A message is a frozen dataclass: its fields are numbers, strings, bytes, enums, None, tuples,
lists, dicts (also with tuples of strings as keys), further dataclasses, and arrays anywhere among
these. An array leaves its number in the header, and its bytes follow the header, so that they are
never copied into it. The receiver decodes strictly into the type that it expects: a field too many,
one too few, or one of another type is a `ProtocolError`. Nothing that arrives names code to run.

Arrays travel in the machine's own byte order: all machines of a cluster are little-endian.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.transport.failures import one_line

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]

MAX_HEADER_BYTES = 1 << 20
MAX_ARRAYS = 4096
MAX_DIMS = 8
"""A message above these limits is a bug or an attack; it is refused before memory is allocated."""

_DTYPES = tuple(  # the position here is the code on the wire: only append
    np.dtype(name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "bool", "float16", "float32", "float64"),
        *("complex64", "complex128", "uint16", "uint32", "uint64"),
    )
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
ARRAY_EXTENSION = 1  # msgpack's application type for "array number n of this message"


@dataclass(frozen=True, slots=True)
class IncomingArray:
    """Dtype and shape of an array that is about to arrive."""

    dtype: "np.dtype[Any]"
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class _Header(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    method: str
    specs: tuple[tuple[int, tuple[int, ...]], ...]
    body: msgspec.Raw


_headers = msgspec.msgpack.Decoder(_Header)


def encode(value: object, method: str = "") -> tuple[bytes, list[Array]]:
    """Return the header and the contiguous arrays that carry ``value``.

    Args:
        value: A dataclass, or anything that may be a field of one.
        method: Name of the method to call, for a request.

    Raises:
        ProtocolError: ``value`` holds something that cannot travel, or too much of it.
    """
    arrays: list[Array] = []

    def beside(item: object) -> object:
        if isinstance(item, np.generic):  # msgspec does not know numpy's scalars as numbers
            return item.item()
        if not isinstance(item, np.ndarray):
            raise TypeError(f"a {type(item).__name__} cannot travel")
        arrays.append(_sendable(item))
        return msgspec.msgpack.Ext(ARRAY_EXTENSION, (len(arrays) - 1).to_bytes(4, "little"))

    try:
        # The body comes first: encoding it finds the arrays, and the header names their types and
        # shapes. `Raw` puts it into the header unchanged; the other side decodes it separately,
        # once the method has told the type.
        body = msgspec.msgpack.encode(value, enc_hook=beside)
        specs = tuple((_CODES[array.dtype], array.shape) for array in arrays)
        header = msgspec.msgpack.encode(_Header(method, specs, msgspec.Raw(body)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"cannot send this {type(value).__name__}: {error}") from error
    if len(header) > MAX_HEADER_BYTES or len(arrays) > MAX_ARRAYS:
        raise ProtocolError(
            f"cannot send this {type(value).__name__}: {len(header)} bytes beside its "
            f"{len(arrays)} arrays; at most {MAX_HEADER_BYTES} and {MAX_ARRAYS} travel: put long "
            "lists into arrays"
        )
    return header, arrays


def _sendable(array: Array) -> Array:
    if array.dtype not in _CODES or array.ndim > MAX_DIMS:
        raise TypeError(f"an array of {array.dtype} with {array.ndim} dimensions cannot travel")
    # numpy turns an array without dimensions into one with one; the shape must arrive unchanged
    return np.ascontiguousarray(array).reshape(array.shape)


def read_header(data: bytes | bytearray) -> tuple[str, msgspec.Raw, list[IncomingArray]]:
    """Return the method, the body for `decode`, and the arrays' types and shapes.

    Raises:
        ProtocolError: ``data`` is not a header.
    """
    try:
        header = _headers.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        words = one_line(str(error))
        text = f"the received bytes are not a message of this version: {words}"
        raise ProtocolError(text) from error
    return header.method, header.body, [_spec(code, shape) for code, shape in header.specs]


def _spec(code: int, shape: tuple[int, ...]) -> IncomingArray:
    if not 0 <= code < len(_DTYPES) or len(shape) > MAX_DIMS or min(shape, default=0) < 0:
        raise ProtocolError(f"an array was announced with type code {code} and shape {shape}")
    return IncomingArray(_DTYPES[code], shape)


def decode(body: msgspec.Raw, arrays: Sequence[Array], expected: type[T]) -> T:
    """Return the value that `encode` was given, as the type ``expected``.

    Raises:
        ProtocolError: It has another type, or it does not name each of ``arrays`` exactly once.
    """
    # Each array exactly once: two fields that share memory would change together on this side, and
    # an array that no field names was received for nothing.
    missing = set(range(len(arrays)))

    def named(code: int, data: memoryview) -> Array:
        position = int.from_bytes(data, "little")
        if code != ARRAY_EXTENSION or position not in missing:
            raise ValueError(f"array {position} was not sent, or is named twice")
        missing.discard(position)
        return arrays[position]

    try:
        wanted: Any = expected
        decoded = msgspec.msgpack.decode(body, type=analysed(_strict(wanted)), ext_hook=named)
        # converts the strict structs to the caller's dataclasses
        value = msgspec.convert(decoded, analysed(expected), from_attributes=True)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        name = getattr(expected, "__name__", str(expected))
        # msgspec's text has the value where the type's name is wanted
        raise ProtocolError(
            f"the received value is not a {name}: {one_line(str(error))}"
        ) from error
    if missing:
        raise ProtocolError(f"{len(missing)} arrays came that nothing names")
    return value


@functools.lru_cache(maxsize=1024)
def _strict(expected: Any) -> Any:
    """Return ``expected`` with each dataclass replaced by a struct that refuses unknown fields.

    msgspec decodes dataclasses itself, but ignores fields that they lack and fills in defaults for
    those that did not come.
    """
    arguments = typing.get_args(expected)
    origin = typing.get_origin(expected)
    # a generic dataclass with the types of all its variables is checked like any other
    is_filled = origin is not None and not getattr(expected, "__parameters__", ())
    kind = origin if is_filled else expected
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints, given = typing.get_type_hints(kind), getattr(kind, "__parameters__", ())
        forms = dict(zip(given, arguments, strict=False))
        fields = [
            (field.name, _strict(_with_forms(hints[field.name], forms)))
            for field in dataclasses.fields(kind)
        ]
        return msgspec.defstruct(
            kind.__name__, fields, frozen=True, forbid_unknown_fields=True, kw_only=True
        )
    if origin is np.ndarray or not arguments or origin is typing.Literal:
        return np.ndarray if origin is np.ndarray else expected
    strict = tuple(argument if argument is ... else _strict(argument) for argument in arguments)
    if origin in (types.UnionType, typing.Union):
        return typing.Union[strict]  # noqa: UP007  (built from a tuple)
    return origin[strict]


def _with_forms(hint: Any, forms: dict[Any, Any]) -> Any:
    """Return the type of a field of a generic dataclass, given its type variables' values."""
    if isinstance(hint, typing.TypeVar):
        return forms.get(hint, hint)
    open_ones = getattr(hint, "__parameters__", ()) if typing.get_origin(hint) else ()
    return hint[tuple(forms.get(var, var) for var in open_ones)] if open_ones else hint


def empty_arrays(specs: Sequence[IncomingArray]) -> list[Array]:
    """Return fresh memory for ``specs``, which the kernel provides page by page as bytes arrive.

    Raises:
        ProtocolError: There is not enough memory.
    """
    try:
        return [np.empty(spec.shape, spec.dtype) for spec in specs]
    except (MemoryError, ValueError) as error:
        total = sum(spec.nbytes for spec in specs)
        raise ProtocolError(f"no memory for the {total} bytes that were announced") from error


def bytes_of(array: Array) -> memoryview:
    """Return the bytes of a contiguous array as a view, not a copy."""
    return array.reshape(-1).view(np.uint8).data
