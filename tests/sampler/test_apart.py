"""Batches without rows: what stays, what is described, and what of another machine is refused."""

import json

import numpy as np
import pytest

from gigl_loader.errors import ProtocolError
from gigl_loader.message import EDGE, NODE, ROWS, ROWS_OF, Field
from gigl_loader.sampler.apart import RowsApart, read_rows_apart, rows_apart
from gigl_loader.sampler.later import LaterRows


def _later(key: str, kind: str, name: object, ids: np.ndarray, width: int = 2) -> Field:
    def read(out: np.ndarray) -> None:
        raise AssertionError("who gets the batch reads them")

    return Field(key, "float32", (ids.size, width), LaterRows(kind, name, ids, None, read))


def _written(fields: list[Field]) -> dict[str, np.ndarray]:
    found = {}
    for field in fields:
        field.write(out := np.empty(field.shape, field.dtype))
        found[field.key] = out
    return found


def test_ids_that_are_in_the_batch_do_not_travel_twice() -> None:
    users, edges = np.array([4, 0, 9]), np.array([7, 7])
    edge_type = ("user", "to", "user")
    fields = [
        Field.of(f"user.{NODE}", users),
        _later("user.x", "node_features", "user", users.copy()),
        _later("user.y", "node_labels", "user", users, width=1),
        Field.of(f"user__to__user.{EDGE}", edges),
        _later("user__to__user.@when", "edge_attributes", (edge_type, "when"), edges),
    ]
    message = _written(rows_apart(fields))
    assert message.keys() == {f"user.{NODE}", f"user__to__user.{EDGE}", ROWS}
    order, rows = read_rows_apart(message[ROWS])
    assert order == [one.key for one in fields], "as if the rows had never been apart"
    assert rows == [
        RowsApart("user.x", "node_features", "user", f"user.{NODE}", "float32", (2,)),
        RowsApart("user.y", "node_labels", "user", f"user.{NODE}", "float32", (1,)),
        RowsApart("user__to__user.@when", "edge_attributes", (edge_type, "when"),
                  f"user__to__user.{EDGE}", "float32", (2,)),
    ]  # fmt: skip


@pytest.mark.parametrize("there", [None, [1, 2], [1, 2, 4]])
def test_ids_that_no_tensor_has_come_along_once(there: list[int] | None) -> None:
    """A tensor of that key may be missing, of another length, or of other ids."""
    ids = np.array([1, 2, 3])
    fields = [_later(name, "node_features", "n", ids) for name in ("x", "again")]
    if there is not None:
        fields.insert(0, Field.of(NODE, np.array(there)))
    message = _written(rows_apart(fields))
    order, rows = read_rows_apart(message[ROWS])
    assert [one.ids for one in rows] == [f"{ROWS_OF}x"] * 2
    assert message[f"{ROWS_OF}x"].tolist() == [1, 2, 3]
    assert ROWS_OF + "x" not in order
    assert f"{ROWS_OF}again" not in message


def test_a_batch_that_lacks_nothing_is_described_too() -> None:
    message = _written(rows_apart([Field.of(NODE, np.array([3]))]))
    assert read_rows_apart(message[ROWS]) == ([NODE], [])


@pytest.mark.parametrize(
    "told",
    [
        b"", b"\xff\xfe", b"[]", b"3", b"null", b'{"order": []}', b'{"order": 3, "rows": []}',
        b'{"order": [], "rows": [[1, 2]]}', b'{"order": [], "rows": [["x","k","n","i","f4",3]]}',
        b'{"order": [], "rows": 7}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_description_is_refused(told: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not say which"):
        read_rows_apart(np.frombuffer(told, np.uint8))


def test_names_come_back_as_they_were() -> None:
    name = (("a", "b", "c"), "attr")
    text = json.dumps({"order": [], "rows": [["k", "edge_attributes", name, "i", "int8", []]]})
    _, (row,) = read_rows_apart(np.frombuffer(text.encode(), np.uint8))
    assert (row.name, row.shape) == (name, ())
    assert hash(row.name) == hash(name), "it is a key of what the owner has"
