"""Servers that come late, are stopped, go on, and are told to end."""

import logging
import os
import re
import signal
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from gigl_loader import DistNeighborLoader, RemoteDistDataset
from gigl_loader.errors import PeerTimeoutError, ServerDiedError
from gigl_loader.graph_store import DistServer, request_server
from gigl_loader.graph_store.client.compute_process import call_server
from gigl_loader.graph_store.client.connection import result_of
from gigl_loader.graph_store.wire import membership
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import Footprint, wait_until
from tests.graph_store.store_cluster import (
    WIDE,
    compute,
    info_of,
    pid_of,
    processes,
    serve,
    share_of_each_server,
)

pytestmark = pytest.mark.multiprocess

TIMEOUT_S = 3.0
PATIENCE_S = 120.0
"""A server is stopped for longer than the default here, to see what waits say meanwhile."""
AT_MOST_S = 60.0
"""Beyond the timeout."""


def _compute(info, rank, function, folder):
    """As `compute`, with a log that soon says what is waited for."""
    logging.basicConfig(filename=folder / f"client{rank}.log", level=logging.WARNING)
    membership._FIRST_REPORT_S = 0.5
    compute(info, rank, function, folder, network_timeout=PATIENCE_S)


def _serve(info, rank):
    serve(info, rank, None, network_timeout=PATIENCE_S, reconnect_timeout=0)


def _loader(info, rank, nodes, **how):
    how = {"batch_size": 1, "seed": 7, "timeout": 60.0, "reconnect_timeout": 0, **how}
    return DistNeighborLoader(RemoteDistDataset(info, rank), [3, 2], nodes, prefetch_size=1, **how)


@contextmanager
def _fails(error, pattern, timeout_s=TIMEOUT_S):
    started = time.monotonic()
    with pytest.raises(error, match=pattern):
        yield
    assert time.monotonic() - started < timeout_s + AT_MOST_S


@contextmanager
def _soon():
    started = time.monotonic()
    yield
    assert time.monotonic() - started < AT_MOST_S


def _send(rank, pid, number, state=None):
    """Let rank 0 send a signal; returns on all ranks when it has arrived."""
    dist.barrier()
    if rank == 0:
        os.kill(pid, number)
        if state is not None:
            wait_until(lambda: process_state(pid).startswith(state), f"{pid} is {state}")
    dist.barrier()


def _client(info, rank, folder):
    pids = [request_server(server, DistServer.ping) for server in range(2)]
    nodes = share_of_each_server(info, rank, 2)
    loader = _loader(info, rank, nodes)
    iterator = iter(loader)
    next(iterator)
    loader._source.channel._timeout_s = TIMEOUT_S  # all are up, and answer at once
    _send(rank, pids[1], signal.SIGSTOP, "stopped")
    _server_1_is_stopped(info, rank, nodes, loader, iterator)
    _send(rank, pids[1], signal.SIGCONT)
    for server in range(2):
        wait_until(partial(_is_idle, server), f"server {server} has freed what was given up")
    dist.barrier()
    loader = _loader(info, rank, nodes)
    assert len(list(loader)) == len(loader) == 30  # it serves again
    iterator = iter(loader)
    next(iterator)
    dist.barrier()
    (folder / f"under way {rank}").write_text("")
    wait_until((folder / "go on").exists, "what runs was looked at")
    _servers_are_told_to_end(rank, pids, loader, iterator)


def _is_idle(server: int) -> bool:
    return _idle(request_server(server, DistServer.status))


def _idle(status):
    return status["producers"] == {} and status["starting_producers"] == []


def _server_1_is_stopped(info, rank, nodes, loader, iterator):
    name = r"storage server 1 at 127\.0\.0\.1:\d+"
    with _fails(
        PeerTimeoutError,
        r"no batch of epoch 0 came for 3\.0 s; waiting for .*storage server 1: does not answer "
        r"\(TimeoutError\): its process is stopped or overloaded",
    ):
        list(iterator)
    with _fails(PeerTimeoutError, r"the start of epoch 1 on storage server 1 took longer than 3 s"):
        iter(loader)
    with _fails(PeerTimeoutError, r"pid on storage server 1 took .* is stopped or overloaded"):
        result_of(call_server(1, DistServer.ping), TIMEOUT_S, "pid on storage server 1")
    with _soon():
        loader.shutdown()
    with _fails(PeerTimeoutError, rf"{name} did not start a producer within 8 s", 8.0):
        _loader(info, rank, nodes, timeout=8.0)


def _servers_are_told_to_end(rank, pids, loader, iterator):
    _send(rank, pids[1], signal.SIGTERM)
    with _fails(
        ServerDiedError, r"storage server 1 .* is gone: it was shut down\. .* start the job again"
    ):
        while True:  # on a busy machine it serves the rest of an epoch before it hears of its end
            list(iterator)
            iterator = iter(loader)
    with _soon():
        loader.shutdown()
    lost = re.compile(r"storage server 1 at .* left \(shutdown\): the graph is incomplete")
    wait_until(
        lambda: lost.match(request_server(0, DistServer.status)["health"]), "server 0 has noticed"
    )
    _send(rank, pids[0], signal.SIGINT)
    with _fails(ServerDiedError, r"storage server 0 .* is gone: it was shut down"):
        while True:
            request_server(0, DistServer.ping)
            time.sleep(0.1)


def _server_children(servers):
    return [set(Footprint.below(one.pid).pids) for one in servers]


def _says(log: Path, words: str) -> bool:
    return log.exists() and words in log.read_text()


@pytest.mark.longest
def test_servers_that_are_late_stopped_and_told_to_end(tmp_path):
    info, seen = info_of(2, 2), Footprint()
    with processes(tmp_path) as started:
        clients = [started.start(_compute, info, rank, _client, tmp_path) for rank in range(2)]
        servers = [started.start(_serve, info, 0)]
        said = "s for storage server 0 .*here; storage servers [1] have not loaded their"
        for rank in range(2):
            log = tmp_path / f"client{rank}.log"
            what = f"client {rank} says that it waits for storage server 1"
            wait_until(partial(_says, log, said.split(".*")[1]), what)
            assert said.split(".*")[0] in log.read_text()
        servers.append(started.start(_serve, info, 1))
        wait_until(
            lambda: (
                all((tmp_path / f"under way {rank}").exists() for rank in range(2))
                or not all(one.is_alive() for one in clients)
            ),
            "the clients have seen a stopped server",
            200,
        )
        assert all(one.is_alive() for one in clients), started.notes()
        assert all(_server_children(servers)), "workers are at work"
        for one in (*servers, *clients):
            seen.look(pid_of(one), itself=True)
        (tmp_path / "go on").write_text("")
        started.join([*clients, *servers], 60.0)
        seen.check_gone()


def _takes_all(info, rank, folder):
    """Take this rank's half; rank 1 is stopped in the middle, and goes on when told."""
    seeds = share_of_each_server(info, rank, 2)
    with _loader(info, rank, seeds, batch_size=2, sampler_options=WIDE) as loader:
        found = []
        for number, batch in enumerate(loader):
            found += batch.batch.tolist()
            if rank == 1 and number == 2:
                (folder / "pid").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
    assert sorted(found) == sorted(seeds[0].tolist()), "each of its seeds once"
    (folder / f"rank {rank} has all").touch()


def _other_job(info, rank, folder):
    nodes = RemoteDistDataset(info, rank).fetch_node_ids()
    with _loader(info, rank, nodes, sampler_options=WIDE) as loader:
        assert sum(1 for _ in loader) == 60
    assert not (folder / "rank 1 has all").exists(), "it waited for nobody of the first job"


def test_a_stopped_client_delays_no_other_rank_and_no_other_job(tmp_path, monkeypatch):
    """Though its batches are sent, and are larger than what the system takes for it."""
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")
    info = info_of(1, 2)
    with processes(tmp_path) as started:
        server = started.start(serve, info, 0, 2)
        ranks = [started.start(_compute, info, rank, _takes_all, tmp_path) for rank in (0, 1)]

        def wait_for(what, is_so):
            def is_so_by_now():
                assert all(one.exitcode in (None, 0) for one in ranks), started.notes()
                return is_so()

            wait_until(is_so_by_now, what)

        wait_for("rank 1 is stopped", (tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        wait_for("rank 0 has all of its batches", (tmp_path / "rank 0 has all").exists)
        started.join([ranks[0]])
        # at another address, and so of another name
        other = info_of(1, 1, rpc_master_port=info.rpc_master_port)
        started.join([started.start(_compute, other, 0, _other_job, tmp_path)])
        assert "stopped" in process_state(pid)
        os.kill(pid, signal.SIGCONT)
        started.join([*ranks, server])
