"""One producer among those of the other ranks: how their workers talk, and which rows they share.

::

    join:    nonce, hosts ---------------> `Access`: how workers listen and prove themselves
    connect: workers' addresses ---------> whom each worker asks, and what it reads in place
             rows kept on this machine --> one cache for its ranks, and how far to draw ahead
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import UsageError
from gigl_loader.memory import tensors
from gigl_loader.options import CacheOptions, EpochOptions
from gigl_loader.rowcache.look_ahead import AheadMemory, DrawnAhead, LookAhead
from gigl_loader.rowcache.machine import MachineRows, name_of_rows, shared_memory
from gigl_loader.rowcache.tables import remote_bytes, tables_for
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.transport import Security
from gigl_loader.workers import pipe
from gigl_loader.workers.agreement import Agreement, PeerPlan
from gigl_loader.workers.peers import Access, Assignment, Refusing, worker_name
from gigl_loader.workers.rendezvous import Rendezvous


class AmongRanks:
    """What a producer has agreed on with the other ranks.

    Args:
        view: This rank's partition.
        plan: What is sampled.
        cache: Which rows of other machines to keep; None: none.
        epoch_options: What who takes the batches does for itself.
    """

    def __init__(
        self, view: PartitionView, plan: SamplingPlan, cache: CacheOptions | None,
        epoch_options: EpochOptions,
    ) -> None:  # fmt: skip
        self._view, self._plan, self._options = view, plan, cache
        self._epoch_options = epoch_options
        self._agreement: Agreement | None = None
        self._peer_plan = PeerPlan()
        self._ahead: AheadMemory[Tensor] | None = None
        self._refusing: list[Refusing] = []
        self.access: Access | None = None
        """How workers answer those of other partitions; None: nobody asks."""
        self.cache: MachineRows | None = None
        """Rows of other machines, kept for all ranks of this one."""
        self.look_ahead: LookAhead | None = None
        """How far to draw ahead, where rows are kept."""
        self.remote_bytes = 0
        """Bytes of all rows that only other machines have."""

    def join(self, rendezvous: Rendezvous | None, security: Security, towards: str) -> None:
        """Meet the other ranks; see `DistSamplingProducer.join`.

        Args:
            rendezvous: Closed here. None: this process is alone.
            security: Who may ask the workers.
            towards: Address of a machine that all ranks can reach; workers listen towards it.
        """
        self._agreement = Agreement(self._view, rendezvous, security, towards)
        self.access = self._agreement.access()

    @property
    def agreement(self) -> Agreement:
        """What the ranks agree through.

        Raises:
            UsageError: This rank did not `join`.
        """
        if self._agreement is None:
            raise UsageError("a producer has to `join` before it starts")
        return self._agreement

    @property
    def has_peers(self) -> bool:
        """Whether workers of other partitions ask this rank's."""
        return self._agreement is not None and self._agreement.has_peers

    @property
    def rows_apart(self) -> bool:
        """Whether batches are handed over without rows, whose owners are asked by who takes them.

        They are where rows are kept there, or would leave two machines on their way. On one machine
        bytes cost less than what they are saved by: putting rows in order once more, where they
        are taken. Known once this rank is connected.
        """
        options, one_machine = self._epoch_options, self.agreement.is_one_machine
        would_cross = self.remote_bytes > 0 and not one_machine
        return options.cache is not None or (options.asks_for_rows and would_cross)

    def connect(self, addresses: list[tuple[str, int] | None]) -> None:
        """Exchange with the other ranks where workers answer, and get the cache of the machine.

        Args:
            addresses: Of this rank's workers.

        Raises:
            PeerError: Another rank failed, or did not come up in time.
        """
        options = self._options
        # ranks that keep another amount have a cache of their own
        kept = ("", "") if options is None else (str(options.size), name_of_rows(self._view))
        self._peer_plan = self.agreement.exchange(addresses, *kept)
        self._join_cache(self.agreement, self._peer_plan.offers)

    def _join_cache(self, agreement: Agreement, same_host: Mapping[int, Any]) -> None:
        """Get the machine's memory for rows of others, where it is wanted and there are some."""
        if not agreement.has_peers:
            return
        self.remote_bytes = remote_bytes(self._view, self._plan, same_host)
        options = self._options
        tables = {}
        if options is not None:
            tables = tables_for(self._view, self._plan, same_host, options.size)
        if options is None or not tables:
            agreement.share_cache(bytes)  # offers nothing: the other ranks wait for its word
            return
        self.cache = shared_memory(tables, agreement.name_of_cache, agreement.share_cache)
        # the cache is the machine's, what is drawn ahead this loader's alone: its memory goes to
        # each worker, also to those that take another's place
        drawn = tensors.share_tensor(torch.zeros(DrawnAhead.NUM_WORDS, dtype=torch.int64))
        rows = self.cache.rows
        self.look_ahead = LookAhead(rows, DrawnAhead(drawn.numpy()), options)
        self._ahead = AheadMemory(self.cache.shared, drawn, rows.join())

    def assignments(self) -> dict[str, Assignment]:
        """Return by worker's name whom this rank's workers ask; decoded anew at each call."""
        return self._peer_plan.assignments()

    def introduction(
        self, worker: int, assignments: Mapping[str, Assignment]
    ) -> tuple[tuple[Any, ...], AheadMemory[Tensor] | None]:
        """Return what tells ``worker`` of the others: a message, and the memory that goes with it.

        Args:
            worker: Its number; it can sample once it was told.
            assignments: From `assignments`.
        """
        name = worker_name(self.agreement.rank, worker)
        # none where this process is alone: the message lets the worker begin all the same
        whom, offers = assignments.get(name), self._peer_plan.offers
        how = (self._ahead is not None, self.rows_apart)
        return (pipe.PEERS, name, whom, offers, *how), self._ahead

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks why this one gives up, where it has met them."""
        if self._agreement is not None:
            self._agreement.fail(error)

    def refuse(self, worker: int, listener: int, error: BaseException) -> None:
        """Answer in place of a worker that is lost for good: who asks it hears why.

        Args:
            worker: Its number.
            listener: Descriptor of the socket that it listened on; closed by `close`.
            error: What ended the sampling here.
        """
        assert self.access is not None, "a worker that listened is asked"
        name = worker_name(self.agreement.rank, worker)
        self._refusing.append(Refusing(self.access, name, listener, error))

    def release_cache(self) -> None:
        """Let go of the rows that are kept: the memory is gone with its last user."""
        self.cache = self._ahead = self.look_ahead = None

    def close(self) -> None:
        """Leave the other ranks, and offer the partition no more. Idempotent."""
        while self._refusing:
            self._refusing.pop().close()
        if self._agreement is not None:
            self._agreement.close()
