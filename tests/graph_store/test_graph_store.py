"""Whole clusters on this machine; few spawns, many cases in each."""

import os
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import CustomSamplerOptions, DistNeighborLoader, RemoteDistDataset
from gigl_loader.dataset.identity import Share
from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    SamplingError,
    ServerDiedError,
    UsageError,
    WorkerDiedError,
)
from gigl_loader.graph_store import (
    DistServer,
    async_request_server,
    init_compute_process,
    request_server,
    shutdown_compute_process,
)
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.wire.requests import NodeIdsRequest
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.node_loader import remote_input
from gigl_loader.loader.options.start_log import remote_seeds
from gigl_loader.runtime.ranks.collectives import end_group
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.options import (
    SAME_MACHINE_VARIABLE,
    SAME_MEMORY_VARIABLE,
    SourceOptions,
    may_be_one_machine,
    reads_same_memory,
)
from gigl_loader.testing import (
    Footprint,
    batch_tensors,
    check_same_batches,
    free_port,
    one_rank,
    wait_until,
)
from tests.graph_store.store_cluster import (
    compute,
    info_of,
    pid_of,
    processes,
    run_cluster,
    serve,
    share_of_each_server,
    tiny_graph,
)
from tests.support.glt import NodeSamplerInput
from tests.support.resting import at_rest
from tests.support.sources import source_of

pytestmark = pytest.mark.multiprocess

HOW: dict[str, Any] = {"batch_size": 4, "seed": 7, "timeout": 90.0}


def _loader(info, rank, nodes, **how):
    return DistNeighborLoader(RemoteDistDataset(info, rank), [3, 2], nodes, **{**HOW, **how})


def _seeds(batches):
    return [seed for batch in batches for seed in batch.batch.tolist()]


# --- what the store holds -------------------------------------------------------------------------


def _fetches(info, rank):
    remote, whole = RemoteDistDataset(info, rank), tiny_graph().dataset()
    assert remote.fetch_node_feature_info() == whole.node_feature_info
    assert remote.fetch_edge_feature_info() == whole.edge_feature_info
    assert remote.fetch_edge_dir() == "in"
    assert remote.fetch_edge_types() == whole.schema.edge_types
    assert remote.fetch_node_types() is None
    owners = tiny_graph().partitions(2)[0].view().node_books
    book = remote.fetch_node_partition_book()
    ids = torch.arange(60)
    assert torch.equal(torch.as_tensor(book[ids]), next(iter(owners.values())).owner(ids))
    remote.fetch_edge_partition_book()
    everything = remote.fetch_node_ids()
    assert sorted(everything) == [0, 1]
    assert sorted(torch.cat(list(everything.values())).tolist()) == list(range(60))
    shares = [remote.fetch_node_ids(r, 3) for r in range(3)]
    for server in range(2):
        assert torch.equal(torch.cat([share[server] for share in shares]), everything[server])
    sizes = [[share[server].numel() for server in range(2)] for share in shares]
    assert sizes[0] == [everything[0].numel() * 2 // 3, 0], "server 0 first, as far as it goes"
    assert sizes[2][0] == 0
    train = remote.fetch_node_ids(0, 2, split="train")
    some = {server: ids[:1] for server, ids in everything.items()}
    words = [remote_seeds(remote_input(remote, ids)) for ids in (everything, train, some)]
    count = sum(ids.numel() for ids in train.values())
    split = f"this rank's share of the train split, {count} nodes"
    assert words == ["all 60 nodes", split, "2 given nodes"], "as the log has it"
    with pytest.raises(ConfigError, match="together"):
        remote.fetch_node_ids(rank=0)
    with pytest.raises(ConfigError, match=r"storage server 0.*split must be"):
        remote.fetch_node_ids(split="training")  # type: ignore[arg-type]  # wrong on purpose
    ports = remote.fetch_free_ports_on_storage_cluster(150)  # a server tells 64 in one answer
    assert len(set(ports)) == 150
    with pytest.raises(ConfigError, match="ports were requested"):
        remote.fetch_free_ports_on_storage_cluster(-1)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, ports)
    assert gathered[0] == gathered[-1]

    assert async_request_server(1, DistServer.get_edge_dir).wait() == "in"
    assert request_server(0, DistServer.ping) != os.getpid()
    nothing = Share()
    object.__setattr__(nothing, "of", 0)  # as a client of its own may send it
    with pytest.raises(ProtocolError, match=r"share is \[start, end\) of 1 or more parts"):
        request_server(0, DistServer.get_node_ids, NodeIdsRequest(share=nothing))
    for stranger in (os.remove, os.getpid, StorageService.close, NeighborSampler.sample):
        with pytest.raises(ConfigError, match="a client may ask for these methods of DistServer"):
            request_server(0, stranger, "/nowhere")
    with pytest.raises(ConfigError, match="unexpected keyword argument 'nodes'"):
        request_server(0, DistServer.get_node_ids, nodes=3)
    with pytest.raises(ConfigError, match="server rank"):
        request_server(2, DistServer.ping)
    assert request_server(0, DistServer.status)["clients"] == [0, 1]
    dist.barrier()
    with pytest.raises(UsageError, match="has joined"):
        init_compute_process(rank, info, "gloo")


# --- loaders --------------------------------------------------------------------------------------


def _save(batches, path):
    torch.save([batch_tensors(batch) for batch in batches], path)


def _own_keys(info, rank, folder):
    """Epochs, shuffled or not, broken off, two loaders at once: own input on each rank."""
    size, servers = info.compute_cluster_world_size, info.num_storage_nodes
    nodes = share_of_each_server(info, rank, size)
    own = torch.cat(list(nodes.values())).tolist()
    before = sum(request_server(s, DistServer.status)["create_calls"] for s in range(servers))
    dist.barrier()
    with _loader(info, rank, nodes, shuffle=True, num_workers=2) as train:
        saved = []
        for _ in range(2):
            batches = list(train)
            assert sorted(_seeds(batches)) == sorted(own)
            saved += batches
        torch.save([batch_tensors(b) for b in saved], f"{folder}/{rank}.pt")
        torch.save(own, f"{folder}/{rank}.ids.pt")
        in_memory = reads_same_memory()
        assert train.stats()["partitions_over_tcp"] == (0 if in_memory else servers - 1)
        assert source_of(train).channel.rows_apart == (not may_be_one_machine())
        iterator = iter(train)  # epoch 2, under way
        first = [next(iterator), next(iterator)]
        with _loader(info, rank, {servers - 1: nodes[servers - 1]}) as val:  # made meanwhile
            assert _seeds(val) == nodes[servers - 1].tolist()
            rest = list(iterator)
            assert _seeds(list(val)) == nodes[servers - 1].tolist()
        assert sorted(_seeds(first + rest)) == sorted(own)
        for number, _ in enumerate(train):  # epoch 3, broken off
            if number == 1:
                break
        assert sorted(_seeds(train)) == sorted(own)
        train.set_epoch(0)
        check_same_batches(list(train), batches_of(saved, len(train)))
        state_at = 3
        train.set_epoch(1)
        iterator = iter(train)
        for _ in range(state_at):
            next(iterator)
        state = train.state_dict()
        asked = RemoteDistDataset(info, rank).fetch_graph_identity()
        assert state["options"]["graph"] in asked.split()
        another = {**state["options"], "graph": "another", "replace": "True"}
        with pytest.raises(ConfigError, match=r"graph: another -> \w+, replace: True -> not set"):
            train.load_state_dict({**state, "options": another})
        train.load_state_dict(state)
        check_same_batches(list(train), saved[len(train) :][state_at:])
    train.shutdown()
    dist.barrier()
    after = sum(request_server(s, DistServer.status)["create_calls"] for s in range(servers))
    assert after - before == servers * 2 * size  # two loaders, a key of each rank
    with pytest.raises(ConfigError, match="storage servers"):
        _loader(info, rank, {9: torch.arange(3)})
    with pytest.raises(ConfigError, match="fetch_node_ids"):
        _loader(info, rank, torch.arange(3))
    wait_until(
        lambda: all(
            request_server(s, DistServer.status)["producers"] == {} for s in range(servers)
        ),
        "the servers end the producers",
    )


def batches_of(batches, count):
    return batches[:count]


def _fetches_in_a_group_that_is_up(info, local_rank, folder):
    rank = 1 - local_rank  # the group's ranks count, and no variable of a launcher is needed
    store = f"file://{folder}/group"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    init_compute_process(local_rank, info, timeout=90.0)
    assert (current_cluster().rank, current_cluster().world_size) == (rank, 2)
    try:
        _fetches(info, rank)
    finally:
        shutdown_compute_process()
    dist.barrier()  # it is still up
    end_group()


def test_fetches_of_processes_that_have_a_group(tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    info = info_of(2, 2, compute_cluster_master_ip="nobody.invalid")  # nobody meets there
    with processes(tmp_path) as started:
        roles = [started.start(serve, info, rank) for rank in range(2)]
        for local_rank in range(2):
            roles.append(
                started.start(_fetches_in_a_group_that_is_up, info, local_rank, str(tmp_path))
            )
        started.join(roles)


@pytest.mark.parametrize(
    ("servers", "clients", "without"),
    [
        (1, 1, ""),
        (2, 2, SAME_MACHINE_VARIABLE),
        pytest.param(2, 2, "", marks=pytest.mark.wide),
        pytest.param(3, 1, SAME_MEMORY_VARIABLE, marks=pytest.mark.wide),
    ],
)
def test_batches_equal_those_of_one_machine(tmp_path, monkeypatch, servers, clients, without):
    if without:
        monkeypatch.setenv(without, "0")
    run_cluster(tmp_path, _own_keys, str(tmp_path), servers=servers, clients=clients)
    with one_rank(tmp_path):
        for rank in range(clients):
            own = torch.tensor(torch.load(tmp_path / f"{rank}.ids.pt"))
            found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
            with DistNeighborLoader(
                tiny_graph().dataset(), [3, 2], own, shuffle=True, **HOW
            ) as local:
                expected = [batch_tensors(b) for _ in range(2) for b in local]
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert one.keys() == other.keys()
                assert all(_equal(one[name], other[name]) for name in one)
                assert {"train_mask", "node_time", "edge_age", "edge_weight"} <= one.keys()


def _equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _shared(info, rank, nodes, key, **how):
    """A loader whose producers all ranks share."""
    remote = RemoteDistDataset(info, rank)
    schema = remote.fetch_schema()
    return BaseDistLoader(
        remote,
        [NodeSamplerInput(nodes[server], "default_homogeneous_node_type") for server in nodes],
        schema,
        BaseDistLoader.create_graph_store_worker_options(
            dataset=remote,
            compute_rank=rank,
            worker_key=key,
            num_workers=1,
            worker_concurrency=2,
            channel_size="64MB",
            prefetch_size=3,
        ),
        BaseDistLoader.create_sampling_config([3, 2], schema, 2, shuffle=True),
        torch.device("cpu"),
        BaseDistLoader.resolve_runtime(),
        DistServer.create_sampling_producer,
        process_start_gap_seconds=0.1,
        max_concurrent_producer_inits=1,
        **how,
    )


def _one_key(info, rank, folder):
    nodes = RemoteDistDataset(info, rank).fetch_node_ids()
    loader = _shared(info, rank, nodes, "all of us")
    found: list[Any] = [None] * 2
    dist.all_gather_object(found, (_seeds(loader), len(loader)))
    assert sorted(found[0][0] + found[1][0]) == list(range(60))
    assert found[0][1] + found[1][1] == 30
    for server in range(2):
        status = request_server(server, DistServer.status)
        assert status["create_calls"] == 1
        assert len(status["producers"]) == 1
    dist.barrier()
    # one rank breaks its epoch off: the other has all of its share, and so has the next epoch
    if rank == 0:
        for _ in loader:
            break
        first = []
    else:
        first = _seeds(loader)
    second = _seeds(loader)
    dist.all_gather_object(found, (first, second))
    assert len(found[1][0]) == len(set(found[1][0])) == 28  # 14 of 30 batches
    assert sorted(found[0][1] + found[1][1]) == list(range(60))
    loader.shutdown()
    with pytest.raises(ConfigError, match="another input"):
        _shared(info, rank, {s: ids[rank:] for s, ids in nodes.items()}, "not the same")
    bad = {
        "sampler_options": CustomSamplerOptions("tests.graph_store.store_cluster.NoSuchSampler"),
        "source_options": SourceOptions(seed=1, timeout_s=90.0),
    }
    with pytest.raises(PeerError, match="storage server"):  # their workers cannot build it
        _shared(info, rank, nodes, "bad", **bad)
    if rank == 1:  # leaves without shutting down: the other has its share all the same
        loader = _shared(info, rank, nodes, "again")
        next(iter(loader))
        torch.save(1, f"{folder}/half.pt")
        os.kill(os.getpid(), signal.SIGKILL)
    loader = _shared(info, rank, nodes, "again")
    wait_until(lambda: os.path.exists(f"{folder}/half.pt"), "the other rank is under way")
    assert len(_seeds(loader)) == 2 * len(loader) == 32
    loader.shutdown()


def test_ranks_with_one_key_share_an_epoch(tmp_path):
    info = info_of(2, 2)
    with processes(tmp_path) as started:
        servers = [started.start(serve, info, rank) for rank in range(2)]
        first = started.start(compute, info, 0, _one_key, str(tmp_path))
        second = started.start(compute, info, 1, _one_key, str(tmp_path))
        started.join([first, *servers])
        second.join(100)
        assert second.exitcode == -signal.SIGKILL


def _workers_fail(info, rank):
    nodes = RemoteDistDataset(info, rank).fetch_node_ids()
    sampler = "tests.graph_store.store_cluster.FailingSampler"
    with _loader(info, rank, nodes, sampler_options=CustomSamplerOptions(sampler)) as loader:
        for _ in range(2):  # the next epoch starts, and fails where this one did
            with pytest.raises(SamplingError, match="no luck") as caught:
                list(loader)
            assert "storage server 1" in str(caught.value)
            assert "store_cluster.py" in caught.value.remote_traceback
    silent = CustomSamplerOptions(sampler, {"silent": True})
    for error, text, how in (
        (SamplingError, r"FailingSampler\.sample .* returned None", {"sampler_options": silent}),
        (ConfigError, r"transform= .* returned None", {"transform": lambda batch: None}),
    ):
        with _loader(info, rank, nodes, **how) as loader, pytest.raises(error, match=text):
            list(loader)
    slow = CustomSamplerOptions(sampler, {"nap_s": 8.0})
    with _loader(info, rank, nodes, sampler_options=slow) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(PeerTimeoutError, match=r"storage server 1: worker 0 \(pid \d+"):
            source_of(loader).next(1.0)
    with _loader(info, rank, nodes) as loader:
        expected = [batch_tensors(batch) for batch in loader]
    with _loader(info, rank, nodes) as loader:
        loader.set_epoch(0)
        found = []
        for batch in loader:
            found.append(batch_tensors(batch))
            if len(found) == 3:
                _kill_worker_of_server_1()
        _check_equal(found, expected)
        list(loader)
        assert loader.stats()["restarts"] == 1
    with _loader(info, rank, nodes, max_restarts=0) as loader:
        list(loader)
        _kill_worker_of_server_1()
        with pytest.raises(WorkerDiedError, match=r"storage server 1.*SIGKILL"):
            _exhaust_twice(loader)


def _kill_worker_of_server_1():
    (producer,) = request_server(1, DistServer.status)["producers"].values()
    os.kill(producer["worker_pids"][0], signal.SIGKILL)


def _check_equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(v, other[k]) for k, v in one.items() if hasattr(v, "numel"))


@pytest.mark.longest
def test_failures_of_workers_reach_the_loop(tmp_path):
    run_cluster(tmp_path, _workers_fail, clients=1)


# --- deaths ---------------------------------------------------------------------------------------


def _exhaust(loader):
    for _ in range(1000):
        list(loader)


def _exhaust_twice(loader):
    with suppress(SamplingError):  # of server 0, whose worker asked the one that was killed
        _exhaust(loader)
    _exhaust(loader)


def _iterate_until_a_server_dies(info, rank, folder):
    nodes = share_of_each_server(info, rank, 2)
    pid = request_server(1, DistServer.ping)
    loader = _loader(info, rank, nodes, reconnect_timeout=0)
    list(loader)
    dist.barrier()
    if rank == 0:
        os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(ServerDiedError, match="storage server 1"):
        _exhaust(loader)
    assert time.monotonic() - started < 60, "below the loader's own 90 s"
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(ServerDiedError):
        request_server(1, DistServer.ping)
    started = time.monotonic()
    with pytest.raises(PeerError, match="storage server 1"):  # nobody waits for the group's timeout
        _loader(info, rank, nodes, reconnect_timeout=0)
    assert time.monotonic() - started < 60


def _serve_whole(info, rank):
    serve(info, rank, reconnect_timeout=0)


def test_a_killed_server_is_an_error_on_every_client(tmp_path):
    info = info_of(2, 2)
    with processes(tmp_path) as started:
        servers = [started.start(_serve_whole, info, rank) for rank in range(2)]
        clients = [
            started.start(compute, info, rank, _iterate_until_a_server_dies, str(tmp_path))
            for rank in range(2)
        ]
        started.join(clients)
        servers[0].join(100)  # it ends too, and says why
        assert servers[0].exitcode == 1
        assert "storage server 1" in started.notes()


def _hold(info, rank, folder):
    loader = _loader(info, rank, RemoteDistDataset(info, rank).fetch_node_ids())
    iterator = iter(loader)
    next(iterator)
    (folder / "up").write_text("")
    time.sleep(600)


def _second_job(info, rank, folder):
    status = request_server(0, DistServer.status)
    assert status["jobs_served"] == 1
    assert status["producers"] == {}
    nodes = RemoteDistDataset(info, rank).fetch_node_ids()
    with _loader(info, rank, nodes) as loader:
        assert len(_seeds(loader)) == 60


def _bad_token(info, rank):
    os.environ["RANK"] = "0"
    for token in ("wrong", None):
        with pytest.raises(JoinRefusedError, match="compute process 0"):
            init_compute_process(rank, info, "gloo", token=token)
    assert not dist.is_initialized()


def _at_work(pid: int) -> set[int]:
    found = Footprint.below(pid).pids
    return set(found) - set(at_rest(found))


def test_a_killed_client_frees_its_workers_and_the_next_job_is_served(tmp_path, monkeypatch):
    monkeypatch.delenv("GIGL_LOADER_TLS_DIR", raising=False)  # with certificates no token counts
    monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "secret of this test")
    info = info_of(2, 1)
    with processes(tmp_path) as started:
        servers = [started.start(serve, info, rank, 2) for rank in range(2)]
        client = started.start(compute, info, 0, _hold, tmp_path)
        monkeypatch.delenv("GIGL_LOADER_CLUSTER_TOKEN")
        stranger = started.start(_bad_token, info, 0)
        monkeypatch.setenv("GIGL_LOADER_CLUSTER_TOKEN", "secret of this test")
        wait_until((tmp_path / "up").exists, "the first job is under way")
        assert all(Footprint.below(server.pid).pids for server in servers)
        client.kill()
        wait_until(
            lambda: not any(_at_work(pid_of(server)) for server in servers),
            "the servers end the workers of the client",
        )
        second = started.start(compute, info, 0, _second_job, tmp_path)
        started.join([stranger, second, *servers])


def test_who_does_not_come_is_named():
    info = info_of(1, 1, rpc_master_port=free_port())
    os.environ["RANK"] = "0"
    try:
        with pytest.raises(PeerTimeoutError, match=r"storage server 0 at 127\.0\.0\.1"):
            init_compute_process(0, info, "gloo", timeout=0.5)
    finally:
        del os.environ["RANK"]
    with pytest.raises(UsageError, match="init_compute_process"):
        RemoteDistDataset(info, 0).fetch_edge_dir()
