"""Rows that are read later: by a store that is told so by its peers alone."""

from typing import Any

import numpy as np
import pytest

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.sampler.later import LaterPeers, LaterRows
from gigl_loader.sampler.questions import Draw, DrawRequest, RowsRequest
from gigl_loader.sampler.reader import GraphReader
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
