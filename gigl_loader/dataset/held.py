"""The rule that every partition of a graph is held by somebody: a batch would lack the rest."""

from collections.abc import Iterable

from gigl_loader.errors import ConfigError


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
