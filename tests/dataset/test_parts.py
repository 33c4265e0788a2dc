"""Fields of a `PartitionOutput` by type."""

from typing import Any, NamedTuple

from gigl_loader.dataset.partition.partition_output import by_type


class _EdgeType(NamedTuple):
    src: str
    relation: str
    dst: str


def test_fields_by_type() -> None:
    assert by_type(None, "a") == {}
    assert by_type(3, "a") == {"a": 3}
    given: dict[Any, Any] = {"user": 1, "item": 2}
    assert by_type(given, "a") == given


def test_named_tuples_become_plain_ones() -> None:
    given: dict[Any, Any] = {_EdgeType("a", "to", "b"): 1}
    ((edge_type, value),) = by_type(given, "x").items()
    assert (edge_type, value) == (("a", "to", "b"), 1)
    assert type(edge_type) is tuple, "a worker would need the user's class"
