"""The network of a simulated cluster: `MemoryNetwork` with threads, and links of machines."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gigl_loader.errors import JoinRefusedError, PeerLostError, PeerTimeoutError
from gigl_loader.graph_store.wire.requests import FetchAnswer
from gigl_loader.runtime.transport import EndReason, Method, Security
from gigl_loader.testing.memory_network import (
    MemoryCaller,
    MemoryListener,
    MemoryNetwork,
    MemoryReply,
)
from tests.support.simulation.world import SimulatedEvent, World

_AGAIN_S = 0.2
"""Between two attempts to connect."""
_HELLO_BYTES = 300
"""Of each of the two messages of a handshake."""


@dataclass
class Link:
    """What lies between a machine and the network, for one direction after the other."""

    bytes_per_s: float
    free_at: float = 0.0

    def take(self, now: float, size: int) -> float:
        """Return when ``size`` bytes are through, behind what is on the way."""
        # both directions share it: a question waits behind an answer on its way
        self.free_at = max(now, self.free_at) + size / self.bytes_per_s
        return self.free_at


class SimulatedNetwork(MemoryNetwork):
    """Listeners and callers of simulated processes.

    Args:
        world: Whose processes they are of.
        latency_s: One way between two machines.
        bytes_per_s: Of each machine's link.
        batch_bytes: What a batch takes on the wire: its tensors are not made.
    """

    def __init__(
        self, world: World, *, latency_s: float, bytes_per_s: float, batch_bytes: int
    ) -> None:
        # bandwidth is that of machines' links here, not of the path to one listener
        super().__init__(world.clock, latency_s=latency_s, bytes_per_s=math.inf)
        self.world, self.batch_bytes, self.latency_s = world, batch_bytes, latency_s
        self._bytes_per_s = bytes_per_s
        self._links: dict[str, Link] = {}
        self.asked: Counter[str] = Counter()
        """Questions by method."""

    def link(self, host: str) -> Link:
        """Return the link of a machine."""
        return self._links.setdefault(host, Link(self._bytes_per_s))

    def listener(
        self,
        address: str,
        port: int,
        security: Security,
        table: Mapping[str, Method],
        name: str,
        **options: Any,
    ) -> MemoryListener:
        """Return a listener of the running process."""
        # a socket that a supervisor passes on: there is none here
        options.pop("inherits", None)
        options.setdefault("incarnation", int(self.world.token_hex(8), 16) % 2**62 + 1)
        where = (address, port or next(self._ports))
        return SimulatedListener(self, where, security, table, name, **options)

    def caller(
        self, address: str, port: int, security: Security, name: str, **options: Any
    ) -> MemoryCaller:
        """Return a caller of the running process."""
        return SimulatedCaller(self, (address, port), security, name, **options)


class SimulatedListener(MemoryListener):
    """A listener whose handlers run in threads of its process."""

    def __init__(self, network: SimulatedNetwork, *args: Any, **options: Any) -> None:
        super().__init__(network, *args, **options)
        self.process = network.world.process
        # a dict for its order: connections are cut in the order in which they were made
        self.process.at_end[self._killed] = None

    def _killed(self) -> None:
        self._leave()
        for caller in list(self.callers):
            self.callers.remove(caller)
            caller.peer = None
            caller.lose(PeerLostError(f"{caller.what} is gone", EndReason.GONE))


class SimulatedReply(MemoryReply[Any]):
    """A reply that a thread can wait for."""

    _event: SimulatedEvent | None = None

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the answer.

        Raises:
            PeerTimeoutError: It did not come in time.
        """
        if not self.done:
            self._event = SimulatedEvent(self._caller.network.world)  # type: ignore[attr-defined]  # a stand-in
            self._event.wait(timeout_s)
        # asked again: the event may have been set in the moment in which the time was over
        if not self.done:
            raise PeerTimeoutError(f"{self._caller.what} did not answer {self.method!r} in time")
        return self.result()

    def ended(self) -> None:
        """Wake who waits."""
        if self._event is not None:
            self._event.set()


class SimulatedCaller(MemoryCaller):
    """A caller of one process; what it sends goes over the links of both machines."""

    network: SimulatedNetwork

    def __init__(self, network: SimulatedNetwork, *args: Any, **options: Any) -> None:
        self._world = network.world
        options["session"] = options.get("session") or network.world.token_hex(16)
        super().__init__(network, *args, **options)
        self._reply = SimulatedReply
        self.process = network.world.process
        self.process.at_end[self._killed] = None

    def connect(self, deadline: float, on_wait: Callable[[str], None] | None = None) -> None:
        """Connect now, or as soon as the listener is up."""
        world = self._world
        while True:
            try:
                self._listener()
                # the handshake of a connection counts: many ranks connect with many servers
                self._count(2 * _HELLO_BYTES, 2)
                world.sleep(2 * self.network.latency_s)
                return
            except JoinRefusedError:
                raise
            except PeerLostError as error:
                if on_wait is None:
                    raise
                if world.clock.now >= deadline:
                    raise PeerTimeoutError(f"{self.what} did not come up") from error
                on_wait(str(error))
                # a little beyond the deadline, so that the next look at the clock is past it
                world.sleep(min(_AGAIN_S, max(0.0, deadline - world.clock.now) + 1e-6))

    def ask(self, method: str, *args: Any, **how: Any) -> Any:
        """Send a question."""
        self.network.asked[method.partition(" ")[0]] += 1
        return super().ask(method, *args, **how)

    def close(self, end: EndReason = EndReason.SHUTDOWN, words: str = "") -> None:
        """Say goodbye."""
        self.process.at_end.pop(self._killed, None)
        super().close(end, words)

    def _killed(self) -> None:
        """The process was killed: the other side sees the end of the connection."""
        self._closed = True
        self._round += 1
        # none of them fails: a process that was killed has nobody to tell
        self._unanswered.clear()
        listener = self.network.listeners.get(self._address)
        if listener is not None:
            listener.forget(self, EndReason.GONE)

    def _count(self, size: int, messages: int = 1) -> None:
        self.process.messages += messages
        self.process.bytes += size

    def _carry(self, size: int, then: Callable[[], None]) -> None:
        clock, this_round = self.network.clock, self._round
        self._count(size)
        arrival = clock.now + self.network.latency_s
        # both machines' links, or one where both ends are on one machine; in a fixed order, unlike
        # a set
        for host in {self.process.host: None, self._address[0]: None}:
            arrival = max(
                arrival, self.network.link(host).take(clock.now, size) + self.network.latency_s
            )
        clock.call_later(arrival - clock.now, lambda: then() if self._round == this_round else None)

    def _arrive(self) -> None:
        """Let a thread of the listener's process answer: a handler may wait."""
        listener, this_round = self.network.listeners.get(self._address), self._round
        arrive = super()._arrive
        if listener is None:
            arrive()
            return
        assert isinstance(listener, SimulatedListener)
        # a handler may wait, and then others go on; a plain callback of the clock cannot wait
        self._world.spawn(
            lambda: arrive() if self._round == this_round else None,
            listener.process,
            self._unanswered[0].method,
        )

    def _beside(self, answer: Any) -> int:
        has_batch = isinstance(answer, FetchAnswer) and answer.batch is not None
        return self.network.batch_bytes if has_batch else 0
