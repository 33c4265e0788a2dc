"""What a cache takes."""

import dataclasses
from typing import Any

import pytest

from gigl_loader.dataset.partition.partition_view import owner_of
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.sampler.row_cache.tables import RowTables, make_tables, segment_bytes
from gigl_loader.testing import TinyGraph
from tests.sampler.row_cache.cache_cases import OWNER, one_table


def test_what_a_cache_takes_does_not_grow_with_the_graph() -> None:
    matrices: Any = {OWNER: {("node_features", NODE): ("uint8", (400,))}}

    def tables(num_ids: int, size: float) -> dict:
        return RowTables.of(matrices, {OWNER: num_ids}, {OWNER: num_ids}, size)

    sizes = [segment_bytes(tables(10**digits, 10_000 / 10**digits)) for digits in range(6, 11)]
    assert tables(10**10, 1e-6)[OWNER].capacity == 10_000
    assert sizes[1:] == sizes[:1] * 4
    few, many = (tables(num_ids, 2 << 30)[OWNER].capacity for num_ids in (10**7, 10**10))
    assert many > 0.85 * few
    small = tables(1000, 0.5)[OWNER]
    assert small.index_shape == (1000, 1), "a table by id is smaller where there are few"


def test_sizes() -> None:
    view = TinyGraph.random(1000, 100).partitions(2)[0].view()
    remote = {OWNER: 500, ("edge", EDGE): 50}
    kinds = {"node_features": True, "node_labels": True, "edge_features": False}
    share = make_tables(view, remote, 0.2, kinds)
    assert {owner: table.capacity for owner, table in share.items()} == {OWNER: 100}
    assert share[OWNER].row_bytes == 2 * 4 + 3 * 8, "features and labels"
    whole = make_tables(view, remote, 1 << 30, kinds)
    assert whole[OWNER].capacity == 500
    half = segment_bytes(make_tables(view, remote, 0.5, kinds))
    table = make_tables(view, remote, half, kinds)[OWNER]
    assert 245 <= table.capacity <= 250
    assert segment_bytes({OWNER: table}) <= half


@pytest.mark.parametrize("size", [0.001, 0.3, 1.0, 1, 1 << 20, 1 << 34])
def test_a_cache_has_a_slot_and_never_more_than_there_are_rows(size: int | float) -> None:
    matrices: Any = {("node", name): {("node_features", name): ("float32", (4,))} for name in "ab"}
    counts: Any = {("node", "a"): 30, ("node", "b"): 20_000}
    tables = RowTables.of(matrices, dict.fromkeys(counts, 50_000), counts, size)
    for owner, count in counts.items():
        assert 1 <= tables[owner].capacity <= count
        if isinstance(size, float):
            assert tables[owner].capacity == max(1, round(size * count))
    least = segment_bytes(RowTables.of(matrices, dict.fromkeys(counts, 50_000), counts, 0.0))
    assert segment_bytes(tables) <= max(size, least) or isinstance(size, float)


def test_what_is_not_worth_a_cache_has_no_table() -> None:
    """Matrices that are whole here, without columns, not read, or with no row elsewhere."""
    view = TinyGraph.random(1000, 100).partitions(2)[0].view()
    remote = {OWNER: 500, ("edge", EDGE): 50}
    kinds = {"node_features": True, "node_labels": True, "edge_features": True}
    labels = view.node_labels[NODE]
    view.node_labels[NODE] = dataclasses.replace(labels, whole=True)
    features = view.edge_features[EDGE]
    view.edge_features[EDGE] = dataclasses.replace(features, values=features.values[:, :0])
    tables = make_tables(view, remote, 0.2, kinds)
    assert {owner: list(table.matrices) for owner, table in tables.items()} == {
        OWNER: [("node_features", NODE)]
    }
    assert make_tables(view, {OWNER: 0}, 0.2, kinds) == {}
    assert make_tables(view, remote, 0.2, {"node_features": False}) == {}


def test_rows_of_one_type_are_kept_together() -> None:
    assert owner_of("node_features", "user") == owner_of("node_labels", "user") == ("node", "user")
    assert owner_of("node_attributes", ("user", "when")) == ("node", "user")
    assert owner_of("edge_attributes", (EDGE, "when")) == owner_of("edge_features", EDGE)


def test_arrays_lie_one_after_the_other_and_none_in_another() -> None:
    cache = one_table(100, 7)
    arrays = cache.tables[OWNER]
    everything = (*arrays._all, arrays.stored, *arrays.rows.values())
    for number, array in enumerate(everything):
        array[...] = number
    for number, array in enumerate(everything):
        assert (array == number).all()
    assert cache.join() == 0, "nor in what stands before them"
