"""More processes than cores, memory that processes of a machine share, machines that vanish."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gigl_loader import DistNeighborLoader, GraphStoreInfo, RemoteDistDataset
from gigl_loader.errors import ConfigError, ServerDiedError
from gigl_loader.graph_store import DistServer, init_compute_process, shutdown_compute_process
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.transport import certs
from tests.graph_store.store_cluster import info_of, processes, run_cluster, serve
from tests.support.glt import NodeSamplerInput
from tests.support.scripts import enter_namespace

pytestmark = pytest.mark.multiprocess


def _three_epochs(info, rank):
    """Eight processes in two groups: each group shares its producers, and has all nodes."""
    remote = RemoteDistDataset(info, rank)
    nodes, schema = remote.fetch_node_ids(), remote.fetch_schema()
    loader = BaseDistLoader(
        remote,
        [NodeSamplerInput(nodes[server], "default_homogeneous_node_type") for server in nodes],
        schema,
        BaseDistLoader.create_graph_store_worker_options(
            dataset=remote,
            compute_rank=rank,
            worker_key=f"group {rank // 4}",
            num_workers=1,
            worker_concurrency=2,
            channel_size="64MB",
            prefetch_size=2,
        ),
        BaseDistLoader.create_sampling_config([3, 2], schema, 2, shuffle=True),
        torch.device("cpu"),
        BaseDistLoader.resolve_runtime(),
        DistServer.create_sampling_producer,
        process_start_gap_seconds=0.5,
        max_concurrent_producer_inits=1,
        shard="none",  # both groups on purpose
    )
    with loader:
        for _ in range(3):
            found: list[list[int]] = [[]] * dist.get_world_size()
            dist.all_gather_object(found, [s for batch in loader for s in batch.batch.tolist()])
            for group in (found[:4], found[4:]):
                assert sorted(seed for seeds in group for seed in seeds) == list(range(60))


def test_four_servers_and_eight_compute_processes(tmp_path):
    run_cluster(tmp_path, _three_epochs, servers=4, clients=8)


def _fetch_once(info, rank, shared, barrier):
    remote = RemoteDistDataset(info, rank, shared, barrier)
    alone = RemoteDistDataset(info, rank)
    for share in ((None, None), (rank, 2)):
        found, expected = remote.fetch_node_ids(*share), alone.fetch_node_ids(*share)
        assert all(torch.equal(found[server], expected[server]) for server in expected)
    assert len(shared) == 1  # one fetch for both shares
    dist.barrier()  # what follows is shared too, also that it failed
    with pytest.raises(ConfigError, match="split must be"):
        remote.fetch_node_ids(split="training")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match="together"):
        RemoteDistDataset(info, rank, shared)
    dist.barrier()


def test_processes_of_a_machine_fetch_once(tmp_path):
    manager = mp.get_context("spawn").Manager()
    with manager:
        run_cluster(tmp_path, _fetch_once, manager.dict(), manager.Barrier(2))


# --- machines with addresses of their own ---------------------------------------------------------


def _on_host(name: str, rank: int, role: Callable[..., None], *args: Any) -> None:
    """Call ``role`` in a network namespace."""
    enter_namespace(name)
    info = info_of(
        2,
        1,
        storage_cluster_master_ip="10.77.0.1",
        compute_cluster_master_ip="10.77.0.3",
        rpc_master_port=29600,
        compute_cluster_master_port=29501,
    )
    role(info, rank, *args)


def _serve_until_one_is_gone(info: GraphStoreInfo, rank: int) -> None:
    with suppress(ServerDiedError):
        serve(info, rank, reconnect_timeout=0)


def _train_until_one_is_gone(info: GraphStoreInfo, rank: int, pipe: Connection) -> None:
    os.environ.update(RANK="0", MASTER_ADDR="10.77.0.3", GLOO_SOCKET_IFNAME="eth0")
    init_compute_process(0, info, "gloo", timeout=120)
    remote = RemoteDistDataset(info, 0)
    how: dict[str, Any] = {"batch_size": 4, "seed": 7, "timeout": 60.0, "reconnect_timeout": 0}
    with DistNeighborLoader(remote, [3, 2], remote.fetch_node_ids(), **how) as loader:
        assert sorted(s for b in loader for s in b.batch.tolist()) == list(range(60))
        pipe.send("up")
        try:
            while True:
                for _ in loader:
                    time.sleep(0.05)
        except ServerDiedError as error:
            pipe.send(str(error))
    shutdown_compute_process()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _can_make_namespaces() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"gigl{os.getpid()}try"  # tests of another checkout may run beside these
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


@pytest.fixture
def hosts():
    """Three network namespaces on one bridge: 10.77.0.1, .2 (servers) and .3 (compute)."""
    if not _can_make_namespaces():
        pytest.skip("needs root and `ip netns`")
    names = [f"gigl{os.getpid() % 10000}n{number}" for number in (1, 2, 3)]
    bridge = f"gb{os.getpid() % 10000}"
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(names, start=1):
            outer = f"gv{os.getpid() % 10000}n{number}"
            _ip("netns", "add", name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def test_a_server_cut_off_in_mid_epoch_is_named(hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", certs.token())  # these reach each other
    ours, theirs = Pipe()
    with ours, theirs, processes(tmp_path) as started:
        for rank in range(2):
            started.start(_on_host, hosts[rank], rank, _serve_until_one_is_gone)
        client = started.start(_on_host, hosts[2], 0, _train_until_one_is_gone, theirs)
        assert ours.poll(150), started.notes()
        assert ours.recv() == "up"
        _ip("-n", hosts[1], "link", "set", "eth0", "down")
        begun = time.monotonic()
        assert ours.poll(100), started.notes()
        error = ours.recv()
        assert error.startswith("storage server 1"), error
        assert time.monotonic() - begun < 60
        client.join(60)
        assert client.exitcode == 0, started.notes()
