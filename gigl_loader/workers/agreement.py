"""Agreements of a producer with those of the other ranks, and their use by its workers.

::

    join     rank 0: a nonce  --.
             every rank: host --+--> `Access`: how workers listen and prove themselves; security is
                                     checked, or refused before any worker starts
    workers start and listen
    connect  every rank: its workers' ports, and an offer of its partition's memory
                                --> the peers of each worker, and the partitions it reads in place
             rows kept on this machine --> one cache for its ranks, and how far to draw ahead
"""

import dataclasses
import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from gigl_loader._glt import get_context
from gigl_loader.dataset.identity import check_enough, check_held
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.memory import tensors
from gigl_loader.memory.same_host import Offer
from gigl_loader.memory.tensors import Offered
from gigl_loader.options import (
    CacheOptions,
    EpochOptions,
    may_be_one_machine,
    reads_same_memory,
)
from gigl_loader.rowcache.look_ahead import AheadMemory, DrawnAhead, LookAhead
from gigl_loader.rowcache.machine import MachineRows, name_of_rows, shared_memory
from gigl_loader.rowcache.tables import remote_bytes, tables_for
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.transport import Mode, Security, address_towards
from gigl_loader.workers import pipe
from gigl_loader.workers.peers import (
    Access,
    Assignment,
    Refusing,
    WorkerAddress,
    assignments,
    worker_name,
)
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
            wait_for_rank_before: Returns once the rank before this one announced its argument.
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
    """Identity of its rows among those of other datasets, where it keeps others'."""


_Published = tuple[int, str, tuple[int, ...]]
"""Partition, host and ports of a rank's workers."""


class Agreement:
    """Agreements of a producer with the other ranks.

    Args:
        view: This rank's partition.
        plan: The sampling to do.
        cache: Which rows of other machines to keep; None: none.
        epoch_options: Work that the reader of the batches does itself.
    """

    def __init__(
        self, view: PartitionView, plan: SamplingPlan, cache: CacheOptions | None,
        epoch_options: EpochOptions,
    ) -> None:  # fmt: skip
        self._view, self._plan, self._options = view, plan, cache
        self._epoch_options = epoch_options
        self._rendezvous: Rendezvous | None = None
        self._has_joined = False
        self._offered: Offered | None = None
        self._offers: dict[int, list[Offer]] = {}
        """By partition, where other ranks of this machine offer its memory."""
        self._everyone = b""
        """A `_Published` of each rank, packed: of hundreds they are asked for at the start, and
        where a worker is replaced."""
        self._anyone_keeps = False
        self._first_with_cache: int | None = None
        self._ahead: AheadMemory[Tensor] | None = None
        self._refusing: list[Refusing] = []
        self.access: Access | None = None
        """How workers answer those of other partitions; None: nobody asks."""
        self.is_one_machine = True
        """Whether all ranks are on this machine, so that nothing crosses a network."""
        self.name_of_cache = ""
        """Description of rows that ranks of a machine keep together; known once connected."""
        self.cache: MachineRows | None = None
        """Rows of other machines, kept for all ranks of this one."""
        self.look_ahead: LookAhead | None = None
        """How far to draw ahead, where rows are kept."""
        self.remote_bytes = 0
        """Bytes of all rows that only other machines have."""

    # -- the ranks meet -------------------------------------------------------------------------

    def join(self, rendezvous: Rendezvous | None, security: Security, towards: str) -> None:
        """Meet the other ranks, and agree on how workers reach each other.

        Args:
            rendezvous: Closed here. None: this process is alone.
            security: Authentication at workers that other machines can reach.
            towards: Address or name of the machine that all ranks can reach, rank 0's: workers
                listen on the interface that leads there.

        Raises:
            ConfigError: There are more partitions than processes to hold them, or workers would be
                open to other machines; nothing was started.
            PeerError: A rank failed, or did not come in time.
        """
        # kept in any case: it is told where this rank fails, and closed
        self._rendezvous, self._has_joined = rendezvous, True
        holders = 1 if rendezvous is None else rendezvous.world_size
        check_enough(self._view.num_partitions, self._view.partition_idx, holders, who=_holder())
        if rendezvous is not None and self.has_peers:
            self.access = self._agree_on_access(rendezvous, security, towards)

    def _agree_on_access(self, rendezvous: Rendezvous, security: Security, towards: str) -> Access:
        own_host, graph = address_towards(towards), self._view.identity
        own = "" if graph is None else f"{graph.run} {graph.digest}"
        nonce = secrets.token_bytes(32) if rendezvous.rank == 0 else b""
        told = rendezvous.agree("host", (own_host, own, nonce), tuple[str, str, bytes])
        _check_same_graph(rendezvous.rank, own, [graph for _, graph, _ in told])
        nonce = told[0][2]
        is_one_host = len({host for host, _, _ in told}) == 1
        self.is_one_machine = is_one_host and may_be_one_machine()
        if is_one_host:  # nobody else has to reach the workers
            host, used = ("::1" if ":" in own_host else "127.0.0.1"), Security.local()
        else:
            host, used = own_host, security
            # here, on every rank alike, and not when a worker starts to listen
            used.check_listener(host, loopback=False)
        if used.mode is Mode.TOKEN:
            # the cluster's token keeps strangers out, the nonce other jobs
            secret = hashlib.sha256(used.token.encode() + nonce).hexdigest()
            used = dataclasses.replace(used, token=secret)
        # an admitted process of another job calls methods of another name; the name goes
        # over the network in the clear, so it does not tell the nonce
        return Access(host, used.for_workers(), hashlib.sha256(b"job" + nonce).hexdigest()[:8])

    @property
    def has_peers(self) -> bool:
        """Whether workers of other partitions ask this rank's."""
        return self._rendezvous is not None and self._view.num_partitions > 1

    @property
    def rank(self) -> int:
        """This process among those that meet."""
        return 0 if self._rendezvous is None else self._rendezvous.rank

    @property
    def rows_apart(self) -> bool:
        """Whether batches are handed over without rows, which the reader fetches from their owners.

        They are where rows are kept there, or would leave two machines on their way. On one machine
        bytes cost less than what they are saved by: putting rows in order once more, where they
        are taken. Known once this rank is connected.
        """
        options, one_machine = self._epoch_options, self.is_one_machine
        would_cross = self.remote_bytes > 0 and not one_machine
        return options.cache is not None or (options.asks_for_rows and would_cross)

    # -- their workers meet ---------------------------------------------------------------------

    def connect(self, addresses: list[tuple[str, int] | None]) -> None:
        """Exchange with the other ranks where workers answer, and get the cache of the machine.

        Args:
            addresses: Of this rank's workers.

        Raises:
            UsageError: This rank did not `join`.
            PeerError: Another rank failed, or did not come up in time.
            ConfigError: A partition has no rank.
        """
        if not self._has_joined:
            raise UsageError("a producer has to `join` before it starts")
        if self._rendezvous is not None and self.has_peers:
            self._exchange(self._rendezvous, addresses)
            self._join_cache()

    def _exchange(self, rendezvous: Rendezvous, addresses: list[tuple[str, int] | None]) -> None:
        options, own = self._options, self._view.partition_idx
        # open before it is published, and until `close`: others map it when their workers start,
        # and those that replace one map it later
        if reads_same_memory():
            self._offered = Offered(self._view)
        offer = None if self._offered is None else self._offered.offer
        ports = tuple(address[1] for address in addresses if address is not None)
        listening_on = next(address[0] for address in addresses if address is not None)
        # ranks that keep another amount have a cache of their own
        kept = ("", "") if options is None else (str(options.size), name_of_rows(self._view))
        mine = _Member(own, listening_on, ports, offer, *kept)
        found: list[_Member] = rendezvous.agree("workers", mine, _Member)
        # an address says which machine a rank may be on; mapping an offer shows whether it is
        for member in found if offer is not None else ():
            if member.offer is not None and member.partition != own and member.host == mine.host:
                self._offers.setdefault(member.partition, []).append(member.offer)
        self._anyone_keeps = any(member.cache for member in found)
        self._first_with_cache = _first_like(mine, found)
        # of all ranks: a row that is kept may be of any of them, so that it is good for a later
        # loader only where all of them have the same rows as before
        names = "\n".join([mine.cache, *(member.rows for member in found)])
        self.name_of_cache = hashlib.sha256(names.encode()).hexdigest()
        self._everyone = msgspec.msgpack.encode([(m.partition, m.host, m.ports) for m in found])
        self.assignments()  # raises where a partition has no rank

    def _join_cache(self) -> None:
        """Get the machine's memory for rows of others, where it is wanted and there are some."""
        self.remote_bytes = remote_bytes(self._view, self._plan, self._offers)
        options = self._options
        tables = {}
        if options is not None:
            tables = tables_for(self._view, self._plan, self._offers, options.size)
        if options is None or not tables:
            self.share_cache(bytes)  # offers nothing: the other ranks wait for its word
            return
        self.cache = shared_memory(tables, self.name_of_cache, self.share_cache)
        # the cache is the machine's, drawn batches are this loader's alone: its memory goes to
        # each worker, also to those that take another's place
        drawn = tensors.share_tensor(torch.zeros(DrawnAhead.NUM_WORDS, dtype=torch.int64))
        rows = self.cache.rows
        self.look_ahead = LookAhead(rows, DrawnAhead(drawn.numpy()), options)
        self._ahead = AheadMemory(self.cache.shared, drawn, rows.join())

    def share_cache(self, make: Callable[[], bytes]) -> bytes | None:
        """Return the offer of the first rank that keeps as much on this machine.

        Args:
            make: Returns this rank's offer; called where it is the first.

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

    def assignments(self) -> dict[str, Assignment]:
        """Return by worker's name the peers of this rank's workers; decoded afresh at each call.

        Raises:
            ConfigError: A partition has no rank.
        """
        if not self._everyone:
            return {}
        known = msgspec.msgpack.decode(self._everyone, type=list[_Published])
        by_partition = _by_partition(known, self._view.num_partitions)
        return assignments(by_partition, self._view.partition_idx)

    def introduction(
        self, worker: int, assignments: Mapping[str, Assignment]
    ) -> tuple[tuple[Any, ...], AheadMemory[Tensor] | None]:
        """Return the news of the others for ``worker``: a message, and the memory to send with it.

        Args:
            worker: Its number; it can sample once it was told.
            assignments: From `assignments`.
        """
        name = worker_name(self.rank, worker)
        # none where this process is alone: the message lets the worker begin anyway
        how = (assignments.get(name), self._offers, self._ahead is not None, self.rows_apart)
        return (pipe.PEERS, name, *how), self._ahead

    # -- turns, failures and the end ------------------------------------------------------------

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
        """Tell the other ranks why this one gives up, where it has met them."""
        if self._rendezvous is not None:
            # cut: every rank prints it, and the store keeps it
            self._rendezvous.fail(f"{type(error).__name__}: {error}"[:2000])

    def refuse(self, worker: int, listener: int, error: BaseException) -> None:
        """Respond in place of a worker that is lost for good: callers receive the reason.

        Args:
            worker: Its number.
            listener: Descriptor of the socket that it listened on; closed by `close`.
            error: The error that ended the sampling here.
        """
        assert self.access is not None, "a worker that listened is asked"
        name = worker_name(self.rank, worker)
        self._refusing.append(Refusing(self.access, name, listener, error))

    def settle(self) -> None:
        """Leave the rendezvous: all is agreed on. Idempotent."""
        if self._rendezvous is not None:
            self._rendezvous.close()

    def release_cache(self) -> None:
        """Let go of the rows that are kept: the memory is gone with its last user."""
        self.cache = self._ahead = self.look_ahead = None

    def close(self) -> None:
        """Leave the other ranks, and offer the partition no more. Idempotent."""
        while self._refusing:
            self._refusing.pop().close()
        self.settle()
        if self._offered is not None:
            self._offered.close()


def _check_same_graph(rank: int, own: str, graphs: list[str]) -> None:
    """Refuse partitions of two graphs, or of two runs; unknown ones are not compared.

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
    members: Iterable[_Published], num_partitions: int
) -> dict[int, tuple[WorkerAddress, ...]]:
    """Return all workers by partition, in the order of ranks."""
    # the order of ranks is the same wherever this is built: `assignments` goes by positions in it
    found: dict[int, tuple[WorkerAddress, ...]] = {}
    for rank, (partition, host, ports) in enumerate(members):
        workers = tuple(
            WorkerAddress(host, port, worker_name(rank, number))
            for number, port in enumerate(ports)
        )
        found[partition] = found.get(partition, ()) + workers
    check_held(num_partitions, found, who=_holder())
    return found


def _holder() -> str:
    """Return the holder of a partition here, for errors."""
    context = get_context()
    is_server = context is not None and context.is_server()
    return "storage server" if is_server else "process"
