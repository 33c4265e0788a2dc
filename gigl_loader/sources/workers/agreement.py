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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor

from gigl_loader.dataset.identity import check_enough, check_held
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.glt_classes import get_context
from gigl_loader.runtime.memory import tensors
from gigl_loader.runtime.memory.same_host import Offer
from gigl_loader.runtime.memory.tensors import Offered
from gigl_loader.runtime.transport import Mode, Security
from gigl_loader.sampler.options import SourceOptions, may_be_one_machine, reads_same_memory
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.sampler.row_cache.look_ahead import AheadMemory, DrawnAhead, LookAhead
from gigl_loader.sampler.row_cache.machine_cache import MachineRows, name_of_rows, shared_memory
from gigl_loader.sampler.row_cache.tables import RowTables
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers.peers import (
    Access,
    Assignment,
    LostWorkerAnswers,
    WorkerAddress,
    assignments,
    worker_name,
)
from gigl_loader.sources.workers.rendezvous import Rendezvous

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Member:
    """Description that a rank publishes of itself."""

    partition: int
    host: str
    ports: tuple[int, ...]
    """Ports of the rank's workers."""
    offer: Offer | None
    cache: str = ""
    """Size of its cache of other machines' rows; empty: no cache."""
    rows: str = ""
    """Identity of its rows, which tells datasets apart in a cache; empty: no cache."""


_Published = tuple[int, str, tuple[int, ...]]
"""Partition, host and ports of a rank's workers."""


class Agreement:
    """Agreements of a producer with the other ranks.

    Args:
        view: This rank's partition.
        plan: The sampling to do.
        source_options: The cache of other machines' rows, and who has it.
    """

    def __init__(
        self, view: PartitionView, plan: SamplingPlan, source_options: SourceOptions
    ) -> None:
        self._view, self._plan, self._options = view, plan, source_options.producers_cache
        self._epoch_options = source_options
        self._rendezvous: Rendezvous | None = None
        self._has_joined = False
        self._offered: Offered | None = None
        self._offers: dict[int, list[Offer]] = {}
        """By partition: the offer of its memory by another rank of this machine."""
        self._everyone = b""
        """A `_Published` of each rank, packed, as there may be hundreds: they are needed only at
        the start, and when a worker is replaced."""
        self._anyone_keeps = False
        self._first_with_cache: int | None = None
        self._ahead: AheadMemory[Tensor] | None = None
        self._refusing: list[LostWorkerAnswers] = []
        self.access: Access | None = None
        """How workers serve those of other partitions; None: there are none."""
        self.is_one_machine = True
        """Whether all ranks are on this machine, so that nothing crosses a network."""
        self.name_of_cache = ""
        """Description of the cache that a machine's ranks share; known once connected."""
        self.cache: MachineRows | None = None
        """Cache of other machines' rows, shared by the ranks of this machine."""
        self.look_ahead: LookAhead | None = None
        """How far to draw ahead if there is a cache."""
        self.remote_bytes = 0
        """Bytes of all rows that only other machines have."""

    # -- the ranks meet -------------------------------------------------------------------------

    def join(
        self, rendezvous: Rendezvous | None, security: Security, own_host: Callable[[], str]
    ) -> None:
        """Meet the other ranks, and agree on how workers reach each other.

        Args:
            rendezvous: Closed here. None: this process is alone.
            security: Authentication of workers that other machines can reach.
            own_host: Returns the address of this machine that the other ranks can reach, on which
                workers listen; called if there are other partitions.

        Raises:
            ConfigError: There are more partitions than processes to hold them, or workers would be
                open to other machines; nothing was started.
            PeerError: A rank failed, or did not arrive in time.
        """
        # kept in any case: `fail` tells the other ranks through it, and `close` closes it
        self._rendezvous, self._has_joined = rendezvous, True
        holders = 1 if rendezvous is None else rendezvous.world_size
        check_enough(self._view.num_partitions, self._view.partition_idx, holders, who=_holder())
        if rendezvous is not None and self.has_peers:
            self.access = self._agree_on_access(rendezvous, security, own_host())

    def _agree_on_access(self, rendezvous: Rendezvous, security: Security, own_host: str) -> Access:
        graph = self._view.identity
        identity = "" if graph is None else f"{graph.run} {graph.digest}"
        nonce = secrets.token_bytes(32) if rendezvous.rank == 0 else b""
        members = rendezvous.agree("host", (own_host, identity, nonce), tuple[str, str, bytes])
        _check_same_graph(rendezvous.rank, identity, [graph for _, graph, _ in members])
        nonce = members[0][2]
        is_one_host = len({host for host, _, _ in members}) == 1
        self.is_one_machine = is_one_host and may_be_one_machine()
        if is_one_host:  # no other machine has to reach the workers
            host, used = ("::1" if ":" in own_host else "127.0.0.1"), Security.local()
        else:
            host, used = own_host, security
            # checked here, so that every rank fails alike, and not when a worker starts to listen
            used.check_listener(host, loopback=False)
        if used.mode is Mode.TOKEN:
            # the cluster's token keeps out strangers, the nonce other jobs
            secret = hashlib.sha256(used.token.encode() + nonce).hexdigest()
            used = dataclasses.replace(used, token=secret)
        # An admitted process of another job would call methods of another name. Names travel
        # unencrypted, so this one does not reveal the nonce.
        return Access(host, used.for_workers(), hashlib.sha256(b"job" + nonce).hexdigest()[:8])

    @property
    def has_peers(self) -> bool:
        """Whether workers of other partitions send requests to this rank's workers."""
        return self._rendezvous is not None and self._view.num_partitions > 1

    @property
    def rank(self) -> int:
        """Number of this process among those that meet."""
        return 0 if self._rendezvous is None else self._rendezvous.rank

    @property
    def rows_apart(self) -> bool:
        """Whether batches are handed over without rows, which the reader fetches from their owners.

        That is so if the reader has a cache, or if rows would cross the network twice. On one
        machine it is not: putting rows in order once more costs more than the bytes saved. Known
        once this rank is connected.
        """
        options, one_machine = self._epoch_options, self.is_one_machine
        would_cross = self.remote_bytes > 0 and not one_machine
        return options.asks_for_rows and (options.cache is not None or would_cross)

    # -- their workers meet ---------------------------------------------------------------------

    def connect(self, addresses: list[tuple[str, int] | None]) -> None:
        """Exchange workers' addresses with the other ranks, and get the machine's cache.

        Args:
            addresses: Host and port of each of this rank's workers.

        Raises:
            UsageError: This rank has not called `join`.
            PeerError: Another rank failed, or did not arrive in time.
            ConfigError: A partition has no rank.
        """
        if not self._has_joined:
            raise UsageError("a producer has to `join` before it starts")
        if self._rendezvous is not None and self.has_peers:
            self._exchange(self._rendezvous, addresses)
            self._join_cache()

    def _exchange(self, rendezvous: Rendezvous, addresses: list[tuple[str, int] | None]) -> None:
        options, partition = self._options, self._view.partition_idx
        # opened before it is published, and kept until `close`: other ranks map it when their
        # workers start, and replaced workers map it later
        if reads_same_memory():
            # each rank that wants other partitions' edges has them
            self._offered = Offered(dataclasses.replace(self._view, other_edges={}))
        offer = None if self._offered is None else self._offered.offer
        ports = tuple(address[1] for address in addresses if address is not None)
        listening_on = next(address[0] for address in addresses if address is not None)
        # ranks with another cache size have a cache of their own
        kept = ("", "") if options is None else (str(options.size), name_of_rows(self._view))
        mine = _Member(partition, listening_on, ports, offer, *kept)
        members: list[_Member] = rendezvous.agree("workers", mine, _Member)
        # equal addresses mean that a rank may be on this machine; mapping its offer proves it
        for member in members if offer is not None else ():
            if (
                member.offer is not None
                and member.partition != partition
                and member.host == mine.host
            ):
                self._offers.setdefault(member.partition, []).append(member.offer)
        self._anyone_keeps = any(member.cache for member in members)
        self._first_with_cache = _first_like(mine, members)
        # the identity covers all ranks: a cached row may be any rank's, so a later loader may use
        # it only if all ranks have the same rows as before
        names = "\n".join([mine.cache, *(member.rows for member in members)])
        self.name_of_cache = hashlib.sha256(names.encode()).hexdigest()
        self._everyone = msgspec.msgpack.encode([(m.partition, m.host, m.ports) for m in members])
        self.assignments()  # raises if a partition has no rank

    def _join_cache(self) -> None:
        """Get the machine's memory for cached rows if a cache is wanted and has rows to keep."""
        self.remote_bytes = RowTables.of_view(self._view, self._plan, self._offers, 1.0).row_bytes
        options = self._options
        tables = RowTables()
        if options is not None:
            tables = RowTables.of_view(self._view, self._plan, self._offers, options.size)
        if options is None or not tables:
            self.share_cache(bytes)  # an empty offer, as the other ranks wait for one
            return
        self.cache = shared_memory(tables, self.name_of_cache, self.share_cache)
        # The cache is the machine's, but drawn batches are this loader's: the memory for them goes
        # to each worker, replacements included.
        drawn = tensors.share_tensor(
            torch.zeros(DrawnAhead.NUM_WORDS, dtype=torch.int64, device="cpu")
        )
        rows = self.cache.rows
        self.look_ahead = LookAhead(rows, DrawnAhead(drawn.numpy()), options)
        self._ahead = AheadMemory(self.cache.shared, drawn, rows.join())

    def share_cache(self, make: Callable[[], bytes]) -> bytes | None:
        """Return the offer of the first rank on this machine with the same cache size.

        Args:
            make: Returns this rank's offer; called if this rank is the first.

        Returns:
            None: this rank is the first, or no other rank's memory is read here.

        Raises:
            PeerError: The first rank failed, or did not arrive in time.
        """
        rendezvous, first = self._rendezvous, self._first_with_cache
        if rendezvous is None or not self._anyone_keeps:
            return None
        is_first = first == rendezvous.rank
        # all ranks, since the last one to leave removes the keys that it knows
        rendezvous.publish("cache", make() if is_first else b"")
        return None if is_first or first is None else rendezvous.wait_for("cache", first)

    def assignments(self) -> dict[str, Assignment]:
        """Return the peers of this rank's workers by worker's name; decoded at each call.

        Raises:
            ConfigError: A partition has no rank.
        """
        if not self._everyone:
            return {}
        known = msgspec.msgpack.decode(self._everyone, type=analysed(list[_Published]))
        by_partition = _by_partition(known, self._view.num_partitions)
        return assignments(by_partition, self._view.partition_idx)

    def introduction(
        self, worker: int, assignments: Mapping[str, Assignment]
    ) -> tuple[tuple[Any, ...], AheadMemory[Tensor] | None]:
        """Return what ``worker`` must know of other ranks: a message, and memory to send with it.

        Args:
            worker: Number of the worker, which can sample once it has this.
            assignments: From `assignments`.
        """
        name = worker_name(self.rank, worker)
        # empty if this process is alone: the message still lets the worker begin
        how = (assignments.get(name), self._offers, self._ahead is not None, self.rows_apart)
        return (pipe.PEERS, name, *how), self._ahead

    # -- turns, failures and the end ------------------------------------------------------------

    def announce(self, what: str) -> None:
        """Tell the other ranks that this one has reached ``what``."""
        if self._rendezvous is not None:
            self._rendezvous.publish(what, b"")

    def wait_for_rank_before(self, what: str) -> None:
        """Wait until the rank before this one has announced ``what``.

        Raises:
            PeerError: A rank failed, or did not get there in time.
        """
        if self._rendezvous is not None:
            self._rendezvous.wait_for(what, self._rendezvous.rank - 1)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one gives up, if it has met them."""
        if self._rendezvous is not None:
            # cut, as every rank prints it and the store keeps it
            self._rendezvous.fail(f"{type(error).__name__}: {error}"[:2000])

    def answer_for_lost(self, worker: int, listener: int, error: BaseException) -> None:
        """Respond in place of a worker that is lost for good: callers receive the reason.

        Args:
            worker: Number of the worker.
            listener: Descriptor of the socket that it listened on; closed by `close`.
            error: The error that ended the sampling here.
        """
        assert self.access is not None, "a worker that listened gets requests"
        name = worker_name(self.rank, worker)
        self._refusing.append(LostWorkerAnswers(self.access, name, listener, error))

    def leave_rendezvous(self) -> None:
        """Leave the rendezvous once all is agreed on. Idempotent."""
        if self._rendezvous is not None:
            self._rendezvous.close()

    def release_cache(self) -> None:
        """Release the cached rows; their memory goes with its last user."""
        self.cache = self._ahead = self.look_ahead = None

    def close(self) -> None:
        """Leave the other ranks and stop offering the partition. Idempotent."""
        while self._refusing:
            self._refusing.pop().close()
        self.leave_rendezvous()
        if self._offered is not None:
            self._offered.close()


def _check_same_graph(rank: int, own: str, graphs: list[str]) -> None:
    """Refuse partitions of two graphs or two runs; unknown ones are not compared.

    Raises:
        ConfigError: Partitions differ; raised on all ranks alike, before anything was started.
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
    """Return the first rank that reads this machine's memory and has the same cache size."""
    if mine.offer is None or not mine.cache:
        return None
    return next(
        rank
        for rank, member in enumerate(members)
        if member.offer is not None and (member.host, member.cache) == (mine.host, mine.cache)
    )


def _by_partition(
    members: Iterable[_Published], num_partitions: int
) -> dict[int, tuple[WorkerAddress, ...]]:
    """Return all workers by partition, in the order of ranks."""
    # ranks must be in the same order wherever this is built, as `assignments` uses positions in it
    by_partition: dict[int, tuple[WorkerAddress, ...]] = {}
    for rank, (partition, host, ports) in enumerate(members):
        workers = tuple(
            WorkerAddress(host, port, worker_name(rank, number))
            for number, port in enumerate(ports)
        )
        by_partition[partition] = by_partition.get(partition, ()) + workers
    check_held(num_partitions, by_partition, who=_holder())
    return by_partition


def _holder() -> str:
    """Return what holds a partition here, for errors."""
    context = get_context()
    is_server = context is not None and context.is_server()
    return "storage server" if is_server else "process"
