"""Which part of which storage server's nodes a compute rank is given."""

from dataclasses import dataclass

from torch import Tensor

from gigl_loader.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """The part ``[start, end)`` of a server's ids, in units of one ``of``-th of them."""

    start: int = 0
    end: int = 1
    of: int = 1

    def cut(self, rows: Tensor) -> Tensor:
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
