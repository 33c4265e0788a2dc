"""Batches seeded by edges: the loader beside PyG's."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from edge_cases import pairs_of
from torch_geometric.sampler import NegativeSampling

from gigl_loader import ConfigError, DistDataset, DistLinkNeighborLoader, WrongTypeError
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE
from gigl_loader.testing import (
    TinyGraph,
)


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
            pairs, negatives = pairs_of(batch, graph, None, kind)
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
    found = [pairs_of(batch, graph, edge_type, "triplet") for batch in batches]
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
        assert pairs_of(batch, graph, None, None)[0] == [(1, 3), (2, 4)]
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
