"""What producers that sample together agree on: how their workers reach each other, and who asks.

::

    rank 0: a nonce   --.                    all: security checked, or refused before any worker
    every rank: host  --+--> Access          starts
    workers start and listen
    every rank: its workers' ports, and an offer of its partition's memory --> Plan
"""

import dataclasses
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from gigl_loader._glt import get_context
from gigl_loader.dataset.holders import check_enough, check_held
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.memory.same_host import Offer
from gigl_loader.memory.tensors import Offered
from gigl_loader.options import may_be_one_machine, reads_same_memory
from gigl_loader.transport import Mode, Security, address_towards
from gigl_loader.workers.peers import Access, Assignment, WorkerAddress, assignments, worker_name
from gigl_loader.workers.rendezvous import Rendezvous

logger = logging.getLogger(__name__)

_LONG_S = 10.0
"""A wait that a user should hear of."""


@dataclass(frozen=True, kw_only=True)
class StartTurns:
    """When the processes of a job start what samples for them, so that memory peaks do not add up.

    Raises:
        ConfigError: A negative gap, or no process at once.
    """

    gap_s: float | None = None
    """Workers: local rank ``i`` starts its own ``i`` times this many seconds later; None: when the
    local rank before it is ready. Graph store: seconds between two batches of leaders."""
    max_concurrent: int | None = None
    """Graph store: leaders in a batch; None: all."""
    local_rank: int = 0
    local_world_size: int = 1

    def __post_init__(self) -> None:
        if self.gap_s is not None and self.gap_s < 0:
            raise ConfigError(f"process_start_gap_seconds must be >= 0 or None, got {self.gap_s}")
        if self.max_concurrent is not None and self.max_concurrent < 1:
            raise ConfigError(
                f"max_concurrent_producer_inits must be >= 1, got {self.max_concurrent}"
            )

    @property
    def total_s(self) -> float:
        """Seconds from the first start on a machine to the last."""
        return (self.gap_s or 0.0) * self.local_world_size

    def wait(self, wait_for_rank_before: Callable[[str], None]) -> None:
        """Wait until this local rank may start its workers.

        Args:
            wait_for_rank_before: Returns once the rank before this one announced what it is given.
        """
        if self.local_rank == 0:
            return
        if self.gap_s is None:
            wait_for_rank_before("started")
        elif self.gap_s > 0:
            seconds = self.local_rank * self.gap_s
            logger.log(
                logging.WARNING if seconds >= _LONG_S else logging.INFO,
                "local rank %d starts its workers in %.0f s; with process_start_gap_seconds=None "
                "it would as soon as the rank before it is ready", self.local_rank, seconds,
            )  # fmt: skip
            threading.Event().wait(seconds)

    def wait_as_leader(self, position: int) -> None:
        """Wait until the leader at ``position`` of all leaders may create its producers."""
        # by position, without a word between the leaders: each knows its own from the terms
        batch = 0 if self.max_concurrent is None else position // self.max_concurrent
        seconds = batch * (self.gap_s or 0.0)
        if seconds > 0:
            logger.info("this process creates its producers in %.0f s", seconds)
            threading.Event().wait(seconds)


@dataclass(frozen=True)
class PeerPlan:
    """What this rank's workers are to know of those of other partitions."""

    offers: dict[int, list[Offer]] = field(default_factory=dict)
    """By partition, where other ranks of this machine offer its memory."""
    partition: int = 0
    """This rank's."""
    num_partitions: int = 0
    everyone: bytes = b""
    """Partition, host and ports of each rank, packed: of hundreds they are asked for at the start,
    and where a worker is replaced."""

    def assignments(self) -> dict[str, Assignment]:
        """Return whom this rank's workers ask, and who asks them, by name.

        Raises:
            ConfigError: A partition has no rank.
        """
        if not self.everyone:
            return {}
        known = msgspec.msgpack.decode(self.everyone, type=list[_Published])
        return assignments(_by_partition(known, self.num_partitions), self.partition)


class _Published(NamedTuple):
    """Addresses of a rank's workers, and the partition that they serve."""

    partition: int
    host: str
    ports: tuple[int, ...]


@dataclass(frozen=True)
class _Member:
    """Description that a rank publishes of itself."""

    partition: int
    host: str
    ports: tuple[int, ...]
    """Ports of the rank's workers."""
    offer: Offer | None
    cache: str = ""
    """How much it keeps of other machines' rows; empty: it keeps none."""
    rows: str = ""
    """What tells its rows from those of another dataset, where it keeps others'."""


class Agreement:
    """The other ranks, as far as this rank's workers are concerned.

    Args:
        view: This rank's partition.
        rendezvous: Where the ranks meet; None: this process is alone.
        security: Who may ask workers that other machines can reach.
        towards: Address or name of the machine that all ranks can reach, rank 0's: workers listen
            on the interface that leads there.

    Raises:
        ConfigError: There are more partitions than processes to hold them.
    """

    def __init__(
        self,
        view: PartitionView,
        rendezvous: Rendezvous | None,
        security: Security,
        towards: str,
    ) -> None:
        num_holders = 1 if rendezvous is None else rendezvous.world_size
        check_enough(view.num_partitions, view.partition_idx, num_holders, who=_holder())
        self._view, self._rendezvous = view, rendezvous
        self._security, self._towards = security, towards
        self._host = ""
        self.is_one_machine = True
        """Whether all ranks are on this machine, so that nothing crosses a network; after
        `access`."""
        self._offered: Offered | None = None
        self._anyone_keeps = False
        self._first_with_cache: int | None = None
        self.name_of_cache = ""
        """Of the rows that ranks of a machine keep together, after `exchange`."""

    @property
    def has_peers(self) -> bool:
        """Whether there are other partitions."""
        return self._rendezvous is not None and self._view.num_partitions > 1

    @property
    def rank(self) -> int:
        """This process among those that meet."""
        return 0 if self._rendezvous is None else self._rendezvous.rank

    def access(self) -> Access | None:
        """Return how workers reach each other; None: nobody asks.

        Raises:
            ConfigError: Workers would be open to other machines; nothing was started.
            PeerError: A rank failed, or did not come in time.
        """
        rendezvous = self._rendezvous
        if rendezvous is None or not self.has_peers:
            return None
        # all that this rank has to say comes before the first wait: no two wait for each other
        if rendezvous.rank == 0:
            rendezvous.publish("nonce", secrets.token_bytes(32))
        self._host = address_towards(self._towards)
        graph = self._view.identity
        own = "" if graph is None else f"{graph.run} {graph.digest}"
        rendezvous.publish("host", f"{self._host} {own}".encode())
        told = [one.decode().partition(" ") for one in rendezvous.gather_all("host")]
        _check_same_graph(rendezvous.rank, own, [graph for _, _, graph in told])
        nonce = rendezvous.wait_for("nonce")
        is_one_host = len({host for host, _, _ in told}) == 1
        self.is_one_machine = is_one_host and may_be_one_machine()
        if is_one_host:  # nobody else has to reach the workers
            host, security = ("::1" if ":" in self._host else "127.0.0.1"), Security.local()
        else:
            host, security = self._host, self._security
            # here, on every rank alike, and not when a worker starts to listen
            security.check_listener(host, loopback=False)
        if security.mode is Mode.TOKEN:
            # the cluster's token keeps strangers out, the nonce other jobs
            secret = hashlib.sha256(self._security.token.encode() + nonce).hexdigest()
            security = dataclasses.replace(security, token=secret)
        # who is let in but belongs to another job asks for methods of another name; the name goes
        # over the network in the clear, so it does not tell the nonce
        return Access(host, security.for_workers(), hashlib.sha256(b"job" + nonce).hexdigest()[:8])

    def exchange(
        self, workers: list[tuple[str, int] | None], cache: str = "", rows: str = ""
    ) -> PeerPlan:
        """Tell where this rank's workers answer, and return what they have to know of the others.

        Args:
            workers: Their addresses.
            cache: How much is kept of other machines' rows; empty: nothing.
            rows: What tells this rank's rows from those of another dataset.

        Raises:
            PeerError: A rank failed, or did not come up in time.
            ConfigError: A partition has no rank.
        """
        rendezvous = self._rendezvous
        if rendezvous is None or not self.has_peers:
            return PeerPlan()
        own = self._view.partition_idx
        # open before it is published, and until `close`: others map it when their workers start,
        # and those that replace one map it later
        if reads_same_memory():
            self._offered = Offered(self._view)
        offer = None if self._offered is None else self._offered.offer
        ports = tuple(address[1] for address in workers if address is not None)
        listening_on = next(address[0] for address in workers if address is not None)
        mine = _Member(own, listening_on, ports, offer, cache, rows)
        rendezvous.publish("workers", msgspec.msgpack.encode(mine))
        found = [
            msgspec.msgpack.decode(data, type=_Member) for data in rendezvous.gather_all("workers")
        ]
        offers: dict[int, list[Offer]] = {}
        # an address says which machine a rank may be on; who maps an offer finds out whether it is
        for member in found if offer is not None else ():
            if member.offer is not None and member.partition != own and member.host == mine.host:
                offers.setdefault(member.partition, []).append(member.offer)
        self._anyone_keeps = any(member.cache for member in found)
        self._first_with_cache = _first_like(mine, found)
        # of all ranks: a row that is kept may be of any of them, so that it is good for a later
        # loader only where all of them have the same rows as before
        names = "\n".join([cache, *(member.rows for member in found)])
        self.name_of_cache = hashlib.sha256(names.encode()).hexdigest()
        published = [_Published(one.partition, one.host, one.ports) for one in found]
        plan = PeerPlan(offers, own, self._view.num_partitions, msgspec.msgpack.encode(published))
        plan.assignments()  # raises where a partition has no rank
        return plan

    def share_cache(self, make: Callable[[], bytes]) -> bytes | None:
        """Return what the first rank that keeps as much on this machine offers; after `exchange`.

        Args:
            make: Returns what this rank offers; called where it is the first.

        Returns:
            None: this rank is the first, or no other rank's memory is read here.

        Raises:
            PeerError: The first rank failed, or did not come in time.
        """
        rendezvous, first = self._rendezvous, self._first_with_cache
        if rendezvous is None or not self._anyone_keeps:
            return None
        is_first = first == rendezvous.rank
        # all ranks: the last one to leave clears away the keys that it knows
        rendezvous.publish("cache", make() if is_first else b"")
        return None if is_first or first is None else rendezvous.wait_for("cache", first)

    def announce(self, what: str) -> None:
        """Tell the other ranks that this one got so far."""
        if self._rendezvous is not None:
            self._rendezvous.publish(what, b"")

    def wait_for_rank_before(self, what: str) -> None:
        """Wait until the rank before this one announced ``what``.

        Raises:
            PeerError: A rank failed, or did not come so far in time.
        """
        if self._rendezvous is not None:
            self._rendezvous.wait_for(what, self._rendezvous.rank - 1)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one gives up."""
        if self._rendezvous is not None:
            # cut: every rank prints it, and the store keeps it
            self._rendezvous.fail(f"{type(error).__name__}: {error}"[:2000])

    def settle(self) -> None:
        """Leave the rendezvous: all is agreed on. Idempotent."""
        if self._rendezvous is not None:
            self._rendezvous.close()

    def close(self) -> None:
        """Leave, and offer the partition no more. Idempotent."""
        self.settle()
        if self._offered is not None:
            self._offered.close()


def _check_same_graph(rank: int, own: str, graphs: list[str]) -> None:
    """Refuse partitions of two graphs, or of two runs; who does not know its own is not asked.

    Raises:
        ConfigError: On all ranks alike; nothing was started.
    """
    for other, graph in enumerate(graphs):
        if own and graph and graph != own:
            runs = own.split()[0], graph.split()[0]
            what = "partitions of two runs" if runs[0] != runs[1] else "partitions of two graphs"
            raise ConfigError(
                f"{what}: {_holder()} {rank} has one of {own}, {other} one of {graph} (run and "
                "digest): give all the partitions of one run"
            )


def _first_like(mine: _Member, members: list[_Member]) -> int | None:
    """Return the first rank that reads this machine's memory and keeps as much as this one."""
    if mine.offer is None or not mine.cache:
        return None
    return next(
        rank
        for rank, one in enumerate(members)
        if one.offer is not None and (one.host, one.cache) == (mine.host, mine.cache)
    )


def _by_partition(
    members: Sequence["_Member | _Published"], num_partitions: int
) -> dict[int, tuple[WorkerAddress, ...]]:
    """Return all workers by partition, in the order of ranks."""
    # the order of ranks is the same for all who build this: `assignments` goes by positions in it
    found: dict[int, tuple[WorkerAddress, ...]] = {}
    for rank, member in enumerate(members):
        workers = tuple(
            WorkerAddress(member.host, port, worker_name(rank, number))
            for number, port in enumerate(member.ports)
        )
        found[member.partition] = found.get(member.partition, ()) + workers
    check_held(num_partitions, found, who=_holder())
    return found


def _holder() -> str:
    """Return what holds a partition here, for errors."""
    context = get_context()
    is_server = context is not None and context.is_server()
    return "storage server" if is_server else "process"
