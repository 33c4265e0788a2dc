"""The row cache of a machine: one memory for all ranks and loaders over the same dataset.

::

    first rank of the machine: makes the memory, or has it from an earlier loader --offer--> others
    every rank: maps it, keeps it as long as one of its loaders does, passes it to its workers

The memory has no name and is gone with its last user. Where another rank's cannot be seen (see
`gigl_loader.memory.same_host`), a rank has one of its own.
"""

import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from gigl_loader.dataset.schema import NEIGHBOR_TIME
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ProtocolError
from gigl_loader.memory import segments, tensors
from gigl_loader.memory.same_host import HostMark, Mark, Region, open_region, region_of, sees
from gigl_loader.rowcache.cache import RowCache
from gigl_loader.rowcache.tables import (
    CacheMemory,
    Owner,
    Table,
    in_order,
    make_tables,
    segment_bytes,
)
from gigl_loader.sampler.plan import SamplingPlan

_log = logging.getLogger(__name__)

Share = Callable[[Callable[[], bytes]], bytes | None]
"""Given what makes this rank's offer, returns that of the machine's first rank; None: this is it,
or there is no other."""


def remote_rows(view: PartitionView[Any], remote: set[int]) -> dict[Owner, int]:
    """Return by owner how many rows the partitions ``remote`` have."""
    found = {}
    for kind, books in (("node", view.node_books), ("edge", view.edge_books)):
        for name, book in books.items():
            # partition p has the ids up to the p-th bound; else a table names each id's partition
            if book.bounds is not None:
                sizes = np.diff(np.asarray(book.bounds), prepend=0)
            else:
                sizes = np.bincount(np.asarray(book.table), minlength=view.num_partitions)
            found[kind, name] = int(sum(sizes[partition] for partition in remote))
    return found


def tables_for(
    view: PartitionView[Any], plan: SamplingPlan, same_host: Mapping[int, Any], size: int | float
) -> dict[Owner, Table]:
    """Return the tables of a cache for what ``plan`` reads from other machines; see `make_tables`.

    Args:
        view: This rank's partition.
        plan: What is sampled: of edges, rows are read where ids are asked for.
        same_host: Partitions that are read in this machine's memory.
        size: Bytes, or a share of the rows.
    """
    remote = set(range(view.num_partitions)) - {view.partition_idx} - set(same_host)
    features, edges = plan.collect_features, plan.with_edge
    kinds = {
        "node_labels": True, "node_features": features, "node_attributes": features,
        "edge_features": features and edges, "edge_attributes": features and edges,
    }  # fmt: skip
    return make_tables(view, remote_rows(view, remote), size, kinds)


def remote_bytes(view: PartitionView[Any], plan: SamplingPlan, same_host: Mapping[int, Any]) -> int:
    """Return the bytes of all rows that ``plan`` may read from other machines; see `tables_for`."""
    tables = tables_for(view, plan, same_host, 1.0)
    return sum(table.capacity * table.row_bytes for table in tables.values())


@dataclass(frozen=True)
class CacheOffer:
    """Cache that one rank offers to the other ranks of its machine."""

    mark: Mark
    region: Region
    sizes: tuple[tuple[int, int], ...]
    """Of each table, in the order of their owners: slots and references."""


class MachineCache:
    """A cache as this process keeps it; its memory goes with the last process that does.

    Args:
        fd: The memory; closed by this object.
        tables: What lies in it.
        source: Where this process found it; None: it is new.
    """

    def __init__(self, fd: int, tables: dict[Owner, Table], source: Region | None = None) -> None:
        tables = in_order(tables)
        nbytes = segment_bytes(tables)
        # open as long as this object is: other processes find the memory by the descriptor
        self._release = weakref.finalize(self, os.close, fd)
        segment = tensors.map_shared_tensor(fd, nbytes, torch.uint8, (nbytes,))
        self.memory: CacheMemory[Tensor] = CacheMemory(segment, tables)
        self.rows = RowCache(CacheMemory(segment.numpy(), tables))
        # before there is an offer, so that nobody maps a memory without a lock in it
        if source is None:
            self.rows.initialise()
        self.inode = os.fstat(fd).st_ino
        self._mark = HostMark()
        sizes = tuple((one.capacity, one.references) for one in tables.values())
        self.offer = CacheOffer(self._mark.mark, region_of(fd, nbytes), sizes)

    @classmethod
    def new(cls, tables: dict[Owner, Table]) -> "MachineCache":
        """Make one.

        Raises:
            SharedMemoryError: The machine does not have as much memory.
        """
        return cls(segments.create_memfd(segment_bytes(tables), "gigl_loader.rows"), tables)

    @classmethod
    def of(cls, offer: CacheOffer, tables: dict[Owner, Table]) -> "MachineCache":
        """Map another rank's.

        Args:
            offer: Of that rank.
            tables: What this rank would keep: of the same rows, in another number of slots perhaps.

        Raises:
            OSError: It cannot be seen from here, or is not there any more.
            ProtocolError: It is for other rows.
        """
        if not sees(offer.mark):
            raise OSError("its memory cannot be seen from here")
        if len(offer.sizes) != len(tables):
            raise ProtocolError(f"{len(offer.sizes)} types of rows were offered for {len(tables)}")
        # all but the two numbers follows from the dataset, which both ranks have in parts
        offered = {
            owner: replace(table, capacity=capacity, references=references)
            for (owner, table), (capacity, references) in zip(
                in_order(tables).items(), offer.sizes, strict=True
            )
        }
        if segment_bytes(offered) != offer.region.nbytes:
            raise ProtocolError(f"{offer.region.nbytes} bytes were offered for other rows")
        return cls(open_region(offer.region), offered, offer.region)


_tokens: dict[int, str] = {}
"""By ``id`` of a tensor that is alive."""
_kept: "weakref.WeakValueDictionary[Any, MachineCache]" = weakref.WeakValueDictionary()
"""By what they are for: the caches that loaders of this process use."""
_lock = threading.Lock()


def name_of_rows(view: PartitionView[Tensor]) -> str:
    """Return a name that two views have if and only if they have the same tensors of rows.

    Ranks tell each other theirs: a cache that an earlier loader has filled is only good for one
    over the same dataset on all of them.
    """
    kinds = ("node_features", "node_labels", "edge_features", "node_attributes", "edge_attributes")
    found = hashlib.blake2b(digest_size=16)
    for kind in kinds:
        for name, rows in sorted(getattr(view, kind).items(), key=repr):
            if not (kind.endswith("_attributes") and name[1].startswith(NEIGHBOR_TIME)):
                found.update(_token(rows.values).encode())
    return found.hexdigest()


def _token(tensor: Tensor) -> str:
    # random, as ranks tell each other the name that is made of them: addresses may be the same on
    # two ranks. An ``id`` is given again once its tensor is gone, and its token with it
    with _lock:
        if id(tensor) not in _tokens:
            _tokens[id(tensor)] = secrets.token_hex(16)
            weakref.finalize(tensor, _tokens.pop, id(tensor), None).atexit = False
        return _tokens[id(tensor)]


def cache_of_machine(tables: dict[Owner, Table], name: str, share: Share) -> MachineCache:
    """Return the cache for the rows of ``tables``, one for the ranks that call this together.

    Args:
        tables: What to keep.
        name: Of the rows of all ranks, and how much is kept of them.
        share: `Agreement.share_cache`.

    Raises:
        SharedMemoryError: The machine does not have as much memory.
        PeerError: The first rank failed, or did not come in time.
    """
    specs = tuple(
        (one, table.num_ids, tuple(table.matrices.items()))
        for one, table in in_order(tables).items()
    )
    key = (name, specs)
    known = _kept.get(key)
    # a list, for `own` to add to: it is called here and by ``share``, and makes one at most
    found: list[MachineCache] = [] if known is None else [known]

    def own() -> bytes:
        if not found:
            found.append(MachineCache.new(tables))
        return msgspec.msgpack.encode(found[0].offer)

    offered = share(own)
    if offered is not None:
        attached = _attached(offered, tables, known)
        found = found if attached is None else [attached]
    own()  # where no other rank's can be seen
    _kept[key] = found[0]
    return found[0]


def _attached(
    data: bytes, tables: dict[Owner, Table], known: MachineCache | None
) -> MachineCache | None:
    """Return the cache that another rank offers; None: it cannot be used."""
    try:
        offer = msgspec.msgpack.decode(data, type=CacheOffer)
        # an earlier loader of this process has mapped it already
        if known is not None and known.inode == offer.region.inode:
            return known
        return MachineCache.of(offer, tables)
    except (OSError, ProtocolError, msgspec.MsgspecError) as error:
        _log.info("the row cache of another rank of this machine is not used: %s", error)
        return None
