"""Promise 11 in a graph store: servers are killed, told to end and started again; same bits."""

import hashlib
import os
import signal
from pathlib import Path

import pytest
from store_cluster import compute, info_of, processes, serve

from gigl_loader import DistNeighborLoader, RemoteDistDataset
from gigl_loader.testing import batch_tensors, wait_until
from gigl_loader.testing._cluster import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(400)]

LIMIT_S = 120.0
EVENTS = {
    (0, 5): (1, signal.SIGKILL),
    (0, 18): (0, signal.SIGKILL),
    (1, 5): (1, signal.SIGTERM),  # a rolling restart: one after the other
    (1, 18): (0, signal.SIGTERM),
    (2, 0): (1, signal.SIGKILL),
}
"""After (epoch, batch): which server is ended, and how."""


def _digests(*loaders: DistNeighborLoader, after=lambda epoch, batch: None) -> set[str]:
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
            after(epoch, number)
    return {digest.hexdigest() for digest in digests}


def _train(info, rank: int, folder: str) -> None:
    dataset = RemoteDistDataset(info, rank)
    nodes = dataset.fetch_node_ids()

    def make(**how) -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset, [3, 2], nodes, batch_size=2, seed=7, shuffle=True, timeout=90.0,
            reconnect_timeout=LIMIT_S, **how,
        )  # fmt: skip

    with make() as loader:
        expected = _digests(loader)
    number = iter(range(len(EVENTS)))

    def after(epoch: int, batch: int) -> None:
        if (epoch, batch) in EVENTS:
            event = next(number)
            Path(folder, f"wanted {event}").touch()
            wait_until(lambda: Path(folder, f"done {event}").exists(), "the server has ended", 60)

    with make() as loader, make(remote_cache="30%") as keeping, make() as other:
        assert len(other) == 30
        assert _digests(loader, keeping, after=after) == expected
        assert keeping.stats()["hit_rate"] > 0
        assert _digests(other) == expected, "a loader that was idle meanwhile goes on, too"


def _serve(info, rank: int) -> None:
    serve(info, rank, rejoin_timeout_s=LIMIT_S)


def _end(started: Processes, servers: list, info, event: int, which: int, how: int) -> None:
    os.kill(servers[which].pid, how)
    servers[which].join(60)
    assert servers[which].exitcode == (0 if how == signal.SIGTERM else -how), started.notes()
    servers[which] = started.start(_serve, info, which)


@pytest.mark.longest
def test_servers_that_are_started_again(tmp_path: Path) -> None:
    info = info_of(2, 1)
    with processes(tmp_path) as started:
        servers = [started.start(_serve, info, rank) for rank in range(2)]
        client = started.start(compute, info, 0, _train, str(tmp_path))
        for event, (which, how) in enumerate(EVENTS.values()):
            wanted = tmp_path / f"wanted {event}"

            def ready(wanted: Path = wanted) -> bool:
                assert client.exitcode is None, started.notes()
                return wanted.exists()

            wait_until(ready, f"event {event} is due", LIMIT_S)
            _end(started, servers, info, event, which, how)
            (tmp_path / f"done {event}").touch()
        started.join([client, *servers])
