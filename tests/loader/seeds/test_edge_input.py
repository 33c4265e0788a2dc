"""Seed edges as users give them: types, labels, negatives and weights, without a loader."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.sampler import NegativeSampling

from gigl_loader import ConfigError
from gigl_loader.batch.message import EDGE_LABEL, EDGE_TARGETS
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DatasetSchema,
    message_passing_to_positive_label,
)
from gigl_loader.loader.edge_loader import negative_sampling, shifted, weights_of
from gigl_loader.loader.seeds.edge_input import SeedEdges, all_edges, edge_type_of, read_edges
from gigl_loader.testing import TinyGraph

BUYS, LIKES, KNOWS = ("u", "buys", "i"), ("u", "likes", "i"), ("u", "knows", "u")
LABELED = message_passing_to_positive_label(KNOWS)
TYPED = DatasetSchema(False, [BUYS, LIKES, KNOWS, LABELED], None, None, "in")
PLAIN = DatasetSchema(False, None, None, None, "in")
BINARY = NegativeSampling("binary")


def test_edges_are_named_in_full_or_by_ends_that_only_one_type_has() -> None:
    index = torch.zeros(2, 1, dtype=torch.int64)
    assert edge_type_of((BUYS, index), TYPED) == (BUYS, index)
    assert edge_type_of(BUYS, TYPED) == (BUYS, None)
    assert edge_type_of((("u", "u"), index), TYPED) == (KNOWS, index)
    assert edge_type_of(index, PLAIN) == (DEFAULT_HOMOGENEOUS_EDGE_TYPE, index)
    assert edge_type_of(None, PLAIN) == (DEFAULT_HOMOGENEOUS_EDGE_TYPE, None)
    for wrong in (("u", "i"), LABELED, ("u", "sells", "i")):  # two types have these ends
        with pytest.raises(ConfigError, match="names edge type"):
            edge_type_of(wrong, TYPED)
    with pytest.raises(ConfigError, match="the graph is heterogeneous"):
        edge_type_of(index, TYPED)


@given(num_edges=st.integers(0, 9), parts=st.integers(1, 4), labeled=st.booleans())
def test_parts_concatenate_to_all(num_edges: int, parts: int, labeled: bool) -> None:
    index = torch.arange(2 * num_edges).view(2, num_edges)
    label = torch.arange(num_edges) if labeled else None
    found = [one.sampler_input() for one in SeedEdges(BUYS, index, label).split(parts)]
    assert len(found) == parts
    assert {one.input_type for one in found} == {"u"}
    assert torch.cat([one.node for one in found]).equal(index[0])
    assert torch.cat([one.extra[EDGE_TARGETS] for one in found]).equal(index[1])
    if label is None:
        assert not any(EDGE_LABEL in one.extra for one in found)
    else:
        assert torch.cat([one.extra[EDGE_LABEL] for one in found]).equal(label)


@pytest.mark.parametrize(
    ("index", "label", "words"),
    [
        (torch.tensor([[0], [3]]), None, r"edge_label_index\[1, 0\] = 3 is no node id.* \[0, 3\)"),
        (torch.tensor([[0, -1], [1, 1]]), None, r"edge_label_index\[0, 1\] = -1"),
        (torch.zeros(2, 2, dtype=torch.int32), None, "got .*torch.int32"),
        (torch.zeros(2, 1, dtype=torch.int64, device="meta"), None, "on the CPU.* got meta"),
        ((0, 1), None, "got tuple"),
        ([[0, 1], [0]], None, "edge_label_index cannot be read"),
        ([["a"], ["b"]], None, "edge_label_index cannot be read"),
        (torch.zeros(2, 2, dtype=torch.int64), torch.zeros(1), r"each of the 2 edges.* got \[1\]"),
        (torch.zeros(2, 2, dtype=torch.int64), 1.0, r"got \[\]"),
        (torch.zeros(2, 1, dtype=torch.int64), {0: [1]}, "edge_label cannot be read"),
    ],
)
def test_what_are_no_seed_edges(index: Any, label: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_edges(BUYS, index, label, {"u": 5, "i": 3})


def test_arrays_and_lists_are_seed_edges_too() -> None:
    wanted = torch.tensor([[4, 0], [2, 1]])
    for index in (wanted, wanted.numpy(), wanted.tolist()):
        found = read_edges(BUYS, index, [0.5, 1.5], {"u": 5, "i": 3})
        assert found.index.equal(wanted)
        assert found.label is not None
        assert found.label.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_all_edges_are_in_the_order_of_their_ids(edge_dir: Any) -> None:
    graph = TinyGraph.random(9, 30)
    ((edge_type, edges),) = graph.edges.items()
    found = all_edges(graph.dataset(edge_dir=edge_dir), edge_type)
    assert [tuple(pair) for pair in found.t().tolist()] == list(edges)


def _labeled(*labels: Any) -> list[SeedEdges]:
    return [SeedEdges(KNOWS, torch.empty(2, 0, dtype=torch.int64), label) for label in labels]


def test_labels_move_up_together_where_they_begin_at_0() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    parts = _labeled(torch.tensor([1, 2]), None, torch.tensor([0]), nothing)
    moved = [one.label for one in shifted(parts, BINARY)]
    assert [None if one is None else one.tolist() for one in moved] == [[2, 3], None, [1], []]
    for negatives in (None, NegativeSampling("triplet")):
        assert shifted(parts, negatives) == parts
    for least in (1, -1, 0.5, -0.5):  # as in PyG: only where 0 itself is the least
        (one,) = _labeled(torch.tensor([least, 2.0]))
        assert shifted([one], BINARY)[0] is one
    (one,) = _labeled(None)
    assert shifted([one], BINARY)[0] is one


def test_negatives_as_pyg_takes_them() -> None:
    assert negative_sampling(None, None, None) is None
    assert negative_sampling(None, 0.0, None) is None
    found = negative_sampling(None, 2.5, None)
    assert found is not None
    assert (found.is_binary(), found.amount) == (True, 2.5)
    found = negative_sampling("triplet", None, None)
    assert found is not None
    assert found.is_triplet()
    assert negative_sampling(BINARY, None, torch.ones(1)) is BINARY
    for sampling, ratio, label, words in (
        (BINARY, 1.0, None, "both given"),
        (None, float("nan"), None, ">= 0, got nan"),
        ("ternary", None, None, "must be 'binary', 'triplet'"),
        ("triplet", None, torch.ones(1), "triplets have no labels"),
    ):
        with pytest.raises(ConfigError, match=words):
            negative_sampling(sampling, ratio, label)


def test_weights_are_for_the_ends_that_they_are_given_for() -> None:
    num_nodes = {"u": 2, "i": 3}
    assert weights_of(BINARY, BUYS, num_nodes) == {}
    both = NegativeSampling("binary", 1, torch.tensor([1, 3]), torch.tensor([0.0, 0.5, 0.0]))
    assert weights_of(both, BUYS, num_nodes) == {
        "src_weight": [1.0, 3.0],
        "dst_weight": [0.0, 0.5, 0.0],
    }
    for weight in ([1.0, -1.0], [0.0, 0.0], [1.0, float("inf")], [1.0, float("nan")]):
        wrong = NegativeSampling("binary", 1, torch.tensor(weight))
        with pytest.raises(ConfigError, match="src_weight must be finite"):
            weights_of(wrong, BUYS, num_nodes)
    short = NegativeSampling("binary", 1, None, torch.ones(2))
    with pytest.raises(ConfigError, match=r"dst_weight must have one weight for each of the 3"):
        weights_of(short, BUYS, num_nodes)


@pytest.mark.parametrize(
    ("mode", "ends"), [("binary", {"src_weight", "dst_weight"}), ("triplet", {"dst_weight"})]
)
def test_the_one_weight_of_older_releases_is_for_the_ends_that_are_drawn(
    mode: str, ends: set[str]
) -> None:
    class Older:  # as in torch_geometric 2.5
        weight = torch.tensor([1.0, 2.0])

        def is_binary(self) -> bool:
            return mode == "binary"

    older: Any = Older()
    assert weights_of(older, BUYS, {"u": 2, "i": 2}) == {end: [1.0, 2.0] for end in ends}
