"""Several jobs on one storage cluster: neither meets the other, whatever happens to it."""

import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import CustomSamplerOptions, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.errors import ConfigError, GiglLoaderError, JobStoppedError
from gigl_loader.graph_store import RemoteReceivingChannel, status, stop_job
from gigl_loader.graph_store.client.server_outages import ServerOutages
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server.client_ids import JobId
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.runtime.transport import EndReason, Security
from gigl_loader.runtime.transport.shares import ByteShares, Sending
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import batch_digest, wait_until
from tests.graph_store.in_process import SECURITY, channel_of, create, joined, start, storage, take
from tests.graph_store.store_cluster import (
    HOST,
    WIDE,
    compute,
    free_port,
    info_of,
    pid_of,
    processes,
    serve,
    tiny_partition,
)
from tests.support.glt import RemoteDistSamplingWorkerOptions

pytestmark = pytest.mark.multiprocess


def _equal(batches: list[dict[str, torch.Tensor]], others: list[dict[str, torch.Tensor]]) -> bool:
    return len(batches) == len(others) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(batches, others, strict=True)
    )


def _has_producers(endpoint: Endpoint, count: int) -> bool:
    return len(endpoint.server.status()["producers"]) == count


def _options(**more: Any) -> dict[str, Any]:
    """Return an argument of `create`."""
    options = RemoteDistSamplingWorkerOptions(
        server_rank=[0, 1],
        num_workers=1,
        worker_concurrency=4,
        master_addr=HOST,
        master_port=1,
        **more,
    )
    return {"worker_options": options}


def _shared_key() -> dict[str, Any]:
    """Return arguments of `create` under a worker key that every job uses."""
    return {"request_id": "the same", **_options(worker_key="the same")}


def test_jobs_of_one_key_and_one_request_have_producers_of_their_own() -> None:
    with storage(2) as endpoints, ExitStack() as stack:
        address = endpoints[0].address
        first, second = (
            stack.enter_context(joined(address, 2, job_name=name)) for name in ("first", "second")
        )
        assert (first.job, second.job) == (0, 1)
        mine, theirs = create(first, **_shared_key()), create(second, **_shared_key())
        assert not {*mine} & {*theirs}
        for endpoint in endpoints:
            assert len(endpoint.server.status()["producers"]) == 2
        with pytest.raises(GiglLoaderError, match=r"client \(second \(number 1\), 0\) asked"):
            second.connection(0).call(
                "start_new_epoch_sampling", producer_id=mine[0], epoch=0, request=None
            ).result(60)
        first.close()
        for endpoint in endpoints:
            wait_until(partial(_has_producers, endpoint, 1), "the first job's producer has ended")
        assert [[*e.server.status()["producers"]] for e in endpoints] == [[n] for n in theirs]
        wait_until(lambda: endpoints[0].jobs_served == 1, "it is counted")


def test_what_is_sent_to_a_job_is_counted_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: set[Hashable] = set()
    sending = ByteShares.sending

    def noted(shares: ByteShares, name: Hashable, *response: Any) -> Sending:
        counted.add(name)
        return sending(shares, name, *response)

    monkeypatch.setattr(ByteShares, "sending", noted)
    with storage() as (endpoint,), ExitStack() as stack:
        for name in ("infer", "train"):
            cluster = stack.enter_context(joined(endpoint.address, job_name=name))
            (producer,) = create(cluster, sampler_options=WIDE)
            call = partial(cluster.connection(0).call, producer_id=producer)
            call("start_new_epoch_sampling", epoch=0, request=None).result(60)
            call("fetch_one_sampled_message", consumer=0).result(60)
        assert counted >= {JobId("infer", 0), JobId("train", 1)}


@pytest.fixture
def serve_again() -> Iterator[Callable[[int], Endpoint]]:
    """Return a function that serves at a port, 0 for any that is free."""
    with ExitStack() as stack:

        def serve(port: int) -> Endpoint:
            server = StorageService(tiny_partition(0, 1))
            endpoint = Endpoint(server, HOST, port, SECURITY, patience_s=1.0, rejoin_s=60.0)
            stack.callback(endpoint.close)
            endpoint.start()
            return endpoint

        yield serve


@pytest.fixture(scope="module")
def alone() -> list[dict[str, torch.Tensor]]:
    """An epoch of a job that nobody is beside."""
    with (
        storage(2) as endpoints,
        joined(endpoints[0].address, 2) as cluster,
        channel_of(cluster) as channel,
    ):
        start(channel, 0, servers=2)
        return take(channel)


def _poison(cluster: Cluster, channel: RemoteReceivingChannel) -> None:
    failing = CustomSamplerOptions("tests.graph_store.store_cluster.FailingSampler")
    _, producer = create(cluster, request_id="failing", sampler_options=failing)
    connection = cluster.connection(1)  # which has the second batch, and the fourth...
    connection.call("start_new_epoch_sampling", producer_id=producer, epoch=0, request=None).result(
        60
    )

    def fetch_all() -> None:
        for _ in range(3):
            connection.call("fetch_one_sampled_message", producer_id=producer, consumer=0).result(
                60
            )

    with pytest.raises(GiglLoaderError, match="no luck with this batch"):
        fetch_all()


def _ask_wrongly(cluster: Cluster, channel: RemoteReceivingChannel) -> None:
    with pytest.raises(GiglLoaderError, match="NoSuchSampler"):
        create(
            cluster,
            "bad",
            sampler_options=CustomSamplerOptions("tests.graph_store.store_cluster.NoSuchSampler"),
        )


def _die(cluster: Cluster, channel: RemoteReceivingChannel) -> None:
    for connection in cluster.connections.values():
        for caller in list(connection._callers):
            caller.close(EndReason.GONE)


def _stop_taking(cluster: Cluster, channel: RemoteReceivingChannel) -> None:
    """Leave batches where they are, as a suspended process does."""


@pytest.mark.parametrize("happens", [_poison, _ask_wrongly, _die, _stop_taking])
def test_what_happens_to_one_job_is_not_seen_by_another(
    happens: Callable[[Cluster, RemoteReceivingChannel], None], alone: list[dict[str, torch.Tensor]]
) -> None:
    with storage(2) as endpoints, ExitStack() as stack:
        address = endpoints[0].address
        well = stack.enter_context(joined(address, 2, job_name="well"))
        ill = stack.enter_context(joined(address, 2, job_name="ill"))
        channel = stack.enter_context(channel_of(well))
        other = stack.enter_context(channel_of(ill))
        start(channel, 0, servers=2)
        start(other, 0, servers=2)
        batches = take(channel, 5)
        assert _equal(take(other, 5), batches)
        happens(ill, other)
        batches += take(channel)
        assert _equal(batches, alone)
        start(channel, 1, servers=2)
        assert len(take(channel)) == len(alone)


def test_a_producer_beyond_the_memory_for_batches_is_refused_with_the_figures() -> None:
    with storage(channel_memory=6 * 10**9) as (endpoint,), ExitStack() as stack:
        train, infer = (
            stack.enter_context(joined(endpoint.address, job_name=name))
            for name in ("train", "infer")
        )
        of_4_gb = _options(worker_key=None, buffer_size="4GB")
        create(train, "one", **of_4_gb)
        words = (
            r"may keep 6 GB of batches \(--channel-memory\), of which 4 GB are taken "
            r"\(train \(number 0\) 4 GB\); this producer needs 4 GB: channel_size=4 GB for each "
            r"of 1"
        )
        with pytest.raises(ConfigError, match=words):
            create(infer, "too much", **of_4_gb)
        assert _has_producers(endpoint, 1), "nothing was started"
        train.close()
        wait_until(partial(_has_producers, endpoint, 0), "it has left")
        create(infer, "as much as there is", **of_4_gb)


def test_a_job_beyond_the_most_waits_and_is_told_why() -> None:
    with storage(max_jobs=1) as (endpoint,), ThreadPoolExecutor(2) as pool:

        def run(name: str) -> int:
            with joined(endpoint.address, job_name=name) as cluster:
                return cluster.job

        with joined(endpoint.address, job_name="first") as first:
            second = pool.submit(run, "second")
            wait_until(lambda: len(endpoint.status()["clients"]) == 2, "the second waits")
            third = pool.submit(run, "third")
            wait_until(lambda: len(endpoint.status()["clients"]) == 3, "the third waits")
            wait_until(
                lambda: (
                    {"second", "third"}
                    <= {
                        member.join.job_name
                        for member in endpoint._attendance.members.values()
                        if "1 jobs are served, the most at a time" in member.news.status
                    }
                ),
                "both were told",
            )
            assert first.job == 0
        assert (second.result(60), third.result(60)) == (1, 2)
        wait_until(lambda: endpoint.jobs_served == 3, "all are over")


def test_a_job_that_is_stopped_ends_with_a_named_error_and_no_other_does(
    alone: list[dict[str, torch.Tensor]], capsys: pytest.CaptureFixture[str]
) -> None:
    with storage(2) as endpoints, ExitStack() as stack:
        address = endpoints[0].address
        where = f"{address[0]}:{address[1]}"
        well, ill, waits = (
            stack.enter_context(joined(address, 2, job_name="well")),
            stack.enter_context(joined(address, 2, job_name="ill")),
            stack.enter_context(ThreadPoolExecutor(1)),
        )
        channel = stack.enter_context(channel_of(well))
        other = stack.enter_context(channel_of(ill))
        start(channel, 0, servers=2)
        start(other, 0, servers=2)
        batches = take(channel, 3)
        take(other, 3)

        def queue() -> None:
            with joined(address, 2, job_name="ill"):
                pass

        queued = waits.submit(queue)
        wait_until(lambda: endpoints[0].status()["clients"] == [0, 0, 0], "the next one waits")
        assert stop_job.main(["ill", where]) == 0
        assert "job 'ill' is stopped: it had 2 compute processes" in capsys.readouterr().out
        with pytest.raises(JobStoppedError, match=r"job 'ill' was stopped .* by `gigl-loader"):
            take(other)
        with pytest.raises(ConfigError, match="job 'ill' was stopped"):
            queued.result(60)
        for endpoint in endpoints:
            wait_until(partial(_has_producers, endpoint, 1), "its producer ended")
        with pytest.raises(JobStoppedError):  # it does not come back
            ill.await_servers(ServerOutages({}, 60.0))
        batches += take(channel)
        assert _equal(batches, alone)
        wait_until(lambda: endpoints[0].jobs_served == 1, "it is over")
        assert stop_job.main(["ill", where]) != 0
        assert "there is no job 'ill'; jobs that run or gather: 'well'" in capsys.readouterr().err
        with pytest.raises(ConfigError, match="this is storage server 1: server 0 stops jobs"):
            well.connection(1).call("stop_job", name="well").result(60)
        with joined(address, 2, job_name="ill") as again:
            assert again.job == 2, "its name may be used again"


def test_a_restarted_server_0_learns_of_the_jobs_by_those_who_come_back(
    serve_again: Callable[[int], Endpoint],
) -> None:
    """And counts those that were over before, which only they know by then."""
    with ExitStack() as stack:
        former = serve_again(0)
        address = former.address
        names = ("a", "b")
        clusters = [stack.enter_context(joined(address, job_name=name)) for name in names]
        with joined(address, job_name="over"):
            pass
        wait_until(
            lambda: all(c.connections[0].news.jobs_served == 1 for c in clusters), "both have heard"
        )
        former.close()
        wait_until(lambda: all(c.lost == [0] for c in clusters), "both have noticed")
        later = serve_again(address[1])
        threads = [
            threading.Thread(target=c.await_servers, args=(ServerOutages({}, 60.0),))
            for c in clusters
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert later.status()["jobs"] == {"a": [0], "b": [0]}
        assert [c.job for c in clusters] == [0, 1]
        assert later.jobs_served == 1
        with joined(address, job_name="new") as fresh:
            assert fresh.job not in (0, 1)
        for cluster in clusters:
            cluster.close()
        wait_until(lambda: later.jobs_served == 4, "all are over")


# --- in processes of their own --------------------------------------------------------------------


def _loader_of(info: GraphStoreInfo) -> DistNeighborLoader:
    dataset = RemoteDistDataset(info, 0)
    return DistNeighborLoader(
        dataset, [3, 2], dataset.fetch_node_ids(), batch_size=4, seed=7, shuffle=True
    )


def _epoch(loader: DistNeighborLoader) -> list[str]:
    loader.set_epoch(0)
    return [batch_digest(batch) for batch in loader]


def _is_watched(info: GraphStoreInfo, rank: int, folder: Path) -> None:
    """Take an epoch alone, and once more beside the others."""
    with _loader_of(info) as loader:
        alone = _epoch(loader)
        (folder / "alone").touch()
        wait_until(lambda: len(list(folder.glob("begun *"))) == 3, "three others are there")
        for _ in range(3):
            assert _epoch(loader) == alone
        wait_until((folder / "stopped").exists, "one of them was stopped")
        assert _epoch(loader) == alone
    (folder / "over").touch()


def _is_beside(info: GraphStoreInfo, rank: int, folder: Path, name: str) -> None:
    with _loader_of(info) as loader:
        while not (folder / "over").exists():
            _epoch(loader)
            (folder / f"begun {name}").touch()


def _is_stopped(info: GraphStoreInfo, rank: int, folder: Path) -> None:
    with pytest.raises(JobStoppedError, match="job 'ill' was stopped"):
        _is_beside(info, rank, folder, "ill")
    (folder / "stopped").touch()


def test_an_epoch_has_the_same_bits_beside_three_jobs_of_which_one_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "of several jobs")
    info, folder = info_of(2, 1), tmp_path / "told"
    folder.mkdir()
    with processes(tmp_path) as started:
        for rank in range(2):
            started.start(serve, info, rank, None)

        def start_job(name: str, client: Callable[..., None], *more: str) -> Any:
            # all have the address of one machine: only the name tells them apart
            own = replace(info, compute_cluster_master_port=free_port())
            run = partial(compute, job=name)
            return started.start(run, own, 0, client, folder, *more, name=name)

        jobs = [start_job("watched", _is_watched)]
        wait_until((folder / "alone").exists, "the first one was alone", 120.0)
        jobs += [start_job(name, _is_beside, name) for name in ("b", "c")]
        jobs.append(start_job("ill", _is_stopped))
        wait_until(lambda: (folder / "begun ill").exists(), "the last one takes batches", 120.0)
        assert stop_job.main(["ill", f"{HOST}:{info.rpc_master_port}"]) == 0
        started.join(jobs)


def _stops_in_mid_epoch(info: GraphStoreInfo, rank: int, folder: Path) -> None:
    with _loader_of(info) as loader:
        next(iter(loader))
        (folder / "stops").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(JobStoppedError, match="job 'ill' was stopped"):
            _take_for_ever(loader)


def _take_for_ever(loader: DistNeighborLoader) -> None:
    while True:
        _epoch(loader)


def _state_of(address: tuple[str, int]) -> tuple[list[int], int]:
    """Return the ranks of compute processes that a server knows, and its number of producers."""
    known = status.ask(address, Security.resolve())
    return known["clients"], len(known["producers"])


def test_other_servers_are_told_of_a_stopped_job_whose_process_hears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hears of it leaves all servers by itself."""
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "of several jobs")
    info, folder, port = info_of(2, 1), tmp_path / "told", free_port()
    folder.mkdir()
    never = 600.0  # within this test, a server does not find the silence of a process too long
    with processes(tmp_path) as started:
        for rank, own_port in enumerate((None, port)):
            run = partial(serve, network_timeout=never, port=own_port)
            started.start(run, info, rank, None, name=f"server {rank}")
        run = partial(compute, job="ill", network_timeout=never)
        ill = started.start(run, info, 0, _stops_in_mid_epoch, folder, name="ill")
        wait_until((folder / "stops").exists, "it takes batches", 120.0)
        wait_until(lambda: process_state(pid_of(ill)).startswith("stopped"), "it is stopped")
        assert _state_of((HOST, port)) == ([0], 1)
        assert stop_job.main(["ill", f"{HOST}:{info.rpc_master_port}"]) == 0
        wait_until(lambda: _state_of((HOST, port)) == ([], 0), "server 1 has freed it", 60.0)
        os.kill(pid_of(ill), signal.SIGCONT)
        started.join([ill])
