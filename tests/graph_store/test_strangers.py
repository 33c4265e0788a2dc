"""A job goes on while strangers take what connections they can, at a server that has few files."""

import contextlib
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import DistNeighborLoader, RemoteDistDataset
from gigl_loader.testing import wait_until
from tests.graph_store.store_cluster import HOST, compute, free_port, info_of, processes, serve

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

FILES = 160
LIMIT_S = 180.0


def _serve(info: Any, metrics_port: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    serve(info, 0, 1, metrics_port=metrics_port)


def _train(info: Any, rank: int, folder: str) -> None:
    dataset = RemoteDistDataset(info, rank)

    def epoch() -> None:
        """Of a loader of its own: a server needs descriptors for its workers."""
        with DistNeighborLoader(
            dataset, [3, 2], dataset.fetch_node_ids(), batch_size=2, seed=7, num_workers=2
        ) as loader:
            assert len(list(loader)) == 30

    epoch()
    (Path(folder) / "the job runs").touch()
    wait_until((Path(folder) / "strangers are there").exists, "strangers", LIMIT_S)
    for _ in range(2):
        epoch()


def test_strangers_at_both_ports_end_no_job(tmp_path: Path) -> None:
    """Seen: with 160 files they took 147, and a running job died of a pipe that nobody could open.

    A newcomer gets in as well.
    """
    info, metrics_port = info_of(1, 1), free_port()
    with processes(tmp_path) as started, contextlib.ExitStack() as stack:
        server = started.start(_serve, info, metrics_port)
        rank = started.start(compute, info, 0, _train, str(tmp_path))

        def is_running() -> bool:
            assert rank.exitcode is None, started.notes()
            return (tmp_path / "the job runs").exists()

        wait_until(is_running, "the job runs", LIMIT_S)
        flood = _Flood([info.rpc_master_port, metrics_port])
        stack.callback(flood.close)
        flood.more(2 * FILES)
        (tmp_path / "strangers are there").touch()
        while rank.exitcode is None:
            flood.more(20)
            rank.join(0.2)
        started.join([rank, server])


class _Flood:
    """Connections that say nothing, or break off in the middle of a word."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._open: list[socket.socket] = []

    def more(self, count: int) -> None:
        """Open as many at each port; those of before that were closed are let go."""
        for number in range(count):
            for port in self._ports:
                with contextlib.suppress(OSError):
                    one = socket.create_connection((HOST, port), timeout=10)
                    self._open.append(one)
                    one.sendall(b"GET /met" if number % 2 else b"")
        while len(self._open) > 500:  # of this process's own
            self._open.pop(0).close()

    def close(self) -> None:
        """End all."""
        for one in self._open:
            one.close()
