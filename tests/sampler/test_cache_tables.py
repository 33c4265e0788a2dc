"""What a cache takes."""

from cache_cases import OWNER

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.sampler.cache_tables import (
    make_tables,
    segment_bytes,
    tables_of,
)
from gigl_loader.testing import TinyGraph


def test_what_a_cache_takes_does_not_grow_with_the_graph() -> None:
    matrices = {OWNER: {("node_features", NODE): ("uint8", (400,))}}

    def tables(num_ids: int, size: float) -> dict:
        return tables_of(matrices, {OWNER: num_ids}, {OWNER: num_ids}, size)

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
