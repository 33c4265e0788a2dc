"""Rows that are read later, here or elsewhere: what stays, what is described, what is refused."""

import json
from typing import Any

import numpy as np
import pytest

from gigl_loader.batch.message import EDGE as EDGE_IDS
from gigl_loader.batch.message import NODE as NODE_IDS
from gigl_loader.batch.message import ROWS, ROWS_OF, Field
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ProtocolError
from gigl_loader.sampler.plan import Draw, DrawRequest, RowsRequest
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.sampler.rows.row_exchange import (
    LaterPeers,
    LaterRows,
    RowsApart,
    read_rows_apart,
    rows_apart,
)
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets


def test_questions_are_passed_on() -> None:
    views = [part.view() for part in TinyGraph.random(20, 60).partitions(2)]
    peers = InProcessPeers(views)
    ids = np.flatnonzero(as_worker_gets(views[1]).node_books[NODE].owner(np.arange(20)) == 1)[:3]
    draw, rows = DrawRequest(Draw(EDGE, 1, 3), ids), RowsRequest("node_features", NODE, ids)
    out = np.empty((3, 2), np.float32)
    assert LaterPeers(peers).draw(1, draw).wait().counts.size == 3
    assert LaterPeers(peers).rows(1, rows, out).wait().values is out
    assert peers.asked == [(1, draw), (1, rows)]
    assert out[:, 0].tolist() == ids.tolist()


def test_nobody_to_ask_is_said() -> None:
    with pytest.raises(AssertionError, match="has peers to ask"):
        LaterPeers(None).draw(1, DrawRequest(Draw(EDGE, 1, 3), np.arange(1)))


def test_a_store_asks_for_no_row_until_it_is_read() -> None:
    views = [part.view() for part in TinyGraph.random(20, 60).partitions(2)]
    peers, view = InProcessPeers(views), as_worker_gets(views[0])
    store = GraphReader(view, LaterPeers(peers))
    ids = np.array([19, 3, 3, 0, 12])
    split = store.split(view.node_books[NODE], ids)
    fields = {
        kind: store.fetch(kind, NODE, ids, split) for kind in ("node_features", "node_labels")
    }
    assert not peers.asked
    features, labels = (found[2] for found in fields.values())
    assert isinstance(features, LaterRows)
    assert isinstance(labels, LaterRows)
    assert features.ids is labels.ids, "one copy for all matrices of one question"
    assert features.ids is not ids
    ids[:] = 1  # the sampler goes on with its memory
    dtype, shape, write = fields["node_features"]
    write(out := np.empty(shape, dtype))
    assert out[:, 0].tolist() == features.ids.tolist() == [19, 3, 3, 0, 12]
    ((_, request),) = peers.asked
    assert isinstance(request, RowsRequest)
    assert request.kind == "node_features"
    here = GraphReader(as_worker_gets(TinyGraph.random(20, 60).dataset().view()), LaterPeers(None))
    dtype, shape, own = here.fetch("node_features", NODE, np.array([4, 2]), None)
    of: Any = own
    assert (of.split, of.kind, of.name) == (None, "node_features", NODE)
    own(out := np.empty(shape, dtype))
    assert out[:, 0].tolist() == [4, 2]


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
        Field.of(f"user.{NODE_IDS}", users),
        _later("user.x", "node_features", "user", users.copy()),
        _later("user.y", "node_labels", "user", users, width=1),
        Field.of(f"user__to__user.{EDGE_IDS}", edges),
        _later("user__to__user.@when", "edge_attributes", (edge_type, "when"), edges),
    ]
    message = _written(rows_apart(fields))
    assert message.keys() == {f"user.{NODE_IDS}", f"user__to__user.{EDGE_IDS}", ROWS}
    order, rows = read_rows_apart(message[ROWS])
    assert order == [one.key for one in fields], "as if the rows had never been apart"
    assert rows == [
        RowsApart("user.x", "node_features", "user", f"user.{NODE_IDS}", "float32", (2,)),
        RowsApart("user.y", "node_labels", "user", f"user.{NODE_IDS}", "float32", (1,)),
        RowsApart(
            "user__to__user.@when",
            "edge_attributes",
            (edge_type, "when"),
            f"user__to__user.{EDGE_IDS}",
            "float32",
            (2,),
        ),
    ]


@pytest.mark.parametrize("there", [None, [1, 2], [1, 2, 4]])
def test_ids_that_no_tensor_has_come_along_once(there: list[int] | None) -> None:
    """A tensor of that key may be missing, of another length, or of other ids."""
    ids = np.array([1, 2, 3])
    fields = [_later(name, "node_features", "n", ids) for name in ("x", "again")]
    if there is not None:
        fields.insert(0, Field.of(NODE_IDS, np.array(there)))
    message = _written(rows_apart(fields))
    order, rows = read_rows_apart(message[ROWS])
    assert [one.ids for one in rows] == [f"{ROWS_OF}x"] * 2
    assert message[f"{ROWS_OF}x"].tolist() == [1, 2, 3]
    assert ROWS_OF + "x" not in order
    assert f"{ROWS_OF}again" not in message


def test_a_batch_that_lacks_nothing_is_described_too() -> None:
    message = _written(rows_apart([Field.of(NODE_IDS, np.array([3]))]))
    assert read_rows_apart(message[ROWS]) == ([NODE_IDS], [])


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"null",
        b'{"order": []}',
        b'{"order": 3, "rows": []}',
        b'{"order": [], "rows": [[1, 2]]}',
        b'{"order": [], "rows": [["x","k","n","i","f4",3]]}',
        b'{"order": [], "rows": 7}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_description_is_refused(told: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not say which"):
        read_rows_apart(np.frombuffer(told, np.uint8))


def test_names_come_back_as_they_were() -> None:
    name = (("a", "b", "c"), "attr")
    text = json.dumps({"order": [], "rows": [["k", "edge_attributes", name, "i", "int8", []]]})
    _, (row,) = read_rows_apart(np.frombuffer(text.encode(), np.uint8))
    assert (row.name, row.shape) == (name, ())
    assert hash(row.name) == hash(name), "it is a key of what the owner has"
