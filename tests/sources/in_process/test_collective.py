"""Questions between ranks, in a group of one rank that asks itself; several ranks: test_in_process.

With one rank every exchange takes its whole way: what is sent is packed, and read where it arrived.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import ConfigError, PeerError, PeerTimeoutError, ProtocolError
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.sampler.plan import Draw, DrawRequest, RowsRequest
from gigl_loader.sampler.rows.reader import LocalReader
from gigl_loader.sources.in_process.collective import (
    BROKEN_OFF,
    COMPLETE,
    AnswerFailedError,
    CollectivePeers,
    PieceReader,
    RankFailedError,
    host_backend,
)
from gigl_loader.testing import TinyGraph, as_worker_gets, one_rank

NODE, EDGE = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE
GRAPH = TinyGraph.random(20, 80)
ALL = Draw(EDGE, fanout=-1, key=0, with_edge=True)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CollectivePeers]:
    with one_rank(tmp_path_factory.mktemp("group")):
        found = CollectivePeers(as_worker_gets(GRAPH.dataset().view()), 20.0)
        yield found
        found.close()
        found.close()  # a second time finds nothing to do


@pytest.fixture(autouse=True)
def _at_rest(peers: CollectivePeers) -> Iterator[None]:
    """Each test is a batch of its own, and leaves nothing to ask."""
    yield
    peers.is_broken, peers.on_failure = False, lambda error: None
    peers.agree(0, 0)


def _nodes(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


def test_one_round_answers_all_that_was_asked_before_it(peers: CollectivePeers) -> None:
    nodes = _nodes(3, 17, 3, 0)
    out = np.empty((4, 2), np.float32)
    before = peers.rounds
    drawn = peers.draw(0, DrawRequest(ALL, nodes))
    rows = peers.rows(0, RowsRequest("node_features", NODE, nodes), out)
    again = peers.draw(0, DrawRequest(ALL, _nodes(5)))
    found = drawn.wait()
    assert peers.rounds == before + 1
    expected = LocalReader(as_worker_gets(GRAPH.dataset().view())).answer_draw(
        DrawRequest(ALL, nodes)
    )
    for one, other in (
        (found.counts, expected.counts),
        (found.neighbors, expected.neighbors),
        (found.edge_ids, expected.edge_ids),
    ):
        assert one is not None
        assert other is not None
        assert one.tolist() == other.tolist()
    assert rows.wait().values[:, 0].tolist() == nodes.tolist()
    assert again.wait().counts.size == 1
    assert peers.rounds == before + 1, "these answers came with the first one's"


def test_answers_stay_until_the_batch_is_finished(peers: CollectivePeers) -> None:
    out = np.empty((2, 2), np.float32)
    first = peers.rows(0, RowsRequest("node_features", NODE, _nodes(1, 2)), out).wait().values
    kept = first.copy()
    peers.rows(0, RowsRequest("node_features", NODE, _nodes(8, 9)), out).wait()
    assert first.tolist() == kept.tolist()
    assert not peers.finish(COMPLETE)
    assert peers.finish(BROKEN_OFF), "all ranks broke it off"


def test_rows_of_an_exchange_between_devices_are_announced(peers: CollectivePeers) -> None:
    request = RowsRequest("node_features", NODE, _nodes(4, 6))
    ((found, expected),) = peers.trade([[request, request]], [96])
    assert [one.ids.tolist() for one in found] == [[4, 6], [4, 6]]
    assert expected == 96
    assert peers.rank_of(0) == 0
    assert peers.least(7) == 7
    assert peers.agree(2, 5) == 5


def test_an_answer_that_fails_is_known_before_others_are_told(peers: CollectivePeers) -> None:
    known: list[BaseException] = []
    peers.on_failure = known.append
    call = peers.rows(0, RowsRequest("node_features", NODE, _nodes(99)), np.empty((1, 2)))
    with pytest.raises(AnswerFailedError) as caught:
        call.wait()
    assert known == [caught.value]
    with pytest.raises(AnswerFailedError):
        peers.check(caught.value)
    peers.check(None)


def test_a_rank_that_failed_is_named(monkeypatch, peers: CollectivePeers) -> None:
    state = 3
    monkeypatch.setattr(peers, "_swap_words", lambda _: [[0, state, 1, 5]])
    for meet in (lambda: peers.round(COMPLETE), peers.meet):
        with pytest.raises(RankFailedError, match="rank 5 could not sample"):
            meet()
    assert not peers.is_broken


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("Timed out waiting 20000ms"), PeerTimeoutError, "for 20 s.*`timeout`"),
        (
            RuntimeError("Connection closed by peer"),
            PeerError,
            r"broke: all ranks saw it.*Connection closed",
        ),
        (PeerError("of this package"), PeerError, "^of this package$"),
    ],
)
def test_errors_of_a_group_get_a_cause(
    error: Exception, kind: type, words: str, peers: CollectivePeers
) -> None:
    with pytest.raises(kind, match=words), peers.named_failures():
        raise error
    assert peers.is_broken


def test_a_partition_that_no_rank_holds(tmp_path: Path, peers: CollectivePeers) -> None:
    view = as_worker_gets(GRAPH.partitions(3)[1].view())
    with pytest.raises(
        ConfigError, match=r"no rank loaded partitions \[0, 2\] of 3 \(loaded: \[1\]\)"
    ):
        CollectivePeers(view, 20.0)


@given(
    arrays=st.lists(
        st.sampled_from(["int64", "float32", "uint8"]).flatmap(
            lambda dtype: st.lists(st.integers(0, 200), max_size=9).map(
                lambda values: np.array(values, dtype)
            )
        ),
        max_size=4,
    )
)
def test_what_is_packed_is_read_again_whatever_its_sizes(
    peers: CollectivePeers, arrays: list[np.ndarray]
) -> None:
    questions = [RowsRequest("node_features", NODE, one.astype(np.int64)) for one in arrays]
    ((found, expected),) = peers.trade([questions], [len(arrays)])
    assert [one.ids.tolist() for one in found] == [one.tolist() for one in arrays]
    assert expected == len(arrays)


def test_fewer_bytes_than_were_said() -> None:
    with pytest.raises(ProtocolError, match="16 bytes were expected of another rank, 8 are left"):
        PieceReader(np.zeros(8, np.uint8)).array(np.int64, (2,))


def test_questions_need_a_backend_for_the_cpu(
    backends: Callable[[str], None], torch_says: Callable[..., None]
) -> None:
    backends("cuda:nccl")
    torch_says(is_gloo_available=False)
    with pytest.raises(ConfigError, match=r"\(cuda:nccl\) has no backend .* without gloo"):
        host_backend()
