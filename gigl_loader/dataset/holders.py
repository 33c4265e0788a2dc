"""Who holds the parts of a graph: all partitions by somebody, all nodes by some compute rank."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.errors import ConfigError

if TYPE_CHECKING:  # workers read this module and do without torch
    from torch import Tensor


def check_held(num_partitions: int, held: Iterable[int], *, who: str) -> None:
    """Check that all partitions are held.

    Args:
        num_partitions: Partitions of the graph.
        held: Those that somebody holds; repeats allowed.
        who: What holds one: ``"process"``, ``"storage server"``.

    Raises:
        ConfigError: Somebody is missing; names the partitions.
    """
    found = sorted(held)
    missing = sorted(set(range(num_partitions)) - set(found))
    if missing:
        raise ConfigError(
            f"no {who} loaded partitions {missing} of {num_partitions} (loaded: {found}), so that "
            f"batches would lack that part of the graph: start at least one {who} per partition, "
            "each with its own partition_idx, or write the graph as fewer partitions with "
            "partition_graph"
        )


def check_enough(num_partitions: int, own: int, num_holders: int, *, who: str) -> None:
    """Check what one holder can see before it met the others: that there are enough of them.

    Args:
        num_partitions: Partitions of the graph.
        own: The one that this holder has.
        num_holders: How many holders there will be.
        who: What a holder is.

    Raises:
        ConfigError: They are fewer than the partitions.
    """
    # one holder knows all of them, and can name the partitions that are missing
    if num_holders == 1:
        check_held(num_partitions, [own], who=who)
    if num_holders < num_partitions:
        raise ConfigError(
            f"{num_holders} {who}s cannot hold {num_partitions} partitions (this one has partition "
            f"{own}): start at least one {who} per partition, each with its own partition_idx, or "
            "write the graph as fewer partitions with partition_graph"
        )


def check_position(num_partitions: int, own: int, server_rank: int, num_servers: int) -> None:
    """Check that clients can tell which storage servers have the same partition.

    Args:
        num_partitions: Partitions of the graph.
        own: The one that this server has.
        server_rank: This server.
        num_servers: How many there are.

    Raises:
        ConfigError: They are more than the partitions, and this one has another than its rank says.
    """
    # clients tell by this rule which servers are twins; with a server for each partition none are
    if num_servers > num_partitions and own != server_rank % num_partitions:
        raise ConfigError(
            f"storage server {server_rank} of {num_servers} has partition {own}, but must have "
            f"partition {server_rank % num_partitions}: where there are more servers than "
            f"partitions ({num_partitions}), server i serves partition i % {num_partitions}"
        )


@dataclass(frozen=True)
class Share:
    """The part ``[start, end)`` of a server's ids, in units of one ``of``-th of them."""

    start: int = 0
    end: int = 1
    of: int = 1

    def cut(self, rows: "Tensor") -> "Tensor":
        """Return this part of ``rows`` (``[n, ...]``); parts that adjoin concatenate to all."""
        total = rows.size(0)
        return rows[total * self.start // self.of : total * self.end // self.of].contiguous()


WHOLE = Share()


def shares_of(num_servers: int, rank: int | None, world_size: int | None) -> dict[int, Share]:
    """Return ``rank``'s share of each storage server; servers without one are left out.

    Servers and ranks divide the same line: a rank is given the servers that its stretch covers,
    whole ones first of all, and the first and the last of them in part where counts do not fit::

        3 servers  |    0    |    1    |    2    |
        2 ranks    |      0       |      1       |

    So with as many servers as ranks, rank ``i`` has all of server ``i`` and nothing else.

    Raises:
        ConfigError: Only one of the two is given, or ``rank`` is out of range.

    Source:
        GiGL's ``fetch_node_ids``: a script that moves here has the same seeds on every rank.
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
    found = {}
    for server in range(num_servers):
        first = server * world_size
        start = max(rank * num_servers, first) - first
        end = min((rank + 1) * num_servers, first + world_size) - first
        if start < end:
            found[server] = Share(start, end, world_size)
    return found
