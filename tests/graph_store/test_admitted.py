"""What a process that is let in cannot do to the jobs of others, and to the servers."""

import copy
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.dataset.identity import GraphIdentity
from gigl_loader.errors import ConfigError, PeerError, ProtocolError, SamplingError
from gigl_loader.graph_store.client.connection import ServerConnection
from gigl_loader.graph_store.server import presence
from gigl_loader.graph_store.server.rendezvous_host import Publish
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.wire.membership import Join, News, Role, WaitReport, Watch
from gigl_loader.graph_store.wire.requests import EpochRequest, Nothing, ProducerRequest, Runs
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.sampler.options import KHopNeighborSamplerOptions, SourceOptions
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import SECURITY, joined, storage
from tests.graph_store.store_cluster import HOST, compute, info_of, processes, serve
from tests.support.glt import NodeSamplerInput, RemoteDistSamplingWorkerOptions

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

TYPE = "default_homogeneous_node_type"
LIMIT_S = 120.0


def _member(rank: int, world_size: int, name: str = "victim", **more: Any) -> Join:
    said: dict[str, Any] = {"role": Role.CLIENT, "num_servers": 1, "job_name": name, **more}
    return Join(rank=rank, world_size=world_size, process=f"stranger {rank}", **said)


@contextmanager
def _connection(address: tuple[str, int], join: Join) -> Iterator[ServerConnection]:
    """Give a connection of a process that says ``join``, once it is let in."""
    security, session = Security.resolve(), secrets.token_hex(16)
    made = ServerConnection(0, address, security, "stranger", session, 10.0, join)
    try:
        made.meet(60.0)
        deadline = time.monotonic() + 60.0
        waits = WaitReport("stranger", deadline)
        made.wait_until_in(lambda news: news.job is not None, deadline, 60.0, waits)
        yield made
    finally:
        made.close()


def _arguments(connection: ServerConnection, seeds: torch.Tensor, key: str) -> dict[str, Any]:
    """Return the arguments of a producer of ``seeds`` under a worker key."""
    schema = connection.call("get_schema").result(60)
    return {
        "sampler_input": NodeSamplerInput(seeds, TYPE),
        "sampling_config": BaseDistLoader.create_sampling_config([2, 2], schema, 2, seed=1),
        "worker_options": RemoteDistSamplingWorkerOptions(
            server_rank=[0],
            num_workers=1,
            worker_concurrency=4,
            master_addr=HOST,
            master_port=1,
            worker_key=key,
        ),
        "sampler_options": None,
    }


# --- what is sampled ------------------------------------------------------------------------------


def _changed(arguments: dict[str, Any], name: str, field: str, value: Any) -> dict[str, Any]:
    """Return arguments of which one field has a value that no loader sends."""
    changed = copy.copy(arguments[name])
    object.__setattr__(changed, field, value)
    return {**arguments, name: changed}


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("sampling_config", "batch_size", 0, "batch_size must be an integer > 0, got 0"),
        ("sampling_config", "batch_size", -1, "batch_size must be an integer > 0, got -1"),
        ("sampling_config", "edge_dir", "sideways", 'edge_dir must be "in" or "out"'),
        ("sampling_config", "seed", -1, r"seed must be an integer in \[0, 2\*\*63\), got -1"),
        ("sampling_config", "seed", 2**64 - 1, r"seed must be an integer in .*, got 1844674"),
        ("sampling_config", "num_neighbors", [-2], r"num_neighbors\[0\] must be a number"),
        ("sampler_input", "node", torch.tensor([0.5]), r"seeds must be \[n\] int64, got \[1\]"),
        ("sampler_input", "node", torch.tensor([3, -1]), r"seeds\[1\] = -1 is no node id"),
        ("sampler_input", "node", torch.tensor([60]), r"seeds\[0\] = 60 is no node id"),
        ("sampler_input", "input_type", "user", "the seeds are of type 'user', the graph has"),
        ("worker_options", "num_workers", -1, "num_workers must be an integer >= 0, got -1"),
        (
            "worker_options",
            "num_workers",
            1 << 20,
            r"num_workers must be an integer in \[1, 1024\]",
        ),
        (
            "worker_options",
            "worker_concurrency",
            33,
            r"worker_concurrency must be an integer in \[1, 32\]",
        ),
        (
            "worker_options",
            "prefetch_size",
            0,
            r"prefetch_size must be an integer in \[1, 65536\], got 0",
        ),
    ],
)
def test_a_server_checks_what_a_loader_checks(
    asking: tuple[ServerConnection, StorageService], name: str, field: str, value: Any, words: str
) -> None:
    connection, server = asking
    arguments = _arguments(connection, torch.arange(3), "key")
    request = ProducerRequest(source_options=SourceOptions(seed=1))
    changed = _changed(arguments, name, field, value)
    with pytest.raises(ConfigError, match=words):
        connection.call("create_sampling_producer", **changed, request=request).result(60)
    status = server.status()
    assert (status["producers"], status["starting_producers"]) == ({}, [])


def test_a_long_name_of_a_request_is_not_remembered(
    asking: tuple[ServerConnection, StorageService],
) -> None:
    """A server remembers 4,096 requests, also those that it refused: a megabyte each was 4 GB."""
    connection, server = asking
    arguments = _arguments(connection, torch.tensor([-1]), "key")
    before = len(server._entries._by_request)
    for length, kind in ((255, ConfigError), (256, ProtocolError)):
        request = ProducerRequest(source_options=SourceOptions(seed=1), request_id="x" * length)
        with pytest.raises(kind):
            connection.call("create_sampling_producer", **arguments, request=request).result(60)
    assert len(server._entries._by_request) == before + 1


def test_what_a_failed_request_quotes_fills_no_log(
    asking: tuple[ServerConnection, StorageService], caplog: pytest.LogCaptureFixture
) -> None:
    connection, _ = asking
    path = f"mine.{'x' * 500_000}"
    with pytest.raises(ConfigError, match="no permission to run 'mine"):
        connection.call("run_function", path=path, data=b"", tensors=()).result(60)
    (line,) = (line for line in caplog.messages if "run_function failed: ConfigError: " in line)
    assert len(line) < 1000


def test_a_long_key_of_workers_fills_no_log(
    asking: tuple[ServerConnection, StorageService],
) -> None:
    """The log names the key when a producer starts and when it ends: a megabyte each."""
    connection, _ = asking
    request = ProducerRequest(source_options=SourceOptions(seed=1))
    for length, kind in ((255, ConfigError), (256, ProtocolError)):
        arguments = _arguments(connection, torch.tensor([-1]), "x" * length)
        with pytest.raises(kind):
            connection.call("create_sampling_producer", **arguments, request=request).result(60)


@pytest.fixture(scope="module")
def asking() -> Iterator[tuple[ServerConnection, StorageService]]:
    """Give a connection of an admitted process, and the server."""
    with storage(1) as (endpoint,), joined((HOST, endpoint.address[1])) as cluster:
        yield cluster.connection(0), endpoint.server


@pytest.mark.parametrize("size", ["1KB", "1000TB"])
def test_a_batch_that_no_channel_could_hold_is_refused_by_a_server(
    asking: tuple[ServerConnection, StorageService], size: str
) -> None:
    """Seen: it took 6 GB in a worker until it was killed, whatever the client said of its size."""
    connection, _ = asking
    arguments = _arguments(connection, torch.zeros(1000, dtype=torch.int64), f"batch {size}")
    schema = connection.call("get_schema").result(60)
    config = BaseDistLoader.create_sampling_config([10**8], schema, 1000, seed=1)
    arguments = {**arguments, "sampling_config": config}
    arguments = _changed(arguments, "worker_options", "buffer_size", size)
    request = ProducerRequest(source_options=SourceOptions(seed=1, replace=True))
    producer = {
        "producer_id": connection.call(
            "create_sampling_producer", **arguments, request=request
        ).result(60)
    }
    begins = connection.call(
        "start_new_epoch_sampling", **producer, epoch=0, request=EpochRequest()
    )
    begins.result(60)
    fetched = connection.call("fetch_one_sampled_message", **producer, consumer=0)
    with pytest.raises(SamplingError, match=r"draws \d+,000,000,000 neighbours of 1,000 nodes"):
        fetched.result(60)
    connection.call("destroy_sampling_producer", **producer, linger_s=0.0).result(60)


# --- a job's secret, its ranks and its producers --------------------------------------------------


def _is_joined_by_a_stranger(info: GraphStoreInfo, rank: int, folder: str) -> None:
    """Train with one loader, and with a second one when the stranger has done what it can."""
    dataset = RemoteDistDataset(info, rank)
    seeds = dataset.fetch_node_ids()
    (own,) = seeds.values()

    def epoch() -> list[int]:
        with DistNeighborLoader(dataset, [3, 2], seeds, batch_size=4, seed=7) as loader:
            return [int(node) for batch in loader for node in batch.n_id[: batch.batch_size]]

    assert sorted(epoch()) == sorted(own.tolist())
    (Path(folder) / "trains").touch()
    wait_until((Path(folder) / "the stranger is done").exists, "the stranger", LIMIT_S)
    assert sorted(epoch()) == sorted(own.tolist())


def _joins_a_job_of_another(info: GraphStoreInfo, folder: str) -> None:
    address = (HOST, info.rpc_master_port)
    try:
        with _connection(address, _member(50, 100, job=0)) as connection:
            connection.call(
                "create_sampling_producer",
                **_arguments(connection, torch.arange(3), "DistNeighborLoader 1 rank 0"),
                request=ProducerRequest(
                    source_options=SourceOptions(seed=1), client_ranks=Runs.of([0, 50])
                ),
            ).result(60)
    except ConfigError as error:
        (Path(folder) / "refused").write_text(str(error))
    (Path(folder) / "the stranger is done").touch()
    wait_until((Path(folder) / "over").exists, "the victim", LIMIT_S)


def test_a_stranger_adds_no_batch_to_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a second loader trained on the stranger's seeds, without a word."""
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "of those who are let in")
    info, folder = info_of(1, 1), tmp_path / "told"
    folder.mkdir()
    with processes(tmp_path) as started:
        started.start(serve, info, 0, None)
        run = partial(compute, job="victim")
        victim = started.start(run, info, 0, _is_joined_by_a_stranger, str(folder), name="victim")
        wait_until((folder / "trains").exists, "the victim trains", LIMIT_S)
        stranger = started.start(_joins_a_job_of_another, info, str(folder))
        started.join([victim])
        (folder / "over").touch()
        started.join([stranger])
    assert "compute process 50 says that it has 100" in (folder / "refused").read_text()


def test_every_server_knows_who_is_of_a_job() -> None:
    """Servers other than 0 have it from server 0; a process that was there comes back."""
    with storage(2) as endpoints, joined(endpoints[0].address, 2) as cluster:
        for endpoint in endpoints:
            for join, why in (
                (_member(0, 1, "train"), "does not know its secret"),
                (_member(0, 1, "train", secret=b"a guess of it..."), "does not know its secret"),
                (_member(1, 2, "train"), "says that it has 2"),
                (_member(0, 1, "other"), "says 'other'"),
            ):
                join = replace(join, job=cluster.job, num_servers=2, process=cluster._join.process)
                with (
                    pytest.raises(ConfigError, match=f"job 0 .*compute process {join.rank} {why}"),
                    _connection(endpoint.address, join),
                ):
                    pass
        own = cluster._join
        assert len(own.secret) == 16
        assert str(own.secret) not in repr(own), "no log has it"
        again = cluster.connection(1).reconnected(endpoints[1].address)
        with closing(again):
            again.enter(own, time.monotonic() + 60.0, WaitReport("rank 0", math.inf))
            wait_until(lambda: again.news.number > 0, "it is let in")


def test_a_process_of_a_job_that_server_0_has_not_told_is_not_let_in(
    constants: Callable[..., None],
) -> None:
    constants(presence, _LEARN_S=0.05)
    with storage(2) as (_, one), joined(_.address, 2):
        join = replace(_member(0, 1, "of nobody", job=7), num_servers=2)
        with (
            pytest.raises(PeerError, match=r"server 1 has not heard of job 7 \('of nobody'\)"),
            _connection(one.address, join),
        ):
            pass


def test_a_key_has_one_input_and_one_set_of_ranks_on_every_server() -> None:
    with storage(2) as endpoints, joined(endpoints[0].address, 2) as cluster:
        arguments = _arguments(cluster.connection(0), torch.arange(8), "a key")
        first = ProducerRequest(source_options=SourceOptions(seed=1), request_id="first")
        other, config = replace(first, request_id="other"), copy.copy(arguments["sampling_config"])
        config.batch_size = 3

        def make(rank: int, **changes: Any) -> Any:
            more = {**arguments, **changes}
            return cluster.connection(rank).call("create_sampling_producer", **more)

        made = [make(rank, request=first) for rank in (0, 1)]
        for rank, number in enumerate([one.result(60) for one in made]):
            assert make(rank, request=other).result(60) == number
            for request in (first, other, replace(other, request_id="third")):
                options = SourceOptions(seed=2)
                for changes, what in (
                    ({"sampler_input": NodeSamplerInput(torch.arange(9), TYPE)}, "input"),
                    ({"sampling_config": config}, "sampling config"),
                    ({"sampler_options": KHopNeighborSamplerOptions([1, 1])}, "sampler options"),
                    ({"request": replace(request, source_options=options)}, "options"),
                    ({"request": replace(request, client_ranks=Runs.of([0]))}, "compute ranks"),
                ):
                    words = rf"server {rank}: .* 'a key' was requested first with .*: {what}\."
                    with pytest.raises(ConfigError, match=words):
                        make(rank, **{"request": request, **changes}).result(60)
            more = replace(other, client_ranks=Runs.of([0, 50]))
            with pytest.raises(ProtocolError, match=r"ranks that share .* in \[0, 1\)"):
                make(rank, request=more).result(60)


# --- what it counts -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(
    "claim", [{"job": 2**64 - 1}, {"job": -2}, {"jobs_served": 2**64 - 1}, {"jobs_served": -1}]
)
def test_a_count_that_cannot_be_is_refused_by_name(role: Role, claim: dict[str, int]) -> None:
    """Seen: every later job failed with "can't serialize ints", and `status` with it."""
    (field,) = claim
    join = _member(0, 1, "other", role=role, **claim)
    with (
        storage() as (endpoint,),
        joined(endpoint.address) as cluster,
        Caller(*endpoint.address, SECURITY, "stranger") as caller,
    ):
        with pytest.raises(ProtocolError, match=rf"not a Watch: .* `\$\.join\.{field}`"):
            caller.ask("watch", Watch(join, 0), News).wait(60)
        with joined(endpoint.address, job_name="later") as later:
            assert (cluster.job, later.job) == (0, 1)
        assert "train" in cluster.connection(0).call("status").result(60)["jobs"]


def test_a_claim_that_is_long_is_refused_by_name() -> None:
    """A server keeps what a member says, tells others, and writes some of it into its log."""
    long, claims = "x" * 256, dict[str, Any](secret=bytes(65), address=("x" * 256, 1))
    claims |= {"process": long, "cluster": long, "graph": GraphIdentity(long, "")}
    with storage() as (endpoint,), Caller(*endpoint.address, SECURITY, "stranger") as caller:
        for field, claim in claims.items():
            join = replace(_member(0, 1), **{field: claim})
            with pytest.raises(ProtocolError, match=rf"not a Watch: .* `\$\.join\.{field}"):
                caller.ask("watch", Watch(join, 0), News).wait(60)


def test_a_count_of_another_process_ends_no_job() -> None:
    """Seen: a server of five jobs ended under the first one, which it had not served yet."""
    with storage(num_jobs=2) as (endpoint,), joined(endpoint.address) as cluster:
        claim: dict[str, Any] = {"job": 2**40, "jobs_served": 10**9}
        with _connection(endpoint.address, _member(0, 1, "stranger", **claim)):
            pass
        wait_until(lambda: endpoint.jobs_served == 1, "the stranger has left")
        assert cluster.connection(0).call("ping").result(60) > 0
        with _connection(endpoint.address, _member(0, 1, "stranger", job=7)):
            pass
        wait_until(lambda: endpoint.jobs_served == 2, "and once more: these are two jobs")
        assert cluster.connection(0).call("ping").result(60) > 0
        assert not endpoint.over.is_set()
        cluster.close()
        assert endpoint.over.wait(60), "the last one of its jobs is over"


def test_a_server_that_was_started_again_learns_of_no_end_from_others() -> None:
    """It serves at least one more job; later ones have numbers that travel."""
    with storage(num_jobs=5) as (endpoint,):
        claim: dict[str, Any] = {"job": 2**40, "jobs_served": 10**9}
        with (
            _connection(endpoint.address, _member(0, 1, "stranger", **claim)),
            joined(endpoint.address) as cluster,
        ):
            assert cluster.job == 2**40 + 1
            assert endpoint.jobs_served == 4


# --- memory ---------------------------------------------------------------------------------------


def test_values_at_a_rendezvous_are_of_storage_servers_alone() -> None:
    """Seen: 400 values of 0.9 MB stayed in the server when their sender had left."""
    with storage(2) as endpoints, joined(endpoints[0].address, 2) as cluster:
        cluster.connection(1).call("ping").result(60)
        of_one = endpoints[1]._process
        for endpoint in endpoints:
            for session in (secrets.token_hex(16), cluster._session):
                with Caller(*endpoint.address, SECURITY, "stranger", session=session) as caller:
                    for rank in (0, 1):
                        words = "stranger came to a rendezvous .*, and is none of them"
                        value = Publish("a name", rank, "key", bytes(900_000), Runs.of([0, 1]))
                        with pytest.raises(ProtocolError, match=words):
                            caller.ask("publish", value, Nothing).wait(60)
            assert endpoint._rendezvous._by_name == {}
        with Caller(*endpoints[0].address, SECURITY, "server 1", session=of_one) as caller:
            value = Publish("a name", 1, "key", b"value", Runs.of([0, 1]))
            caller.ask("publish", value, Nothing).wait(60)
            with pytest.raises(ProtocolError, match="or another one"):
                caller.ask("publish", replace(value, rank=0), Nothing).wait(60)
