"""Promise 11 in a graph store: servers are killed, told to end and started again; same bits."""

import hashlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, RemoteDistDataset
from gigl_loader.graph_store import DistServer, request_server
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.client.server_outages import ServerOutages
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.testing import batch_tensors, wait_until
from tests.graph_store.store_cluster import (
    Processes,
    compute,
    info_of,
    pid_of,
    processes,
    tiny_graph,
)
from tests.graph_store.store_cluster import serve_partition as serve

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

LIMIT_S = 180.0
KILL, STOP, END = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
FETCH, BUILD = "fetch", "build"
"""A call that is under way, to a server that does not answer."""
Event = tuple[Any, int, signal.Signals | None, bool]
"""When: a call, or after (epoch, batch); which server, what it is sent if anything, and whether it
is started again then."""
ALONE: list[Event] = [
    (FETCH, 1, KILL, True),
    (BUILD, 1, KILL, True),
    ((0, 5), 1, KILL, True),
    ((0, 18), 0, KILL, True),
    ((1, 5), 1, END, True),  # a rolling restart: one after the other
    ((1, 18), 0, END, True),
    ((2, 0), 1, KILL, True),
]
"""Where each partition has one server."""
ALONE_FEW = [event for number, event in enumerate(ALONE) if number not in (2, 5)]
"""Each way to end, each call, each server, and the first batch of an epoch."""
REPLICAS: list[Event] = [
    (FETCH, 3, KILL, False),
    (BUILD, 2, KILL, False),
    ((0, 2), 2, None, True),  # takes part from the next epoch on
    ((0, 4), 3, None, True),
    ((1, 5), 1, KILL, False),  # the first replicas of both partitions, one after the other
    ((1, 18), 0, KILL, False),
    ((1, 28), 0, None, True),
    ((1, 29), 1, None, True),
    ((2, 5), 2, KILL, False),
    ((2, 10), 3, KILL, False),
]
"""Where servers 0 and 2, 1 and 3 have the same partition."""
UNEVEN: list[Event] = [
    (FETCH, 2, KILL, True),
    (BUILD, 1, KILL, True),
    ((0, 5), 2, KILL, False),  # server 0 takes over
    ((0, 18), 1, KILL, True),  # nobody else has its partition
    ((1, 5), 2, None, True),
    ((1, 18), 1, KILL, True),
    ((2, 5), 0, KILL, False),  # server 2 takes over
    ((2, 20), 0, None, True),
]
"""Where servers 0 and 2 have the same partition, and server 1 has the other one alone."""


def _digests(*loaders: DistNeighborLoader, after=lambda when: None) -> set[str]:
    """Take a batch of each loader in turn, for three epochs."""
    digests = [hashlib.sha256() for _ in loaders]
    for epoch in range(3):
        for loader in loaders:
            loader.set_epoch(epoch)
        for number, batches in enumerate(zip(*loaders, strict=True)):
            for digest, batch in zip(digests, batches, strict=True):
                for name, value in sorted(batch_tensors(batch).items()):
                    digest.update(name.encode())
                    if hasattr(value, "numpy"):
                        digest.update(value.numpy().tobytes())
            after((epoch, number))
    return {digest.hexdigest() for digest in digests}


class _Script:
    """The compute process's side of the events: lets each happen, and waits until it has.

    Args:
        folder: Where the two sides tell each other.
        events: In order.
    """

    def __init__(self, folder: str, events: list[Event]) -> None:
        self._folder, self._left = Path(folder), list(enumerate(events))

    def _let(self, what: str) -> None:
        number = self._left[0][0]
        (self._folder / f"wanted {what} {number}").touch()
        done = self._folder / f"done {what} {number}"
        wait_until(done.exists, f"event {number} has happened", LIMIT_S)

    def after(self, when: Any) -> None:
        """Let the events happen that are due."""
        while self._left and self._left[0][1][0] == when:
            self._let("event")
            _, (_, which, how, _) = self._left.pop(0)
            if how is None:  # it comes back in the background
                current_cluster().await_servers(ServerOutages({}, LIMIT_S), [which])

    def during(self, when: str, call: str, do: Callable[[], Any]) -> Any:
        """Return ``do()``; the next event happens while its ``call`` waits for that server."""
        server = self._left[0][1][1]
        self._let("stop")
        name = f"{call} on storage server {server} "
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(do)
            wait_until(lambda: any(t.name.startswith(name) for t in threading.enumerate()), name)
            self.after(when)
            return answer.result()


def _train(info, rank: int, folder: str, events: list[Event]) -> None:
    dataset = RemoteDistDataset(info, rank, reconnect_timeout=LIMIT_S)
    nodes = dataset.fetch_node_ids()
    assert sorted(torch.cat(list(nodes.values())).tolist()) == list(range(60)), "each once"

    def make(**how) -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset,
            [3, 2],
            nodes,
            batch_size=2,
            seed=7,
            shuffle=True,
            timeout=90.0,
            reconnect_timeout=LIMIT_S,
            prefetch_size=1,
            **how,
        )

    with make() as loader:
        expected = _digests(loader)
    servers = info.num_storage_nodes
    (job,) = request_server(0, DistServer.status)["totals"].keys() - {""}
    sampled = [
        request_server(s, DistServer.status)["totals"][job]["batches"] for s in range(servers)
    ]
    assert sampled == [3 * len(range(server, 30, servers)) for server in range(servers)], "spread"

    script = _Script(folder, events)
    again = script.during(FETCH, "get_node_ids", dataset.fetch_node_ids)
    assert {s: ids.tolist() for s, ids in again.items()} == {
        s: ids.tolist() for s, ids in nodes.items()
    }
    loader = script.during(BUILD, "create_sampling_producer", make)
    with loader, make(remote_cache="30%") as keeping, make() as other:
        assert len(other) == 30
        assert _digests(loader, keeping, after=script.after) == expected
        assert keeping.stats()["hit_rate"] > 0
        assert _digests(other) == expected, "a loader that was idle meanwhile goes on, too"


def _partition(rank: int, servers: int) -> DistDataset:
    return tiny_graph().partitions(2)[rank % 2]


def _serve(info, rank: int) -> None:
    serve(info, rank, _partition, reconnect_timeout=LIMIT_S)


@pytest.mark.longest
@pytest.mark.parametrize(
    ("num_servers", "events"),
    [
        (2, ALONE_FEW),
        (4, REPLICAS),
        pytest.param(3, UNEVEN, marks=pytest.mark.wide),
        pytest.param(2, ALONE, marks=pytest.mark.wide),
    ],
    ids=["alone", "replicas", "one partition with a replica", "alone, more often"],
)
def test_servers_that_are_lost(tmp_path: Path, num_servers: int, events: list[Event]) -> None:
    """Killed, told to end and started again; or with a replica, which takes over."""
    info = info_of(num_servers, 1)
    with processes(tmp_path) as started:
        servers = {rank: started.start(_serve, info, rank) for rank in range(num_servers)}
        client = started.start(compute, info, 0, _train, str(tmp_path), events)

        def wait_for(what: str, number: int) -> Path:
            wanted = tmp_path / f"wanted {what} {number}"

            def ready() -> bool:
                assert client.exitcode is None, started.notes()
                return wanted.exists()

            wait_until(ready, f"{what} {number} is due", LIMIT_S)
            return tmp_path / f"done {what} {number}"

        for number, (when, which, how, again) in enumerate(events):
            if when in (FETCH, BUILD):
                done = wait_for("stop", number)
                os.kill(pid_of(servers[which]), STOP)
                done.touch()
            done = wait_for("event", number)
            if how is not None:
                _end(started, servers.pop(which), how)
            if again:
                servers[which] = started.start(_serve, info, which)
            done.touch()
        started.join([client, *servers.values()])


def _end(started: Processes, server: ForkedProcess, how: signal.Signals) -> None:
    assert server.pid is not None
    os.kill(server.pid, how)
    server.join(60)
    assert server.exitcode == (0 if how == END else -how), started.notes()
