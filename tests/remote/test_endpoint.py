"""A storage server's side of the network, in this process: who may come, and how it ends."""

import threading
from contextlib import ExitStack

import pytest
from in_process import create, joined, storage

from gigl_loader import CustomSamplerOptions
from gigl_loader.errors import PeerError
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
