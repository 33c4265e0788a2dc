"""A storage server's side of the network, in this process: who may come, and how it ends."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from gigl_loader import CustomSamplerOptions
from gigl_loader.errors import ConfigError, PeerError, ServerDiedError
from gigl_loader.graph_store import init_storage_process, run_storage_server, status
from gigl_loader.graph_store.client.connection import ServerConnection
from gigl_loader.graph_store.client.server_outages import ServerOutages
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.graph_store.wire.membership import Join, News, Role, WaitReport
from gigl_loader.runtime.transport import EndReason, Security, listener
from gigl_loader.runtime.transport.security import TOKEN_VARIABLE
from gigl_loader.runtime.transport.stream import pack
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import SECURITY, create, joined, storage
from tests.graph_store.store_cluster import HOST, info_of, tiny_partition

pytestmark = pytest.mark.multiprocess


def test_a_server_that_leaves_ends_the_others_and_those_who_join():
    with storage(2) as endpoints:
        wait_until(lambda: endpoints[0].status()["servers"] == [1], "server 1 is known")
        endpoints[1].close()
        wait_until(lambda: endpoints[0].error is not None, "server 0 has lost server 1")
        assert endpoints[0].over.wait(60), "no client is there to wait for"
        with (
            pytest.raises(PeerError, match="the graph is incomplete without it"),
            joined(endpoints[0].address, 2),
        ):
            pass


def test_servers_that_fail_together_say_so_at_once():
    """One cannot start its workers: the others do not wait for their own time limit."""
    bad = CustomSamplerOptions("tests.graph_store.store_cluster.NoSuchSampler")
    with storage(2) as endpoints, joined(endpoints[0].address, 2) as cluster:
        with pytest.raises(PeerError, match="NoSuchSampler"):
            create(cluster, "bad", sampler_options=bad)
        servers = [endpoint.server for endpoint in endpoints]
        wait_until(lambda: not any(s.status()["producers"] for s in servers), "nothing is left")
        table = endpoints[0]._rendezvous
        wait_until(lambda: table._by_name == {}, "and nothing of where they met")


def test_one_job_after_another_and_two_at_once():
    """Clients of the next job wait until all of the one before have left."""
    with storage() as (endpoint,), ExitStack() as stack:
        first = stack.enter_context(joined(endpoint.address))
        assert first.job == 0
        jobs = []

        def second():
            with joined(endpoint.address) as cluster:
                jobs.append(cluster.job)

        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: endpoint.status()["clients"] == [0, 0], "the next client waits")
        assert jobs == []
        first.close()
        thread.join(60)
        assert jobs == [1]
        wait_until(lambda: endpoint.jobs_served == 2, "both jobs are over")


def test_a_rank_that_left_before_server_0_was_restarted_holds_up_no_end():
    """Rank 0 leaves, the server is started again, rank 1 finishes: that was all of the job."""
    partition, clusters = tiny_partition(0, 1), {}

    def join(rank, port):
        clusters[rank] = Cluster.join(
            HOST,
            port,
            job_name="train",
            rank=rank,
            world_size=2,
            num_servers=1,
            security=SECURITY,
            timeout_s=60.0,
        )

    def served(port=0):
        endpoint = Endpoint(
            StorageService(partition),
            HOST,
            port,
            SECURITY,
            num_jobs=1,
            patience_s=1.0,
            rejoin_s=2.0,
        )
        endpoint.start()
        return endpoint

    former = served()
    port = former.address[1]
    threads = [threading.Thread(target=join, args=(rank, port)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    clusters[0].close()
    wait_until(lambda: former.status()["clients"] == [1], "rank 0 has left")
    former.close()
    wait_until(lambda: clusters[1].lost == [0], "rank 1 has heard of it")
    later = served(port)
    try:
        clusters[1].await_servers(ServerOutages({}, 60.0))
        assert later.status()["clients"] == [1]
        clusters[1].close()
        assert later.over.wait(60), "the job is over"
        assert later.jobs_served == 1
    finally:
        later.close()


def test_each_server_counts_the_job_that_was_the_last(monkeypatch):
    """Server 0 ended before the others had heard of it: they logged that they served 0 jobs."""

    def pack_late(kind, content, *more):
        if isinstance(content, News) and content.jobs_served:
            threading.Event().wait(0.3)  # a goodbye is quicker
        return pack(kind, content, *more)

    monkeypatch.setattr(listener, "pack", pack_late)
    with storage(2, num_jobs=1) as endpoints:
        with joined(endpoints[0].address, 2):
            pass
        for endpoint in endpoints:
            assert endpoint.over.wait(60)
            endpoint.close(EndReason.JOB_OVER)
        assert [endpoint.jobs_served for endpoint in endpoints] == [1, 1]


def test_a_cluster_of_which_a_server_is_away_is_not_well(monkeypatch, capsys):
    """Both sides say which one: server 0 of one that never came or left, the others of server 0."""
    monkeypatch.setenv(TOKEN_VARIABLE, "a token of 128 bits")
    security = Security.resolve()

    def asked(endpoint):
        code = status.main([f"{HOST}:{endpoint.address[1]}", "--json", "--timeout=20"])
        return code, json.loads(capsys.readouterr().out)

    def server(rank, leader=None):
        one = StorageService(tiny_partition(rank, 2), rank, 2)
        endpoint = Endpoint(one, HOST, 0, security, leader=leader, rejoin_s=100.0)
        endpoint.start()
        return endpoint

    first = server(0)
    try:
        code, said = asked(first)
        assert (code, said["away"]) == (status.NOT_WHOLE, {"1": "it has not come yet"})
        assert said["health"] == "storage servers [1] are away: see `away`"
        host, port = first.address
        second = server(1, LeaderLink(host, port, security, "server 1", 10.0))
        try:
            wait_until(lambda: asked(first)[0] == asked(second)[0] == 0, "both serve")
            first.close(EndReason.SHUTDOWN, "it is started again")
            wait_until(lambda: asked(second)[0] == status.NOT_WHOLE, "server 1 knows")
            assert "it is started again" in asked(second)[1]["away"]["0"]
        finally:
            second.close()
    finally:
        first.close()


def test_who_waits_for_servers_that_have_served_their_jobs_fails_at_once():
    """The next job's ranks are told why, instead of waiting for half an hour."""
    with storage(num_jobs=1) as (endpoint,), ExitStack() as stack:
        first = stack.enter_context(joined(endpoint.address))
        found = []

        def second():
            with pytest.raises(ServerDiedError) as caught, joined(endpoint.address):
                pass
            found.append(str(caught.value))

        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: endpoint.status()["clients"] == [0, 0], "the next client waits")
        first.close()
        assert endpoint.over.wait(60)
        endpoint.close(EndReason.JOB_OVER)
        thread.join(60)
        assert "it has served as many jobs as it was to (num_jobs)" in found[0]


def test_a_server_stays_unless_it_was_told_how_many_jobs_there_are():
    """GiGL's inference has a job for each node type: servers had left after the first one."""
    info, token = info_of(1, 1), "a token of bits"
    security = Security.resolve(None, token)

    def jobs(count):
        found = []
        for _ in range(count):
            with joined((HOST, info.rpc_master_port), security=security) as cluster:
                found.append(cluster.job)
        return found

    with init_storage_process(0, info, tiny_partition(0, 1), token=token):
        assert jobs(3) == [0, 1, 2]
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(
            run_storage_server, 0, info, tiny_partition(0, 1), 2, num_rpc_threads=4, token=token
        )
        assert (jobs(2), served.result(60)) == ([0, 1], 2)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"num_rpc_threads": 0}, "num_rpc_threads must be at least 1, got 0"),
        ({"rpc_timeout": 60}, r"rpc_timeout=60 has no use on a storage server: .*compute_process"),
    ],
)
def test_what_would_have_no_effect_on_a_server_is_refused(how, words):
    with pytest.raises(ConfigError, match=words):
        run_storage_server(0, info_of(1, 1), tiny_partition(0, 1), 1, token="a token", **how)


class _SlowToFree(StorageService):
    """Frees what a client had when it may."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.freeing, self.may_end = threading.Event(), threading.Event()

    def client_gone(self, client):
        self.freeing.set()
        assert self.may_end.wait(60)
        super().client_gone(client)


def test_a_server_tells_its_status_while_a_client_that_came_back_is_freed():
    """The workers of its former producers may take a minute to end."""
    with storage(kind=_SlowToFree) as (endpoint,), ExitStack() as stack:
        join = Join(
            role=Role.CLIENT,
            rank=0,
            num_servers=1,
            world_size=1,
            job_name="train",
            process="the same",
        )

        def connection(session, join):
            made = ServerConnection(0, endpoint.address, SECURITY, "rank 0", session, 10.0, join)
            stack.callback(made.close)
            return made

        deadline = time.monotonic() + 60.0
        first = connection("a session", join)
        first.meet(60.0)
        waits = WaitReport("rank 0", deadline)
        news = first.wait_until_in(lambda news: news.job is not None, deadline, 60.0, waits)
        again = connection("another session", replace(join, job=news.job, secret=news.secret))
        server = endpoint.server
        assert isinstance(server, _SlowToFree)
        may_end = server.may_end
        with ThreadPoolExecutor(2) as pool:
            came = pool.submit(again.meet, 60.0)
            assert server.freeing.wait(60)
            status = pool.submit(endpoint.status)
            try:
                assert status.result(20)["clients"] == []
                assert not came.done(), "it may ask for nothing before the former one is freed"
            finally:
                may_end.set()
            came.result(60)
            assert endpoint.status()["clients"] == [0]


def test_a_server_0_that_was_started_again_gives_no_job_the_number_of_another() -> None:
    """Server 1 tells it which jobs it has had."""
    with storage(2, rejoin_s=60.0) as (zero, one):
        for job in range(2):
            with joined(zero.address, 2) as cluster:
                cluster.connection(1).call("ping").result(60)
                assert cluster.job == job
        wait_until(lambda: one.status()["clients"] == [], "the second job is over")
        zero.close()
        server = StorageService(tiny_partition(0, 2), 0, 2, security=SECURITY)
        host, port = zero.address
        again = Endpoint(server, host, port, SECURITY, rejoin_s=60.0)
        try:
            again.start()
            with joined(zero.address, 2) as cluster:
                assert cluster.job == 2
        finally:
            again.close()
