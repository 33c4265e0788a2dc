"""One thread iterates, another asks for batches at once; servers are started again meanwhile."""

import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import DistNeighborLoader, RemoteDistDataset
from gigl_loader.testing import check_same_batches, wait_until
from tests.graph_store.store_cluster import compute, info_of, processes, tiny_partition
from tests.graph_store.store_cluster import serve_partition as serve

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

LIMIT_S = 180.0
AT_ONCE = [[at, 2 * at] for at in range(20)]
"""Positions of the seeds of each batch at once."""
LOSSES = [(0, 5, 1), (0, 18, 0), (1, 5, 0), (1, 18, 1)]
"""Epoch, batch, and the server that is killed after it and started again; each partition has one
server."""


def _train(info: Any, rank: int, folder: str) -> None:
    dataset = RemoteDistDataset(info, rank, reconnect_timeout=LIMIT_S)
    nodes = dataset.fetch_node_ids()

    def make(**how: Any) -> DistNeighborLoader:
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
        expected = [list(loader) for _ in range(2)]
        at_once = [loader(index) for index in AT_ONCE]
    with make() as loader, make(remote_cache="30%") as keeping, ThreadPoolExecutor(2) as pool:
        ended = threading.Event()
        loaders = (loader, keeping)
        asking = [pool.submit(_ask, one, at_once, ended) for one in loaders]
        try:
            for epoch, batches in enumerate(expected):
                _iterate(loaders, epoch, batches, Path(folder), asking)
        finally:
            ended.set()
        for one in asking:
            assert one.result(LIMIT_S) >= len(AT_ONCE)


def _iterate(
    loaders: Any, epoch: int, expected: list[Any], folder: Path, asking: list["Future[int]"]
) -> None:
    losses = {(epoch, after): number for number, (epoch, after, _) in enumerate(LOSSES)}
    count = 0
    for count, (known, *found) in enumerate(zip(expected, *loaders, strict=True), 1):
        check_same_batches([known] * len(found), found)
        if (number := losses.get((epoch, count))) is not None:
            (folder / f"due {number}").touch()
            wait_until((folder / f"killed {number}").exists, "a server is killed", LIMIT_S)
        for one in asking:
            assert not one.done(), one.exception()
    assert count == len(expected) == 30


def _ask(loader: DistNeighborLoader, expected: list[Any], ended: threading.Event) -> int:
    """Ask for batches at once until the epochs have ended; return how many came."""
    count = 0
    while not ended.is_set() or count < len(AT_ONCE):
        index = count % len(AT_ONCE)
        check_same_batches([expected[index]], [loader(AT_ONCE[index])])
        count += 1
    return count


def _serve(info: Any, rank: int) -> None:
    serve(info, rank, tiny_partition, reconnect_timeout=LIMIT_S)


@pytest.mark.longest
def test_both_threads_go_on_with_servers_that_were_started_again(tmp_path: Path) -> None:
    """Seen: the loop was told that its loader was shut down, after the other thread recovered."""
    info = info_of(2, 1)
    with processes(tmp_path) as started:
        servers = [started.start(_serve, info, rank) for rank in range(2)]
        client = started.start(compute, info, 0, _train, str(tmp_path))
        for number, (_, _, which) in enumerate(LOSSES):
            due = tmp_path / f"due {number}"

            def is_due(due: Path = due) -> bool:
                assert client.exitcode is None, started.notes()
                return due.exists()

            wait_until(is_due, f"loss {number}", LIMIT_S)
            pid = servers[which].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            servers[which].join(60)
            # both threads find it out before it is back
            (tmp_path / f"killed {number}").touch()
            servers[which] = started.start(_serve, info, which)
        started.join([client, *servers])
