"""A compute process's links, and servers of one partition: who answers for whom. No workers."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import DistDataset
from gigl_loader.errors import ConfigError, ServerDiedError
from gigl_loader.graph_store.client.server_outages import MOST_RETURNS, ServerOutages
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server.leader import LeaderLink
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.graph_store.wire.requests import NodeIdsRequest
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import SECURITY, joined, storage
from tests.graph_store.store_cluster import HOST, tiny_graph

pytestmark = pytest.mark.multiprocess


def _whole(rank: int, servers: int) -> DistDataset:
    return tiny_graph().partitions(1)[0]


def _ids(cluster: Cluster, reconnect_s: float = 60.0) -> dict[int, list[int]]:
    """Return the ids of each server, whoever answers for it."""
    requests = {
        rank: {"request": NodeIdsRequest(server=rank)} for rank in range(cluster.num_servers)
    }
    found = cluster.ask_each("get_node_ids", requests, 60.0, reconnect_s)
    return {server: ids.tolist() for server, ids in found.items()}


@given(partitions=st.integers(1, 4), copies=st.integers(1, 6), data=st.data())
def test_a_stand_in_has_the_same_partition_and_a_server_that_is_up_its_own_work(
    partitions: int, copies: int, data: st.DataObject
) -> None:
    servers = range(partitions * copies)
    lost = data.draw(st.sets(st.sampled_from(servers)))
    cluster: Any = Cluster.__new__(Cluster)
    cluster.num_partitions, cluster.num_servers = partitions, len(servers)
    stand_ins = {server: cluster.stand_in(server, sorted(lost)) for server in servers}
    for server, other in stand_ins.items():
        replicas = {one for one in servers if one % partitions == server % partitions}
        if server not in lost or replicas <= lost:
            assert other == server, "nobody else is asked in vain"
        else:
            assert other in replicas - lost
    for partition in range(partitions):
        replicas = set(servers[partition::partitions])
        work = Counter(stand_ins[server] for server in replicas & lost)
        if replicas - lost:
            assert max(work.values(), default=0) <= -(-len(replicas) // len(replicas - lost))


def test_a_connection_is_made_once_when_it_is_first_looked_at() -> None:
    with storage(2) as (zero, _), joined(zero.address, 2) as cluster:
        assert list(cluster.connections) == [0]
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(cluster.connection, [1] * 32))) == 1
        assert list(cluster.connections) == [0, 1]
        for rank in (-1, 2):
            with pytest.raises(ConfigError, match=f"got {rank}"):
                cluster.connection(rank)


def test_a_job_begins_and_goes_on_without_a_server_that_has_a_replica() -> None:
    with storage(3, partition=_whole, rejoin_s=60.0) as (zero, one, two):
        with joined(zero.address, 3) as cluster:
            whole = _ids(cluster)
        assert whole == {0: [*range(20)], 1: [*range(20, 40)], 2: [*range(40, 60)]}
        one.close()
        wait_until(lambda: 1 in zero.status()["away"], "server 0 has heard of it")
        with joined(zero.address, 3) as cluster:
            assert cluster.lost == [1], "the job did not wait for it"
            assert _ids(cluster) == whole
            assert _ids(cluster, reconnect_s=0.0) == whole, (
                "its replicas are up: nothing is waited for"
            )
            zero.close()
            assert _ids(cluster) == whole
            assert cluster.await_servers(ServerOutages({}, 0.0)) == [2]
            two.close()
            wait_until(lambda: 2 in cluster.lost, "the last one is lost")
            with pytest.raises(ServerDiedError):
                _ids(cluster, reconnect_s=0.5)


def test_a_server_that_comes_back_answers_for_itself() -> None:
    with (
        storage(2, partition=_whole, rejoin_s=60.0) as (zero, one),
        joined(zero.address, 2) as cluster,
    ):
        one.close()
        wait_until(lambda: cluster.lost == [1], "the client has heard of it")
        assert cluster.await_servers(ServerOutages({}, 0.0)) == [0]
        host, port = zero.address
        leader = LeaderLink(host, port, SECURITY, "server 1", 10.0)
        server = StorageService(tiny_graph().partitions(1)[0], 1, 2, security=SECURITY)
        again = Endpoint(server, HOST, 0, SECURITY, None, leader, rejoin_s=60.0)
        try:
            again.start()
            found = cluster.await_servers(ServerOutages({}, 60.0), [1])
            assert found == [0, 1], "at another port: server 0 says where"
            assert cluster.connection(1).address == again.address
            assert cluster.connection(1).call("get_node_ids", request=None).result(60).numel() == 30
        finally:
            again.close()


def test_a_server_that_is_lost_again_and_again_is_given_up_by_name() -> None:
    with storage() as (zero,), joined(zero.address) as cluster:
        renewals = {0: 0}
        outages = ServerOutages(renewals, 60.0)
        assert cluster.await_servers(outages) == [0]
        renewals[0] = MOST_RETURNS
        with pytest.raises(ServerDiedError, match=r"storage server 0 at .* came back 10 times"):
            cluster.await_servers(outages)


def test_a_client_hears_of_servers_that_it_never_met_and_meets_all_without_server_0() -> None:
    with (
        storage(4, partition=_whole, rejoin_s=60.0) as (zero, one, two, three),
        joined(zero.address, 4) as cluster,
    ):
        one.close()
        wait_until(lambda: cluster.lost == [1], "server 0 says so")
        assert cluster.await_servers(ServerOutages({}, 0.0)) == [0, 2, 3]
        assert list(cluster.connections) == [0], "nothing was asked of the others"
        two.close()
        wait_until(lambda: cluster.lost == [1, 2], "server 0 says so, too")
        zero.close()
        wait_until(lambda: 0 in cluster.lost, "the client sees that itself")
        assert cluster.await_servers(ServerOutages({}, 0.0)) == [3]
        assert cluster.connections[3].is_up
        three.close()
        wait_until(lambda: 3 in cluster.lost, "which nobody else could tell")


def test_a_server_that_comes_back_unmet_is_known_by_its_incarnation() -> None:
    with (
        storage(2, partition=_whole, rejoin_s=60.0) as (zero, one),
        joined(zero.address, 2) as cluster,
    ):
        one.close()
        wait_until(lambda: cluster.lost == [1], "server 0 says so")
        host, port = zero.address
        leader = LeaderLink(host, port, SECURITY, "server 1", 10.0)
        server = StorageService(tiny_graph().partitions(1)[0], 1, 2, security=SECURITY)
        again = Endpoint(server, HOST, 0, SECURITY, None, leader, rejoin_s=60.0)
        try:
            again.start()
            assert cluster.await_servers(ServerOutages({}, 60.0), [1]) == [0, 1]
            assert (list(cluster.connections), cluster.renewals) == ([0], {1: 1})
            assert tuple(cluster.incarnations) == (zero.incarnation, again.incarnation)
            assert cluster.connection(1).call("get_node_ids", request=None).result(60).numel() == 30
        finally:
            again.close()
