"""The row cache of a machine: one memory for all its processes that read the same rows.

::

    each process: RowsClaim: the memory of an earlier loader, or an empty file --offer--> the others
    the offer of the first process of the machine that wants the same is chosen; the others open it
    MachineRows.cache(): the first process that knows the rows sizes the file, others map it

The ranks of a colocated job know the rows when they meet: the first rank sizes the memory before it
offers it. Clients of a graph store know them with their first batch. Nobody owns the memory: it has
no name, and is gone with the last process that has it open, however that ends. A process that
cannot see another one's memory (see `runtime.memory.same_host`) has its own.
"""

import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.partition.partition_view import ROW_KINDS, PartitionView
from gigl_loader.dataset.schema import is_in_batches
from gigl_loader.errors import UsageError
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.memory import segments, tensors
from gigl_loader.runtime.memory.mutex import Mutex
from gigl_loader.runtime.memory.same_host import OwnHostProof, Region, SameHostProof
from gigl_loader.runtime.memory.segments import Array, align, array_in
from gigl_loader.runtime.system import machine_name
from gigl_loader.sampler.options import reads_same_memory
from gigl_loader.sampler.row_cache.cache import RowCache
from gigl_loader.sampler.row_cache.tables import CacheMemory, RowTables

_log = logging.getLogger(__name__)

# a separate page: it is mapped before the size of the rest is known
_HEADER = 4096
"""Bytes before the rest: the lock, the size of the file in bytes (0: it has no cache yet), and the
name of the rows. Slots and references of each table follow, and then the cache."""
_DIGEST = 16
# the holder may be reserving the whole cache meanwhile, and the kernel clears every page of that
_LOCK_S = 60.0


@dataclass(frozen=True)
class RowsOffer:
    """Memory for rows that one process offers to the others of its machine."""

    machine: str
    """Equal for processes that may be able to map each other's memory."""
    what: str
    """The rows, and how many of them are kept."""
    mark: SameHostProof
    region: Region

    @staticmethod
    def firsts(offers: "Sequence[RowsOffer | None]") -> "list[RowsOffer]":
        """Return that of the first rank of each machine where another rank wants the same rows."""
        by_machine: dict[tuple[str, str], list[RowsOffer]] = {}
        for offer in offers:
            if offer is not None:
                by_machine.setdefault((offer.machine, offer.what), []).append(offer)
        # a rank without others keeps its own memory: so the result has an entry for each machine
        # where ranks share, not for each rank
        return [same[0] for same in by_machine.values() if len(same) > 1]


class MachineRows:
    """The memory, as this process has it open.

    Args:
        fd: Descriptor of the file; closed by this object.
        is_new: No other process has the file.
    """

    def __init__(self, fd: int, *, is_new: bool) -> None:
        self._fd = fd
        # kept open as long as this object lives: others open the memory through this descriptor in
        # /proc, which needs more than a mapping
        self._release = weakref.finalize(self, os.close, fd)
        self._header: Array = _mapped(fd, _HEADER).numpy()
        self._nbytes = array_in(self._header, "int64", (1,), Mutex.NBYTES)
        self._digest = self._header[Mutex.NBYTES + 8 :][:_DIGEST]
        # before anybody learns of the region, so that a process that opens it finds a lock
        self._mutex = Mutex(self._header[: Mutex.NBYTES])
        if is_new:
            self._mutex.make()
        self._mark = OwnHostProof()
        self._lock = threading.Lock()
        self._shared: CacheMemory[Tensor] | None = None
        self._rows: RowCache | None = None
        self.region = Region.of(fd, _HEADER)

    @classmethod
    def new(cls) -> "MachineRows":
        """Make a memory without rows."""
        return cls(segments.create_memfd(_HEADER, "gigl_loader.rows"), is_new=True)

    @classmethod
    def of(cls, offer: RowsOffer) -> "MachineRows":
        """Open another process's memory.

        Raises:
            OSError: It cannot be seen from here, or is gone.
        """
        if not offer.mark.is_seen():
            raise OSError("its memory cannot be seen from here")
        return cls(offer.region.open(), is_new=False)

    def offer(self, what: str) -> RowsOffer:
        """Return the place where others find it."""
        return RowsOffer(machine_name(), what, self._mark.mark, self.region)

    def cache(self, tables: RowTables) -> RowCache | None:
        """Return the cache for these rows; None if the memory is for other rows.

        Args:
            tables: The rows to keep. The number of slots is the first caller's: another process may
                want to keep more of the same rows, or fewer.

        Raises:
            SharedMemoryError: The machine has too little memory.
            PeerTimeoutError: Another process of this machine was stopped while it made the cache.
        """
        tables = tables.in_order()
        digest = np.frombuffer(_digest_of(tables), np.uint8)
        with self._lock, self._mutex.held(_LOCK_S):
            # the size is written last: a process killed in the middle leaves no visible change
            if self._nbytes[0] == 0:
                nbytes = _start(tables) + tables.nbytes
                segments.reserve(self._fd, nbytes)
                memory = _mapped(self._fd, nbytes)
                sizes = _sizes_in(memory, tables)
                sizes[:] = [(table.capacity, table.references) for table in tables.values()]
                self._map(memory, tables).initialise()
                self._digest[:] = digest
                self._nbytes[0] = nbytes
            elif not np.array_equal(self._digest, digest):
                return None
            elif self._rows is None:
                memory = _mapped(self._fd, int(self._nbytes[0]))
                sizes = _sizes_in(memory, tables).tolist()
                tables = RowTables(
                    {
                        owner: replace(table, capacity=capacity, references=references)
                        for (owner, table), (capacity, references) in zip(
                            tables.items(), sizes, strict=True
                        )
                    }
                )
                self._map(memory, tables)
            return self._rows

    def _map(self, memory: Tensor, tables: RowTables) -> RowCache:
        segment = memory[_start(tables) :]
        self._shared = CacheMemory(segment, tables)
        self._rows = RowCache(CacheMemory(segment.numpy(), tables))
        return self._rows

    @property
    def rows(self) -> RowCache:
        """The cache, once `cache` returned it."""
        if self._rows is None:
            raise UsageError("the memory has no cache before `cache` was asked for one")
        return self._rows

    @property
    def shared(self) -> CacheMemory[Tensor]:
        """The memory of the cache, for worker processes."""
        if self._shared is None:
            raise UsageError("the memory has no cache before `cache` was asked for one")
        return self._shared


def memory_for(tables: RowTables, memory: MachineRows | None = None) -> MachineRows:
    """Return ``memory``, with a cache; a new one if ``memory`` is None or for other rows.

    Raises:
        SharedMemoryError: The machine has too little memory.
        PeerTimeoutError: Another process of this machine was stopped while it made the cache.
    """
    if memory is None or memory.cache(tables) is None:
        memory = MachineRows.new()
        memory.cache(tables)
    return memory


def _mapped(fd: int, nbytes: int) -> Tensor:
    return tensors.map_shared_tensor(fd, nbytes, torch.uint8, (nbytes,))


def _start(tables: RowTables) -> int:
    """Return the offset of the cache: behind two words for each table."""
    return _HEADER + align(16 * len(tables))


def _sizes_in(memory: Tensor, tables: RowTables) -> Array:
    return array_in(memory.numpy(), "int64", (len(tables), 2), _HEADER)


def _digest_of(tables: RowTables) -> bytes:
    """Return a name of the rows of ``tables``, which are in order, however many are kept."""
    rows = [(owner, table.num_ids, table.matrices) for owner, table in tables.items()]
    return hashlib.blake2b(repr(rows).encode(), digest_size=_DIGEST).digest()


# --- names of rows --------------------------------------------------------------------------------


_tokens: dict[int, str] = {}
"""By ``id`` of a living object."""
_lock = threading.Lock()


def _token(thing: Any) -> str:
    """Return a name that no other object of any process has."""
    # random, as ranks exchange names made of tokens: addresses may be the same on two ranks. An
    # ``id`` is reused once its object is gone, and its token goes with the object
    with _lock:
        if id(thing) not in _tokens:
            _tokens[id(thing)] = secrets.token_hex(16)
            weakref.finalize(thing, _tokens.pop, id(thing), None).atexit = False
        return _tokens[id(thing)]


def name_of_rows(view: PartitionView[Tensor]) -> str:
    """Return a name that two views share if and only if they have the same tensors of rows.

    Ranks exchange theirs: a cache that an earlier loader has filled is valid only for a loader over
    the same dataset on all of them.
    """
    digest = hashlib.blake2b(digest_size=16)
    for kind in ROW_KINDS:
        for name, rows in sorted(getattr(view, kind).items(), key=repr):
            if not kind.endswith("_attributes") or is_in_batches(name[1]):
                digest.update(_token(rows.values).encode())
    return digest.hexdigest()


# --- the memory of each process -------------------------------------------------------------------

_kept: "weakref.WeakValueDictionary[str, MachineRows]" = weakref.WeakValueDictionary()
"""By name of the rows: the memory that loaders of this process use."""


class RowsClaim:
    """This process's part in the agreement on the memory of its machine.

    Args:
        what: The rows, and how many are kept: equal on all processes that may share.
        of: Tells the rows of this process from those of another dataset, if ``what`` does not.
    """

    def __init__(self, what: str, of: str = "") -> None:
        self._what, self._key = what, f"{of} {what}"
        known = _kept.get(self._key)
        self.memory = MachineRows.new() if known is None else known
        """Memory of an earlier loader of this process, or new; after `agreed`, the machine's."""

    @classmethod
    def of_store(cls, cluster: Any, options: CacheOptions, config: Any) -> "RowsClaim":
        """Return the claim of a client of a graph store, which does not know the rows yet.

        Args:
            cluster: Owner of the rows.
            options: How many rows to keep.
            config: The sampling options.
        """
        # a loader that reads other matrices would find a cache for other rows there
        reads = [getattr(config, name, None) for name in ("with_edge", "collect_features")]
        return cls(f"{options.size!r} {reads}", _token(cluster))

    @property
    def offer(self) -> RowsOffer | None:
        """Offer for the other processes; None if this process does not share its memory."""
        return self.memory.offer(self._what) if reads_same_memory() else None

    def agreed(self, offers: Sequence[RowsOffer]) -> MachineRows:
        """Return the memory of this machine.

        Args:
            offers: From the first process of each machine, as `RowsOffer.firsts` returns them.
        """
        own = self.offer
        # without an offer this process was told not to share memory, so it opens no other one
        for offer in offers if own is not None else ():
            if (offer.machine, offer.what) == (machine_name(), self._what):
                self.memory = self._opened(offer)
        _kept[self._key] = self.memory
        return self.memory

    def _opened(self, offer: RowsOffer) -> MachineRows:
        # its own offer, or that of a rank whose memory an earlier loader of this process has opened
        if offer.region.inode == self.memory.region.inode:
            return self.memory
        try:
            return MachineRows.of(offer)
        except OSError as error:
            _log.info("the row cache of another rank of this machine is not used: %s", error)
            return self.memory


Share = Callable[[Callable[[], bytes]], bytes | None]
"""Takes a function that makes this rank's offer; returns the offer of the machine's first rank, or
None if this is that rank, or there is no other."""


def shared_memory(tables: RowTables, name: str, share: Share) -> MachineRows:
    """Return memory with a cache for the rows of ``tables``, one for the ranks that call together.

    Args:
        tables: The rows to keep.
        name: Name of the rows of all ranks, and of the number that is kept.
        share: `Agreement.share_cache`.

    Raises:
        SharedMemoryError: The machine has too little memory.
        PeerError: The first rank failed, or did not come in time.
    """
    claim = RowsClaim(f"{name} {_digest_of(tables.in_order()).hex()}")

    def own() -> bytes:
        # before anybody else can: the sizes are the first rank's, whichever process maps it first
        claim.memory.cache(tables)
        return msgspec.msgpack.encode(claim.offer)

    offered = share(own)
    return memory_for(tables, claim.agreed([] if offered is None else _decoded(offered)))


def _decoded(offered: bytes) -> list[RowsOffer]:
    try:
        return [msgspec.msgpack.decode(offered, type=analysed(RowsOffer))]
    except msgspec.MsgspecError as error:
        _log.info("the row cache of another rank of this machine is not used: %s", error)
        return []
