"""The identity of a partition's graph, by digests; coverage of all parts; the hash of all draws."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.decoding import Name
from gigl_loader.runtime.digests import DIGEST_BYTES
from gigl_loader.runtime.memory.segments import Array

if TYPE_CHECKING:  # workers read this module and do without torch
    from torch import Tensor

_WHOLE_BYTES = 16 * 1024 * 1024
"""Size up to which an array is read whole, which takes some milliseconds."""
_PIECE_BYTES = 4096
_PIECES = _WHOLE_BYTES // _PIECE_BYTES
"""Pieces read from a larger array, evenly spread: as many bytes in total."""


@dataclass(frozen=True)
class GraphIdentity:
    """A value that is equal for all partitions and copies of one graph, and differs between graphs.

    For a directory in our own format both fields are exact. For other datasets they depend on the
    data in this process: see ``identity_of``.
    """

    run: Name
    """The cut of the graph: for a directory the run that wrote it, else a digest of types, counts
    and partition books."""
    digest: Name
    """Digest of the contents of all partitions: for a directory, of its manifest with the digests
    of all files; else of the tensors that every partition's process holds; empty: of none."""


def content_digest(value: Any, *, whole: bool = False) -> str:
    """Return a digest of arrays and plain values, in dicts, sequences and dataclasses.

    Args:
        value: The arrays, numpy's or torch's.
        whole: Read all bytes of large ones, too: one second per GB. Else 16 MiB of each, evenly
            spread: this detects another array, but perhaps not a single changed number.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, leaf in _leaves("", value):
        if not isinstance(leaf, np.ndarray) and not hasattr(leaf, "data_ptr"):
            digest.update(f"{name} {leaf!r}\n".encode())
            continue
        array = _as_array(leaf)
        # of the tensor: numpy only knows the bits of bfloat16
        digest.update(f"{name} {leaf.dtype} {array.shape}\n".encode())
        data = array.reshape(-1).view(np.uint8)
        if whole or data.nbytes <= _WHOLE_BYTES:
            digest.update(data.data)
            continue
        for start in np.linspace(0, data.nbytes - _PIECE_BYTES, _PIECES).astype(np.int64).tolist():
            digest.update(data[start : start + _PIECE_BYTES].data)
    return digest.hexdigest()


def _as_array(leaf: Any) -> Array:
    if isinstance(leaf, np.ndarray):
        return np.ascontiguousarray(leaf)
    from gigl_loader.runtime.memory.tensors import as_array  # torch is loaded: this is a tensor

    return as_array(leaf)


GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Step of SplitMix64's counter: 2 ** 64 by the golden ratio."""


def mixed(state: Array) -> Array:
    """Return a hash of each number (``[n]`` uint64), which depends on all of its bits.

    Source:
        The finaliser of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
        generators" (OOPSLA 2014), with the constants of Stafford's variant 13.
    """
    # arrays of uint64 wrap around
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return cast("Array", state ^ (state >> np.uint64(31)))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        # by name: two processes may have filled a dict in different orders
        for key in sorted(value, key=str):
            yield from _leaves(f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}/{number}", item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _leaves(f"{name}/{field.name}", getattr(value, field.name))
    else:
        yield name, value


def identity_of(view: Any, source: Any = None) -> GraphIdentity:
    """Return the identity of a partition that came from no directory in our own format.

    Args:
        view: The partition, as a `PartitionView`.
        source: The whole graph, if this process has it: then all of its partitions have one
            identity. None: they have one, except for differences outside counts and books.
    """
    run = content_digest(
        [
            view.num_partitions,
            view.edge_dir,
            view.num_nodes,
            view.node_books,
            view.edge_books,
            sorted(view.adjacency),
        ]
    )
    if source is None and view.num_partitions == 1:
        source = replace(view, identity=None)
    return GraphIdentity(run, "" if source is None else content_digest(source))


def check_held(num_partitions: int, held: Iterable[int], *, who: str) -> None:
    """Check that all partitions are held.

    Args:
        num_partitions: Partitions of the graph.
        held: Partitions held by some process; repeats allowed.
        who: The kind of holder: ``"process"``, ``"storage server"``.

    Raises:
        ConfigError: A partition has no holder; the message names it.
    """
    loaded = sorted(held)
    missing = sorted(set(range(num_partitions)) - set(loaded))
    if missing:
        raise ConfigError(
            f"no {who} loaded partitions {missing} of {num_partitions} (loaded: {loaded}), so that "
            f"batches would lack that part of the graph: start at least one {who} per partition, "
            "each with its own partition_idx, or write the graph as fewer partitions with "
            "partition_graph"
        )


def holders_of(num_partitions: int, held: Sequence[int]) -> list[list[int]]:
    """Return the ranks that hold each partition, ascending, given the partition of each rank.

    Raises:
        ConfigError: A partition is held by no rank. With one list on all ranks, all of them raise.
    """
    check_held(num_partitions, held, who="rank")
    return [[rank for rank, part in enumerate(held) if part == q] for q in range(num_partitions)]


def check_enough(num_partitions: int, partition_idx: int, num_holders: int, *, who: str) -> None:
    """Check, before one holder meets the others, that there are enough holders.

    Args:
        num_partitions: Partitions of the graph.
        partition_idx: The partition of this holder.
        num_holders: The final number of holders.
        who: The kind of holder.

    Raises:
        ConfigError: There are fewer holders than partitions.
    """
    # a single holder knows all of them, and can name the missing partitions
    if num_holders == 1:
        check_held(num_partitions, [partition_idx], who=who)
    if num_holders < num_partitions:
        raise ConfigError(
            f"{num_holders} {who}s cannot hold {num_partitions} partitions (this one has partition "
            f"{partition_idx}): start at least one {who} per partition, each with its own "
            "partition_idx, or write the graph as fewer partitions with partition_graph"
        )


def check_position(
    num_partitions: int, partition_idx: int, server_rank: int, num_servers: int
) -> None:
    """Check that clients can tell which storage servers have the same partition.

    Args:
        num_partitions: Partitions of the graph.
        partition_idx: The partition of this server.
        server_rank: The rank of this server.
        num_servers: Their number.

    Raises:
        ConfigError: There are more servers than partitions, and this one's rank means another
            partition.
    """
    # clients find replicas by this rule; with a server for each partition there are none
    if num_servers > num_partitions and partition_idx != server_rank % num_partitions:
        raise ConfigError(
            f"storage server {server_rank} of {num_servers} has partition {partition_idx}, but "
            f"must have partition {server_rank % num_partitions}: where there are more servers "
            f"than partitions ({num_partitions}), "
            f"server i serves partition i % {num_partitions}"
        )


@dataclass(frozen=True)
class Share:
    """The part ``[start, end)`` of a server's ids, in units of one ``of``-th of them."""

    start: int = 0
    end: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= self.of or self.of < 1:
            raise ConfigError(f"a share is [start, end) of 1 or more parts, got {self}")

    def cut(self, rows: "Tensor") -> "Tensor":
        """Return this part of ``rows`` (``[n, ...]``); parts that adjoin concatenate to all."""
        total = rows.size(0)
        return rows[total * self.start // self.of : total * self.end // self.of].contiguous()


WHOLE = Share()


def shares_of(num_servers: int, rank: int | None, world_size: int | None) -> dict[int, Share]:
    """Return ``rank``'s share of each storage server; servers without one are left out.

    Servers and ranks divide the same line: a rank gets the servers of its stretch, whole ones where
    possible, and the first and last in part if counts do not fit::

        3 servers  |    0    |    1    |    2    |
        2 ranks    |      0       |      1       |

    So with as many servers as ranks, rank ``i`` has exactly server ``i``.

    Raises:
        ConfigError: Only one of the two is given, or ``rank`` is out of range.

    Source:
        GiGL's ``fetch_node_ids``: a script moved from GiGL has the same seeds on every rank.
    """
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank and world_size are given together, or neither is: got {rank} and {world_size}"
        )
    if rank is None or world_size is None:
        rank, world_size = 0, 1
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be in [0, {world_size}), got {rank}")
    # In units of 1/world_size of a server: server s covers [s * world_size, (s + 1) * world_size)
    # and rank r [r * num_servers, (r + 1) * num_servers): integers, so that shares have no gaps.
    shares = {}
    for server in range(num_servers):
        first = server * world_size
        start = max(rank * num_servers, first) - first
        end = min((rank + 1) * num_servers, first + world_size) - first
        if start < end:
            shares[server] = Share(start, end, world_size)
    return shares
