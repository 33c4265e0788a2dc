"""Where the storage servers are, and which of them are expected back."""

from collections.abc import Iterable
from dataclasses import dataclass

from gigl_loader.graph_store.wire.membership import Join

_UNKNOWN = (("", 0), 0)


@dataclass(frozen=True)
class _Outage:
    """Of a server that is expected back."""

    why: str
    """Why it left, for people."""
    until: float
    """When it is given up, unless it has a replica here (`time.monotonic`)."""


class ServerBook:
    """Addresses of the servers, and which of them are away.

    ::

        unknown --arrival--> here --loss-----> away --time is over, no replica here--> given up
                             here <--arrival-- away

    Server ``i`` serves partition ``i`` modulo ``num_partitions``; those of one
    partition are replicas.

    Args:
        num_servers: Number of servers.
        num_partitions: Number of the graph's partitions.
        address: Address of server 0.
        incarnation: Incarnation of server 0.
    """

    def __init__(
        self, num_servers: int, num_partitions: int, address: tuple[str, int], incarnation: int
    ) -> None:
        self._num_servers, self._num_partitions = num_servers, num_partitions
        # kept when a server leaves, as it may come back at the same address
        self._addresses = {0: (address, incarnation)}
        self._outages: dict[int, _Outage] = {}

    def note_arrival(self, join: Join) -> None:
        """Note that a server is here, or here again."""
        if join.address is not None:
            self._addresses[join.rank] = (join.address, join.incarnation)
        self._outages.pop(join.rank, None)

    def note_loss(self, rank: int, why: str, until: float) -> None:
        """Note that a server is away; it is expected back until ``until``."""
        self._outages[rank] = _Outage(why, until)

    def why_given_up(self, up: Iterable[int], now: float) -> str | None:
        """Return why the cluster cannot continue, or None; ``up`` are the other servers up.

        A partition may lose its servers one after another; the last one's time counts.
        """
        # this runs on server 0, which is never among those that joined it
        held = self._partitions({0, *up})
        last: dict[int, _Outage] = {}
        for rank, outage in self._outages.items():
            partition = rank % self._num_partitions
            # a partition's first server is compared with itself
            if partition not in held and outage.until >= last.get(partition, outage).until:
                last[partition] = outage
        return next((outage.why for outage in last.values() if now >= outage.until), None)

    def may_jobs_begin(self, up: Iterable[int]) -> bool:
        """Return whether a job may begin: all servers are here, except those with a replica.

        A server that was never here is waited for, replica or not, as it is still loading.
        """
        up = {0, *up}
        held = self._partitions(up)
        return all(
            rank in up or (rank in self._outages and rank % self._num_partitions in held)
            for rank in range(self._num_servers)
        )

    def addresses(
        self, up: Iterable[int]
    ) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]] | None:
        """Return addresses and incarnations of all servers; None: a partition has no server yet."""
        # so nobody begins with addresses that do not cover the whole graph
        if len(self._partitions({0, *up})) < self._num_partitions:
            return None
        known = [self._addresses.get(rank, _UNKNOWN) for rank in range(self._num_servers)]
        return tuple(address for address, _ in known), tuple(number for _, number in known)

    def _partitions(self, servers: Iterable[int]) -> set[int]:
        return {server % self._num_partitions for server in servers}

    def is_away(self, rank: int) -> bool:
        """Return whether a server is expected back."""
        return rank in self._outages

    @property
    def away(self) -> dict[int, str]:
        """Why each server left that is expected back."""
        return {rank: outage.why for rank, outage in self._outages.items()}
