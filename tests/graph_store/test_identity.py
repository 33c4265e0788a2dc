"""What may be asked again is asked of the same one; what belongs to another is refused by name."""

import hashlib
import os
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, RemoteDistDataset
from gigl_loader.batch.message import Attempt
from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerError,
    PeerLostError,
    ProtocolError,
    UsageError,
)
from gigl_loader.graph_store import DistServer, request_server
from gigl_loader.graph_store.client.server_outages import ServerOutages
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.rendezvous_host import Gather, Gathered
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.graph_store.wire.membership import Join, News, Role, Watch, check_same
from gigl_loader.graph_store.wire.requests import (
    EpochRequest,
    FetchAnswer,
    FetchRequest,
    ProducerRequest,
    Runs,
)
from gigl_loader.graph_store.wire.signatures import CALLS
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.testing import TinyGraph, batch_tensors, wait_until
from tests.graph_store.in_process import SECURITY, channel_of, create, joined, start, storage, take
from tests.graph_store.store_cluster import (
    HOST,
    MakePartition,
    compute,
    free_port,
    info_of,
    processes,
    serve,
    serve_partition,
    share_of_each_server,
    tiny_graph,
    tiny_partition,
)
from tests.runtime.transport.relay import Relay
from tests.support.conditions import SetConstants
from tests.support.glt import NodeSamplerInput, RemoteDistSamplingWorkerOptions

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

LIMIT_S = 180.0
TOKEN = Security.resolve("", "a token of this test", False)


# --- a process ------------------------------------------------------------------------------------


def _digest(batch: Any) -> str:
    found = hashlib.sha256()
    for name, value in sorted(batch_tensors(batch).items()):
        found.update(name.encode())
        if hasattr(value, "numpy"):
            found.update(value.numpy().tobytes())
    return found.hexdigest()


def _train(info: Any, rank: int, folder: str, in_order: bool) -> None:
    def wait_for(what: str) -> None:
        wait_until((Path(folder) / what).exists, what, LIMIT_S)

    dataset = RemoteDistDataset(info, rank)
    seeds = share_of_each_server(info, rank, 2)
    with DistNeighborLoader(
        dataset,
        [3, 2],
        seeds,
        batch_size=2,
        seed=7,
        shuffle=True,
        timeout=90.0,
        reconnect_timeout=LIMIT_S,
        prefetch_size=2,
        in_order=in_order,
    ) as loader:
        # The one with the first producer of the server: the next server's first is another rank's.
        # And in the first epoch of both: what they ask for differs in nothing but the process.
        producers = request_server(0, DistServer.status)["producers"]
        consumers = next(iter(producers.values()))["consumers"]
        suspended = any(consumer.endswith(f"(number 0), {rank})") for consumer in consumers)
        found: Counter[str] = Counter()
        for number, batch in enumerate(loader):
            found[_digest(batch)] += 1
            if number == 3:
                if suspended:
                    (Path(folder) / "pid").write_text(str(os.getpid()))
                (Path(folder) / f"rank {rank} is ready").touch()
                wait_for("the server was started again")
            if number == 9 and not suspended:
                (Path(folder) / "the other rank goes on").touch()
                wait_for("the suspended one goes on")
        loader.set_epoch(0)
        expected = Counter(map(_digest, loader))
        assert found == expected, "each of its own batches once, and none of another rank"
        assert found.total() == 15


@pytest.mark.longest
@pytest.mark.parametrize("in_order", [True, False])
def test_a_rank_that_was_suspended_meets_another_server(tmp_path: Path, in_order: bool) -> None:
    """By then another rank has a producer on it, which is not the one that this rank had."""
    info = info_of(1, 2)
    with processes(tmp_path) as started:
        server = started.start(serve, info, 0, 1)
        ranks = [
            started.start(compute, info, rank, _train, str(tmp_path), in_order) for rank in (0, 1)
        ]

        def wait_for(what: str) -> None:
            def is_there() -> bool:
                assert all(rank.exitcode is None for rank in ranks), started.notes()
                return (tmp_path / what).exists()

            wait_until(is_there, what, LIMIT_S)

        for rank in (0, 1):
            wait_for(f"rank {rank} is ready")
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        server.kill()
        server.join(60)
        server = started.start(serve, info, 0, 1)
        (tmp_path / "the server was started again").touch()
        wait_for("the other rank goes on")
        os.kill(pid, signal.SIGCONT)
        (tmp_path / "the suspended one goes on").touch()
        started.join([*ranks, server])


def test_a_fetch_is_asked_again_of_the_server_that_it_was_meant_for() -> None:
    """Another one that got its port may have a producer whose epoch and position are the same."""
    with (
        storage() as (first,),
        storage() as (second,),
        Relay(first.address) as relay,
        joined(second.address) as other,
        channel_of(other) as channel,
        Caller(relay.address[0], relay.address[1], SECURITY, "compute process 0") as caller,
    ):
        start(channel, 0)
        caller.connect(time.monotonic() + 60.0)
        relay.cut.set()
        (producer,) = second.server.status()["producers"]
        fetch = FetchRequest(producer_id=producer, attempt=Attempt(0, 1), fetches_before=0)
        reply = caller.ask("fetch", fetch, FetchAnswer)
        relay.target = second.address
        relay.reset()
        relay.cut.clear()
        with pytest.raises(PeerLostError, match="another process listens there"):
            reply.wait(60)
        assert len(take(channel)) == 30, "each of the other one's batches is its own"


def test_a_server_whose_clock_is_behind_takes_the_place_of_one_that_vanished(
    request: pytest.FixtureRequest,
) -> None:
    """Server 0 has not noticed. Incarnations were wall clocks: "two processes joined"."""
    zero = Endpoint(StorageService(tiny_partition(0, 2), 0, 2), HOST, 0, SECURITY, rejoin_s=60.0)
    host, port = zero.address
    vanished = Join(
        role=Role.SERVER,
        rank=1,
        num_servers=2,
        address=(HOST, free_port()),
        incarnation=2**63 - 1,
        process="vanished",
    )
    leader = LeaderLink(host, port, SECURITY, "storage server 1", 10.0)
    request.getfixturevalue("wall_clock_behind")
    again = Endpoint(
        StorageService(tiny_partition(1, 2), 1, 2), HOST, 0, SECURITY, leader=leader, rejoin_s=60.0
    )
    with ExitStack() as stack:
        for endpoint in (again, zero):
            stack.callback(endpoint.close)
        zero.start()
        former = stack.enter_context(Caller(host, port, SECURITY, "storage server 1"))
        heard = former.ask("watch", Watch(vanished, 0), News).wait(60)
        assert zero.status()["servers"] == [1]
        again.start()
        refused = None
        while not refused:  # who joins before is told of the vanished one's address
            try:
                heard = former.ask("watch", Watch(vanished, heard.number), News).wait(60)
                refused = heard.refused
            except PeerError as error:  # it was replaced between two requests
                refused = str(error)
        assert "a later storage server 1 took its place" in refused
        with joined(zero.address, 2) as cluster:
            assert cluster.connection(1).call("ping").result(60) == os.getpid()
            assert cluster.incarnations[1] == again.incarnation
        assert (zero.error, again.error) == (None, None)


def test_a_server_whose_clock_is_set_back_has_been_up_all_the_same(
    request: pytest.FixtureRequest,
) -> None:
    server = StorageService(tiny_partition(0, 1))
    request.getfixturevalue("wall_clock_behind")
    assert 0.0 <= server.status()["uptime_s"] < 600.0
    server.close()


# --- a cluster and a graph ------------------------------------------------------------------------


def _of_another_run(rank: int, servers: int) -> DistDataset:
    return tiny_graph().partitions(servers, seed=1)[rank]


def _of_another_graph(rank: int, servers: int) -> DistDataset:
    return TinyGraph.random(60, 400, seed=6).partitions(servers)[rank]


@pytest.mark.parametrize("other", [_of_another_run, _of_another_graph])
def test_servers_with_parts_of_two_runs_do_not_meet(other: MakePartition) -> None:
    """Seen: 6,486 wrong rows, in silence."""

    def partition(rank: int, servers: int) -> DistDataset:
        return (other if rank == 1 else tiny_partition)(rank, servers)

    with storage(2, partition=partition, rejoin_s=60.0) as (zero, one):
        wait_until(lambda: one.error, "server 1 is refused")
        assert re.search(r"two (runs|graphs): storage server 1 has", str(one.error))
        assert (zero.error, zero.status()["servers"]) == (None, [])


@contextmanager
def _at(
    address: tuple[str, int],
    partition: MakePartition = tiny_partition,
    security: Security = SECURITY,
) -> Iterator[Endpoint]:
    """Give another process's storage server 0 of one, at the port of one that ended."""
    server = StorageService(partition(0, 1), 0, 1, security=security)
    endpoint = Endpoint(server, *address, security)
    try:
        endpoint.start()
        yield endpoint
    finally:
        endpoint.close()


def test_a_server_that_comes_back_with_another_graph_is_refused_and_untouched() -> None:
    with storage() as (former,), joined(former.address) as cluster:
        (producer,) = create(cluster)
        former.close()
        wait_until(lambda: cluster.lost, "the client has heard of it")
        with _at(former.address, _of_another_graph) as other:
            with pytest.raises(ConfigError, match="two graphs: compute process 0 has that of"):
                _await_refusal(cluster)
            asked = other.server.status()
            assert (asked["create_calls"], asked["clients"], other.cluster) == (0, [], "")
        with _at(former.address) as again:
            cluster.await_servers(ServerOutages({}, 60.0))
            assert again.cluster == former.cluster != "", "the client kept it"
            with pytest.raises(UsageError, match="never existed"):
                cluster.connection(0).call("describe_workers", producer_id=producer).result(60)
            assert create(cluster) != [producer]


def test_another_cluster_at_the_same_port_is_refused_though_its_graph_is_the_same() -> None:
    with storage() as (former,), joined(former.address) as cluster:
        former.close()
        wait_until(lambda: cluster.lost, "the client has heard of it")
        with _at(former.address) as other:
            # before the former job's client is here: its next attempt is a little later
            other.cluster = "another"
            with pytest.raises(ConfigError, match="storage server 0 to another one, another"):
                _await_refusal(cluster)
            assert other.status()["clients"] == []


@pytest.mark.parametrize("what", ["graph", "cluster", "job", "token"])
def test_a_refusal_that_stays_ends_the_wait_at_once(
    what: str, caplog: pytest.LogCaptureFixture, constants: SetConstants
) -> None:
    """Seen: asked again for ten minutes, four times a second, each a warning of the server's."""
    constants("gigl_loader.graph_store.client.storage_cluster", _REFUSED_PAUSE_S=0.5)
    with storage(security=TOKEN) as (former,), joined(former.address, security=TOKEN) as cluster:
        former.close()
        wait_until(lambda: cluster.lost, "the client has heard of it")
        partition = _of_another_graph if what == "graph" else tiny_partition
        security = Security.resolve("", "of another cluster", False) if what == "token" else TOKEN
        with _at(former.address, partition, security) as other, ExitStack() as stack:
            if what == "cluster":
                other.cluster = "another"
            if what == "job":
                stack.enter_context(_of_a_later_job(former.address))
            expected: tuple[type[Exception], str] = {
                "graph": (ConfigError, "two graphs: compute process 0 has that of"),
                "cluster": (ConfigError, "storage server 0 to another one, another"),
                "job": (JoinRefusedError, r"job 0 \('train'\) of the storage cluster is over"),
                "token": (JoinRefusedError, "did not prove the cluster token"),
            }[what]
            began = time.monotonic()
            for _ in range(3):
                with pytest.raises(expected[0], match=expected[1]):
                    cluster.await_servers(ServerOutages({}, 1800.0))
            assert time.monotonic() - began < 100.0
            wait_until(lambda: other.status()["refused"] >= 3, "each of them is counted")
    refused = [one for one in caplog.messages if "cannot join" in one or "refused 1" in one]
    assert len(refused) == 1, refused


@contextmanager
def _of_a_later_job(address: tuple[str, int]) -> Iterator[None]:
    """Be a compute process of job 5, a later start of the job of `joined`."""
    join = Join(
        role=Role.CLIENT,
        rank=0,
        num_servers=1,
        world_size=1,
        job=5,
        job_name="train",
        process="later",
    )
    with Caller(*address, TOKEN, "of a later job") as caller:
        caller.ask("watch", Watch(join, 0), News).wait(60)
        yield


def _await_refusal(cluster: Cluster) -> None:
    """Wait for the servers until one was met that is not what it was."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            cluster.await_servers(ServerOutages({}, 0.0))
        except ConfigError:
            raise
        except GiglLoaderError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_all_servers_know_the_cluster_and_one_that_is_started_again_hears_it() -> None:
    with storage(2, rejoin_s=60.0) as (zero, one):
        assert (zero.cluster, one.cluster) == ("", ""), "no job has begun"
        with joined(zero.address, 2):
            wait_until(lambda: one.cluster, "server 1 is told")
            assert one.cluster == zero.cluster
            # as by a server 0 that was started again, and knows nothing
            join = Join(role=Role.SERVER, rank=1, num_servers=2, cluster="another")
            with pytest.raises(ConfigError, match="belongs to storage cluster another"):
                check_same(join, 0, zero.cluster, zero.graph)


def _read_on(info: Any, rank: int, folder: str) -> None:
    dataset = RemoteDistDataset(info, rank)
    nodes = dataset.fetch_node_ids()
    with DistNeighborLoader(
        dataset,
        [3, 2],
        nodes,
        batch_size=2,
        seed=7,
        timeout=90.0,
        reconnect_timeout=1800.0,
        prefetch_size=1,
        remote_cache="30%",
    ) as loader:
        batches = iter(loader)
        next(batches)
        (Path(folder) / "ready").touch()
        wait_until((Path(folder) / "another graph").exists, "another graph", LIMIT_S)
        left = iter(range(10))  # what is on its way is right, and no more comes
        with pytest.raises(ConfigError, match=r"storage server 0 at .*: two graphs"):
            deque(zip(left, batches, strict=False))


def test_a_job_whose_server_comes_back_with_another_graph_ends_by_name(tmp_path: Path) -> None:
    """Seen: 75 of 100 batches of the other graph, in silence."""
    info = info_of(1, 1)
    with processes(tmp_path) as started:
        server = started.start(serve, info, 0, 1)
        rank = started.start(compute, info, 0, _read_on, str(tmp_path))

        def is_ready() -> bool:
            assert rank.exitcode is None, started.notes()
            return (tmp_path / "ready").exists()

        wait_until(is_ready, "the first batches are there", LIMIT_S)
        server.kill()
        server.join(60)
        started.start(serve_partition, info, 0, _of_another_graph, 1)
        (tmp_path / "another graph").touch()
        started.join([rank])


# --- an admitted process that is bad --------------------------------------------------------------


@contextmanager
def _two_ranks(address: tuple[str, int]) -> Iterator[list[Cluster]]:
    """Give the clusters of both compute processes of a job."""
    found: dict[int, Cluster] = {}

    def join(rank: int) -> None:
        found[rank] = Cluster.join(
            *address,
            job_name="train",
            rank=rank,
            world_size=2,
            num_servers=1,
            security=SECURITY,
            timeout_s=60.0,
        )

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        for cluster in found.values():
            stack.callback(cluster.close)
        yield [found[0], found[1]]


def test_a_process_that_says_that_it_is_a_server_ends_nobody() -> None:
    with storage(2, rejoin_s=60.0) as (zero, one):
        wait_until(lambda: zero.status()["servers"] == [1], "server 1 is known")
        join = Join(
            role=Role.SERVER,
            rank=1,
            num_servers=2,
            address=("127.0.0.1", 1),
            incarnation=2**62,
            process="bad",
        )
        host, port = zero.address
        with (
            Caller(host, port, SECURITY, "bad") as bad,
            pytest.raises(ConfigError, match="two processes joined as storage server 1"),
        ):
            bad.ask("watch", Watch(join, 0), News).wait(60)
        with joined(zero.address, 2) as cluster:
            assert cluster.connection(1).call("ping").result(60) == os.getpid()
        assert (one.error, zero.status()["away"]) == (None, {})


def test_a_producer_is_of_those_who_take_its_batches() -> None:
    with storage() as (endpoint,), _two_ranks(endpoint.address) as (first, second):
        (producer,) = create(first)
        own: dict[str, Any] = {"producer_id": producer}
        call = second.connection(0).call
        epoch = EpochRequest(attempt=Attempt(0, 1))
        cases: dict[str, dict[str, Any]] = {
            "destroy_sampling_producer": {"linger_s": 0.0},
            "release_sampling_producer": {"consumer": 0, "linger_s": 0.0},
            "start_new_epoch_sampling": {"epoch": 0, "request": epoch},
            "cancel_epoch_sampling": {"request": epoch},
            "fetch_one_sampled_message": {"consumer": 0},
            "describe_workers": {},
        }
        for name, how in cases.items():
            with pytest.raises(UsageError, match=r"client .* asked for what is"):
                call(name, **own, **how).result(60)
        with second.connection(0).dial() as caller:
            fetch = caller.ask("fetch", FetchRequest(producer_id=producer), FetchAnswer)
            with pytest.raises(UsageError, match="asked for what is consumer 0 of"):
                fetch.wait(60)
        host, port = endpoint.address
        with (
            Caller(host, port, SECURITY, "has not joined") as stranger,
            pytest.raises(UsageError, match=r"client visitor \w+ asked"),
        ):
            _ask(stranger, "destroy_sampling_producer", **own, linger_s=0.0)
        assert list(endpoint.server.status()["producers"]) == [producer]
        first.connection(0).call("destroy_sampling_producer", **own, linger_s=0.0).result(60)
        assert endpoint.server.status()["producers"] == {}


def _ask(caller: Caller, name: str, **arguments: Any) -> Any:
    """Call a method of `DistServer` without having joined."""
    call = CALLS[name]
    return call.result(caller.ask(name, call.ask(arguments), call.response).wait(60))


def _create_unjoined(caller: Caller, **request: Any) -> int:
    """Create a producer without having joined, under the worker key and name of others."""
    options = RemoteDistSamplingWorkerOptions(
        server_rank=[0],
        num_workers=1,
        worker_concurrency=4,
        master_addr=HOST,
        master_port=1,
        worker_key="a key that two know",
    )
    schema = _ask(caller, "get_schema")
    found: int = _ask(
        caller,
        "create_sampling_producer",
        sampler_input=NodeSamplerInput(torch.arange(60), "default_homogeneous_node_type"),
        sampling_config=BaseDistLoader.create_sampling_config([3, 2], schema, 2, seed=1),
        worker_options=options,
        sampler_options=None,
        request=_request(request_id="a name that two know", **request),
    )
    return found


def test_a_producer_of_a_process_that_never_joined_is_of_its_session() -> None:
    """All of them were one client: each could destroy the producers of the others."""
    with storage(patience_s=1.0) as (endpoint,), ExitStack() as stack:
        server, (host, port) = endpoint.server, endpoint.address
        one, same, other = (
            stack.enter_context(Caller(host, port, SECURITY, "visitor", session=session))
            for session in ("first", "first", "second")
        )
        own, others = _create_unjoined(one), _create_unjoined(other)
        assert own != others, "a worker key and the name of a request are of one session, too"
        assert len(server.status()["producers"]) == 2
        cases: dict[str, dict[str, Any]] = {
            "destroy_sampling_producer": {"linger_s": 0.0},
            "release_sampling_producer": {"consumer": 0, "linger_s": 0.0},
            "start_new_epoch_sampling": {"epoch": 0, "request": EpochRequest()},
            "cancel_epoch_sampling": {"request": EpochRequest()},
            "fetch_one_sampled_message": {"consumer": 0},
            "sample_seeds": {"index": torch.arange(2), "seed": None},
            "describe_workers": {},
        }
        for name, how in cases.items():
            with pytest.raises(UsageError, match=r"client visitor \w+ asked for what is"):
                _ask(other, name, producer_id=own, **how)
        told = str(_ask(other, "status")["producers"])
        assert "visitor" in told, "it says who takes the batches"
        assert "first" not in told, "whoever knows a session is that process"
        # all connections of a session are one process, and so is the next one after an outage
        for caller in (one, same):
            _ask(caller, "start_new_epoch_sampling", producer_id=own, epoch=0, request=None)
        with pytest.raises(ProtocolError, match="has not joined"):
            _create_unjoined(same, client_ranks=Runs.of([0]))
        one.close()
        _ask(same, "describe_workers", producer_id=own)
        same.close()
        wait_until(lambda: list(server.status()["producers"]) == [others], "it ends with a goodbye")


def _has_no_producer(endpoint: Endpoint) -> bool:
    return not endpoint.server.status()["producers"]


def test_an_outage_of_a_process_that_never_joined_ends_no_producer_and_its_death_does() -> None:
    for patience_s, survives in ((60.0, True), (2.0, False)):
        with (
            storage(patience_s=patience_s) as (endpoint,),
            Relay(endpoint.address) as relay,
            Caller(relay.address[0], relay.address[1], SECURITY, "visitor") as caller,
        ):
            producer = _create_unjoined(caller)
            relay.reset()
            if survives:
                assert "worker" in _ask(caller, "describe_workers", producer_id=producer)
            else:  # as if it were killed: nothing comes of it any more
                wait_until(partial(_has_no_producer, endpoint), "it ended")


def test_nobody_takes_the_place_of_a_rank_that_is_here() -> None:
    with storage() as (endpoint,), joined(endpoint.address) as cluster:
        join = Join(
            role=Role.CLIENT,
            rank=0,
            num_servers=1,
            world_size=1,
            job=cluster.job,
            job_name=cluster.job_name,
            process="bad",
        )
        (producer,) = create(cluster)
        host, port = endpoint.address
        with (
            Caller(host, port, SECURITY, "bad") as bad,
            pytest.raises(ConfigError, match="another process is compute rank 0 of job 0"),
        ):
            bad.ask("watch", Watch(join, 0), News).wait(60)
        assert list(endpoint.server.status()["producers"]) == [producer]


def _request(**changes: Any) -> ProducerRequest:
    return ProducerRequest(source_options=SourceOptions(seed=1), **changes)


@pytest.mark.parametrize(
    "request_",
    [
        _request(client_ranks=Runs(((0, 2**40, 1),))),
        _request(client_ranks=Runs(((0, 4, 1), (2, 8, 1)))),
        _request(client_ranks=Runs(((1, 2, 1),))),
        _request(servers=Runs(((0, 2**40, 1),))),
        _request(shard=2**40, num_shards=2**41),
    ],
    ids=["ranks", "twice", "of others", "servers", "shards"],
)
def test_fields_are_what_a_cluster_can_have(request_: ProducerRequest) -> None:
    """One range of 2**40 ranks kept a thread, and all that looked at the producers, for ever."""
    with storage() as (endpoint,), joined(endpoint.address) as cluster:
        with pytest.raises(ProtocolError):
            _create(cluster, request_)
        assert endpoint.server.status()["producers"] == {}
        for ranks, servers in (
            (Runs(), Runs(((0, 2**40, 1),))),
            (Runs(((0, 2**40, 1),)), Runs.of([0])),
        ):
            gather = Gather("name", "key", ranks, servers)
            with cluster.connection(0).dial() as caller, pytest.raises(ProtocolError):
                caller.ask("gather", gather, Gathered).wait(60)


def _create(cluster: Cluster, request: ProducerRequest) -> None:
    """Ask for a producer as `create` does, with another request."""
    connection = cluster.connection(0)
    call: Callable[..., Any] = connection.call

    def with_request(name: str, *args: Any, **how: Any) -> Any:
        return call(name, *args, **{**how, **({"request": request} if "request" in how else {})})

    connection.call = with_request  # type: ignore[assignment]  # put in a method's place
    create(cluster)
