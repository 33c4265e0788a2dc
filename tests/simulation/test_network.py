"""Simulated callers and listeners: threads that wait, links, processes that are killed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import PeerLostError, PeerTimeoutError
from gigl_loader.runtime.transport import EndReason, Method, Peer, Security
from tests.support.simulation.network import Link, SimulatedNetwork
from tests.support.simulation.world import Process, World

SERVER, LATENCY_S, BYTES_PER_S = ("10.0.0.1", 700), 0.5, 1000.0


@dataclass(frozen=True)
class Rows:
    rows: np.ndarray


class _Cluster:
    """A server that answers with as many bytes as it is asked for, and clients on two machines."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.world, self.work_s = World(), work_s
        self.network = SimulatedNetwork(
            self.world, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S, batch_bytes=0
        )
        self.server = Process("server", SERVER[0])
        self.ends: list[tuple[str, EndReason]] = []
        self.found: list[Any] = []

    def _double(self, question: Rows, peer: Peer) -> Rows:
        self.world.sleep(self.work_s)
        return Rows(np.zeros(int(question.rows[0]), np.uint8))

    def serve(self) -> None:
        self.network.listener(
            *SERVER,
            Security.local(),
            {"bytes": Method(Rows, Rows, self._double)},
            "server",
            on_end=lambda peer, end: self.ends.append((peer.name, end)),
            inherits=None,
        ).start()

    def ask(self, name: str, host: str, nbytes: int, timeout_s: float | None = None) -> Process:
        """Ask in a thread of a process of its own; note when it was answered, or the error."""
        process = Process(name, host)

        def run() -> None:
            caller = self.network.caller(*SERVER, Security.local(), name)
            caller.connect(60.0, lambda why: None)
            began = self.world.clock.now
            try:
                answer = caller.ask("bytes", Rows(np.array([nbytes])), Rows).wait(timeout_s)
                assert len(answer.rows) == nbytes
            except (PeerLostError, PeerTimeoutError) as error:
                self.found.append((name, type(error)))
                return
            self.found.append((name, self.world.clock.now - began))

        self.world.spawn(run, process)
        return process

    def run(self, until: Callable[[], bool]) -> None:
        try:
            self.world.run(until, 1000.0)
        finally:
            self.world.close()


def test_a_link_carries_one_thing_after_the_other() -> None:
    link = Link(10.0)
    assert [link.take(0.0, 20), link.take(1.0, 10), link.take(9.0, 10)] == [2.0, 3.0, 10.0]


def test_an_answer_takes_latency_and_bandwidth_of_the_slowest_link() -> None:
    cluster = _Cluster()
    cluster.world.spawn(cluster.serve, cluster.server)
    cluster.network.link("10.0.0.2").bytes_per_s = 100.0
    cluster.ask("near", "10.0.0.3", 4000)
    cluster.run(lambda: len(cluster.found) == 1)
    ((_, near),) = cluster.found
    cluster = _Cluster()
    cluster.world.spawn(cluster.serve, cluster.server)
    cluster.network.link("10.0.0.2").bytes_per_s = 100.0
    cluster.ask("far", "10.0.0.2", 4000)
    cluster.run(lambda: len(cluster.found) == 1)
    ((_, far),) = cluster.found
    assert near == pytest.approx(2 * LATENCY_S + 4.0, rel=0.1)
    assert far == pytest.approx(2 * LATENCY_S + 40.0, rel=0.1)


def test_handlers_that_wait_do_not_keep_others_waiting() -> None:
    cluster = _Cluster(work_s=10.0)
    cluster.world.spawn(cluster.serve, cluster.server)
    for number in range(3):
        cluster.ask(f"client {number}", f"10.0.0.{10 + number}", 1)
    cluster.run(lambda: len(cluster.found) == 3)
    assert all(seconds < 13.0 for _, seconds in cluster.found), "each in a thread of the server's"
    assert cluster.network.asked == {"bytes": 3}


def test_a_caller_tries_until_the_listener_is_up() -> None:
    cluster = _Cluster()
    cluster.world.clock.call_later(7.0, lambda: cluster.world.spawn(cluster.serve, cluster.server))
    process = cluster.ask("early", "10.0.0.2", 1)
    cluster.run(lambda: len(cluster.found) == 1)
    assert 8.0 < cluster.world.clock.now < 10.0
    assert process.messages >= 3, "two of the handshake, and the question"


def test_an_answer_that_is_late_is_a_timeout() -> None:
    cluster = _Cluster(work_s=10.0)
    cluster.world.spawn(cluster.serve, cluster.server)
    cluster.ask("hasty", "10.0.0.2", 1, timeout_s=3.0)
    cluster.run(lambda: len(cluster.found) == 1)
    assert cluster.found == [("hasty", PeerTimeoutError)]


def test_who_asks_a_server_that_is_killed_loses_it_at_once() -> None:
    cluster = _Cluster(work_s=100.0)
    cluster.world.spawn(cluster.serve, cluster.server)
    cluster.ask("client", "10.0.0.2", 1)
    cluster.world.clock.call_later(20.0, lambda: cluster.world.kill(cluster.server))
    cluster.run(lambda: len(cluster.found) == 1)
    assert cluster.found == [("client", PeerLostError)]
    assert cluster.world.clock.now == 20.0
    assert SERVER not in cluster.network.listeners


def test_a_server_sees_the_end_of_a_client_that_is_killed() -> None:
    cluster = _Cluster(work_s=100.0)
    cluster.world.spawn(cluster.serve, cluster.server)
    process = cluster.ask("client", "10.0.0.2", 1)
    cluster.world.clock.call_later(20.0, lambda: cluster.world.kill(process))
    cluster.run(lambda: bool(cluster.ends))
    assert cluster.ends == [("client", EndReason.GONE)]
    assert cluster.found == [], "a killed process is told nothing"
