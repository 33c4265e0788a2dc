"""What is likely a mistake in a graph: one rule for every way in.

More communities than nodes are refused. What a user may mean is told once, as `GraphWarning`, with
its place and count: features and labels that are NaN, labels below -1, nodes in two splits, more
partitions than nodes. Without torch, as the writer of tables does without it.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter

from gigl_loader.errors import ConfigError, GraphWarning, warn_user, without_default_types

IGNORED_LABEL = -100
"""What torch's losses leave out; -1 is what this library and others call "no label"."""
_NAMED = 3
"""Columns that a message names."""


def check_enough_nodes(num_nodes: int, communities: int | None) -> None:
    """Check that each community can have a node.

    Raises:
        ConfigError: There are more communities than nodes.
    """
    if communities is not None and communities > num_nodes:
        raise ConfigError(
            f"communities={communities} is more than the {num_nodes} nodes of the graph; give fewer"
        )


def empty_partitions(num_nodes: int, num_partitions: int) -> list[str]:
    """Return the doubt about more partitions than nodes, if there are more.

    Each works: its machine has no seeds.
    """
    if num_partitions <= max(1, num_nodes):  # a graph without nodes is one partition
        return []
    return [
        f"num_partitions={num_partitions} is more than the {num_nodes} nodes of the graph, so some "
        "partitions have none"
    ]


def not_numbers(what: str, total: int, by_column: Mapping[int | str, int]) -> str:
    """Return the doubt about values that are NaN.

    Args:
        what: ``"features of 'user'"``, or a table.
        total: Number of values.
        by_column: How many are NaN, by column; those without any may be left out.
    """
    counts = {name: count for name, count in by_column.items() if count}
    most = sorted(counts.items(), key=itemgetter(1), reverse=True)[:_NAMED]
    named = [f"{count} in column {name!r}" for name, count in most]
    if len(counts) > _NAMED:
        named.append(f"others in {len(counts) - _NAMED} more columns")
    return f"{sum(counts.values())} of {total} {what} are NaN (no number): {', '.join(named)}"


def low_labels(what: str, count: int, lowest: int) -> str:
    """Return the doubt about labels below -1."""
    return (
        f"{count} {what} are below -1, the lowest {lowest}: -1 and {IGNORED_LABEL} mean no label, "
        "classes count from 0"
    )


def overlap(what: str, count: int, one: str, other: str) -> str:
    """Return the doubt about nodes that are in two splits."""
    return f"{count} nodes of {what} are in both the {one} and the {other} split"


def warn_of(doubts: Iterable[str]) -> None:
    """Warn once of all ``doubts``, and blame the line of the user that led here."""
    if text := "; ".join(doubts):
        warn_user(without_default_types(text), GraphWarning)
