"""What producers agree on: who may reach their workers, and which partitions there are."""

import dataclasses
import hashlib
import secrets
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from gigl_loader.errors import ConfigError
from gigl_loader.testing import TinyGraph
from gigl_loader.transport import Mode, Security
from gigl_loader.workers import agreement
from gigl_loader.workers.agreement import Agreement, StartTurns, _by_partition, _Member
from gigl_loader.workers.rendezvous import StoreRendezvous

VIEWS = [part.view() for part in TinyGraph.random(20, 60).partitions(2)]
GOOD_TOKEN = "k9Jr4nQ2-sTgV7wXzB5cYd"


def _access(own: str, other: str, security: Security, monkeypatch: pytest.MonkeyPatch):
    """Return the access of rank 0, which lives at ``own`` beside a rank at ``other``."""
    monkeypatch.setattr(agreement, "address_towards", lambda host: own)
    meeting = StoreRendezvous(HashStore(), 0, 2, 10.0)
    meeting._store.set("host/1", other)
    found = Agreement(VIEWS[0], meeting, security, "towards")
    try:
        return found.access()
    finally:
        found.close()


@pytest.mark.parametrize(("own", "listens"), [("10.0.0.1", "127.0.0.1"), ("fd00::1", "::1")])
def test_one_machine_is_not_open_to_others(own, listens, monkeypatch) -> None:
    """Whatever the address that it has: nothing is asked of the user, nobody else gets in."""
    for security in (Security(), Security.resolve("", GOOD_TOKEN, False)):
        access = _access(own, own, security, monkeypatch)
        assert access.host == listens
        assert access.security == Security(Mode.USER)


def test_partitions_of_two_runs_do_not_meet(monkeypatch) -> None:
    """Seen: 25,293 wrong rows, in silence."""
    with pytest.raises(
        ConfigError, match=r"two runs: (process|storage server) 0 has .*, 1 one of other x"
    ):
        _access("10.0.0.1", "10.0.0.2 other x", Security.resolve("", "", True), monkeypatch)
    assert VIEWS[0].identity is not None
    run = VIEWS[0].identity.run
    assert VIEWS[1].identity == VIEWS[0].identity
    with pytest.raises(ConfigError, match="partitions of two graphs"):
        _access("10.0.0.1", f"10.0.0.2 {run} x", Security.resolve("", "", True), monkeypatch)


def test_several_machines_need_one_of_three_ways(monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1.*certs.*token.*INSECURE"):
        _access("10.0.0.1", "10.0.0.2", Security(), monkeypatch)
    with pytest.raises(ConfigError, match="can be guessed"):
        _access("10.0.0.1", "10.0.0.2", Security.resolve("", "aaaa", False), monkeypatch)
    tokens = set()
    for security in (
        Security.resolve("", GOOD_TOKEN, False),
        Security.resolve("", GOOD_TOKEN, False),
        Security.resolve("", "", True),
    ):
        access = _access("10.0.0.1", "10.0.0.2", security, monkeypatch)
        assert access.host == "10.0.0.1"
        assert access.security.mode is security.mode
        assert GOOD_TOKEN not in access.security.token
        tokens.add(access.security.token)
        assert bool(access.security.throwaway) == (security.mode is Mode.TOKEN)
    assert len(tokens) == 3, "no two jobs have the same, and a plain one has none"


def test_the_secret_depends_on_nonce_and_token(monkeypatch) -> None:
    monkeypatch.setattr(secrets, "token_bytes", lambda count: b"n" * count)
    access = _access("10.0.0.1", "10.0.0.2", Security.resolve("", GOOD_TOKEN, False), monkeypatch)
    expected = hashlib.sha256(GOOD_TOKEN.encode() + b"n" * 32).hexdigest()
    assert access.security.token == expected
    assert access.job not in expected


@pytest.fixture
def process(monkeypatch) -> None:
    """Not a storage server, whatever tests before this one made of this process."""
    monkeypatch.setattr(agreement, "get_context", lambda: None)


@pytest.mark.usefixtures("process")
def test_a_partition_alone_is_refused() -> None:
    """It would be sampled as if it were the whole graph, without a word."""
    with pytest.raises(ConfigError, match=r"no process loaded partitions \[0\] of 2"):
        Agreement(VIEWS[1], None, Security(), "127.0.0.1")
    whole = Agreement(TinyGraph.random(9, 20).dataset().view(), None, Security(), "127.0.0.1")
    assert whole.access() is None
    assert whole.exchange([None]).assignments() == {}
    whole.wait_for_rank_before("anything")
    whole.announce("anything")
    whole.close()


def _names_of_cache(rows: list[str], kept: str = "1GB") -> list[str]:
    """Return what each of two ranks calls the machine's cache, who have ``rows``."""
    store, found = HashStore(), ["", ""]

    def meet(rank: int) -> None:
        meeting = StoreRendezvous(store, rank, 2, 60.0)
        one = Agreement(VIEWS[rank], meeting, Security(), "towards")
        one.exchange([("127.0.0.1", 5000 + rank)], kept, rows[rank])
        found[rank] = one.name_of_cache
        one.close()

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "" not in found
    return found


@pytest.mark.usefixtures("process")
def test_a_cache_is_found_again_for_the_same_rows_of_all_ranks_alone() -> None:
    """Else a later loader over another dataset would be served the rows of this one."""
    first, second = _names_of_cache(["a", "b"])
    assert first == second, "one for the machine"
    assert _names_of_cache(["a", "b"]) == [first] * 2
    for other in (["a", "c"], ["c", "b"], ["b", "a"], ["", ""]):
        assert first not in _names_of_cache(other), "whichever rank's rows are others"
    assert first not in _names_of_cache(["a", "b"], kept="2GB")


@pytest.mark.usefixtures("process")
def test_workers_by_partition() -> None:
    member = _Member(0, "a", (1, 2), None)
    found = _by_partition([member, dataclasses.replace(member, partition=1), member], 2)
    assert [worker.name for worker in found[0]] == [
        "rank 0 worker 0", "rank 0 worker 1", "rank 2 worker 0", "rank 2 worker 1",
    ]  # fmt: skip
    assert [(worker.host, worker.port) for worker in found[1]] == [("a", 1), ("a", 2)]
    with pytest.raises(ConfigError, match=r"no process loaded partitions \[1, 2\] of 3"):
        _by_partition([member], 3)


# --- turns ----------------------------------------------------------------------------------------


def test_a_long_wait_for_ones_turn_is_said(caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    monkeypatch.setattr(threading.Event, "wait", lambda *_: True)
    for gap_s, level in ((60.0, "WARNING"), (1.0, "INFO")):
        with caplog.at_level("INFO"):
            StartTurns(local_rank=1, local_world_size=2, gap_s=gap_s).wait(_waits_for_nobody)
        (told,) = [one for one in caplog.records if "starts its workers" in one.getMessage()]
        assert told.levelname == level
        assert "process_start_gap_seconds=None" in told.getMessage()
        caplog.clear()


def _waits_for_nobody(what: str) -> None:
    pytest.fail(f"waited for {what!r} of the rank before")


def test_a_rank_waits_for_the_one_before_it_and_the_first_for_nobody() -> None:
    waited: list[str] = []
    for rank in range(2):
        StartTurns(local_rank=rank, local_world_size=2).wait(waited.append)
    assert waited == ["started"]
    StartTurns(local_rank=1, local_world_size=2, gap_s=0.0).wait(_waits_for_nobody)
    assert StartTurns(local_world_size=4, gap_s=2.5).total_s == 10.0
    assert StartTurns(local_world_size=4).total_s == 0.0


def test_turns_are_checked() -> None:
    for gap_s, most in ((None, None), (0.0, 1), (2.5, 100)):
        StartTurns(gap_s=gap_s, max_concurrent=most)
    with pytest.raises(ConfigError, match="max_concurrent_producer_inits must be >= 1, got 0"):
        StartTurns(max_concurrent=0)
    with pytest.raises(ConfigError, match="process_start_gap_seconds must be >= 0 or None, got -1"):
        StartTurns(gap_s=-1)


@given(st.integers(0, 20), st.none() | st.floats(0, 10), st.none() | st.integers(1, 5))
def test_leaders_begin_in_batches(position: int, gap: float | None, most: int | None) -> None:
    waited: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Event, "wait", lambda _, seconds: waited.append(seconds))
        StartTurns(gap_s=gap, max_concurrent=most).wait_as_leader(position)
    before = 0 if most is None else position // most
    assert sum(waited) == pytest.approx(before * (gap or 0.0))
    assert len(waited) == (sum(waited) > 0), "the first batch does not wait"
