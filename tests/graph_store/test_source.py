"""A loader's side of a graph store, around servers that do what the test says."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader.batch.message import Attempt, BatchTicket, Received
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    PeerError,
    SamplingError,
    ServerDiedError,
    UsageError,
)
from gigl_loader.graph_store.client import remote_source as module
from gigl_loader.graph_store.client.producers import Outcome, RemoteProducers
from gigl_loader.graph_store.client.remote_source import RemoteSource
from gigl_loader.graph_store.client.server_outages import MOST_RETURNS, ServerOutages
from gigl_loader.graph_store.wire.requests import ByServer
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.staggered_start import LeaderTurns, WorkerTurns
from tests.support.conditions import SetConstants
from tests.support.glt import NodeSamplerInput

pytestmark = pytest.mark.waits

BATCH_SIZE, NUM_SERVERS = 2, 4
OPTIONS = SourceOptions(seed=1, timeout_s=5.0, reconnect_timeout_s=0.2)


class _Cluster:
    """Servers 0 to 3 of two partitions: 0 and 2 are replicas, and so are 1 and 3."""

    def __init__(self) -> None:
        self.num_servers = NUM_SERVERS
        self.rank, self.world_size, self.job = 0, 1, 0
        self.incarnations = (1,) * NUM_SERVERS
        self.renewals: dict[int, Any] = {}
        self.lost: list[int] = []
        self.closed = False
        self.made: list[_Producers] = []
        self.opened: list[_Channel] = []
        self.events: deque[Callable[[], None]] = deque()
        """What happens before the next batch is handed out."""
        self.in_hand: deque[Callable[[], None]] = deque()
        """What happens once a batch is taken from the channel, before the source has it."""
        self.at_once: deque[Callable[[], None]] = deque()
        """What happens before a batch at once is answered."""

    def connection(self, server: int) -> "_Connection":
        return _Connection(self, server)

    def await_servers(self, outages: ServerOutages, wanted: Sequence[int] = ()) -> list[int]:
        if outages.restless is not None:
            raise ServerDiedError(f"server {outages.restless} came back too often")
        live = [rank for rank in range(NUM_SERVERS) if rank not in self.lost]
        if len({rank % 2 for rank in live}) < 2:
            raise ServerDiedError("a partition has no server")
        return live

    def replica_of(self, server: int, servers: Sequence[int]) -> int | None:
        return next((one for one in servers if one % 2 == server % 2), None)


class _Connection:
    """Answers a batch at once with the server, its producer, and the seeds that were asked for."""

    def __init__(self, cluster: _Cluster, server: int) -> None:
        self._cluster, self._server = cluster, server

    def call(self, name: str, limit_s: float, **asked: Any) -> "Future[Any]":
        answer: Future[Any] = Future()
        try:
            if self._cluster.at_once:
                self._cluster.at_once.popleft()()
            producer = torch.tensor([self._server, asked["producer_id"]])
            answer.set_result({"made by": producer, "seeds": asked["index"]})
        except GiglLoaderError as error:
            answer.set_exception(error)
        return answer


class _Producers(RemoteProducers):
    """Notes what the servers are asked for, and asks nobody."""

    replaced: Any = ()

    def __init__(self, cluster: Any, *args: Any) -> None:
        super().__init__(cluster, *args)
        self.created: list[tuple[str | None, list[int]]] = []
        self.ranks: list[int] = []
        self.released: list[dict[str, Any]] = []
        self.errors: deque[Exception] = deque()
        cluster.made.append(self)

    def create(
        self, create: Any, options: Any, ranks: Any, source_options: Any, name: str, servers: Any
    ) -> None:
        self.ranks = list(ranks)
        self.adopt(dict.fromkeys(servers, 0))
        if self.errors:
            raise self.errors.popleft()
        self.created.append((options.worker_key, list(servers)))
        self.ids = {server: 10 * len(self.created) + server for server in servers}
        self.replaced = ()

    def release(self, consumer: int, **how: Any) -> None:
        self.ids = ByServer()
        self.released.append(how)


class _Channel:
    """Hands batches out in order; before the next one it does what the cluster's events are."""

    def __init__(
        self, servers: Sequence[int], ids: dict[int, int], *_: Any, cluster: _Cluster, **__: Any
    ) -> None:
        self.servers, self.ids, self.rows_apart = list(servers), dict(ids), False
        self.left: deque[tuple[tuple[int, int], int]] = deque()
        self.cancelled = self.closed = False
        self.events, self.in_hand = cluster.events, cluster.in_hand
        cluster.opened.append(self)

    def start_epoch(
        self, attempt: Attempt, batches: list[tuple[int, int]], positions: list[int]
    ) -> None:
        self.attempt, self.left = attempt, deque(zip(batches, positions, strict=True))

    def next(self, timeout_s: float | None = None) -> Received | None:
        if self.events:
            self.events.popleft()()
        if self.closed:
            raise UsageError("the channel is closed: the loader was shut down")
        if not self.left:
            return None
        (number, batch), position = self.left.popleft()
        if self.in_hand:
            self.in_hand.popleft()()
        ticket = BatchTicket(0, self.attempt.serial, self.attempt.epoch, batch, position)
        return Received(ticket, {}, {"server": self.servers[number]})

    def cancel(self) -> None:
        self.cancelled = True
        self.left.clear()

    def close(self) -> None:
        self.closed = True

    def ready(self) -> bool:
        return bool(self.left)

    @property
    def queue_depth(self) -> int:
        return len(self.left)


@pytest.fixture
def cluster(take_part: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    one = _Cluster()
    take_part(one)
    for stands_in, name in ((_Producers, "RemoteProducers"), (_Channel, "RemoteReceivingChannel")):
        monkeypatch.setattr(module, name, stands_in)
    return one


def _inputs(*counts: int) -> list[NodeSamplerInput]:
    return [NodeSamplerInput(torch.arange(count), None) for count in counts]


def _source(
    counts: tuple[int, ...] = (8, 8, 8, 8), servers: Any = (0, 1, 2, 3), **changes: Any
) -> RemoteSource:
    config = SimpleNamespace(batch_size=BATCH_SIZE, drop_last=False, seed=None)
    options = SimpleNamespace(
        server_rank=list(servers), worker_key=changes.pop("key", None), prefetch_size=2
    )
    how = {"shard": "machine", "source_options": OPTIONS, **changes}
    return RemoteSource(lambda: 0, None, _inputs(*counts), config, options, None, **how)


def _created(cluster: _Cluster, **how: Any) -> tuple[RemoteSource, _Producers]:
    source = _source(**how)
    source.open(WorkerTurns())
    return source, cluster.made[-1]


def _epoch(source: RemoteSource, batches: list[int] | None = None) -> list[tuple[int, int]]:
    """Return (index within this process's share, server) of each batch of an epoch."""
    wanted = list(range(source.num_batches)) if batches is None else batches
    positions = range(3, 3 + 5 * len(wanted), 5)  # of the loader, and no count of the source's
    source.start_epoch(Attempt(7, 1), wanted, positions)
    found = []
    while (received := source.next()) is not None:
        assert received.ticket.attempt == Attempt(7, 1)
        index = wanted[positions.index(received.ticket.position)]
        found.append((index, received.stats["server"]))
    return found


# --- construction ---------------------------------------------------------------------------------


def test_each_server_has_to_have_an_input(cluster) -> None:
    with pytest.raises(ConfigError, match="one input per storage server: got 2 for servers"):
        _source(counts=(8, 8))
    with pytest.raises(ConfigError, match="must name all 4 storage servers"):
        _source(counts=(8, 8), servers=(0, 1))
    with pytest.raises(ConfigError, match="must name all 4 storage servers"):
        _source(servers=(0, 1, 2, 2))


def test_a_leader_waits_for_its_turn_before_it_asks(cluster) -> None:
    asked: list[tuple[int, int]] = []

    class Turns(LeaderTurns):
        def wait(self, position: int) -> None:
            asked.append((position, len(producers.created)))

    source = _source(turns=Turns(gap_s=1.0, max_concurrent=1))
    (producers,) = cluster.made
    source.open(WorkerTurns())
    assert asked == [(0, 0)]
    assert len(producers.created) == 1


def test_the_callers_options_are_left_as_they_are(cluster) -> None:
    config = SimpleNamespace(batch_size=BATCH_SIZE, drop_last=False, seed=None)
    options = SimpleNamespace(server_rank=[0, 1, 2, 3], worker_key="mine", prefetch_size=2)
    source = RemoteSource(lambda: 0, None, _inputs(8, 8, 8, 8), config, options, None, OPTIONS)
    assert source.input_len == 32
    source.open(WorkerTurns())
    _loses(cluster, 1)
    assert len(_epoch(source)) == 16, "with producers of another name, after the loss"
    assert (options.server_rank, options.worker_key) == ([0, 1, 2, 3], "mine")


def test_before_producers_are_created_there_is_nothing_to_take(cluster) -> None:
    source = _source()
    with pytest.raises(UsageError, match="its producers were not created"):
        source.next()
    assert source.count_waiting() == 0
    source.cancel_epoch()
    source.shutdown()


# --- epochs ---------------------------------------------------------------------------------------


def test_batches_are_dealt_to_servers_in_turn(cluster) -> None:
    source, producers = _created(cluster)
    assert producers.created == [(None, [0, 1, 2, 3])]
    assert source.num_batches == 16
    assert _epoch(source) == [(batch, batch % 4) for batch in range(16)]
    assert _epoch(source, [5, 0, 3]) == [(5, 1), (0, 0), (3, 3)], "in the order that was asked for"


def test_servers_without_input_sample_nothing(cluster) -> None:
    source, _ = _created(cluster, counts=(8, 0, 8, 0))
    assert _epoch(source) == [(batch, 2 * (batch % 2)) for batch in range(8)]


def test_batches_that_repeat_are_each_handed_out(cluster) -> None:
    source, _ = _created(cluster)
    assert _epoch(source, [2, 2, 1]) == [(2, 2), (2, 2), (1, 1)]


# --- servers that are lost ------------------------------------------------------------------------


def _loses(cluster: _Cluster, *servers: int, error: GiglLoaderError | None = None) -> None:
    """Let servers be lost before the next batch."""

    def lose() -> None:
        cluster.lost = list(servers)
        raise error or ServerDiedError(f"storage servers {servers} are gone")

    cluster.events.append(lose)


def _skip(cluster: _Cluster, count: int) -> None:
    cluster.events.extend([lambda: None] * count)


def _said_of_replicas(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "replicas sample" in text]


def test_a_replica_samples_what_is_left_of_the_epoch(cluster, caplog) -> None:
    source, producers = _created(cluster)
    _skip(cluster, 5)
    _loses(cluster, 1)
    found = _epoch(source)
    assert [batch for batch, _ in found] == list(range(16)), "each once, in the order of the epoch"
    assert found[:5] == [(batch, batch % 4) for batch in range(5)]
    assert found[5:] == [(batch, 3 if batch % 4 == 1 else batch % 4) for batch in range(5, 16)]
    (_, first), (name, second) = producers.created
    assert (first, second) == ([0, 1, 2, 3], [0, 2, 3])
    assert name is not None, "the key of before has a producer that is ending"
    assert producers.released == [{"is_broken": True, "waits": False}]
    former, channel = cluster.opened
    assert former.cancelled
    assert former.closed
    assert channel.ids == {0: 20, 2: 22, 3: 23}
    told = "storage servers [1] are lost; their replicas sample for them"
    assert _said_of_replicas(caplog) == [told]


def test_a_server_that_is_back_takes_part_in_the_next_epoch(cluster) -> None:
    source, producers = _created(cluster)
    _loses(cluster, 1)
    assert len(_epoch(source)) == 16
    assert producers.created[-1][1] == [0, 2, 3]
    cluster.lost = []
    assert _epoch(source) == [(batch, batch % 4) for batch in range(16)]
    names = [name for name, _ in producers.created]
    assert len(set(names)) == 3, "no two have one name"
    assert [servers for _, servers in producers.created][-1] == [0, 1, 2, 3]


def test_no_two_recoveries_of_one_rank_have_one_name(cluster) -> None:
    """Though the same servers are there: those would answer with the producer of before."""
    source, producers = _created(cluster)
    for _ in range(2):
        _loses(cluster, 1)
    assert len(_epoch(source)) == 16
    names = [name for name, _ in producers.created]
    assert len(set(names)) == len(names) == 3


@pytest.fixture
def two_ranks(cluster, monkeypatch) -> _Cluster:
    """Rank 0 of two ranks that share a worker key; the other one is of the same mind."""

    def decide(value: Any, world_size: int, kind: Any, decide: Any, outcome_kind: Any) -> Any:
        return decide([value, Outcome(None, None) if isinstance(value, Outcome) else value])

    monkeypatch.setattr(module, "decide_with_ranks", decide)
    cluster.world_size = 2
    return cluster


def test_a_second_outage_of_ranks_that_share_a_key_is_survived(two_ranks) -> None:
    """The same servers are there as after the first: those remember that producer as destroyed."""

    def names() -> list[str | None]:
        source, producers = _created(two_ranks, key="shared")
        assert producers.ranks == [0, 1]
        for _ in range(3):
            _skip(two_ranks, 2)
            _loses(two_ranks, 1)
        assert len(_epoch(source)) == 8, "each of the two ranks has half of 16"
        two_ranks.lost = []
        return [name for name, _ in producers.created]

    found = names()
    assert len(set(found)) == len(found) == 4
    assert names() == found, "another rank that sees the same comes to the same names"


def test_a_server_that_was_started_again_gets_a_producer_anew(cluster, caplog) -> None:
    source, producers = _created(cluster)
    assert len(_epoch(source)) == 16
    producers.replaced = [2]
    assert _epoch(source) == [(batch, batch % 4) for batch in range(16)]
    assert len(producers.created) == 2
    assert _said_of_replicas(caplog) == [], "none is needed"


def _is_back_too_late(cluster: _Cluster, producers: _Producers, times: int) -> None:
    """Let a server come back, and be lost again while producers are created, ``times`` times."""
    create, left = producers.create, list(range(times))

    def fail_or_create(*args: Any) -> None:
        if left:
            left.pop()
            cluster.renewals[1] = cluster.renewals.get(1, 0) + 1
            raise ServerDiedError("storage server 1 is gone once more")
        create(*args)

    producers.create = fail_or_create  # type: ignore[assignment]  # put in a method's place


def test_the_limit_holds_for_each_absence_and_not_for_all_of_them(cluster) -> None:
    """Seen: lost after 120 s in sum, with "is back" logged in between."""
    source, producers = _created(cluster)
    _is_back_too_late(cluster, producers, 4)  # a pause as long as the limit is after each
    _loses(cluster, 1)
    assert len(_epoch(source)) == 16
    assert cluster.renewals == {1: 4}


@pytest.mark.parametrize("epochs", [1, MOST_RETURNS])
def test_a_server_that_is_lost_again_and_again_without_a_batch_ends_the_wait(
    cluster, constants: SetConstants, epochs: int
) -> None:
    constants(module, _AGAIN_S=0.0)
    source, producers = _created(cluster, source_options=replace(OPTIONS, reconnect_timeout_s=60.0))
    cluster.renewals[1] = 100  # long ago
    if epochs > 1:  # there were batches in between
        for _ in range(epochs):
            cluster.renewals[1] += 1
            _loses(cluster, 1)
            assert len(_epoch(source)) == 16
    _is_back_too_late(cluster, producers, 1000)
    _loses(cluster, 1)
    before = cluster.renewals[1]
    with pytest.raises(ServerDiedError, match="server 1 came back too often"):
        _epoch(source)
    assert cluster.renewals[1] - before == MOST_RETURNS


def test_batches_of_a_server_whose_replica_does_not_sample_are_dealt_out(cluster) -> None:
    """To all that do; each has the whole input."""
    source, _ = _created(cluster, counts=(8, 8, 0, 8))
    _loses(cluster, 0)
    found = _epoch(source)
    assert [batch for batch, _ in found] == list(range(12))
    assert {server for _, server in found} == {1, 3}


def test_a_partition_that_is_lost_is_the_first_error(cluster) -> None:
    source, producers = _created(cluster)
    _loses(cluster, 1, 3)
    with pytest.raises(ServerDiedError, match=r"storage servers \(1, 3\) are gone") as caught:
        _epoch(source)
    assert "a partition has no server" in str(caught.value.__cause__)
    source.shutdown()
    assert producers.released[-1] == {"is_broken": True}, "workers end at once"


def test_without_time_to_reconnect_a_lost_server_is_an_error(cluster) -> None:
    options = SourceOptions(seed=1, timeout_s=5.0, reconnect_timeout_s=0.0)
    source, producers = _created(cluster, source_options=options)
    _loses(cluster, 1)
    with pytest.raises(ServerDiedError):
        _epoch(source)
    assert len(producers.created) == 1


@pytest.mark.parametrize(
    "error", [PeerError("no memory"), SamplingError("worker 0", "ValueError: no")]
)
def test_a_failure_of_a_server_that_is_there_is_raised(cluster, error: GiglLoaderError) -> None:
    source, producers = _created(cluster)
    _loses(cluster, error=error)
    with pytest.raises(type(error)) as caught:
        _epoch(source)
    assert caught.value is error
    assert len(producers.created) == 1
    source.shutdown()
    assert producers.released == [{"is_broken": not isinstance(error, SamplingError)}]


@pytest.mark.parametrize(
    "error",
    [
        SamplingError("worker 0", "PeerLostError: server 1 is gone"),
        UsageError("producer 10 of storage server 1 never existed"),
    ],
)
def test_what_comes_of_a_lost_server_is_recovered_from(cluster, error: GiglLoaderError) -> None:
    """A worker that asked it, or a server that was started again, may be heard of first."""
    source, producers = _created(cluster)
    _loses(cluster, 1, error=error)
    assert len(_epoch(source)) == 16
    assert len(producers.created) == 2


def test_producers_that_could_not_be_created_for_a_lost_server_are_created_again(cluster) -> None:
    source = _source()
    (producers,) = cluster.made
    cluster.lost = [1]
    producers.errors.append(ServerDiedError("storage server 1 is gone"))
    source.open(WorkerTurns())
    ((name, servers),) = producers.created
    assert servers == [0, 2, 3]
    assert name is not None
    failed = _source()
    producers = cluster.made[-1]
    producers.errors.append(PeerError("no memory"))
    with pytest.raises(PeerError, match="no memory"):
        failed.open(WorkerTurns())
    assert producers.released == [{"is_broken": True}]


# --- end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("linger", "is_broken"), [(None, False), (30.0, False), (0.0, True)])
def test_a_shutdown_releases_the_producers(cluster, linger: float | None, is_broken: bool) -> None:
    source, producers = _created(cluster)
    _epoch(source)
    source.shutdown(linger)
    (channel,) = cluster.opened
    assert channel.cancelled
    assert channel.closed
    assert producers.released == [{"is_broken": is_broken}]


# --- one thread takes the epoch, another asks for batches at once ---------------------------------

WAIT_S = 60.0
"""Most seconds for what another thread does."""


def _at_once(source: RemoteSource, index: int) -> list[int]:
    message = source.sample(torch.tensor([index])).message
    assert message["seeds"].tolist() == [index]
    return message["made by"].tolist()


def _fail_at_once(cluster: _Cluster, *servers: int) -> None:
    """Let servers be lost before the next batch at once."""

    def lose() -> None:
        cluster.lost = list(servers)
        raise ServerDiedError(f"storage servers {servers} are gone")

    cluster.at_once.append(lose)


class _Held:
    """Keeps the thread of the epoch where it is, until the other one has done something."""

    def __init__(self) -> None:
        self.is_there, self._may_go = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.is_there.set()
        assert self._may_go.wait(WAIT_S)

    def after(self, do: Callable[[], Any]) -> Any:
        """Return ``do()``, which happens while the thread of the epoch is held."""
        assert self.is_there.wait(WAIT_S)
        try:
            return do()
        finally:
            self._may_go.set()


@pytest.mark.parametrize("where", ["closed", "cancelled", "in hand"])
def test_an_epoch_goes_on_where_another_thread_recovered(
    cluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Seen: "the channel is closed: the loader was shut down", or an epoch that ended early."""
    held, late = _Held(), cluster.in_hand if where == "in hand" else cluster.events
    if where == "cancelled":  # that thread looks between the two
        monkeypatch.setattr(_Channel, "close", lambda _: None)
    source, producers = _created(cluster)
    late.extend([lambda: None] * 5)
    late.append(held.wait)
    _fail_at_once(cluster, 1)
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(_epoch, source)
        assert held.after(lambda: _at_once(source, 3)) == [0, 20], "by the new producer"
        found = epoch.result(WAIT_S)
    assert [batch for batch, _ in found] == list(range(16)), "each once, in the order of the epoch"
    assert found[6:] == [(batch, 3 if batch % 4 == 1 else batch % 4) for batch in range(6, 16)]
    assert len(producers.created) == 2


def test_threads_that_meet_one_loss_recover_once(cluster) -> None:
    source, producers = _created(cluster)
    both = threading.Barrier(2)

    def lose() -> None:
        cluster.lost = [1]
        both.wait(WAIT_S)
        raise ServerDiedError("storage server 1 is gone")

    _skip(cluster, 5)
    cluster.events.append(lose)
    cluster.at_once.append(lose)
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(_epoch, source)
        assert _at_once(source, 3) == [0, 20]
        assert [batch for batch, _ in epoch.result(WAIT_S)] == list(range(16))
    assert len(producers.created) == 2
    assert len(cluster.opened) == 2


def test_a_batch_at_once_is_asked_for_again_where_the_epoch_recovered(cluster) -> None:
    """Its producer was destroyed meanwhile, and no server is lost any more."""
    source, producers = _created(cluster)
    asked, recovered = threading.Event(), threading.Event()

    def answer_late() -> None:
        asked.set()
        assert recovered.wait(WAIT_S)
        raise UsageError("producer 0 of storage server 0 was destroyed")

    cluster.at_once.append(answer_late)
    with ThreadPoolExecutor(1) as pool:
        at_once = pool.submit(_at_once, source, 3)
        assert asked.wait(WAIT_S)
        _loses(cluster, 1)
        assert [batch for batch, _ in _epoch(source)] == list(range(16))
        cluster.lost = []
        recovered.set()
        assert at_once.result(WAIT_S) == [0, 20]
    assert len(producers.created) == 2


def test_a_recovery_that_fails_is_an_error_of_both_threads(cluster) -> None:
    """And no end of the epoch, though its channel was cancelled; the next epoch tries again."""
    source, producers = _created(cluster)
    create, held = producers.create, _Held()

    def fail(*_: Any) -> None:
        raise ServerDiedError("storage server 3 is gone, too")

    _skip(cluster, 5)
    cluster.events.append(held.wait)
    _fail_at_once(cluster, 1)
    producers.create = fail  # type: ignore[assignment]  # takes any

    def at_once() -> BaseException:
        with pytest.raises(ServerDiedError, match=r"storage servers \(1,\) are gone") as caught:
            _at_once(source, 3)
        return caught.value

    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(_epoch, source)
        first = held.after(at_once)
        second = epoch.exception(WAIT_S)
    assert second is not None
    assert second is not first
    assert (type(second), str(second)) == (ServerDiedError, str(first))
    assert second.__cause__ is first.__cause__
    assert str(first.__cause__) == "storage server 3 is gone, too"
    producers.create = create
    assert _at_once(source, 3) == [0, 20]
    assert [batch for batch, _ in _epoch(source)] == list(range(16))


def test_a_shutdown_during_a_recovery_leaves_no_producer(cluster) -> None:
    source, producers = _created(cluster)
    create, held = producers.create, _Held()

    def create_late(*args: Any) -> None:
        held.wait()
        create(*args)

    producers.create = create_late  # type: ignore[assignment]  # same arguments
    _loses(cluster, 1)
    with ThreadPoolExecutor(1) as pool:
        epoch = pool.submit(_epoch, source)
        held.after(source.shutdown)
        assert isinstance(epoch.exception(WAIT_S), GiglLoaderError)
    assert cluster.opened[-1].closed
    assert not producers.ids, "those that were created meanwhile are released, too"


def test_an_epoch_that_was_left_is_not_begun_again(cluster) -> None:
    """The loop ended by a `break`; a batch at once needs new producers, and no epoch."""
    source, _ = _created(cluster)
    source.start_epoch(Attempt(7, 1), range(16), range(16))
    assert source.next() is not None
    source.cancel_epoch()
    _fail_at_once(cluster, 1)
    assert _at_once(source, 3) == [0, 20]
    assert not cluster.opened[-1].ready(), "nobody takes its batches"
