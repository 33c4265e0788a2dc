"""Time, trees, subgraphs and LABOR through the loaders: here, in workers, over a graph store."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    ConfigError,
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
    RemoteDistDataset,
    SamplingError,
    partition_graph,
)
from gigl_loader.batch.collate import add_edge_labels, to_data
from gigl_loader.batch.message import AT_ONCE_EPOCH, EDGE_TARGETS, SEED_TIME, BatchTicket
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from gigl_loader.sampler.edges import edge_sampler
from gigl_loader.sampler.neighbor import NeighborSampler, subgraph_sampler
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE, ExpansionOptions
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import TinyGraph, as_worker_gets, batch_digest, run_cluster, sample_message

N, E = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE
GRAPH = TinyGraph.random(40, 300, seed=7)
FANOUT = [4, 2]
HOW = (
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional", "disjoint": True},
    {"time_attr": "node_time", "temporal_strategy": "last", "time_window": 60},
    {"sampling_method": "labor"},
    {"time_attr": "node_time", "disjoint": "by_time"},
)
AT_ONCE = [3, 1, 3, 39]
"""Positions of a batch that is asked for beside the epoch."""


def _dataset(rank: int, count: int, **more) -> DistDataset:
    book = torch.arange(40) * count // 40
    return DistDataset.from_pyg(
        GRAPH.to_pyg(),
        partition_book=book,
        partition_idx=rank,
        num_partitions=count,
        time_attr="node_time",
        **more,
    )


def _expected(seeds, number, how, *, make=NeighborSampler, epoch=0, **extra):
    """Return the batch that the sampler gives by itself, over one partition."""
    plan = SamplingPlan(
        input_type=N,
        fanouts={E: tuple(FANOUT)},
        seed=2,
        with_edge=True,
        expansion=ExpansionOptions(**how),
    )
    dataset, time_attr = GRAPH.dataset(), how.get("time_attr")
    view = dataset.view() if time_attr is None else dataset.view_by_time(time_attr)
    positions = torch.arange(seeds.numel())
    request = SampleRequest(BatchTicket(0, 1, epoch, number), seeds, positions.numpy(), extra)
    return sample_message(make(as_worker_gets(view), plan, None), request)


def _same(batch, message) -> None:
    found, expected = batch.to_dict(), to_data(message).to_dict()
    for one in (found, expected):
        one.pop("input_id")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name


def _check_nodes(dataset, nodes, how, times=None, **more) -> None:
    with DistNeighborLoader(
        dataset,
        FANOUT,
        nodes,
        batch_size=6,
        seed=2,
        with_edge=True,
        input_time=times,
        **how,
        **more,
    ) as loader:
        for number, batch in enumerate(loader):
            seeds = batch.n_id[: batch.batch_size]
            extra = {} if times is None else {SEED_TIME: seeds % 7 * 9}
            _same(batch, _expected(seeds, number, how, **extra))
            if number == 1:
                asked = torch.tensor(AT_ONCE)  # here positions are ids
                extra = {} if times is None else {SEED_TIME: asked % 7 * 9}
                _same(loader(asked), _expected(asked, 0, how, epoch=AT_ONCE_EPOCH, **extra))
        assert number == 6


def _every_other_edge(output):
    output.row, output.col, output.edge = output.row[::2], output.col[::2], output.edge[::2]
    output.num_sampled_edges = None
    return output


class Fails(NeighborSampler):
    """Raises where a batch has the seed 5 alone."""

    def sample(self, request):
        if request.seeds.tolist() == [5]:
            raise ZeroDivisionError("on purpose")
        return super().sample(request)


OTHERS = (
    {"sampler_options": PPRSamplerOptions(alpha=0.3, eps=1e-6, max_ppr_nodes=9)},
    {"transform_sampler_output": _every_other_edge},
)


def _digests(dataset, nodes, **more) -> list[list[str]]:
    """Return what tells the batches of each of `OTHERS`: of an epoch, and at once."""
    found = []
    for other in OTHERS:
        with DistNeighborLoader(
            dataset, FANOUT, nodes, batch_size=6, seed=2, with_edge=True, **other, **more
        ) as loader:
            batches = (*loader, loader(AT_ONCE), loader([]))
            found.append([batch_digest(batch) for batch in batches])
    return found


def _check_failure_out_of_turn(remote, nodes) -> None:
    options = CustomSamplerOptions(f"{__name__}.Fails")
    with DistNeighborLoader(
        remote, FANOUT, nodes, batch_size=8, sampler_options=options, shard="none"
    ) as loader:
        epoch = iter(loader)
        first = next(epoch)
        with pytest.raises(SamplingError, match="on purpose"):
            loader([5])
        assert loader([4]).batch.tolist() == [4]
        assert torch.cat([b.batch for b in (first, *epoch)]).tolist() == list(range(40))


def _use_store(info, rank: int, digests: list[list[str]], kinds: tuple[int, ...]) -> None:
    remote = RemoteDistDataset(info, rank)
    nodes = remote.fetch_node_ids()
    assert _digests(remote, nodes, shard="none") == digests  # on each rank all of them
    _check_failure_out_of_turn(remote, nodes)
    for kind in kinds:
        _check_nodes(remote, nodes, HOW[kind], shard="none")
    times = {server: ids % 7 * 9 for server, ids in nodes.items()}
    _check_nodes(remote, nodes, HOW[2], times, shard="none")
    with DistSubGraphLoader(
        remote, nodes, FANOUT, batch_size=6, seed=2, with_edge=True, shard="none"
    ) as loader:
        for number, batch in enumerate(loader):
            seeds = batch.n_id[batch.mapping]
            _same(batch, _expected(seeds, number, HOW[0], make=subgraph_sampler))
    index = torch.tensor(GRAPH.edges[E][:20]).t().contiguous()
    when = index.max(0).values * 3
    with DistLinkNeighborLoader(
        remote,
        FANOUT,
        index,
        neg_sampling="triplet",
        edge_label_time=when,
        batch_size=5,
        seed=2,
        with_edge=True,
        shard="none",
        time_attr="node_time",
    ) as loader:
        found = []
        for number, batch in enumerate(loader):
            pairs = batch.n_id[torch.stack([batch.src_index, batch.dst_pos_index])]
            found += pairs.t().tolist()
            assert bool((3 * batch.n_id[batch.dst_neg_index] <= batch.seed_time).all())
            message = _expected(
                pairs[0],
                number,
                {"time_attr": "node_time"},
                make=lambda *args: edge_sampler(*args, edge_type=E, negatives="triplet"),
                **{EDGE_TARGETS: pairs[1], SEED_TIME: batch.seed_time},
            )
            alike = to_data(message)
            add_edge_labels(alike, message, None, kind="triplet")
            assert torch.equal(alike.edge_index, batch.edge_index)
            assert torch.equal(alike.dst_neg_index, batch.dst_neg_index)
    assert sorted(map(tuple, found)) == sorted(GRAPH.edges[E][:20])
    for wrong, match in (
        ({"input_time": nodes}, "without time_attr"),
        ({"input_time": {0: [1]}, "time_attr": "node_time"}, "one number for each"),
        ({"input_time": [1], "time_attr": "node_time"}, "server_rank: times"),
        ({"time_attr": "no_such"}, "no attribute"),
    ):
        with pytest.raises(ConfigError, match=match):
            DistNeighborLoader(remote, FANOUT, nodes, shard="none", **wrong)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "kinds",
    # the others draw otherwise, as each does in one process below, and read no more than these do
    [(0, 1, 4), pytest.param((2, 3), marks=pytest.mark.wide)],
    ids=["few", "others"],
)
def test_a_graph_store_gives_the_batches_of_one_partition(
    kinds: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, "0")  # so that questions by time go over the wire
    digests = _digests(GRAPH.dataset(), torch.arange(40), num_workers=0)
    run_cluster(
        _use_store,
        digests,
        kinds,
        dataset=_dataset,
        tmp_path=tmp_path,
        servers=2,
        clients=2,
        allow_samplers=(__name__,),
    )


@pytest.mark.parametrize("how", HOW, ids=str)
def test_in_this_process(how) -> None:
    _check_nodes(GRAPH.dataset(), torch.arange(40), how, num_workers=0)


@pytest.mark.multiprocess
def test_in_workers() -> None:
    seeds = torch.arange(40)
    _check_nodes(GRAPH.dataset(), seeds, HOW[2], seeds % 7 * 9, num_workers=2)


def test_time_beside_links_and_anchors() -> None:
    """Edge times with the loader for links; anchors and their labels have the anchor's time."""
    data = GRAPH.to_pyg()
    data.edge_time = torch.arange(300) % 10
    when = torch.arange(30) % 10
    links = data.edge_index[:, :30]
    with DistLinkNeighborLoader(
        DistDataset.from_pyg(data),
        FANOUT,
        links,
        neg_sampling="binary",
        edge_label_time=when,
        time_attr="edge_time",
        batch_size=8,
        num_workers=0,
    ) as loader:
        for batch in loader:
            limits = batch.edge_label_time[: batch.input_id.numel()]
            assert torch.equal(limits, when[batch.input_id])
            trees = batch.batch[batch.edge_index[1]]
            assert bool((batch.edge_time <= limits[trees]).all())
            assert batch.edge_time.numel()
    dataset = DistDataset.from_pyg(data, supervision={E: (links, None)})
    anchors = links[0].unique()
    with DistABLPLoader(
        dataset,
        FANOUT,
        anchors,
        batch_size=4,
        num_workers=0,
        time_attr="edge_time",
        input_time=anchors % 10,
        use_label_edge_index_output=True,
    ) as loader:
        for batch in loader:
            own, labels = batch.y_positive
            assert torch.equal(batch.batch[labels], own)
            assert torch.equal(batch.batch[own], own)
            trees = batch.batch[batch.edge_index[1]]
            assert bool((batch.edge_time <= batch.seed_time[trees]).all())


def test_times_survive_partitioning(tmp_path: Path) -> None:
    partition_graph(GRAPH.to_pyg(), 2, tmp_path / "graph", time_attr="node_time", progress=False)
    for mmap in (False, True):
        for rank in range(2):
            part = DistDataset.load(tmp_path / "graph", rank, mmap=mmap)
            order = part.view_by_time("node_time").times[E]
            adjacency = part.view().adjacency[E]
            assert torch.equal(order.times, 3 * adjacency.indices.long()[order.order])
            assert part.view_by_time("node_time") is part.view_by_time("node_time")
            assert "node_time" in part.schema.node_attributes[N]
            assert not [name for name in part.schema.edge_attributes[E] if "time" in name]


def test_a_state_of_other_windows_is_refused() -> None:
    def loader(**how: Any) -> DistNeighborLoader:
        return DistNeighborLoader(
            GRAPH.dataset(), FANOUT, torch.arange(40), seed=2, num_workers=0, **how
        )

    ages = torch.arange(40)
    with loader(time_attr="node_time", time_window=ages) as first:
        next(iter(first))
        state = first.state_dict()
    with loader(time_attr="node_time", time_window=ages) as again:
        again.load_state_dict(state)
        assert len(list(again)) == 39
    for other in ({"time_window": ages + 1}, {"input_start_time": ages}, {"adaptive_fanout": True}):
        with loader(time_attr="node_time", **other) as changed, pytest.raises(ConfigError):
            changed.load_state_dict(state)


@pytest.mark.parametrize("pad", [{"nodes": 60, "edges": 60}])
def test_padded_batches_of_adaptive_trees_are_split_by_seeds(pad) -> None:
    seeds = torch.arange(40)
    how: dict[str, Any] = {"disjoint": True, "adaptive_fanout": True, "seed": 2}
    found = []
    for padding in ({}, {"pad": pad}):
        with DistNeighborLoader(
            GRAPH.dataset(), FANOUT, seeds, batch_size=6, num_workers=0, **how, **padding
        ) as loader:
            edges = []
            for batch in loader:
                real = batch.pad_edge_mask if padding else slice(None)
                ends = batch.n_id[batch.edge_index[:, real]]
                of = batch.input_id[batch.batch[batch.edge_index[1, real]]]
                edges += torch.cat([of[None], ends]).t().tolist()
            found.append(sorted(edges))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"time_attr": "edge_time"}, "give their times as input_time"),
        ({"time_attr": "edge_time", "input_time": torch.rand(40)}, "give integers"),
        ({"time_attr": "edge_time", "input_time": torch.arange(3)}, "one number for each"),
        ({"time_attr": "edge_time", "input_time": {0: torch.arange(40)}}, "dataset is local"),
        ({"time_attr": "edge_time", "input_time": torch.full((40,), torch.nan)}, "not a number"),
        ({"input_time": torch.arange(40)}, "without time_attr"),
        ({"time_attr": "x"}, "no attribute"),
        ({"time_attr": "node_time", "with_weight": True}, "cannot be combined"),
        ({"subgraph_type": "all"}, "subgraph_type must be"),
        ({"sampling_method": "labor", "replace": True}, "without replacement"),
        ({"adaptive_fanout": True}, "give disjoint=True, or time_attr"),
        ({"adaptive_fanout": 1}, "must be True or False"),
        (
            {"adaptive_fanout": True, "time_attr": "node_time", "disjoint": "by_time"},
            "seeds share nodes",
        ),
        ({"adaptive_fanout": True, "disjoint": True, "pad": True}, "as padding_sizes"),
        (
            {"adaptive_fanout": True, "disjoint": True, "num_neighbors": [2, -1]},
            "num_neighbors takes all neighbours by -1",
        ),
        ({"time_attr": "node_time", "time_window": torch.arange(3)}, "one number for each"),
        ({"time_attr": "node_time", "time_window": "1d"}, "time_window must be a number"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(how, match) -> None:
    data = GRAPH.to_pyg()
    data.edge_time = torch.arange(300)
    with pytest.raises(ConfigError, match=match):
        DistNeighborLoader(
            DistDataset.from_pyg(data),
            input_nodes=torch.arange(40),
            **{"num_neighbors": FANOUT, **how},
        )


def test_links_and_anchors_refuse_too() -> None:
    dataset = GRAPH.dataset()
    index = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ConfigError, match="'edge_label_time' is not set"):
        DistLinkNeighborLoader(dataset, FANOUT, index, time_attr="node_time")
    with pytest.raises(ConfigError, match="without time_attr"):
        DistLinkNeighborLoader(dataset, FANOUT, index, edge_label_time=torch.arange(3))
    with pytest.raises(ConfigError, match="looks for copies among merged nodes"):
        DistABLPLoader(dataset, FANOUT, index[0], exclude_supervision=True, disjoint=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'disjunct'"):
        DistNeighborLoader(dataset, FANOUT, index[0], disjunct=True)  # type: ignore[call-arg]  # wrong on purpose


def test_no_hop_leaves_the_seeds_alone() -> None:
    seeds, links = torch.tensor([5, 2, 5]), torch.tensor([[7, 3], [3, 9]])
    with DistNeighborLoader(GRAPH.dataset(), [], seeds, batch_size=3, num_workers=0) as loader:
        (batch,) = loader
    assert batch.n_id.tolist() == seeds.tolist()
    assert batch.edge_index.shape == (2, 0)
    assert batch.num_sampled_nodes == [3]
    with DistLinkNeighborLoader(
        GRAPH.dataset(), [], links, batch_size=2, neg_sampling="binary", num_workers=0
    ) as loader:
        (batch,) = loader
    assert batch.n_id[batch.edge_label_index[:, :2]].tolist() == links.tolist()
    assert batch.edge_index.shape == (2, 0)
