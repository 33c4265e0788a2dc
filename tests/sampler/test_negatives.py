"""Negatives of seed edges: which may not be, and how often each node is one."""

import contextlib
import functools
from collections import Counter

from edge_cases import cases, pairs_of, sample_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import ConfigError
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE
from gigl_loader.sampler.negatives import uniform
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.testing import (
    TinyGraph,
)


@settings(max_examples=80)
@given(case=cases(), count=st.sampled_from([1, 2]))
def test_strict_negatives_are_no_edges(case, count: int) -> None:
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {"amount": 2, **how, "kind": how["kind"] or "binary"}
    known = set(graph.edges[edge_type])
    full = {s for s in range(graph.num_nodes[edge_type[0]])
            if all((s, d) in known for d in range(graph.num_nodes[edge_type[2]]))}  # fmt: skip
    views = [part.view() for part in graph.partitions(count, edge_dir=edge_dir)]
    ask = functools.partial(
        sample_edges, views, graph, edge_type, plan, edges, edge_dir=edge_dir, strict=True, **how
    )
    if full:  # a source without a free destination may come: it is named
        with contextlib.suppress(ConfigError):
            ask()
        return
    batch = ask()
    assert not known & set(pairs_of(batch, graph, edge_type, how["kind"])[1])


def test_a_source_with_one_free_destination_gets_it() -> None:
    graph = TinyGraph.homogeneous(40, [(0, d) for d in range(40) if d != 23])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (1,)}, seed=1)
    for edge_dir in ("in", "out"):
        batch = sample_edges(
            [graph.dataset(edge_dir=edge_dir).view()], graph, edge_type, plan, [(0, 1)] * 5,
            edge_dir=edge_dir, kind="triplet", strict=True,
        )  # fmt: skip
        assert set(pairs_of(batch, graph, edge_type, "triplet")[1]) == {(0, 23)}


def test_negatives_are_uniform_and_follow_weights() -> None:
    """Chi-square over 10 nodes: 27.9 is exceeded once in a thousand, and the key is fixed."""
    counts = Counter((uniform(7, 10_000) * 10).astype(int).tolist())
    assert sum((counts[i] - 1000) ** 2 / 1000 for i in range(10)) < 27.9
    graph = TinyGraph.homogeneous(4, [(0, 1)])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (0,)}, seed=3)
    batch = sample_edges(
        [graph.dataset().view()], graph, edge_type, plan, [(0, 1)] * 2000, edge_dir="in",
        kind="binary", src_weight=[0, 0, 1, 0], dst_weight=[1, 0, 0, 3],
    )  # fmt: skip
    drawn = Counter(pairs_of(batch, graph, edge_type, "binary")[1])
    assert set(drawn) == {(2, 0), (2, 3)}
    assert 1400 < drawn[2, 3] < 1600
