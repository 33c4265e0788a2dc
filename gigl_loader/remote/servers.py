"""Storage servers as server 0 knows them. No sockets, no threads, no clock of its own."""

from collections.abc import Iterable
from dataclasses import dataclass

from gigl_loader.remote.membership import Join

_UNKNOWN = (("", 0), 0)


@dataclass(frozen=True)
class _Away:
    """A server that is expected back."""

    why: str
    """It left, for people."""
    until: float
    """When it is given up, unless a twin of it is here (`time.monotonic`)."""


class ServerBook:
    """Where the servers are, and which are away.

    ::

        unknown --came--> here --left--> away --its time is over, and no twin is here--> given up
                          here <--came-- away

    Server ``i`` serves partition ``i`` modulo ``num_partitions``; those of one partition are twins.

    Args:
        num_servers: How many there are.
        num_partitions: Of the graph.
        address: Of server 0.
        incarnation: Of server 0.
    """

    def __init__(
        self, num_servers: int, num_partitions: int, address: tuple[str, int], incarnation: int
    ) -> None:
        self._num_servers, self._num_partitions = num_servers, num_partitions
        # kept when a server leaves: it may come back to where it was
        self._where = {0: (address, incarnation)}
        self._away: dict[int, _Away] = {}

    def came(self, join: Join) -> None:
        """Note that a server is here, or here again."""
        if join.address is not None:
            self._where[join.rank] = (join.address, join.incarnation)
        self._away.pop(join.rank, None)

    def left(self, rank: int, why: str, until: float) -> None:
        """Note that a server is away."""
        self._away[rank] = _Away(why, until)

    def given_up(self, here: Iterable[int], now: float) -> str | None:
        """Return why the cluster cannot go on, if so; ``here`` are the other servers that are up.

        A partition may lose its servers one after another; the last one's time counts.
        """
        # server 0 is where this is asked, and never among those that joined it
        held = self._partitions({0, *here})
        left: dict[int, _Away] = {}
        for rank, one in self._away.items():
            partition = rank % self._num_partitions
            # the first one of a partition is compared with itself
            if partition not in held and one.until >= left.get(partition, one).until:
                left[partition] = one
        return next((one.why for one in left.values() if now >= one.until), None)

    def complete(self, here: Iterable[int]) -> bool:
        """Return whether a job may begin: all servers are here, but for those that have a twin.

        A server that was never here is waited for, twin or not: it is still loading.
        """
        here = {0, *here}
        held = self._partitions(here)
        return all(
            rank in here or (rank in self._away and rank % self._num_partitions in held)
            for rank in range(self._num_servers)
        )

    def where(
        self, here: Iterable[int]
    ) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]] | None:
        """Return addresses and incarnations of all servers; None: a partition has no server yet."""
        # so nobody begins with addresses of which it could not read the whole graph
        if len(self._partitions({0, *here})) < self._num_partitions:
            return None
        known = [self._where.get(rank, _UNKNOWN) for rank in range(self._num_servers)]
        return tuple(address for address, _ in known), tuple(number for _, number in known)

    def _partitions(self, servers: Iterable[int]) -> set[int]:
        return {server % self._num_partitions for server in servers}

    def is_away(self, rank: int) -> bool:
        """Return whether a server is expected back."""
        return rank in self._away

    @property
    def away(self) -> dict[int, str]:
        """Why servers left that are expected back."""
        return {rank: one.why for rank, one in self._away.items()}
