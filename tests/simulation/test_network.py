"""Simulated callers and links: what a simulated job would not notice."""

from dataclasses import dataclass

import numpy as np
import pytest

from gigl_loader.errors import PeerTimeoutError
from gigl_loader.runtime.transport import Method, Peer, Security
from tests.support.simulation.network import Link, SimulatedNetwork
from tests.support.simulation.world import Process, World

SERVER = ("10.0.0.1", 700)


@dataclass(frozen=True)
class Rows:
    rows: np.ndarray


def test_a_link_carries_one_thing_after_the_other() -> None:
    link = Link(10.0)
    assert [link.take(0.0, 20), link.take(1.0, 10), link.take(9.0, 10)] == [2.0, 3.0, 10.0]


def test_a_caller_tries_until_the_listener_is_up_and_a_late_answer_is_a_timeout() -> None:
    world, client, connected = World(), Process("client", "10.0.0.2"), list[float]()
    network = SimulatedNetwork(world, latency_s=0.5, bytes_per_s=1000.0, batch_bytes=0)

    def answer(question: Rows, peer: Peer) -> Rows:
        world.sleep(10.0)
        return question

    def serve() -> None:
        table = {"rows": Method(Rows, Rows, answer)}
        network.listener(*SERVER, Security.local(), table, "server").start()

    def ask() -> None:
        caller = network.caller(*SERVER, Security.local(), "client")
        caller.connect(60.0, lambda why: None)
        connected.append(world.clock.now)
        with pytest.raises(PeerTimeoutError):
            caller.ask("rows", Rows(np.zeros(1)), Rows).wait(3.0)
        connected.append(world.clock.now)

    world.clock.call_later(7.0, lambda: world.spawn(serve, Process("server", SERVER[0])))
    world.spawn(ask, client)
    try:
        world.run(lambda: len(connected) == 2, 1000.0)
    finally:
        world.close()
    begun, ended = connected
    assert 8.0 < begun < 10.0
    assert ended == begun + 3.0
    assert client.messages == 3, "two of the handshake, and the question"
