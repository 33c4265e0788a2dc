"""The seeds of a batch: as they are given, or each node once."""

from typing import Any

import numpy as np
import pytest

from gigl_loader.batch.message import BATCH, INPUT_ID, IS_HETERO, META, SEED_TIME, BatchTicket
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.options import ExpansionOptions
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.roots import DistinctRoots, NodeRoots
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.testing import TinyGraph, as_worker_gets

SEEDS, PLACES = np.array([7, 2, 7]), np.array([30, 31, 32])


def _place(make, *, hetero: bool = False, how: dict | None = None, times=None, **extra):
    graph = TinyGraph.random(10, 20, heterogeneous=hetero)
    store = GraphReader(as_worker_gets(graph.dataset().view()), None)
    options = ExpansionOptions(**(how or {}))
    input_type = "user" if hetero else NODE
    plan = SamplingPlan(input_type=input_type, fanouts={EDGE: (1,)}, seed=1, expansion=options)
    nodes = BatchNodes(graph.num_nodes, disjoint=options.in_trees, by_time=options.by_time)
    nodes.reset(times)
    request = SampleRequest(BatchTicket(0, 1, 0, 0), SEEDS, PLACES, extra)
    placed = make(store, plan).place(request, nodes)
    found = {}
    for field in placed.fields:
        field.write(out := np.empty(field.shape, field.dtype))
        found[field.key] = out.tolist()
    assert placed.keep_edges is None
    return nodes, found


@pytest.mark.parametrize("hetero", [False, True])
def test_seeds_keep_their_positions_repeats_too(hetero: bool) -> None:
    nodes, found = _place(NodeRoots, hetero=hetero)
    prefix, name = ("user.", "user") if hetero else ("", NODE)
    assert nodes.ids(name).tolist() == [7, 2, 7]
    assert found == {
        IS_HETERO: int(hetero),
        prefix + INPUT_ID: [30, 31, 32],
        prefix + BATCH: [7, 2, 7],
    }


def test_a_loader_may_send_other_numbers_than_positions() -> None:
    extra: dict[str, Any] = {INPUT_ID: SEEDS}
    assert _place(NodeRoots, **extra)[1][INPUT_ID] == [7, 2, 7]


@pytest.mark.parametrize(
    "how",
    [
        {"disjoint": True},
        {"time_attr": "node_time"},
        {"time_attr": "node_time", "disjoint": "by_time"},
    ],
)
def test_in_trees_the_batch_is_told_by_the_trees(how: dict) -> None:
    """PyG's ``batch`` is a field of all nodes there, not of the seeds."""
    times = np.array([4, 9, 4]) if "time_attr" in how else None
    nodes, found = _place(NodeRoots, how=how, times=times)
    assert BATCH not in found
    assert found.get(SEED_TIME) == (None if times is None else [4, 9, 4])
    assert nodes.ids(NODE).tolist() == [7, 2, 7]
    by_time = how.get("disjoint") == "by_time"
    assert nodes.trees(NODE).tolist() == ([0, 1, 0] if by_time else [0, 1, 2])


def test_distinct_seeds_are_mapped() -> None:
    nodes, found = _place(DistinctRoots)
    assert nodes.ids(NODE).tolist() == [7, 2]
    assert found[META + "mapping"] == [0, 1, 0]
    assert found[BATCH] == [7, 2, 7]
