"""`DistServer` in this process: no sockets."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gigl_loader import DistDataset, partition_graph
from gigl_loader.batch.message import Attempt
from gigl_loader.errors import ConfigError, FileChangedError, ProtocolError, UsageError
from gigl_loader.graph_store.server import service
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.wire.batch_shares import share_of_batches
from gigl_loader.graph_store.wire.requests import EpochRequest, FetchRequest, ProducerRequest, Runs
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.transport.failures import describe, rebuild
from gigl_loader.sampler.options import SourceOptions
from tests.graph_store.store_cluster import tiny_graph
from tests.support.glt import NodeSamplerInput, RemoteDistSamplingWorkerOptions

pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module")
def server():
    one = StorageService(tiny_graph().dataset())
    yield one
    one.close()
    one.close()


def _arguments(server, key="a", num_seeds=20, batch_size=3):
    config = BaseDistLoader.create_sampling_config([3, 2], server.get_schema(), batch_size, seed=1)
    options = RemoteDistSamplingWorkerOptions(
        server_rank=[0],
        num_workers=1,
        worker_concurrency=4,
        master_addr="127.0.0.1",
        master_port=1,
        worker_key=key,
    )
    return NodeSamplerInput(torch.arange(num_seeds)), config, options, None


def _drain(server, producer, consumer=0):
    seeds = []
    while True:
        message, is_over = server.fetch_one_sampled_message(producer, consumer=consumer)
        if message is not None:
            seeds += message["batch"].tolist()
        if is_over:
            return seeds


class _SlowToGive:
    """A topology that lets another thread in before it gives its offsets."""

    def __init__(self, topology):
        self._topology = topology

    def __getattr__(self, name):
        if name == "indptr":
            time.sleep(0.1)
        return getattr(self._topology, name)


def test_clients_ask_for_the_size_of_a_graph_at_one_time(server, monkeypatch):
    """GLT's graph makes its native one at the first such question."""
    (num_nodes,) = tiny_graph().num_nodes.values()
    _, col = server.get_edge_index(None, "coo")
    graph = server.dataset.graph  # of all tests here
    monkeypatch.setattr(graph, "topo", _SlowToGive(graph.topo))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: server.get_edge_size(None, "coo"), range(4)))
    assert found == 4 * [(num_nodes, col.unique().numel())]


@pytest.mark.parametrize("total", [0, 1, 7, 24])
def test_shares_cover_all_batches_once(total):
    ranks = (0, 1, 2)
    options = SourceOptions(seed=0)
    shares = [
        share_of_batches(
            total,
            ProducerRequest(
                source_options=options, shard=shard, num_shards=2, client_ranks=Runs.of(ranks)
            ),
            consumer,
        )
        for shard in range(2)
        for consumer in range(3)
    ]
    assert sorted(batch for share in shares for batch in share) == list(range(total))


def test_the_plain_calls_sample_everything_once_and_destroy(server):
    producer = server.create_sampling_producer(*_arguments(server))
    with pytest.raises(UsageError, match="before start_new_epoch_sampling"):
        server.fetch_one_sampled_message(producer)
    for epoch in range(2):
        server.start_new_epoch_sampling(producer, epoch)
        assert _drain(server, producer) == list(range(20))
    assert server.fetch_one_sampled_message(producer) == (None, True)
    server.destroy_sampling_producer(producer)
    for call in (
        lambda: server.fetch_one_sampled_message(producer),
        lambda: server.start_new_epoch_sampling(producer, 3),
        lambda: server.destroy_sampling_producer(producer),
        lambda: server.fetch_one_sampled_message(99),
    ):
        with pytest.raises(UsageError, match=r"was destroyed|never existed"):
            call()
    server.cancel_epoch_sampling(producer, EpochRequest())
    with pytest.raises(UsageError, match="never existed"):
        server.cancel_epoch_sampling(99, EpochRequest())


def test_batches_at_once_come_beside_an_epoch_and_one_after_another(server):
    producer = server.create_sampling_producer(*_arguments(server, key="at once"))
    server.start_new_epoch_sampling(producer, 0)
    found = []
    asking = [
        threading.Thread(
            target=lambda seed=seed: found.append(
                server.sample_seeds(producer, torch.tensor([seed, 0]))["batch"].tolist()
            )
        )
        for seed in range(4)
    ]
    for one in asking:
        one.start()
    assert _drain(server, producer) == list(range(20))
    for one in asking:
        one.join(60)
    assert sorted(found) == [[0, 0], [1, 0], [2, 0], [3, 0]]
    for wrong in (torch.tensor([20]), torch.tensor([-1]), torch.tensor([0.0]), torch.tensor(3)):
        with pytest.raises(ProtocolError, match="not in its input"):
            server.sample_seeds(producer, wrong)
    server.destroy_sampling_producer(producer)
    with pytest.raises(UsageError, match="was destroyed"):
        server.sample_seeds(producer, torch.tensor([0]))


def test_a_key_has_one_producer_however_many_ask_at_once(server):
    found = []
    before = server.status()["create_calls"]

    def ask():
        found.append(server.create_sampling_producer(*_arguments(server, key="shared")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert server.status()["create_calls"] == before + 4
    assert len(server.status()["producers"]) == 1
    server.destroy_sampling_producer(found[0])


def test_consumers_share_an_epoch_and_do_not_hold_each_other_up(server):
    request = ProducerRequest(source_options=SourceOptions(seed=1), client_ranks=Runs.of((0, 1)))
    producer = server.create_sampling_producer(
        *_arguments(server, key="two", num_seeds=60, batch_size=2), request=request
    )
    for consumer in range(2):
        server.start_new_epoch_sampling(
            producer, 0, request=EpochRequest(consumer=consumer, attempt=Attempt(0, 1))
        )
    fast = _drain(server, producer, consumer=1)  # while consumer 0 takes nothing
    slow = _drain(server, producer, consumer=0)
    assert sorted(fast + slow) == list(range(60))
    assert len(fast) == len(slow) == 30

    # a broken-off epoch: its fetches get nothing, the next epoch is whole
    server.start_new_epoch_sampling(
        producer, 1, request=EpochRequest(consumer=0, attempt=Attempt(1, 2))
    )
    server.cancel_epoch_sampling(producer, EpochRequest(consumer=0, attempt=Attempt(1, 2)))
    fetch = FetchRequest(producer_id=producer, consumer=0, attempt=Attempt(1, 2))
    stale = server.producer(producer).fetch(fetch)
    assert stale.result(60) == (None, False)
    server.start_new_epoch_sampling(
        producer, 2, request=EpochRequest(consumer=0, attempt=Attempt(2, 3))
    )
    server.cancel_epoch_sampling(
        producer, EpochRequest(consumer=0, attempt=Attempt(1, 2))
    )  # late: ignored
    assert sorted(_drain(server, producer)) == sorted(slow)

    server.release_sampling_producer(producer, 0)
    assert len(server.status()["producers"]) == 1
    server.release_sampling_producer(producer, 1)
    assert server.status()["producers"] == {}


def test_a_client_that_is_gone_frees_its_producers(server):
    request = ProducerRequest(source_options=SourceOptions(seed=1), client_ranks=Runs.of((0, 1)))
    server.create_sampling_producer(*_arguments(server, key="gone"), request=request)
    server.client_gone((None, 0))
    assert len(server.status()["producers"]) == 1
    server.client_gone((None, 1))
    assert server.status()["producers"] == {}


def test_ports_that_are_given_out_differ(server):
    ports = server.get_free_ports(64)
    assert len(set(ports)) == 64
    assert server.get_free_ports(0) == []


def test_ports_beyond_the_limit_are_refused_before_one_is_opened(server, monkeypatch):
    """Each port that is looked for is a descriptor of the server meanwhile."""
    monkeypatch.setattr(service, "free_ports", lambda *_: pytest.fail("ports were opened"))
    for count in (65, 1 << 16, -1):
        with pytest.raises(ConfigError, match=rf"{count} ports were requested.* \[0, 64\]"):
            server.get_free_ports(count)


def test_a_file_that_changed_ends_the_epochs_of_its_server(tmp_path: Path) -> None:
    partition_graph(tiny_graph().to_pyg(), 1, tmp_path / "parts", progress=False)
    dataset = DistDataset.load(tmp_path / "parts", 0, mmap=True, verify="off")
    with contextlib.closing(StorageService(dataset)) as server:
        producer = server.create_sampling_producer(*_arguments(server))
        server.start_new_epoch_sampling(producer, 0)
        assert len(_drain(server, producer)) == 20
        (path,) = (tmp_path / "parts/part0/node_features").glob("*/values.bin")
        path.write_bytes(path.read_bytes())
        with pytest.raises(FileChangedError, match=rf"{path} was changed"):
            server.start_new_epoch_sampling(producer, 1)
        assert isinstance(rebuild(describe(FileChangedError(str(path))), "x"), FileChangedError)
