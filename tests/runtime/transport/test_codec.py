import enum
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.transport import codec
from tests.support.draws import examples


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    rows: np.ndarray
    note: str


@dataclass(frozen=True)
class Message:
    big: int
    share: float
    raw: bytes
    colour: Colour
    by_type: dict[tuple[str, str, str], np.ndarray]
    inner: Inner | None
    many: tuple[Inner, ...]
    keywords: dict[str, Any]


ARRAYS = hnp.arrays(
    st.sampled_from(codec._DTYPES), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
)
INNER = st.builds(Inner, ARRAYS, st.text(max_size=20))
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5)
MESSAGES = st.builds(
    Message,
    big=st.integers(-(2**63), 2**64 - 1),
    share=st.floats(allow_nan=False),
    raw=st.binary(max_size=20),
    colour=st.sampled_from(Colour),
    by_type=st.dictionaries(st.tuples(*[st.text(max_size=3)] * 3), ARRAYS, max_size=3),
    inner=st.none() | INNER,
    many=st.lists(INNER, max_size=3).map(tuple),
    keywords=st.dictionaries(st.text(max_size=3), PLAIN | ARRAYS, max_size=3),
)


def there_and_back(value: object, expected: type) -> Any:
    header, arrays = codec.encode(value, "method")
    method, body, specs = codec.read_header(header)
    assert method == "method"
    assert [(spec.dtype, spec.shape, spec.nbytes) for spec in specs] == [
        (array.dtype, array.shape, array.nbytes) for array in arrays
    ]
    return codec.decode(body, arrays, expected)


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, dict):
        assert isinstance(right, dict)
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, tuple):
        assert isinstance(right, tuple)
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Inner | Message):
        return type(left) is type(right) and same(
            tuple(vars(left).values()), tuple(vars(right).values())
        )
    return type(left) is type(right) and left == right


@settings(max_examples=examples(40))
@given(MESSAGES)
def test_what_is_encoded_comes_back(message: Message) -> None:
    assert same(message, there_and_back(message, Message))


def test_arrays_are_not_copied_and_strided_ones_are_made_contiguous() -> None:
    whole = np.arange(10)
    _, (array,) = codec.encode(Inner(whole, ""))
    assert np.shares_memory(array, whole)
    found = there_and_back(Inner(whole[::2], ""), Inner)
    assert found.rows.tolist() == [0, 2, 4, 6, 8]


def test_numpy_numbers_travel_as_numbers() -> None:
    assert there_and_back(np.int64(7), int) == 7


@dataclass(frozen=True)
class Narrow:
    number: int


@dataclass(frozen=True)
class Wide:
    number: int
    more: int = 3


@dataclass(frozen=True)
class Text:
    number: str


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(Wide(1), Narrow), (Narrow(1), Wide), (Text("1"), Narrow), (Narrow(1), Text), (None, Narrow)],
)
def test_fields_must_be_the_expected_ones(sent: object, expected: type) -> None:
    with pytest.raises(ProtocolError, match="is not a"):
        there_and_back(sent, expected)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "a object cannot travel"),
        (1 << 64, "cannot send"),
        (Inner(np.array(["text"]), ""), "cannot travel"),
        (Inner(np.array([1], ">i8"), ""), "cannot travel"),
        (["x" * 1000] * 2000, "put long lists into arrays"),
        ([np.zeros(1)] * 5000, "5000 arrays"),
    ],
)
def test_what_cannot_travel_is_refused_by_the_sender(value: object, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        codec.encode(value)


@pytest.mark.parametrize("arrays", [[], [np.zeros(2)] * 3])
def test_arrays_must_be_the_ones_that_are_named(arrays: list[np.ndarray]) -> None:
    header, _ = codec.encode((np.zeros(2), np.ones(2)))
    with pytest.raises(ProtocolError):
        codec.decode(codec.read_header(header)[1], arrays, tuple[np.ndarray, np.ndarray])


def test_an_array_cannot_be_named_twice() -> None:
    body = msgspec.Raw(msgspec.msgpack.encode([msgspec.msgpack.Ext(1, bytes(4))] * 2))
    with pytest.raises(ProtocolError, match="named twice"):
        codec.decode(body, [np.zeros(2)], list[np.ndarray])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_header_are_refused(data: bytes) -> None:
    try:
        _, body, specs = codec.read_header(data)
        codec.decode(body, codec.empty_arrays([s for s in specs if s.nbytes < 1000]), Message)
    except ProtocolError:
        pass


@settings(max_examples=examples(40))
@given(MESSAGES, st.data())
def test_a_changed_byte_is_refused_or_still_of_the_type(
    message: Message, data: st.DataObject
) -> None:
    header, arrays = codec.encode(message)
    at = data.draw(st.integers(0, len(header) - 1))
    changed = header[:at] + bytes([data.draw(st.integers(0, 255))]) + header[at + 1 :]
    try:
        found = codec.decode(codec.read_header(changed)[1], arrays, Message)
    except ProtocolError:
        return
    assert isinstance(found, Message)


@pytest.mark.parametrize("deep", [b"\x91" * 100_000, b"\x81\xa1x" * 100_000])
def test_deep_nesting_is_refused(deep: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(msgspec.Raw(deep), [], dict[str, Any])


def test_more_memory_than_there_is_is_refused() -> None:
    spec = codec.IncomingArray(np.dtype("uint8"), (1 << 62,))
    with pytest.raises(ProtocolError, match="no memory"):
        codec.empty_arrays([spec])
