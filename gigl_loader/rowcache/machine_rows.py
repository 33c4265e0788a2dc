"""The row cache of the compute ranks of a machine: memory that they agree on before its size.

::

    create():   every rank offers an empty file --> rank 0 names the first one of each machine
                the ranks of that machine open it
    a batch:    who is the first to know which rows there are gives it its size and makes the cache
                the others map it

Nobody owns the memory: it has no name, and is gone with the last process that has it open, however
that ends. Where another rank's cannot be seen (see `gigl_loader.memory.same_host`), a rank has one
of its own.
"""

import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigl_loader.memory import segments, tensors
from gigl_loader.memory.mutex import MUTEX_BYTES, holding, make_mutex
from gigl_loader.memory.same_host import HostMark, Mark, Region, open_region, region_of, sees
from gigl_loader.memory.segments import Array, array_in
from gigl_loader.options import CacheOptions, reads_same_memory
from gigl_loader.rowcache.cache import RowCache
from gigl_loader.rowcache.tables import CacheMemory, Owner, Table, in_order, segment_bytes

_log = logging.getLogger(__name__)

# a page of its own: it is mapped before anybody knows how large the rest is going to be
_HEADER = 4096
"""Bytes before the cache: the lock, how many bytes of it there are (0: none yet), and for what."""
_DIGEST = 16
# the holder may be reserving the whole cache meanwhile, of which the kernel clears every page
_LOCK_S = 60.0


@dataclass(frozen=True)
class RowsOffer:
    """Memory for rows that one rank offers to the other ranks of its machine."""

    machine: str
    """Equal for ranks that may be able to map each other's memory."""
    what: str
    """How much is kept, and of which rows."""
    mark: Mark
    region: Region


class MachineRows:
    """The memory, as this process has it open.

    Args:
        fd: Of the file; closed by this object.
        is_new: Nobody has it but this process.
    """

    def __init__(self, fd: int, *, is_new: bool) -> None:
        self._fd = fd
        # kept open for as long as this object lives: others open the memory through this descriptor
        # in /proc, which a mapping alone would not let them do
        self._release = weakref.finalize(self, os.close, fd)
        self._header: Array = tensors.map_shared_tensor(
            fd, _HEADER, torch.uint8, (_HEADER,)
        ).numpy()
        self._nbytes = array_in(self._header, "int64", (1,), MUTEX_BYTES)
        self._digest = self._header[MUTEX_BYTES + 8 :][:_DIGEST]
        # before anybody is told of the region, so that whoever opens it finds a lock
        if is_new:
            make_mutex(self._header[:MUTEX_BYTES])
        self._mark = HostMark()
        self._lock = threading.Lock()
        self._rows: RowCache | None = None
        self.region = region_of(fd, _HEADER)

    @classmethod
    def new(cls) -> "MachineRows":
        """Make one without rows."""
        return cls(segments.create_memfd(_HEADER, "gigl_loader.rows"), is_new=True)

    @classmethod
    def of(cls, offer: RowsOffer) -> "MachineRows":
        """Open another rank's.

        Raises:
            OSError: It cannot be seen from here, or is not there any more.
        """
        if not sees(offer.mark):
            raise OSError("its memory cannot be seen from here")
        return cls(open_region(offer.region), is_new=False)

    def offer(self, what: str) -> RowsOffer:
        """Return where others find it."""
        return RowsOffer(_machine(), what, self._mark.mark, self.region)

    def cache(self, tables: dict[Owner, Table]) -> RowCache | None:
        """Return the cache for these rows, made by the first who asks; None: it is for others.

        Raises:
            SharedMemoryError: The machine does not have as much memory.
            PeerTimeoutError: A process of this machine that made it was stopped meanwhile.
        """
        tables = in_order(tables)
        digest = np.frombuffer(_digest_of(tables), np.uint8)
        with self._lock, holding(self._header[:MUTEX_BYTES], _LOCK_S):
            # written last: of one who was killed in the middle nothing is left to be seen
            if self._nbytes[0] == 0:
                segments.reserve(self._fd, _HEADER + segment_bytes(tables))
                self._rows = self._mapped(tables)
                self._rows.initialise()
                self._digest[:] = digest
                self._nbytes[0] = segment_bytes(tables)
            elif not np.array_equal(self._digest, digest):
                return None
            elif self._rows is None:
                self._rows = self._mapped(tables)
            return self._rows

    def _mapped(self, tables: dict[Owner, Table]) -> RowCache:
        nbytes = _HEADER + segment_bytes(tables)
        memory = tensors.map_shared_tensor(self._fd, nbytes, torch.uint8, (nbytes,)).numpy()
        return RowCache(CacheMemory(memory[_HEADER:], tables))


def _digest_of(tables: dict[Owner, Table]) -> bytes:
    found = repr(list(tables.items()))
    return hashlib.blake2b(found.encode(), digest_size=_DIGEST).digest()


def _machine() -> str:
    """Return a name of this machine, and of what of it this process can see.

    Only who has the same name is asked for its memory; `sees` is what decides.
    """
    # all containers of a machine have its boot id; a pid namespace hides the descriptors of a
    # process in /proc from others, and another user may not open them
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino} {os.getuid()}"


_kept: "weakref.WeakKeyDictionary[Any, weakref.WeakValueDictionary[str, MachineRows]]"
_kept = weakref.WeakKeyDictionary()
"""By cluster, and by what they are for: those that loaders of this process use."""


@dataclass
class OwnRows:
    """This rank's part in the agreement on the memory of its machine."""

    memory: MachineRows
    what: str
    """How much is kept, and of which rows."""
    cluster: Any
    """Whose rows."""

    @classmethod
    def of(cls, cluster: Any, options: CacheOptions, config: Any) -> "OwnRows":
        """Return what an earlier loader of this process has, or new memory.

        Args:
            cluster: Whose rows.
            options: What to keep.
            config: What is sampled.
        """
        # a loader that reads other matrices would find a cache there that is not for its rows
        reads = [getattr(config, name, None) for name in ("with_edge", "collect_features")]
        what = f"{options.size!r} {reads}"
        of_cluster = _kept.setdefault(cluster, weakref.WeakValueDictionary())
        known = of_cluster.get(what)
        return cls(MachineRows.new() if known is None else known, what, cluster)

    @property
    def offer(self) -> RowsOffer | None:
        """What the other ranks are told; None: this process's memory is its own."""
        return self.memory.offer(self.what) if reads_same_memory() else None

    def agreed(self, offers: Sequence[RowsOffer]) -> MachineRows:
        """Return the memory of this machine.

        Args:
            offers: From `firsts_of_machines`.
        """
        own = self.offer
        # without an offer this process was told not to share memory, so it opens no other's either
        for one in offers if own is not None else ():
            if (one.machine, one.what) == (_machine(), self.what):
                self.memory = self._opened(one)
        _kept[self.cluster][self.what] = self.memory
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


def firsts_of_machines(offers: Sequence[RowsOffer | None]) -> list[RowsOffer]:
    """Return what the first rank of each machine offers, where another one wants the same."""
    by_machine: dict[tuple[str, str], list[RowsOffer]] = {}
    for one in offers:
        if one is not None:
            by_machine.setdefault((one.machine, one.what), []).append(one)
    # who is alone keeps its own memory: so what all ranks are told has an entry for each machine
    # where ranks do share, and none for each rank
    return [some[0] for some in by_machine.values() if len(some) > 1]
