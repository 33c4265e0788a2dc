"""What producers agree on: who may reach their workers, who has which partition, whose turn."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.transport import Mode, Security
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE, SourceOptions
from gigl_loader.sampler.row_cache.machine_cache import name_of_rows
from gigl_loader.sources import staggered_start
from gigl_loader.sources.sampled_input import make_plan
from gigl_loader.sources.staggered_start import LeaderTurns, WorkerTurns
from gigl_loader.sources.workers import agreement, pipe
from gigl_loader.sources.workers.agreement import Agreement
from gigl_loader.sources.workers.rendezvous import StoreRendezvous
from gigl_loader.testing import TinyGraph
from tests.support.conditions import SetConstants
from tests.support.glt import init_worker_group

GOOD_TOKEN = "k9Jr4nQ2-sTgV7wXzB5cYd"
GRAPH = TinyGraph.random(40, 200)
PARTS = [part.view() for part in GRAPH.partitions(2)]
ADDRESSES = [[("127.0.0.1", 1000 + 10 * rank + worker) for worker in (0, 1)] for rank in range(3)]
ON_RANK: list[list[tuple[str, int] | None]] = [[*addresses] for addresses in ADDRESSES]


def _ranks(view: Any, cache: CacheOptions | None = None, takes: Any = None) -> Agreement:
    how = SourceOptions(seed=1, **{"cache": cache, **(takes or {})})
    config = SimpleNamespace(
        num_neighbors=[3, 2], with_edge=False, with_weight=False, collect_features=True
    )
    plan = make_plan(view, SimpleNamespace(input_type=NODE), config, how)
    return Agreement(view, plan, how)


def _together(
    caches: list[CacheOptions | None],
    then: Callable[[Agreement], None] = lambda _: None,
    parts: list[Any] = PARTS,
    on: Any = ON_RANK,
) -> list[Agreement]:
    """Let ranks of this process join and connect, and do ``then``; return them."""
    store = HashStore()

    def start(rank: int) -> Agreement:
        found = _ranks(parts[rank], caches[rank])
        found.join(StoreRendezvous(store, rank, len(parts), 30.0), Security(), lambda: "10.0.0.1")
        found.connect(on[rank])
        then(found)
        found.leave_rendezvous()
        return found

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(start, range(len(parts))))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """This process and its machine, as a test likes them.

    Not a storage server, whatever tests before this one made of this process. Partitions of one
    machine are asked for, as those of another are.
    """
    here = SimpleNamespace(told=[], name_of_rows=name_of_rows)
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    init_worker_group(1, 0, "workers")
    monkeypatch.setattr(agreement, "name_of_rows", lambda view: here.name_of_rows(view))
    return here


# --- access ---------------------------------------------------------------------------------------


def _access(here: SimpleNamespace, own: str, other: str, security: Security) -> Any:
    """Return the access of rank 0, which lives at ``own`` beside a rank at ``other``.

    ``other`` is an address, and after a space which graph the rank there has.
    """
    store, (host, _, graph) = HashStore(), other.partition(" ")
    told = (host, graph, b"")
    found = _ranks(PARTS[0])
    with ThreadPoolExecutor(1) as pool:
        meeting = StoreRendezvous(store, 1, 2, 10.0)
        there = pool.submit(meeting.agree, "host", told, tuple[str, str, bytes])
        try:
            found.join(StoreRendezvous(store, 0, 2, 10.0), security, lambda: own)
            return found.access
        finally:
            here.told = there.result(20)
            found.close()
            meeting.close()


@pytest.mark.parametrize(("own", "listens"), [("10.0.0.1", "127.0.0.1"), ("fd00::1", "::1")])
def test_one_machine_is_not_open_to_others(own, listens, here) -> None:
    """Whatever the address that it has: nothing is asked of the user, nobody else gets in."""
    for security in (Security(), Security.resolve("", GOOD_TOKEN, False)):
        access = _access(here, own, own, security)
        assert access.host == listens
        assert access.security == Security(Mode.USER)


def test_partitions_of_two_runs_do_not_meet(here) -> None:
    """Seen: 25,293 wrong rows, in silence."""
    with pytest.raises(
        ConfigError, match=r"two runs: (process|storage server) 0 has .*, 1 one of other x"
    ):
        _access(here, "10.0.0.1", "10.0.0.2 other x", Security.resolve("", "", True))
    assert PARTS[0].identity is not None
    run = PARTS[0].identity.run
    assert PARTS[1].identity == PARTS[0].identity
    with pytest.raises(ConfigError, match="partitions of two graphs"):
        _access(here, "10.0.0.1", f"10.0.0.2 {run} x", Security.resolve("", "", True))


def test_several_machines_need_one_of_three_ways(here) -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1.*certs.*token.*INSECURE"):
        _access(here, "10.0.0.1", "10.0.0.2", Security())
    with pytest.raises(ConfigError, match="can be guessed"):
        _access(here, "10.0.0.1", "10.0.0.2", Security.resolve("", "aaaa", False))
    tokens = set()
    for security in (
        Security.resolve("", GOOD_TOKEN, False),
        Security.resolve("", GOOD_TOKEN, False),
        Security.resolve("", "", True),
    ):
        access = _access(here, "10.0.0.1", "10.0.0.2", security)
        assert access.host == "10.0.0.1"
        assert access.security.mode is security.mode
        assert GOOD_TOKEN not in access.security.token
        tokens.add(access.security.token)
        assert bool(access.security.throwaway) == (security.mode is Mode.TOKEN)
    assert len(tokens) == 3, "no two jobs have the same, and a plain one has none"


def test_the_secret_depends_on_nonce_and_token(here) -> None:
    access = _access(here, "10.0.0.1", "10.0.0.2", Security.resolve("", GOOD_TOKEN, False))
    (_, _, nonce), _ = here.told
    assert len(nonce) == 32
    expected = hashlib.sha256(GOOD_TOKEN.encode() + nonce).hexdigest()
    assert access.security.token == expected
    assert access.job not in expected


def test_a_partition_alone_is_refused() -> None:
    """It would be sampled as if it were the whole graph, without a word."""
    with pytest.raises(ConfigError, match=r"no process loaded partitions \[0\] of 2"):
        _ranks(PARTS[1]).join(None, Security(), lambda: "127.0.0.1")


# --- workers --------------------------------------------------------------------------------------


def test_before_it_has_joined() -> None:
    ranks = _ranks(PARTS[0])
    assert not ranks.has_peers
    with pytest.raises(UsageError, match="has to `join`"):
        ranks.connect([None])
    ranks.fail(ValueError("nobody hears it"))
    ranks.release_cache()
    ranks.close()


def test_alone_a_worker_is_told_that_it_may_begin() -> None:
    ranks = _ranks(GRAPH.dataset().view())
    ranks.join(None, Security(), lambda: "127.0.0.1")
    ranks.connect([None])
    assert ranks.access is None
    assert not ranks.has_peers
    assert ranks.introduction(1, ranks.assignments()) == (
        (pipe.PEERS, "rank 0 worker 1", None, {}, False, False),
        None,
    )
    assert ranks.remote_bytes == 0
    assert ranks.assignments() == {}
    ranks.wait_for_rank_before("anything")
    ranks.announce("anything")
    ranks.close()


def test_workers_of_two_ranks_ask_each_other() -> None:
    ranks = _together([None, None])
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
        num_rows = len(PARTS[other].node_features[NODE].values)
        view = PARTS[other]
        kinds = (view.node_features, view.node_labels, view.node_attributes)
        row_bytes = sum(rows.values[0].nbytes for kind in kinds for rows in kind.values())
        assert found.remote_bytes == num_rows * row_bytes
        found.close()


def test_who_keeps_rows_has_a_cache_and_looks_ahead_and_who_does_not_has_not() -> None:
    """The others wait for the word of each: also of one that keeps nothing."""
    one, other = _together([CacheOptions(size=0.5), None])
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
    after: Any = (one.cache, one.look_ahead)
    assert after == (None, None)
    assert one.introduction(0, one.assignments())[1] is None
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("keeps", "asks", "one_machine", "remote_bytes", "apart"),
    [
        (True, True, True, 0, True),  # rows are kept where batches are taken
        (True, False, False, 10, False),  # by the workers
        (False, True, False, 10, True),
        (False, True, True, 10, False),
        (False, True, False, 0, False),
        (False, False, False, 10, False),
    ],
)
def test_when_rows_are_asked_for_by_who_takes_the_batches(
    keeps: bool, asks: bool, one_machine: bool, remote_bytes: int, apart: bool
) -> None:
    ranks = _ranks(
        PARTS[0], takes={"cache": CacheOptions(size=0.5) if keeps else None, "asks_for_rows": asks}
    )
    ranks.is_one_machine, ranks.remote_bytes = one_machine, remote_bytes
    assert ranks.rows_apart == apart


def _name_of_cache(here: SimpleNamespace, rows: list[str], size: float = 0.5) -> str:
    """Return what two ranks call the machine's cache, who have ``rows``."""
    here.name_of_rows = lambda view: rows[view.partition_idx]
    ranks = _together([CacheOptions(size=size)] * 2)
    first, second = (one.name_of_cache for one in ranks)
    assert first == second != "", "one for the machine"
    for one in ranks:
        one.release_cache()
        one.close()
    return first


def test_a_cache_is_found_again_for_the_same_rows_of_all_ranks_alone(here) -> None:
    """Else a later loader over another dataset would be served the rows of this one."""
    first = _name_of_cache(here, ["a", "b"])
    assert _name_of_cache(here, ["a", "b"]) == first
    for other in (["a", "c"], ["c", "b"], ["b", "a"], ["", ""]):
        assert first != _name_of_cache(here, other), "whichever rank's rows are others"
    assert first != _name_of_cache(here, ["a", "b"], size=0.25)


def test_the_first_rank_of_a_machine_offers_its_cache_to_those_that_keep_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SAME_MEMORY_VARIABLE)
    offered: list[bytes | None] = [None] * 4
    made: list[int] = []
    elsewhere = [[("10.0.0.2", 1)], *ON_RANK]
    half, quarter = CacheOptions(size=0.5), CacheOptions(size=0.25)

    def share(one: Agreement) -> None:
        def make() -> bytes:
            made.append(one.rank)
            return b"offer"

        offered[one.rank] = one.share_cache(make)

    for caches, on, makes, gets in (
        ([half, half], ON_RANK, [0], [None, True]),
        ([half, quarter], ON_RANK, [0, 1], [None, None]),
        ([None, None], ON_RANK, [], [None, None]),
        ([half, half, quarter, half], elsewhere, [0, 1, 2], [None, None, None, True]),
    ):
        made.clear()
        parts = [PARTS[0], PARTS[1], PARTS[0], PARTS[1]][: len(caches)]
        for one in _together([*caches], share, parts, on):
            one.release_cache()
            one.close()
        assert sorted(made) == makes
        assert [None if one is None else True for one in offered[: len(caches)]] == gets


def test_two_ranks_of_one_partition_are_asked_and_ask_beside_each_other() -> None:
    ranks = _together([None] * 3, parts=[PARTS[0], PARTS[1], PARTS[0]])
    asked = [
        {
            name: [(p, whom.name, whom.port) for p, whom in one.asked.items()]
            for name, one in ranks[rank].assignments().items()
        }
        for rank in (0, 1)
    ]
    ports = ADDRESSES[1]
    assert asked[0] == {
        "rank 0 worker 0": [(1, "rank 1 worker 0", ports[0][1])],
        "rank 0 worker 1": [(1, "rank 1 worker 1", ports[1][1])],
        "rank 2 worker 0": [(1, "rank 1 worker 0", ports[0][1])],
        "rank 2 worker 1": [(1, "rank 1 worker 1", ports[1][1])],
    }
    assert [whom for one in asked[1].values() for _, whom, _ in one] == [
        "rank 0 worker 0",
        "rank 0 worker 1",
    ]
    assert ranks[1].assignments()["rank 1 worker 0"].askers == (
        "rank 0 worker 0",
        "rank 2 worker 0",
    )
    for one in ranks:
        one.close()


def test_partitions_that_no_rank_has_are_named() -> None:
    parts = [part.view() for part in GRAPH.partitions(3)]
    with pytest.raises(ConfigError, match=r"no process loaded partitions \[1, 2\] of 3"):
        _together([None] * 3, parts=[parts[0]] * 3)


# --- turns ----------------------------------------------------------------------------------------


def test_a_long_wait_for_ones_turn_is_said(
    caplog: pytest.LogCaptureFixture, constants: SetConstants
) -> None:
    constants(staggered_start, _LONG_S=0.1)
    for gap_s, level in ((0.1, "WARNING"), (0.01, "INFO")):
        with caplog.at_level("INFO"):
            WorkerTurns(local_rank=1, local_world_size=2, gap_s=gap_s).wait(_waits_for_nobody)
        (told,) = [one for one in caplog.records if "starts its workers" in one.getMessage()]
        assert told.levelname == level
        assert "process_start_gap_seconds=None" in told.getMessage()
        caplog.clear()


def _waits_for_nobody(what: str) -> None:
    pytest.fail(f"waited for {what!r} of the rank before")


def test_a_rank_waits_for_the_one_before_it_and_the_first_for_nobody() -> None:
    waited: list[str] = []
    for rank in range(2):
        WorkerTurns(local_rank=rank, local_world_size=2).wait(waited.append)
    assert waited == ["started"]
    WorkerTurns(local_rank=1, local_world_size=2, gap_s=0.0).wait(_waits_for_nobody)
    assert WorkerTurns(local_world_size=4, gap_s=2.5).total_s == 10.0
    assert WorkerTurns(local_world_size=4).total_s == 0.0


def test_turns_are_checked() -> None:
    for gap_s, most in ((None, None), (0.0, 1), (2.5, 100)):
        WorkerTurns(gap_s=gap_s)
        LeaderTurns(gap_s=gap_s, max_concurrent=most)
    with pytest.raises(ConfigError, match="max_concurrent_producer_inits must be >= 1, got 0"):
        LeaderTurns(max_concurrent=0)
    for turns in (WorkerTurns, LeaderTurns):
        with pytest.raises(
            ConfigError, match="process_start_gap_seconds must be >= 0 or None, got -1"
        ):
            turns(gap_s=-1)


@given(st.integers(0, 20), st.none() | st.floats(0, 10), st.none() | st.integers(1, 5))
def test_leaders_begin_in_batches(position: int, gap: float | None, most: int | None) -> None:
    waited: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Event, "wait", lambda _, seconds: waited.append(seconds))
        LeaderTurns(gap_s=gap, max_concurrent=most).wait(position)
    before = 0 if most is None else position // most
    assert sum(waited) == pytest.approx(before * (gap or 0.0))
    assert len(waited) == (sum(waited) > 0), "the first batch does not wait"
