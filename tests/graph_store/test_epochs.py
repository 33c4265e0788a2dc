"""One cluster from start to end: epochs, what servers tell meanwhile, a stopped client, the end."""

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import DistNeighborLoader, RemoteDistDataset
from gigl_loader.graph_store import DistServer, request_server
from gigl_loader.graph_store.server import storage_process
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import Footprint, batch_tensors, one_rank, wait_until
from tests.graph_store.store_cluster import (
    WIDE,
    compute,
    info_of,
    pid_of,
    processes,
    serve,
    share_of_each_server,
    tiny_graph,
)
from tests.support.glt import NodeSamplerInput

pytestmark = pytest.mark.multiprocess

HOW: dict[str, Any] = {"batch_size": 2, "seed": 7, "timeout": 60.0}
NODE_TYPE = "default_homogeneous_node_type"


def _serve(info, rank, folder):
    """As `serve`, with a log that says every moment how the server is."""
    logging.basicConfig(filename=folder / f"server{rank}.log", level=logging.INFO)
    storage_process._HEALTH_EVERY_S = 0.2
    serve(info, rank)


def _seeds(batches):
    return [seed for batch in batches for seed in batch.batch.tolist()]


def _client(info, rank, folder):
    """Two loaders serve all cases: one with a key of each rank's own, one that both share."""
    nodes = share_of_each_server(info, rank, 2)
    own = torch.cat(list(nodes.values())).tolist()
    with DistNeighborLoader(
        RemoteDistDataset(info, rank), [3, 2], nodes, prefetch_size=1, worker_concurrency=3, **HOW
    ) as loader:
        _two_epochs(loader, own, folder / f"{rank}.pt")
        dist.barrier()
        _servers_tell_their_state(loader, rank, own, folder)
        with _sharing(info, rank) as shared:
            _the_other_client_is_stopped(loader, shared, rank, own)
    dist.barrier()
    assert all(request_server(server, DistServer.status)["producers"] == {} for server in range(2))
    dist.barrier()


def _two_epochs(loader, own, path):
    """Without shuffling the order is that of the input, and the draws are new ones."""
    epochs = [list(loader), list(loader)]
    assert [_seeds(epoch) for epoch in epochs] == [own, own]
    drawn = [[batch.n_id.tolist() for batch in epoch] for epoch in epochs]
    assert drawn[0] != drawn[1]
    torch.save((own, [batch_tensors(batch) for epoch in epochs for batch in epoch]), path)


def _servers_tell_their_state(loader, rank, own, folder):
    iterator = iter(loader)
    first = [next(iterator), next(iterator)]
    dist.barrier()  # both have an epoch under way
    if rank == 0:
        for server in range(2):
            _check_state(server, folder)
        (folder / "under way").write_text("")
        wait_until((folder / "go on").exists, "what runs was looked at")
    dist.barrier()
    assert _seeds(first + list(iterator)) == own


def _check_state(server, folder):
    def status():
        return request_server(server, DistServer.status)

    def is_full():  # three batches under way per client, none of them asked for
        return [one["queued_batches"] for one in status()["producers"].values()] == [3, 3]

    wait_until(is_full, "the workers have sampled all that they may")
    found = status()
    producers, totals = found.pop("producers"), found.pop("totals")
    jobs = found.pop("jobs")
    (job,) = jobs.keys() - {""}
    assert totals[job]["batches"] > 0
    assert jobs[job]["ranks"] == [0, 1]
    assert sorted(jobs[job]["producers"]) == sorted(producers)
    assert jobs[job]["queued_bytes"] == sum(one["queued_bytes"] for one in producers.values())
    assert jobs[job]["seeds_per_s"] > 0
    assert 0 < found.pop("uptime_s") < 300
    assert len(found.pop("cluster")) == 16
    assert found == {
        "health": "serving",
        "server_rank": server,
        "num_servers": 2,
        "pid": request_server(server, DistServer.ping),
        "partition_idx": server,
        "num_partitions": 2,
        "num_nodes": {NODE_TYPE: 60},
        "create_calls": 2,
        "starting_producers": [],
        "clients": [0, 1],
        "servers": [1] if server == 0 else [],
        "jobs_served": 0,
        "refused": 0,
        "lost": None,
        "away": {},
    }
    assert sorted(one["consumers"] for one in producers.values()) == [
        [f"({job} (number 0), {rank})"] for rank in (0, 1)
    ]
    assert sorted(one["key"][-6:] for one in producers.values()) == ["rank 0", "rank 1"]
    for one in producers.values():
        assert one["failed"] is None
        assert one["queued_bytes"] >= 3 * 100  # three messages, each of some tensors
        (pid,) = one["worker_pids"]
        assert process_state(pid) not in ("gone", "dead")
        assert pid in Footprint.below(found["pid"]).pids

    def line():  # of now: memory of a batch that was sent is given back a moment later
        queued = sum(one["queued_bytes"] for one in status()["producers"].values())
        return (
            f"storage server {server} is serving: partition {server} of 2, 2 clients, 2 producers, "
            f"{queued} bytes queued"
        )

    log = folder / f"server{server}.log"
    wait_until(lambda: line() in log.read_text(), "the log says the same")


def _sharing(info, rank):
    """A loader whose producers both ranks share, with wide batches of one seed."""
    remote = RemoteDistDataset(info, rank)
    nodes, schema = remote.fetch_node_ids(), remote.fetch_schema()
    options = BaseDistLoader.create_graph_store_worker_options(
        dataset=remote,
        compute_rank=rank,
        worker_key="both",
        num_workers=1,
        worker_concurrency=2,
        channel_size="64MB",
        prefetch_size=4,
    )
    config = BaseDistLoader.create_sampling_config([3, 2], schema, 1, seed=7)
    return BaseDistLoader(
        remote,
        [NodeSamplerInput(nodes[server], NODE_TYPE) for server in nodes],
        schema,
        options,
        config,
        torch.device("cpu"),
        BaseDistLoader.resolve_runtime(),
        DistServer.create_sampling_producer,
        WIDE,
    )


def _the_other_client_is_stopped(loader, shared, rank, own):
    pids = [0] * 2
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        wait_until(lambda: process_state(pids[1]).startswith("stopped"), "rank 1 is stopped")
        try:
            for _ in range(2):
                assert _seeds(loader) == own
                assert len(_seeds(shared)) == 30
            assert process_state(pids[1]).startswith("stopped")
        finally:
            os.kill(pids[1], signal.SIGCONT)
        found = _seeds(shared)
    else:
        iterators = iter(loader), iter(shared)
        first, second = ([next(iterator)] for iterator in iterators)
        os.kill(os.getpid(), signal.SIGSTOP)  # with four wide batches of each server under way
        assert _seeds(first + list(iterators[0])) == own
        found = _seeds(second + list(iterators[1]))
    everything: list[list[int]] = [[]] * 2
    dist.all_gather_object(everything, found)
    assert sorted(everything[0] + everything[1]) == list(range(60))


@pytest.mark.parametrize("same_memory", ["0", "1"])
def test_a_cluster_from_start_to_end(tmp_path: Path, monkeypatch, same_memory: str) -> None:
    """Nothing is left of it: no process, no shared memory, no port."""
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, same_memory)
    info, seen = info_of(2, 2), Footprint()
    with processes(tmp_path) as started:
        roles = [started.start(_serve, info, rank, tmp_path) for rank in range(2)]
        roles += [started.start(compute, info, rank, _client, tmp_path) for rank in range(2)]
        wait_until(
            lambda: (tmp_path / "under way").exists() or not all(one.is_alive() for one in roles),
            "the epochs are under way",
            200,
        )
        for one in roles:
            seen.look(pid_of(one), itself=True)
        (tmp_path / "go on").write_text("")
        started.join(roles)
        seen.check_gone()
    ports = re.findall(r"serves partition . on 127", (tmp_path / "server0.log").read_text())
    assert len(ports) == 1
    assert len(seen.pids) >= 4 + 4 + 4, "servers, clients, supervisors, workers"
    assert len(seen.sockets) >= 2 + 4 + 2, "of servers, of workers, where these meet"
    _check_against_one_machine(tmp_path)


def _check_against_one_machine(folder: Path) -> None:
    with one_rank(folder):
        for rank in range(2):
            own, found = torch.load(folder / f"{rank}.pt", weights_only=False)
            with DistNeighborLoader(
                tiny_graph().dataset(), [3, 2], torch.tensor(own), **HOW
            ) as local:
                expected = [batch_tensors(batch) for _ in range(2) for batch in local]
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert one.keys() == other.keys()
                assert all(_equal(one[key], other[key]) for key in one)


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
