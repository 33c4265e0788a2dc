"""Questions between workers, packed for the way, are the same when they arrive."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ProtocolError
from gigl_loader.sampler.plan import Draw, Drawn, DrawRequest, RowsRequest, TreesAndTimes
from gigl_loader.sampler.rows.packing import PackedInts

DRAW = Draw(("user", "likes", "item"), 5, 2**64 - 1, with_edge=True, timed=True)
_ints = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20).map(
    lambda values: np.array(values, np.int64)
)
_maybe = st.none() | _ints


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and np.array_equal(one, other)


@given(nodes=_ints, tree=_ints, until=_maybe, since=_maybe, is_asked=st.booleans())
def test_a_question_for_neighbours(nodes, tree, until, since, is_asked: bool) -> None:
    request = DrawRequest(DRAW, nodes, TreesAndTimes(tree, until, since) if is_asked else None)
    found = request.map(PackedInts.of).map(PackedInts.unpack)
    assert found.draw == DRAW
    assert _same(found.nodes, nodes)
    assert (found.trees is None) == (not is_asked)
    if found.trees is not None:
        assert _same(found.trees.tree, tree)
        assert _same(found.trees.until, until)
        assert _same(found.trees.since, since)


@given(counts=_ints, neighbors=_ints, edge_ids=_maybe)
def test_an_answer(counts, neighbors, edge_ids) -> None:
    answer = Drawn(counts, neighbors, edge_ids).map(PackedInts.of)
    found = answer.map(PackedInts.unpack)
    assert _same(found.counts, counts)
    assert _same(found.neighbors, neighbors)
    assert _same(found.edge_ids, edge_ids)
    for part in (answer.counts, answer.neighbors, answer.edge_ids):
        assert part is None or part.nbytes == 8 * part.words.size


def test_small_numbers_travel_in_fewer_bytes() -> None:
    answer = Drawn(np.full(800, 3), np.arange(2400) % 1000 + 10**12, None).map(PackedInts.of)
    assert answer.counts.nbytes + answer.neighbors.nbytes < 8 * 3200 / 4


@given(ids=_ints, attribute=st.none() | st.text(max_size=3), with_scales=st.booleans())
def test_a_question_for_rows(ids, attribute: str | None, with_scales: bool) -> None:
    request = RowsRequest("edge_attributes", ("a", "b", "c"), ids, attribute, with_scales)
    question = request.map(PackedInts.of)
    assert question.with_scales == with_scales
    found = question.map(PackedInts.unpack)
    assert _same(found.ids, ids)
    assert replace(found, ids=ids) == replace(request, ids=ids)


def test_numbers_that_are_not_all_there_are_refused() -> None:
    """Whoever asks may be another version, or nobody of this job."""
    ids = np.arange(1000) ** 2
    rows = RowsRequest("node_features", "a", ids).map(PackedInts.of)
    cut = replace(rows.ids, words=rows.ids.words[:-1])
    asked = TreesAndTimes(ids, ids, ids).map(PackedInts.of)
    draw = DrawRequest(DRAW, ids).map(PackedInts.of)
    answer = Drawn(ids, ids, ids).map(PackedInts.of)
    broken: list[Any] = [
        replace(rows, ids=cut),
        replace(draw, nodes=cut),
        replace(draw, trees=replace(asked, tree=cut)),
        *(replace(asked, **{name: cut}) for name in ("tree", "until", "since")),
        *(replace(answer, **{name: cut}) for name in ("counts", "neighbors", "edge_ids")),
    ]
    for one in broken:
        with pytest.raises(ProtocolError):
            one.map(PackedInts.unpack)
