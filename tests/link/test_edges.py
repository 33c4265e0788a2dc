"""Batches seeded by edges: the sampler against a reference, the loader beside PyG's."""

import contextlib
import functools
import itertools
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.sampler import NegativeSampling

from gigl_loader import ConfigError, DistDataset, DistLinkNeighborLoader, WrongTypeError
from gigl_loader.collate.edges import add_edge_labels
from gigl_loader.collate.pyg import to_data, to_hetero_data
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE, reverse_edge_type
from gigl_loader.message import EDGE_LABEL, EDGE_TARGETS, BatchTicket
from gigl_loader.sampler.edges import edge_sampler
from gigl_loader.sampler.negatives import uniform
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import (
    InProcessPeers,
    TinyGraph,
    as_worker_gets,
    check_batch,
    check_same_batches,
    sample_message,
)


def _stores(batch, graph, edge_type):
    """Return (of the edges, of sources, of destinations)."""
    if not graph.is_heterogeneous:
        return batch, batch, batch
    return batch[edge_type], batch[edge_type[0]], batch[edge_type[2]]


def _pairs_of(batch, graph, edge_type, kind):
    """Return (seed edges, negatives), each as pairs of global ids."""
    links, src, dst = _stores(batch, graph, edge_type)
    count = links.input_id.numel()
    if kind == "triplet":
        own = src.n_id[src.src_index].tolist()
        pos = dst.n_id[dst.dst_pos_index].tolist()
        neg = dst.n_id[dst.dst_neg_index].reshape(count, -1).tolist()
        pairs = [(s, d) for s, row in zip(own, neg, strict=True) for d in row]
        return list(zip(own, pos, strict=True)), pairs
    ends = torch.stack([src.n_id[links.edge_label_index[0]], dst.n_id[links.edge_label_index[1]]])
    pairs = [(s, d) for s, d in ends.t().tolist()]
    return pairs[:count], pairs[count:]


def _sample(views, graph, edge_type, plan, edges, *, edge_dir, kind, where=0, batch=0, **how):
    peers = InProcessPeers(views) if len(views) > 1 else None
    sampler = edge_sampler(
        as_worker_gets(views[where]), plan, peers, edge_type=edge_type, negatives=kind, **how
    )
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    extra = {EDGE_TARGETS: dst.contiguous(), EDGE_LABEL: torch.arange(len(edges)) + 5}
    if kind == "triplet":
        del extra[EDGE_LABEL]
    request = SampleRequest(
        BatchTicket(0, 1, 0, batch), src.contiguous(), torch.arange(len(edges)), extra
    )
    message = sample_message(sampler, request)
    if not graph.is_heterogeneous:
        found = to_data(message)
    else:
        types = list(plan.fanouts)
        types = [reverse_edge_type(t) for t in types] if edge_dir == "out" else types
        found = to_hetero_data(message, sorted(graph.num_nodes), types)
    add_edge_labels(found, message, edge_type if graph.is_heterogeneous else None, kind=kind)
    return found


@st.composite
def cases(draw):
    graph = TinyGraph.random(
        draw(st.integers(2, 12)), draw(st.integers(0, 40)), heterogeneous=draw(st.booleans()),
        seed=draw(st.integers(0, 10**6)),
    )  # fmt: skip
    edge_type = draw(st.sampled_from(sorted(graph.edges)))
    ends = (graph.num_nodes[edge_type[0]], graph.num_nodes[edge_type[2]])
    pair = st.tuples(st.integers(0, ends[0] - 1), st.integers(0, ends[1] - 1))
    kind = draw(st.sampled_from([None, "binary", "triplet"]))
    how = {"kind": kind}
    if kind is not None:
        amounts = [1, 2, 3] if kind == "triplet" else [0.4, 1, 1.5, 3]
        how["amount"] = draw(st.sampled_from(amounts))
    fanouts = {name: (draw(st.integers(0, 3)), 2) for name in sorted(graph.edges)}
    plan = SamplingPlan(
        input_type=edge_type[0], fanouts=fanouts, seed=draw(st.integers(0, 2**63 - 1)),
        with_edge=True,
    )  # fmt: skip
    edges = draw(st.lists(pair, min_size=1, max_size=6))
    return graph, edge_type, plan, edges, draw(st.sampled_from(["in", "out"])), how


@settings(max_examples=120)
@given(case=cases(), count=st.sampled_from([1, 2, 3]), cut=st.integers(0, 10**6))
def test_any_batch_of_edges(case, count: int, cut: int) -> None:
    """What PyG says of a batch, whatever was drawn; and the same bits over any partitions."""
    graph, edge_type, plan, edges, edge_dir, how = case
    how = {**how, "edge_dir": edge_dir, "batch": 3}
    whole = [graph.dataset(edge_dir=edge_dir).view()]
    batch = _sample(whole, graph, edge_type, plan, edges, **how)
    seeds, negatives = _pairs_of(batch, graph, edge_type, how["kind"])
    ends = {edge_type[0]: [], edge_type[2]: []}
    ends[edge_type[0]] += [s for s, _ in edges]
    ends[edge_type[2]] += [d for _, d in edges]
    if how["kind"] != "triplet":
        ends[edge_type[0]] += [s for s, _ in negatives]
    ends[edge_type[2]] += [d for _, d in negatives]
    roots = {name: torch.tensor(list(dict.fromkeys(ids))) for name, ids in ends.items()}
    check_batch(batch, graph, seeds=roots, num_neighbors=dict(plan.fanouts), edge_dir=edge_dir)
    assert seeds == edges
    assert len(negatives) == math.ceil(len(edges) * how.get("amount", 0))
    if how["kind"] == "triplet":
        assert [s for s, _ in negatives] == [s for s, _ in edges for _ in range(how["amount"])]
    else:
        zeros = [0] * len(negatives)
        links = _stores(batch, graph, edge_type)[0]
        assert links.edge_label.tolist() == [*range(5, 5 + len(edges)), *zeros]
    parts = [part.view() for part in graph.partitions(count, edge_dir=edge_dir, seed=cut)]
    for where in range(count):
        found = _sample(parts, graph, edge_type, plan, edges, where=where, **how)
        check_same_batches([found], [batch])


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
        _sample, views, graph, edge_type, plan, edges, edge_dir=edge_dir, strict=True, **how
    )
    if full:  # a source without a free destination may come: it is named
        with contextlib.suppress(ConfigError):
            ask()
        return
    batch = ask()
    assert not known & set(_pairs_of(batch, graph, edge_type, how["kind"])[1])


def test_a_source_with_one_free_destination_gets_it() -> None:
    graph = TinyGraph.homogeneous(40, [(0, d) for d in range(40) if d != 23])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (1,)}, seed=1)
    for edge_dir in ("in", "out"):
        batch = _sample(
            [graph.dataset(edge_dir=edge_dir).view()], graph, edge_type, plan, [(0, 1)] * 5,
            edge_dir=edge_dir, kind="triplet", strict=True,
        )  # fmt: skip
        assert set(_pairs_of(batch, graph, edge_type, "triplet")[1]) == {(0, 23)}


def test_negatives_are_uniform_and_follow_weights() -> None:
    """Chi-square over 10 nodes: 27.9 is exceeded once in a thousand, and the key is fixed."""
    counts = Counter((uniform(7, 10_000) * 10).astype(int).tolist())
    assert sum((counts[i] - 1000) ** 2 / 1000 for i in range(10)) < 27.9
    graph = TinyGraph.homogeneous(4, [(0, 1)])
    edge_type = DEFAULT_HOMOGENEOUS_EDGE_TYPE
    plan = SamplingPlan(input_type=edge_type[0], fanouts={edge_type: (0,)}, seed=3)
    batch = _sample(
        [graph.dataset().view()], graph, edge_type, plan, [(0, 1)] * 2000, edge_dir="in",
        kind="binary", src_weight=[0, 0, 1, 0], dst_weight=[1, 0, 0, 3],
    )  # fmt: skip
    drawn = Counter(_pairs_of(batch, graph, edge_type, "binary")[1])
    assert set(drawn) == {(2, 0), (2, 3)}
    assert 1400 < drawn[2, 3] < 1600


# --- the loader -----------------------------------------------------------------------------------


def _edges_by_id(batch) -> Counter:
    return Counter(map(tuple, batch.n_id[batch.edge_index].t().tolist()))


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [None, "binary", "triplet"])
def test_batches_have_what_pyg_gives_them(kind: str | None) -> None:
    """With all neighbours nothing but negatives is drawn, so the batch follows from its ends."""
    graph = TinyGraph.random(40, 200)
    data = graph.to_pyg()
    index = data.edge_index[:, :50]
    label = None if kind == "triplet" else torch.arange(50) % 3
    into = {d: [e for e in graph.edges[DEFAULT_HOMOGENEOUS_EDGE_TYPE] if e[1] == d]
            for d in range(40)}  # fmt: skip
    with DistLinkNeighborLoader(
        DistDataset.from_pyg(data), [-1], index, label, kind, batch_size=16, seed=2
    ) as loader:
        assert len(loader) == 4
        for start, batch in zip(range(0, 50, 16), loader, strict=True):
            given = list(range(start, min(start + 16, 50)))
            pairs, negatives = _pairs_of(batch, graph, None, kind)
            assert batch.input_id.tolist() == given
            assert pairs == [tuple(pair) for pair in index[:, given].t().tolist()]
            assert len(negatives) == (0 if kind is None else len(given))
            ends = {node for pair in pairs + negatives for node in pair}
            assert set(batch.n_id[: batch.num_sampled_nodes[0]].tolist()) == ends
            assert _edges_by_id(batch) == Counter(e for d in ends for e in into[d])
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert ("edge_label" in batch) == (kind != "triplet")
            assert not {"batch", "batch_size"} & set(batch.keys())
            if kind == "triplet":
                assert batch.dst_neg_index.shape == batch.src_index.shape
            else:  # labels that begin at 0 make room for the negatives' 0
                more = [label + 1 for label in label[given].tolist()] if kind else label[given]
                assert batch.edge_label.tolist() == [*more, *[0] * len(negatives)]


@pytest.mark.multiprocess
def test_a_heterogeneous_graph_all_its_edges_and_a_resumed_epoch() -> None:
    graph = TinyGraph.random(20, 60, heterogeneous=True)
    edge_type = ("user", "buys", "item")
    dataset, negatives = graph.dataset(), NegativeSampling("triplet", 2)
    how = {"edge_label_index": edge_type, "neg_sampling": negatives, "batch_size": 7,
           "shuffle": True, "seed": 5, "strict": True}  # fmt: skip
    with DistLinkNeighborLoader(dataset, [2, 2], **how) as loader:
        batches = list(itertools.islice(loader, 4))
        state = loader.state_dict()
    with DistLinkNeighborLoader(dataset, [2, 2], **how, num_workers=2) as loader:
        loader.load_state_dict(state)
        batches += list(loader)
    found = [_pairs_of(batch, graph, edge_type, "triplet") for batch in batches]
    assert Counter(p for pairs, _ in found for p in pairs) == Counter(graph.edges[edge_type])
    assert not set(graph.edges[edge_type]) & {p for _, pairs in found for p in pairs}
    assert batches[0]["item"].dst_neg_index.shape == (7, 2)
    for batch in batches:
        for name in batch.node_types:
            assert torch.equal(batch[name].x[:, 0].long(), batch[name].n_id)


@pytest.mark.multiprocess
def test_glts_input_and_another_target_is_another_state() -> None:
    graph = TinyGraph.random(20, 60)
    given = SimpleNamespace(row=torch.tensor([1, 2]), col=torch.tensor([3, 4]), input_type=None,
                            label=torch.tensor([0.5, 1.5]))  # fmt: skip
    with DistLinkNeighborLoader(graph.dataset(), [2], given, batch_size=2, seed=1) as loader:
        batch = next(iter(loader))
        state = loader.state_dict()
        assert batch.edge_label.tolist() == [0.5, 1.5]
        assert _pairs_of(batch, graph, None, None)[0] == [(1, 3), (2, 4)]
    other = torch.tensor([[1, 2], [3, 5]])
    with (
        DistLinkNeighborLoader(graph.dataset(), [2], other, batch_size=2, seed=1) as loader,
        pytest.raises(ConfigError, match="seeds"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"edge_label_index": torch.zeros(3, 2, dtype=torch.int64)}, r"\[2, num_edges\] int64"),
        ({"edge_label_index": torch.zeros(2, 2)}, r"\[2, num_edges\] int64"),
        ({"edge_label_index": "all"}, r"\[2, num_edges\] int64"),
        ({"edge_label_index": torch.tensor([[0], [99]])}, r"edge_label_index\[1, 0\] = 99"),
        ({"edge_label": torch.zeros(3)}, "one row for each of the 1 edges"),
        ({"neg_sampling": "some"}, "neg_sampling must be"),
        ({"neg_sampling": "triplet", "edge_label": torch.zeros(1)}, "triplets have no labels"),
        ({"neg_sampling": "binary", "neg_sampling_ratio": 1.0}, "both given"),
        ({"neg_sampling_ratio": -1.0}, ">= 0"),
        ({"strict": True}, "give neg_sampling"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(3))}, "one weight for each"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.zeros(9))}, "not zero throughout"),
        ({"edge_label_index": {0: torch.zeros(2, 1, dtype=torch.int64)}}, "by server"),
        ({"edge_label_index": ("a", "b", "c")}, "names edge type"),
    ],
)
def test_bad_input(how: dict, words: str) -> None:
    graph = TinyGraph.random(9, 20)
    how = {"edge_label_index": torch.zeros(2, 1, dtype=torch.int64), **how}
    with pytest.raises((ConfigError, WrongTypeError), match=words):
        DistLinkNeighborLoader(graph.dataset(), [2], **how)


def test_a_heterogeneous_graph_needs_the_edge_type() -> None:
    graph = TinyGraph.random(9, 20, heterogeneous=True)
    with pytest.raises(ConfigError, match="pass edge_label_index=\\(edge_type, index\\)"):
        DistLinkNeighborLoader(graph.dataset(), [2], torch.zeros(2, 1, dtype=torch.int64))
