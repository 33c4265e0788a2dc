"""What a producer has agreed on with the other ranks, and tells its workers of it."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from torch._C._distributed_c10d import HashStore

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import UsageError
from gigl_loader.options import CacheOptions, EpochOptions
from gigl_loader.testing import TinyGraph
from gigl_loader.transport import Security
from gigl_loader.workers import agreement, pipe
from gigl_loader.workers.among_ranks import AmongRanks
from gigl_loader.workers.rendezvous import StoreRendezvous
from gigl_loader.workers.sampled_input import make_plan

GRAPH = TinyGraph.random(40, 200)
VIEWS = [part.view() for part in GRAPH.partitions(2)]
ADDRESSES = [[("127.0.0.1", 1000 + 10 * rank + worker) for worker in (0, 1)] for rank in (0, 1)]
ON_RANK: list[list[tuple[str, int] | None]] = [[*addresses] for addresses in ADDRESSES]


def _ranks(view, cache: CacheOptions | None = None, **options) -> AmongRanks:
    how = EpochOptions(seed=1, **options)
    config = SimpleNamespace(
        num_neighbors=[3, 2], with_edge=False, with_weight=False, collect_features=True
    )
    plan = make_plan(view, SimpleNamespace(input_type=NODE), config, how)
    return AmongRanks(view, plan, cache, how)


def _together(monkeypatch: pytest.MonkeyPatch, caches: list[CacheOptions | None]):
    """Let two ranks of this process join and connect; return them."""
    monkeypatch.setattr(agreement, "get_context", lambda: None)
    monkeypatch.setattr(agreement, "address_towards", lambda host: "10.0.0.1")
    store = HashStore()

    def start(rank: int) -> AmongRanks:
        found = _ranks(VIEWS[rank], caches[rank])
        found.join(StoreRendezvous(store, rank, 2, 30.0), Security(), "towards")
        found.connect(ON_RANK[rank])
        found.agreement.settle()
        return found

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(start, (0, 1)))


@pytest.fixture(autouse=True)
def no_memory_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions of one machine be asked for, as those of another are."""
    monkeypatch.setattr(agreement, "reads_same_memory", lambda: False)


def test_before_it_has_joined() -> None:
    ranks = _ranks(VIEWS[0])
    assert not ranks.has_peers
    with pytest.raises(UsageError, match="has to `join`"):
        _ = ranks.agreement
    ranks.fail(ValueError("nobody hears it"))
    ranks.release_cache()
    ranks.close()


def test_alone_a_worker_is_told_that_it_may_begin() -> None:
    ranks = _ranks(GRAPH.dataset().view())
    ranks.join(None, Security(), "127.0.0.1")
    ranks.connect([None])
    assert ranks.access is None
    assert not ranks.has_peers
    assert ranks.introduction(1, ranks.assignments()) == (
        (pipe.PEERS, "rank 0 worker 1", None, {}, False, False), None
    )  # fmt: skip
    assert ranks.remote_bytes == 0
    ranks.close()


def test_workers_of_two_ranks_ask_each_other(monkeypatch) -> None:
    ranks = _together(monkeypatch, [None, None])
    for rank, found in enumerate(ranks):
        assert found.has_peers
        other = 1 - rank
        assignments = found.assignments()
        for worker in (0, 1):
            (kind, name, whom, offers, has_cache, apart), memory = found.introduction(
                worker, assignments
            )
            assert (kind, name) == (pipe.PEERS, f"rank {rank} worker {worker}")
            assert [(p, one.port) for p, one in whom.asked.items()] == [
                (other, ADDRESSES[other][worker][1])
            ]
            assert whom.askers == (f"rank {other} worker {worker}",)
            assert (offers, has_cache, apart, memory) == ({}, False, False, None)
        num_rows = len(VIEWS[other].node_features[NODE].values)
        view = VIEWS[other]
        kinds = (view.node_features, view.node_labels, view.node_attributes)
        row_bytes = sum(rows.values[0].nbytes for kind in kinds for rows in kind.values())
        assert found.remote_bytes == num_rows * row_bytes
        found.close()


def test_who_keeps_rows_has_a_cache_and_looks_ahead_and_who_does_not_has_not(monkeypatch) -> None:
    """The others wait for the word of each: also of one that keeps nothing."""
    one, other = _together(monkeypatch, [CacheOptions(size=0.5), None])
    assert other.cache is None
    assert other.look_ahead is None
    assert one.cache is not None
    assert one.look_ahead is not None
    (*_, has_cache, _), memory = one.introduction(0, one.assignments())
    assert has_cache
    assert memory is not None
    assert memory.cache is one.cache.shared
    assert memory.user == 0
    one.release_cache()
    assert (one.cache, one.look_ahead) == (None, None)
    assert one.introduction(0, one.assignments())[1] is None
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("keeps", "asks", "one_machine", "remote_bytes", "apart"),
    [
        (True, False, True, 0, True),  # rows are kept where batches are taken
        (False, True, False, 10, True),
        (False, True, True, 10, False),
        (False, True, False, 0, False),
        (False, False, False, 10, False),
    ],
)
def test_when_rows_are_asked_for_by_who_takes_the_batches(
    keeps: bool, asks: bool, one_machine: bool, remote_bytes: int, apart: bool
) -> None:
    cache = CacheOptions(size=0.5) if keeps else None
    ranks = _ranks(VIEWS[0], cache=None)
    ranks._epoch_options = SimpleNamespace(cache=cache, asks_for_rows=asks)  # type: ignore[assignment]
    ranks._agreement = SimpleNamespace(is_one_machine=one_machine)  # type: ignore[assignment]
    ranks.remote_bytes = remote_bytes
    assert ranks.rows_apart == apart
