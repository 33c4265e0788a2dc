"""Ranks that agree in a store: values, deadlines, failures. Each rank is a thread here."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from gigl_loader.errors import PeerError, PeerTimeoutError, UsageError
from gigl_loader.sources.workers.rendezvous import StoreRendezvous, meet_ranks
from tests.runtime.transport.relay import Relay


@pytest.fixture(params=["file", "tcp"])
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    """Yield a function that returns the store as one rank sees it."""
    if request.param == "file":
        yield lambda rank: FileStore(str(tmp_path / "store"), 3)
        return
    host = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    yield lambda rank: host if rank == 0 else TCPStore("127.0.0.1", host.port, None, False)


def _meet(clients: Callable[[int], Any], size: int, timeout_s: float = 60.0) -> list[Any]:
    stores = [PrefixStore("a loader", clients(rank)) for rank in range(size)]
    return [StoreRendezvous(store, rank, size, timeout_s) for rank, store in enumerate(stores)]


def _at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """Return what each job returned or raised, all run at once."""
    results: list[Any] = [None] * len(jobs)

    def run(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_every_rank_gets_the_values_of_all(clients) -> None:
    ranks = _meet(clients, 3)
    values = [b"", b"\x00\xff\n" * 3, b"x" * 100_000]

    def gather(rank: int) -> tuple[list[bytes], bytes]:
        ranks[rank].publish("key", values[rank])
        return ranks[rank].gather("key", [2, 0, 1]), ranks[rank].wait_for("key", 1)

    for found in _at_once(*(lambda rank=rank: gather(rank) for rank in range(3))):
        assert found == ([values[2], values[0], values[1]], values[1])
    assert ranks[0].gather("nobody's", []) == []
    for one in ranks:
        one.close()


def test_what_all_agree_on_is_gathered_once(clients) -> None:
    """By rank 0: the others ask for one value, however many ranks there are."""
    ranks = _meet(clients, 3)
    values = [b"", b"\x00\xff", b"x" * 100_000]
    asked: list[str] = []

    class Store:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def get(self, name: str) -> bytes:
            asked.append(name)
            return store.get(name)

    store = PrefixStore("a loader", clients(2))
    ranks[2] = StoreRendezvous(Store(), 2, 3, 60.0)  # type: ignore[arg-type]  # a stand-in

    def gather(rank: int) -> list[bytes]:
        return ranks[rank].agree("key", values[rank], bytes)

    assert _at_once(*(lambda rank=rank: gather(rank) for rank in range(3))) == [values] * 3
    assert asked == ["key of all/0"]
    for one in ranks:
        one.close()


def test_who_is_missing_is_said_to_all(clients) -> None:
    ranks = _meet(clients, 3, timeout_s=0.2)

    def gather(rank: int) -> list[bytes]:
        try:
            return ranks[rank].agree("key", b"", bytes)
        except PeerTimeoutError as error:
            ranks[rank].fail(str(error))
            raise

    for error in _at_once(lambda: gather(0), lambda: gather(2)):
        assert isinstance(error, PeerError)
        assert "for 'key' of ranks [1]" in str(error)
    for one in ranks:
        one.close()


def test_many_in_a_row_do_not_mix(clients) -> None:
    stores = [clients(rank) for rank in range(2)]

    def meet(rank: int) -> list[list[bytes]]:
        found = []
        for turn in range(30):
            prefix = PrefixStore(f"loader {turn}", stores[rank])
            meeting = StoreRendezvous(prefix, rank, 2, 60.0)
            meeting.publish("key", b"%d %d" % (turn, rank))
            found.append(meeting.gather("key", [0, 1]))
            meeting.close()
        return found

    expected = [[b"%d 0" % turn, b"%d 1" % turn] for turn in range(30)]
    assert _at_once(lambda: meet(0), lambda: meet(1)) == [expected, expected]


def test_the_last_to_leave_clears_the_table(clients) -> None:
    store = clients(0)
    before = store.num_keys() if isinstance(store, TCPStore) else 0
    ranks = _meet(lambda rank: store, 2)
    for rank, one in enumerate(ranks):
        one.publish("key", b"value")
        ranks[0].wait_for("key", rank)
    ranks[1].fail("no more")
    ranks[0].close()
    assert store.check(["a loader/key/0", "a loader/key/1"]), "rank 1 may still read"
    ranks[1].gather("key", [0, 1])
    ranks[1].close()
    if isinstance(store, TCPStore):
        assert store.num_keys() == before


def test_a_failure_of_one_reaches_all_with_its_words(clients) -> None:
    ranks = _meet(clients, 3)
    ranks[1].publish("early", b"1")

    def fail() -> None:
        ranks[2].wait_for("waits", 0)
        ranks[1].fail("MemoryError: größer")
        ranks[1].fail("a later one")

    def wait() -> bytes:
        ranks[0].publish("waits", b"")
        return ranks[0].wait_for("never", 2)

    failed, _ = _at_once(wait, fail)
    assert isinstance(failed, PeerError)
    assert "rank 1 failed while rank 0 waited for 'never'" in str(failed)
    assert "MemoryError: größer" in str(failed)
    assert ranks[2].wait_for("early", 1) == b"1", "what is there is there"
    for one in ranks:
        one.close()


def test_a_value_is_taken_though_its_rank_fails_at_a_later_step_meanwhile(clients) -> None:
    """It publishes and fails between the look for its value and the look for failures."""
    ranks = _meet(clients, 2)

    class Store:
        def __init__(self) -> None:
            self.looks = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def check(self, names: list[str]) -> bool:
            found = store.check(names)
            self.looks += 1
            if self.looks == 1:
                assert not found
                ranks[1].publish("key", b"there")
                ranks[1].fail("ConfigError: of a later step")
            return found

    store = PrefixStore("a loader", clients(0))
    ranks[0] = StoreRendezvous(Store(), 0, 2, 60.0)  # type: ignore[arg-type]  # a stand-in
    assert ranks[0].gather("key", [1]) == [b"there"]


def test_ranks_that_do_not_come_are_named(clients) -> None:
    ranks = _meet(clients, 3, timeout_s=0.2)
    ranks[1].publish("key", b"")
    with pytest.raises(PeerTimeoutError, match=r"0\.2 s for 'key' of ranks \[0, 2\]"):
        ranks[1].gather("key", range(3))
    for one in ranks:
        one.close()
        one.close()
    with pytest.raises(UsageError, match="closed on rank 1"):
        ranks[1].publish("key", b"")


def test_a_store_that_does_not_answer_or_is_gone() -> None:
    """As when the process that hosts it is stopped, or killed."""
    stuck = threading.Event()

    class Stuck:
        def check(self, keys: list[str]) -> bool:
            stuck.wait()
            return False

        def set(self, key: str, value: bytes) -> None:
            raise RuntimeError("Broken pipe")

        def add(self, key: str, count: int) -> int:
            raise RuntimeError("Broken pipe")

    meeting = StoreRendezvous(Stuck(), 1, 2, 30.0)  # type: ignore[arg-type]  # a stand-in
    with pytest.raises(PeerError, match=r"store is gone for rank 1.*Broken pipe"):
        meeting.publish("key", b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gigl_loader.sources.workers.rendezvous._STORE_ANSWERS_S", 0.1)
        patch.setattr("gigl_loader.sources.workers.rendezvous._LEAVE_S", 0.1)
        meeting = StoreRendezvous(Stuck(), 1, 2, 30.0)  # type: ignore[arg-type]  # a stand-in
        with pytest.raises(PeerTimeoutError, match="is stopped or cut off"):
            meeting.gather("key", [0])
        start = time.monotonic()
        meeting.close()
    assert time.monotonic() - start < 20, "the loader's own limit is 30 s"
    stuck.set()


def test_a_link_that_is_cut_while_ranks_meet_costs_its_length(constants) -> None:
    """Bytes wait while nothing passes, as they do in TCP; and so does who asks."""
    constants("gigl_loader.sources.workers.rendezvous", _STORE_ANSWERS_S=0.05)
    host = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    with Relay(("127.0.0.1", host.port)) as relay:
        address, port = relay.address
        far = TCPStore(address, port, None, False)
        near = StoreRendezvous(host, 0, 2, 60.0)
        patient, hasty = (StoreRendezvous(far, 1, 2, 60.0, outage_s) for outage_s in (60.0, 0.0))
        near.publish("key", b"there")
        relay.cut.set()
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.extend(patient.gather("key", [0])))
        thread.start()
        with pytest.raises(PeerTimeoutError, match=r"within 0\.05 s"):
            hasty.gather("key", [0])
        assert thread.is_alive()
        relay.cut.clear()
        thread.join()
        assert found == [b"there"]


def test_calls_of_the_store_are_made_one_after_another() -> None:
    seen: list[str] = []

    class Noting:
        def set(self, key: str, value: bytes) -> None:
            seen.append(key)

        def add(self, key: str, count: int) -> int:
            return 1

    meeting = StoreRendezvous(Noting(), 1, 2, 30.0)  # type: ignore[arg-type]  # a stand-in
    for number in range(5):
        meeting.publish(f"key {number}", b"")
    assert [key for key in seen if "key" in key] == [*seen[:5]]
    assert [f"key {number}" in key for number, key in enumerate(seen)] == [True] * 5
    meeting.close()


def test_one_process_has_nothing_to_agree_on() -> None:
    assert meet_ranks(1.0) is None
