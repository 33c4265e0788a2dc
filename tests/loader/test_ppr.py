"""Batches by personalised PageRank, through the loaders."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from gigl_loader import (
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    PPRSamplerOptions,
)
from gigl_loader.batch.message import BatchTicket
from gigl_loader.sampler.options import Channel
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.ppr.ppr_sampler import ppr_keywords, ppr_sampler
from gigl_loader.testing import (
    InProcessPeers,
    TinyGraph,
    as_worker_gets,
    check_same_batches,
    sample_message,
)

pytestmark = pytest.mark.multiprocess

USERS = TinyGraph.random(20, 60, heterogeneous=True, seed=2)
_BY_NAME = {name[1]: name for name in USERS.edges}
BUYS, REV, KNOWS = _BY_NAME["buys"], _BY_NAME["rev_buys"], _BY_NAME["knows"]


def exact(graph: TinyGraph, start: tuple[str, int], alpha: float, walked: Any = None) -> dict:
    """Return the score of each (type, node), walking from destinations to sources."""
    nodes = [(t, i) for t, count in sorted(graph.num_nodes.items()) for i in range(count)]
    position = {node: number for number, node in enumerate(nodes)}
    counts = np.zeros((len(nodes), len(nodes)))
    for edge_type, pairs in graph.edges.items():
        if walked is None or edge_type in walked:
            for src, dst in pairs:
                counts[position[edge_type[2], dst], position[edge_type[0], src]] += 1
    step = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    source = np.eye(len(nodes))[position[start]]
    found = alpha * np.linalg.solve(np.eye(len(nodes)) - (1 - alpha) * step.T, source)
    return dict(zip(nodes, found.tolist(), strict=True))


def scores(batch: Any, seed: int, seed_type: str, node_type: str) -> dict[int, list[float]]:
    """Return the row of ``edge_attr`` of each node of one seed."""
    store = batch[seed_type, "ppr", node_type]
    mine = store.edge_index[0] == seed
    ids = batch[node_type].n_id[store.edge_index[1][mine]].tolist()
    rows = dict(zip(ids, store.edge_attr[mine].tolist(), strict=True))
    assert len(rows) == len(ids)
    return rows


def test_a_homogeneous_batch_has_the_exact_scores() -> None:
    graph = TinyGraph.random(30, 150, seed=5)
    node_type = next(iter(graph.num_nodes))
    options = PPRSamplerOptions(alpha=0.3, eps=1e-9, max_ppr_nodes=7)
    seeds = torch.tensor([3, 11, 3, 29])
    how: dict[str, Any] = {"num_neighbors": [], "input_nodes": seeds, "batch_size": 3, "seed": 1}
    with (
        DistNeighborLoader(graph.dataset(), sampler_options=options, num_workers=0, **how) as here,
        DistNeighborLoader(graph.dataset(), sampler_options=options, **how) as workers,
    ):
        batches = list(here)
        check_same_batches(batches, workers)
    assert [batch.batch.tolist() for batch in batches] == [[3, 11, 3], [29]]
    for batch in batches:
        assert batch.x[:, 0].tolist() == batch.n_id.tolist()
        assert batch.num_sampled_edges == []
        assert batch.edge_attr.dtype == torch.float32
        assert batch.num_sampled_nodes == [batch.batch_size, batch.num_nodes - batch.batch_size]
        for position, seed in enumerate(batch.batch.tolist()):
            wanted = exact(graph, (node_type, seed), 0.3)
            mine = batch.edge_index[0] == position
            ids = batch.n_id[batch.edge_index[1][mine]].tolist()
            found = batch.edge_attr[mine, 0].tolist()
            best = sorted(wanted.values(), reverse=True)[:7]
            assert found == pytest.approx([one for one in best if one > 0], abs=1e-6)
            assert found == pytest.approx([wanted[node_type, i] for i in ids], abs=1e-6)
            assert ids[0] == seed
            assert batch.edge_attr[mine][0, 1] == 1.0


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_heterogeneous_walks_cross_types_and_channels_do_not(edge_dir: Any) -> None:
    graph = USERS
    if edge_dir == "out":
        flipped = {name: [(b, a) for a, b in pairs] for name, pairs in graph.edges.items()}
        graph = TinyGraph(
            graph.num_nodes, {(dst, rel, src): flipped[src, rel, dst] for src, rel, dst in flipped}
        )
    walked = {name[1]: name for name in graph.edges}
    base: dict[str, Any] = {"alpha": 0.4, "eps": 1e-8, "max_ppr_nodes": 60}
    ratios: dict[Channel, float] = {walked["buys"]: 0.5, (walked["rev_buys"], walked["knows"]): 0.5}
    how: dict[str, Any] = {
        "num_neighbors": [],
        "input_nodes": ("user", torch.tensor([4, 0])),
        "batch_size": 2,
    }
    how |= {"num_workers": 0, "dataset": graph.dataset(edge_dir=edge_dir)}
    with (
        DistNeighborLoader(sampler_options=PPRSamplerOptions(**base), **how) as loader,
        DistNeighborLoader(
            sampler_options=PPRSamplerOptions(typed_channel_ratios=ratios, **base), **how
        ) as channels,
    ):
        (batch,), (typed,) = list(loader), list(channels)
    assert typed["user", "ppr", "user"].edge_attr.shape[1] == 8
    assert set(batch.edge_types) == {("user", "ppr", "item"), ("user", "ppr", "user")}
    parts = [[BUYS], [REV, KNOWS]]
    for position, seed in enumerate([4, 0]):
        wanted = exact(USERS, ("user", seed), 0.4)
        by_channel = [exact(USERS, ("user", seed), 0.4, part) for part in parts]
        for node_type in ("item", "user"):
            own = {i: s for (t, i), s in wanted.items() if t == node_type and s > 1e-7}
            found = {i: row[0] for i, row in scores(batch, position, "user", node_type).items()}
            assert found == pytest.approx(own, abs=1e-6)
            for node, row in scores(typed, position, "user", node_type).items():
                both = [one[node_type, node] for one in by_channel]
                assert [row[2], row[5]] == pytest.approx(both, abs=1e-6)
                assert row[0] == max(row[2], row[5])
                assert row[1] == max(row[3], row[6])
                assert [row[4], row[7]] == [float(one > 0) for one in (row[2], row[5])]


def _message(graph: TinyGraph, parts: int, seeds: list[int], **options: Any) -> Any:
    views = [part.view() for part in graph.partitions(parts)]
    plan = SamplingPlan(
        input_type="user", fanouts={n: (1,) for n in sorted(graph.edges)}, seed=3, with_edge=True
    )
    how = ppr_keywords(PPRSamplerOptions(**options))
    how = msgspec.msgpack.decode(msgspec.msgpack.encode(how))  # as servers get it
    peers = InProcessPeers(views) if parts > 1 else None
    sampler = ppr_sampler(as_worker_gets(views[-1]), plan, peers, seed_types=["user"], **how)
    request = SampleRequest(BatchTicket(0, 0, 0, 0), np.array(seeds), np.arange(len(seeds)))
    sample_message(sampler, request)
    return sample_message(sampler, request)  # what the batch before left does not count


def test_partitions_do_not_count_and_edges_that_were_followed_may_come_along() -> None:
    how = {"eps": 1e-3, "max_ppr_nodes": 6, "include_sampled_edges": True}
    how |= {"num_neighbors_per_hop": 3}
    alone, shared = _message(USERS, 1, [1, 7, 1], **how), _message(USERS, 3, [1, 7, 1], **how)
    assert alone.keys() == shared.keys()
    assert all(torch.equal(alone[name], shared[name]) for name in alone)
    total = 0
    for src, relation, dst in USERS.edges:
        name = f"{src}__{relation}__{dst}"
        links, ids = alone[f"{name}.edge_index"], alone[f"{name}.e_id"].tolist()
        ends = alone[f"{src}.n_id"][links[0]].tolist(), alone[f"{dst}.n_id"][links[1]].tolist()
        wanted = [USERS.edges[src, relation, dst][i] for i in ids]
        assert list(zip(*ends, strict=True)) == wanted
        assert len(set(ids)) == len(ids)
        assert alone[f"{name}.edge_attr"][:, 0].tolist() == ids
        assert alone[f"{name}.num_sampled_edges"].tolist() == [len(ids)]
        total += len(ids)
    assert total > 0


def _labeled(links: Tensor) -> DistDataset:
    return DistDataset.from_pyg(USERS.to_pyg(), supervision={BUYS: links})


def test_labels_and_seed_edges_are_roots_too() -> None:
    links = torch.tensor([[0, 0, 2], [1, 5, 7]])
    options = PPRSamplerOptions(alpha=0.4, eps=1e-8, max_ppr_nodes=60)
    how: dict[str, Any] = {
        "num_neighbors": [],
        "batch_size": 2,
        "num_workers": 0,
        "sampler_options": options,
    }
    with DistABLPLoader(
        _labeled(links),
        input_nodes=("user", torch.tensor([0, 2])),
        supervision_edge_type=BUYS,
        **how,
    ) as loader:
        (batch,) = list(loader)
    assert batch["item"].n_id[batch.y_positive[0]].tolist() == [1, 5]
    assert batch["item"].n_id[batch.y_positive[1]].tolist() == [7]
    assert {edge_type[0] for edge_type in batch.edge_types} == {"user", "item"}
    for position, item in enumerate([1, 5, 7]):
        wanted = exact(USERS, ("item", item), 0.4)
        own = {i: s for (t, i), s in wanted.items() if t == "user" and s > 1e-7}
        found = {i: row[0] for i, row in scores(batch, position, "item", "user").items()}
        assert found == pytest.approx(own, abs=1e-6)
    with DistLinkNeighborLoader(
        USERS.dataset(), edge_label_index=(BUYS, links), neg_sampling="binary", **how
    ) as loader:
        for batch in loader:
            assert {edge_type[0] for edge_type in batch.edge_types if edge_type[1] == "ppr"} == {
                "user",
                "item",
            }
            assert batch[BUYS].edge_label_index.shape[1] == 2 * batch[BUYS].input_id.numel()


def test_a_positive_is_not_walked_where_it_supervises() -> None:
    graph = TinyGraph(
        {"item": 3, "user": 2}, {REV: [(0, 0), (1, 0)], BUYS: [(0, 0), (0, 1)], KNOWS: []}
    )
    data = DistDataset.from_pyg(graph.to_pyg(), supervision={BUYS: torch.tensor([[0], [0]])})
    options = PPRSamplerOptions(eps=1e-6)
    found = {}
    for exclude in (False, True):
        with DistABLPLoader(
            data,
            [],
            ("user", torch.tensor([0])),
            BUYS,
            exclude_supervision=exclude,
            sampler_options=options,
            num_workers=0,
        ) as loader:
            (batch,) = list(loader)
        found[exclude] = set(scores(batch, 0, "user", "item"))
    assert found == {False: {0, 1}, True: {1}}


def test_what_does_not_go_together_is_refused() -> None:
    for wrong in (
        {"alpha": 0},
        {"alpha": 1.0},
        {"eps": 0},
        {"max_ppr_nodes": 0},
        {"max_ppr_nodes": True},
        {"num_neighbors_per_hop": -1},
        {"max_fetch_iterations": 0},
        {"typed_channel_ratios": {"buys": 1.0}},
        {"typed_channel_ratios": {BUYS: 0.5}},
        {"typed_channel_ratios": {BUYS: 0.0, KNOWS: 1.0}},
        {"typed_channel_ratios": {(): 1.0}},
    ):
        with pytest.raises(ConfigError, match=f"PPRSamplerOptions.{next(iter(wrong))}|must sum to"):
            PPRSamplerOptions(**wrong)
    graph = TinyGraph.random(10, 20).dataset()
    for weighted in (True, False):
        options = PPRSamplerOptions(include_sampled_edges=not weighted)
        with pytest.raises(ConfigError, match="PPRSamplerOptions"):
            DistNeighborLoader(
                graph, [], sampler_options=options, num_workers=0, with_weight=weighted
            )
    channel = PPRSamplerOptions(typed_channel_ratios={("user", "likes", "user"): 1.0})
    with pytest.raises(ConfigError, match="likes"):
        DistNeighborLoader(USERS.dataset(), [], "user", sampler_options=channel, num_workers=0)
