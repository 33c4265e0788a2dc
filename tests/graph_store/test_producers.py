"""A loader's producers on several servers: all or none, released once, and named alike by ranks."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.errors import PeerError, PeerTimeoutError, ServerDiedError, UsageError
from gigl_loader.graph_store.client import producers
from gigl_loader.graph_store.client.producers import RemoteProducers, name_of_recovery
from gigl_loader.graph_store.wire import membership
from gigl_loader.graph_store.wire.requests import NOBODY, Runs
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.batch_source import LINGER_S
from gigl_loader.testing import wait_until

OPTIONS = SourceOptions(seed=1, timeout_s=0.1)


def _done(result: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


class _Link:
    def __init__(self, rank: int) -> None:
        self.rank, self.name = rank, f"storage server {rank}"
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answer: Any = None

    def call(self, name: str, **arguments: Any) -> "Future[Any]":
        self.calls.append((name, arguments))
        return _done(self.answer)


class _Cluster:
    """Three servers; what they are asked by `call_server` is answered as the test says."""

    def __init__(self, patch: pytest.MonkeyPatch | None = None) -> None:
        self.connections = {rank: _Link(rank) for rank in range(3)}
        self.met: dict[int, _Link] = {}
        """Connections that are made when they are asked for."""
        self.num_servers, self.closed = 3, False
        self.renewals: dict[int, Any] = {}
        self.rank, self.job, self.incarnations = 0, 0, (5, 5, 5)
        self.asked: list[tuple[int, str, tuple, dict]] = []
        self.answers: dict[tuple[int, str], Any] = {}
        if patch is not None:
            patch.setattr(producers, "call_server", self._call_server)
            patch.setattr(producers, "_PING_S", 0.05)

    def connection(self, rank: int) -> _Link:
        return self.met.get(rank) or self.connections[rank]

    def _call_server(
        self, server: int, func: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        name = func.__name__
        self.asked.append((server, name, args, kwargs))
        answer = self.answers.get((server, name), 10 + server)
        return answer if isinstance(answer, Future) else _done(answer)


def _made(cluster: Any, active: tuple[int, ...] = (0, 1, 2)) -> RemoteProducers:
    given_input: Any = "input"
    return RemoteProducers(cluster, given_input, "config", None, active)


def create(*_: Any) -> None:
    """What the servers are asked to call."""


def _create(one: RemoteProducers, servers: tuple[int, ...] = (0, 1, 2)) -> None:
    call: Any = create
    one.create(call, "options", [4, 6], OPTIONS, "request", servers)


def _ended(cluster: _Cluster) -> dict[int, list[tuple[str, dict[str, Any]]]]:
    return {
        connection.rank: connection.calls
        for connection in cluster.connections.values()
        if connection.calls
    }


# --- creation -------------------------------------------------------------------------------------


def test_a_start_that_takes_long_says_for_whom_it_waits(monkeypatch, constants, caplog) -> None:
    """Workers that compile, or load: half a minute in which a trainer showed nothing."""
    constants(membership, _FIRST_REPORT_S=0.01)
    cluster = _Cluster(monkeypatch)
    late: Future[Any] = Future()
    cluster.answers[2, "create"] = late

    def answers() -> None:
        wait_until(lambda: caplog.records, "it has said for whom it waits")
        late.set_result(12)

    answer = threading.Thread(target=answers)
    answer.start()
    options = SourceOptions(seed=1, timeout_s=60.0)
    call: Any = create
    _made(cluster).create(call, "options", [4, 6], options, "request", (0, 1, 2))
    answer.join()
    said = "compute process 0 has waited 0 s for storage servers [2] to start their workers"
    assert [record.getMessage()[: len(said)] for record in caplog.records] == [said], "one, a pause"


def test_each_server_is_asked_for_its_shard(monkeypatch) -> None:
    cluster = _Cluster(monkeypatch)
    one = _made(cluster, active=(2, 0))
    _create(one)
    assert dict(one.ids) == {0: 10, 1: 11, 2: 12}
    assert [server for server, *_ in cluster.asked] == [0, 1, 2]
    for server, name, args, how in cluster.asked:
        assert (name, args) == ("create", ("input", "config", "options", None))
        request = how["request"]
        assert request.shard == {2: 0, 0: 1, 1: None}[server], "1 has no input, and samples none"
        assert (request.num_shards, list(request.client_ranks)) == (2, [4, 6])
        assert (request.request_id, request.servers) == ("request", NOBODY), "all take part"


def test_shards_stay_where_some_servers_do_not_take_part(monkeypatch) -> None:
    cluster = _Cluster(monkeypatch)
    one = _made(cluster)
    _create(one, servers=(0, 2))
    assert dict(one.ids) == {0: 10, 2: 12}
    requests = {server: how["request"] for server, _, _, how in cluster.asked}
    assert {server: request.shard for server, request in requests.items()} == {0: 0, 2: 2}
    assert {tuple(request.servers) for request in requests.values()} == {(0, 2)}
    assert one.request(1, [], OPTIONS).servers == NOBODY, "of no server in particular"


def test_where_one_fails_none_is_left(monkeypatch) -> None:
    """Those that are up are ended, and one that comes up later, too."""
    cluster = _Cluster(monkeypatch)
    late: Future[Any] = Future()
    failed = PeerError("a worker died")
    cluster.answers = {(1, "create"): failed, (2, "create"): late}
    one = _made(cluster)
    with pytest.raises(PeerError) as caught:
        _create(one)
    assert caught.value is failed
    assert dict(one.ids) == {}
    end = ("destroy_sampling_producer", {"producer_id": 10, "linger_s": 0.0})
    assert _ended(cluster) == {0: [end]}
    before = len(cluster.asked)
    late.set_result(12)
    server, name, args, how = cluster.asked[before]
    assert (server, name, args, how) == (2, "destroy_sampling_producer", (12,), {"linger_s": 0.0})


def test_a_lost_server_is_not_waited_for_by_waiting_for_the_others(monkeypatch) -> None:
    cluster = _Cluster(monkeypatch)
    waits: Future[Any] = Future()
    cluster.answers = {(0, "create"): waits, (2, "create"): ServerDiedError("2 is gone")}
    options = SourceOptions(seed=1, timeout_s=600.0)
    one = _made(cluster)
    call: Any = create
    with pytest.raises(ServerDiedError, match="2 is gone"):
        one.create(call, "options", [0], options, "request", (0, 1, 2))
    assert [name for _, name, *_ in cluster.asked] == ["create"] * 3, "nobody is pinged"
    waits.set_exception(ServerDiedError("0 is gone, too"))
    assert len(cluster.asked) == 3, "there is nothing to end"


def test_a_stopped_server_is_named(monkeypatch) -> None:
    cluster = _Cluster(monkeypatch)
    cluster.answers = {
        (0, "create"): Future(),
        (1, "create"): Future(),
        (1, "ping"): Future(),
        (0, "ping"): 1234,
    }
    with pytest.raises(PeerTimeoutError) as caught:
        _create(_made(cluster))
    assert "storage server 1 did not start a producer within 0 s" in str(caught.value)
    assert "storage server 0" not in str(caught.value), "it lives, and waits for the other one"


# --- release --------------------------------------------------------------------------------------


def test_a_share_is_released_once_where_it_was_used() -> None:
    """Of a server that was never asked the host tells: its connection is not made for that."""
    cluster = _Cluster()
    one = _made(cluster)
    one.adopt({0: 10, 1: 11, 2: 12})
    del cluster.connections[0], cluster.connections[1]
    first, second = _Link(0), _Link(1)
    cluster.met = {0: first, 1: second}
    for _ in range(2):
        one.release(3, is_broken=False)
    asked = ("release_sampling_producer", {"producer_id": 10, "consumer": 3, "linger_s": LINGER_S})
    assert first.calls == [asked], "the host, where the servers agreed on the producer"
    assert second.calls == []
    assert [arguments["producer_id"] for _, arguments in cluster.connections[2].calls] == [12]
    assert dict(one.ids) == {}


def test_workers_end_at_once_after_a_failure() -> None:
    cluster = _Cluster()
    one = _made(cluster)
    one.adopt({0: 10})
    one.release(0, is_broken=True, waits=False)
    ((_, arguments),) = cluster.connections[0].calls
    assert arguments["linger_s"] == 0.0


def test_a_server_that_was_started_again_is_not_asked() -> None:
    """Its producer of that number is another loader's."""
    cluster = _Cluster()
    cluster.renewals = {1: 1}
    one = _made(cluster)
    one.adopt({0: 10, 1: 11})
    assert one.replaced == []
    cluster.renewals = {1: 2, 2: 1}
    assert one.replaced == [1], "2 takes no part"
    one.release(0, is_broken=False)
    assert list(_ended(cluster)) == [0]


@pytest.mark.parametrize("error", [ServerDiedError("gone"), UsageError("it was destroyed")])
@pytest.mark.parametrize(("is_broken", "level"), [(False, "WARNING"), (True, "DEBUG")])
def test_a_release_never_raises(error, is_broken: bool, level: str, caplog) -> None:
    caplog.set_level(logging.DEBUG, producers.__name__)
    cluster = _Cluster()
    cluster.connections[0].answer = error
    one = _made(cluster)
    one.adopt({0: 10, 1: 11})
    one.release(0, is_broken=is_broken)
    assert list(_ended(cluster)) == [0, 1]
    assert [record.levelname for record in caplog.records] == [level]
    caplog.clear()
    cluster.closed = True
    one.adopt({0: 10})
    one.release(0, is_broken=is_broken)
    assert caplog.messages == [], "whoever left the cluster has no producers there"


# --- names ----------------------------------------------------------------------------------------


def test_sharers_name_a_recovery_alike_and_no_two_recoveries_have_one_name() -> None:
    def name(key: str | None = "key", live=(0, 2), attempt: int = 0, **cluster: Any) -> str:
        known: Any = SimpleNamespace(**{"rank": 0, "job": 1, "incarnations": (5, 6, 7), **cluster})
        return name_of_recovery(key, known, Runs.of(live), attempt)

    assert name() == name(rank=1), "each comes to it alone"
    others = [
        name("other"),
        name(live=(0, 1, 2)),
        name(attempt=1),
        name(job=2),
        name(incarnations=(5, 6, 8)),
        name(None),
        name(None, rank=1),
    ]
    assert len({name(), *others}) == 1 + len(others)
