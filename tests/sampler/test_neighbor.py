"""`NeighborSampler`, in this process, against the reference check; over 1, 2 and 3 partitions."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.batch.collate import to_data, to_hetero_data
from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    message_passing_to_positive_label,
    reverse_edge_type,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import (
    BatchError,
    InProcessPeers,
    TinyGraph,
    as_worker_gets,
    batch_tensors,
    check_batch,
    check_same_batches,
    sample_message,
)
from tests.support.draws import examples
from tests.support.scripts import run_python


def _plan(graph: TinyGraph, fanouts: dict, **how) -> SamplingPlan:
    input_type = how.pop("input_type", None) or sorted(graph.num_nodes)[-1]
    by_name = {name: tuple(fanouts[name]) for name in sorted(fanouts)}
    return SamplingPlan(
        input_type=input_type, fanouts=by_name, **{"seed": 5, "with_edge": True, **how}
    )


def _everywhere(graph: TinyGraph, fanout: list[int]) -> dict:
    return {edge_type: fanout for edge_type in graph.edges}


def _collate(message, graph: TinyGraph, edge_dir: EdgeDir, edge_types):
    if not graph.is_heterogeneous:
        return to_data(message)
    if edge_dir == "out":
        edge_types = [reverse_edge_type(name) for name in edge_types]
    return to_hetero_data(message, sorted(graph.num_nodes), list(edge_types))


def _sample(dataset, graph, plan, seeds, *, peers=None, epoch=0, batch=0, sampler=None):
    sampler = sampler or NeighborSampler(as_worker_gets(dataset.view()), plan, peers)
    ticket = BatchTicket(0, 1, epoch, batch)
    request = SampleRequest(ticket, seeds.numpy(), np.arange(seeds.numel()))
    message = sample_message(sampler, request)
    return _collate(message, graph, dataset.edge_dir, plan.fanouts)


@st.composite
def cases(draw):
    heterogeneous = draw(st.booleans())
    graph = TinyGraph.random(
        draw(st.integers(1, 12)),
        draw(st.integers(0, 60)),
        heterogeneous=heterogeneous,
        seed=draw(st.integers(0, 10**6)),
    )
    hops = draw(st.integers(1, 3))
    fanout = st.lists(st.integers(-1, 4), min_size=hops, max_size=hops)
    fanouts = {name: draw(fanout) for name in graph.edges}
    input_type = draw(st.sampled_from(sorted(graph.num_nodes)))
    ids = st.integers(0, graph.num_nodes[input_type] - 1)
    seeds = torch.tensor(draw(st.lists(ids, min_size=1, max_size=8)), dtype=torch.int64)
    how = {"replace": draw(st.booleans()), "with_weight": draw(st.booleans())}
    how |= {"input_type": input_type, "seed": draw(st.integers(0, 2**63 - 1))}
    return graph, draw(st.sampled_from(["in", "out"])), fanouts, seeds, how


@settings(max_examples=examples(50))
@given(case=cases(), with_edge=st.booleans())
def test_any_batch_satisfies_the_reference(case, with_edge: bool) -> None:
    graph, edge_dir, fanouts, seeds, how = case
    dataset = graph.dataset(edge_dir=edge_dir)
    plan = _plan(graph, fanouts, with_edge=with_edge, **how)
    sampler = NeighborSampler(as_worker_gets(dataset.view()), plan, None)
    for index in range(2):  # what one batch leaves behind must not show in the next
        batch = _sample(dataset, graph, plan, seeds, batch=index, sampler=sampler)
        assert ("e_id" in batch_tensors(batch) or graph.is_heterogeneous) == (
            with_edge or graph.is_heterogeneous
        )
        check_batch(
            batch,
            graph,
            seeds=seeds,
            num_neighbors=fanouts,
            edge_dir=edge_dir,
            input_type=how["input_type"],
            replace=how["replace"],
            with_weight=how["with_weight"],
        )
        fresh = _sample(dataset, graph, plan, seeds, batch=index)
        check_same_batches([batch], [fresh])


@settings(max_examples=examples(25))
@given(
    case=cases(),
    count=st.sampled_from([2, 3]),
    cut=st.integers(0, 10**6),
    same_host=st.sets(st.integers(0, 2)),
)
def test_partitions_do_not_show(case, count: int, cut: int, same_host: set[int]) -> None:
    """Nor whether others are on this machine, and read there, or asked."""
    graph, edge_dir, fanouts, seeds, how = case
    whole = graph.dataset(edge_dir=edge_dir)
    parts = graph.partitions(count, edge_dir=edge_dir, seed=cut)
    plan = _plan(graph, fanouts, **how)
    expected = _sample(whole, graph, plan, seeds, epoch=3, batch=2)
    views = [part.view() for part in parts]
    for where, part in enumerate(parts):
        others = {p: as_worker_gets(views[p]) for p in same_host & set(range(count)) - {where}}
        peers = InProcessPeers(views) if len(others) < count - 1 else None
        view = dataclasses.replace(as_worker_gets(views[where]), same_host=others)
        found = _sample(
            part, graph, plan, seeds, epoch=3, batch=2, sampler=NeighborSampler(view, plan, peers)
        )
        check_same_batches([found], [expected])
        assert peers is None or not {asked for asked, _ in peers.asked} & {where, *others}


@pytest.mark.parametrize("field", ["epoch", "batch", "seed"])
def test_each_part_of_the_key_changes_the_draw(field: str) -> None:
    graph = TinyGraph.random(40, 600)
    dataset, seeds = graph.dataset(), torch.arange(40)
    fanouts = _everywhere(graph, [3, 3])

    def edges(**change):
        plan = _plan(graph, fanouts, seed=change.pop("seed", 5))
        return _sample(dataset, graph, plan, seeds, **change).e_id.tolist()

    assert edges() == edges()
    assert edges() != edges(**{field: 1})


def test_hops_over_one_edge_type_draw_differently() -> None:
    """Two nodes with the same neighbours, met at different hops, and one node with two types."""
    fan = [(i, 0) for i in range(30)] + [(i, 31) for i in range(30)] + [(31, 30)]
    graph = TinyGraph.homogeneous(32, [*fan, (0, 30)])
    dataset = graph.dataset()
    plan = _plan(graph, _everywhere(graph, [-1, 5]))
    seeds = torch.tensor([30])
    batch = _sample(dataset, graph, plan, seeds)
    check_batch(batch, graph, seeds=seeds, num_neighbors=[-1, 5])
    drawn = {
        int(batch.n_id[position]): set(
            batch.n_id[batch.edge_index[0][batch.edge_index[1] == position]].tolist()
        )
        for position in range(batch.n_id.numel())
    }
    assert len(drawn[0]) == len(drawn[31]) == 5
    assert drawn[0] != drawn[31]


def test_repeated_seeds_keep_their_positions_and_their_neighbours() -> None:
    graph = TinyGraph.random(10, 80)
    plan = _plan(graph, _everywhere(graph, [3]))
    seeds = torch.tensor([4, 1, 4, 4])
    batch = _sample(graph.dataset(), graph, plan, seeds)
    check_batch(batch, graph, seeds=seeds, num_neighbors=[3])
    ids = [batch.e_id[batch.edge_index[1] == position].tolist() for position in (0, 2, 3)]
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == 3


def test_label_edges_are_never_walked() -> None:
    from gigl_loader.dataset.dist_dataset import DistDataset

    graph = TinyGraph.homogeneous(4, [(1, 0)])
    positives = torch.tensor([[0, 0], [2, 3]])
    dataset = DistDataset.from_pyg(
        graph.to_pyg(), supervision={DEFAULT_HOMOGENEOUS_EDGE_TYPE: (positives, None)}
    )
    label_type = message_passing_to_positive_label(DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    assert label_type in dataset.view().adjacency
    plan = _plan(graph, {DEFAULT_HOMOGENEOUS_EDGE_TYPE: [-1, -1]})
    batch = _sample(dataset, graph, plan, torch.tensor([0]))
    assert batch.n_id.tolist() == [0, 1]
    assert not dataset.view().is_heterogeneous


def test_types_that_are_not_reached_are_empty_and_typed() -> None:
    graph = TinyGraph(
        {"item": 3, "user": 3},
        {("user", "buys", "item"): [(0, 0)], ("item", "rev_buys", "user"): []},
    )
    plan = _plan(graph, _everywhere(graph, [2]), input_type="user")
    batch = _sample(graph.dataset(), graph, plan, torch.tensor([1]))
    assert batch["item"].x.shape == (0, 2)
    assert batch["item"].y.shape == (0, 3)
    assert batch["item"].y.dtype == torch.int64
    for name in graph.edges:
        assert batch[name].edge_index.shape == (2, 0)
        assert batch[name].edge_attr.shape == (0, 2)
        assert batch[name].e_id.dtype == torch.int64


def test_what_can_be_left_out() -> None:
    graph = TinyGraph.random(10, 30)
    plan = _plan(graph, _everywhere(graph, [2]), with_edge=False, collect_features=False)
    names = batch_tensors(_sample(graph.dataset(), graph, plan, torch.tensor([1])))
    assert not {"e_id", "edge_attr", "x"} & set(names)


# --- the reference check itself -------------------------------------------------------------------


def _good_batch():
    graph = TinyGraph.random(30, 300, seed=3)
    plan = _plan(graph, _everywhere(graph, [3, 2]))
    seeds = torch.tensor([7, 3, 9])
    return graph, seeds, _sample(graph.dataset(), graph, plan, seeds)


def _swap(tensor: torch.Tensor, one: int, other: int) -> None:
    tensor[[one, other]] = tensor[[other, one]].clone()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda b: _swap(b.x, 4, 5), "features of another node"),
        (lambda b: _swap(b.y, 4, 5), "labels of another node"),
        (lambda b: _swap(b.batch, 0, 1), "batch is not the seeds"),
        (lambda b: _swap(b.edge_attr, 0, 1), "features of another edge"),
        (lambda b: _swap(b.e_id, 0, 1), "wrong edge id"),
        (lambda b: b.edge_index.copy_(b.edge_index.flip(0)), "frontier|no such edge"),
        (lambda b: b.n_id[4:5].copy_(b.n_id[5:6]), "twice"),
        (lambda b: b.num_sampled_edges.__setitem__(0, b.num_sampled_edges[0] - 1), "neighbours"),
        (lambda b: b.num_sampled_nodes.__setitem__(1, b.num_sampled_nodes[1] + 1), "hop"),
        (lambda b: b.edge_index[0, :1].copy_(b.edge_index[0, 1:2]), "appear|such edge|twice|id"),
        (lambda b: setattr(b, "x", b.x.double()), "dtype of x"),
    ],
)
def test_the_reference_notices(spoil, match: str) -> None:
    graph, seeds, batch = _good_batch()
    check_batch(batch, graph, seeds=seeds, num_neighbors=[3, 2])
    spoil(batch)
    with pytest.raises(BatchError, match=match):
        check_batch(batch, graph, seeds=seeds, num_neighbors=[3, 2])


@pytest.mark.parametrize("fanout", [[3, 1], [4, 2], [-1, 2], [2, 2]])
def test_the_reference_notices_another_fanout(fanout: list[int]) -> None:
    graph, seeds, batch = _good_batch()
    with pytest.raises(BatchError, match="neighbours"):
        check_batch(batch, graph, seeds=seeds, num_neighbors=fanout)


def test_the_reference_notices_the_other_direction() -> None:
    graph, seeds, batch = _good_batch()
    with pytest.raises(BatchError):
        check_batch(batch, graph, seeds=seeds, num_neighbors=[3, 2], edge_dir="out")


def test_default_types_are_those_of_homogeneous_graphs() -> None:
    graph = TinyGraph.homogeneous(2, [])
    assert list(graph.num_nodes) == [DEFAULT_HOMOGENEOUS_NODE_TYPE]


_COMPILES_NOTHING = """
import dataclasses
import itertools
import numpy as np
import torch
from gigl_loader.batch.message import BatchTicket
from gigl_loader.sampler.options import ExpansionOptions
from gigl_loader.sampler.kernels import sampling_kernels, weighted_kernels
from tests.support.scripts import run_python
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import InProcessPeers, TinyGraph, as_worker_gets, sample_message

sampling_kernels.load()
weighted_kernels.load()
weighted_kernels.load_labor()
named = {**vars(sampling_kernels), **vars(weighted_kernels)}
dispatchers = [value for value in named.values() if hasattr(value, "signatures")]
loaded = [len(dispatcher.signatures) for dispatcher in dispatchers]
graph = TinyGraph.random(30, 400, heterogeneous=True)
for parts, weight, replace in itertools.product((1, 2), (False, True), (False, True)):
    views = [part.view() for part in graph.partitions(parts)]
    plan = SamplingPlan(
        input_type="user", fanouts={name: (3, 2) for name in graph.edges}, seed=1,
        with_edge=True, with_weight=weight, replace=replace,
    )
    view = as_worker_gets(views[0])
    near = {part: as_worker_gets(views[part]) for part in range(1, parts)}
    for view in (view, dataclasses.replace(view, same_host=near)):
        sampler = NeighborSampler(view, plan, InProcessPeers(views))
        request = SampleRequest(BatchTicket(0, 1, 0, 0), torch.arange(9), torch.arange(9))
        sample_message(sampler, request)
view = as_worker_gets(graph.dataset().view_by_time("node_time"))
for how in (
    {"sampling_method": "labor"}, {"time_attr": "node_time"}, {"subgraph_type": "induced"},
    {"time_attr": "node_time", "time_window": 9, "temporal_strategy": "last"},
):
    plan = SamplingPlan(
        input_type="user", fanouts={name: (3, 2) for name in graph.edges}, seed=1, with_edge=True,
        with_weight="sampling_method" in how, expansion=ExpansionOptions(**how),
    )
    sample_message(NeighborSampler(view, plan, None), request)
for dispatcher, count in zip(dispatchers, loaded, strict=True):
    assert len(dispatcher.signatures) == count, (dispatcher, dispatcher.signatures)
print("compiled", len(dispatchers))
"""


def test_sampling_compiles_nothing_that_was_not_loaded_at_the_start() -> None:
    """An array of another kind (strided, read-only) would make Numba compile for seconds."""
    done = run_python("-c", _COMPILES_NOTHING)  # nothing has sampled in what it is forked from
    assert done.stdout.startswith("compiled"), done.stderr
