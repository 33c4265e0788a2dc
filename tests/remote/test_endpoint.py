"""A storage server's side of the network, in this process: who may come, and how it ends."""

import threading
import time
from contextlib import ExitStack

import pytest
from in_process import SECURITY, create, joined, storage
from store_cluster import HOST, tiny_partition

from gigl_loader import CustomSamplerOptions
from gigl_loader.errors import PeerError
from gigl_loader.graph_store import DistServer
from gigl_loader.remote.cluster import Cluster
from gigl_loader.remote.endpoint import Endpoint
from gigl_loader.testing import wait_until

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
    bad = CustomSamplerOptions("store_cluster.NoSuchSampler")
    with storage(2) as endpoints, joined(endpoints[0].address, 2) as cluster:
        with pytest.raises(PeerError, match="NoSuchSampler"):
            create(cluster, "bad", sampler_options=bad)
        for endpoint in endpoints:
            wait_until(lambda e=endpoint: e.server.status()["producers"] == {}, "nothing is left")
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
            HOST, port, rank=rank, world_size=2, num_servers=1, security=SECURITY, timeout_s=60.0
        )

    def served(port=0):
        endpoint = Endpoint(
            DistServer(partition), HOST, port, SECURITY, num_jobs=1, patience_s=1.0, rejoin_s=2.0
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
    later = served(port)
    try:
        clusters[1].await_servers(time.monotonic() + 60.0)
        assert later.status()["clients"] == [1]
        clusters[1].close()
        assert later.over.wait(60), "the job is over"
        assert later.jobs_served == 1
    finally:
        later.close()
