"""Dead nodes and edges behind the real ones, by messages made of numbers; and the sizes for it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader import ConfigError, padding_sizes
from gigl_loader.batch.message import (
    BATCH,
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGES_PER_HOP,
    INPUT_ID,
    NODE,
    NODE_FEATURES,
    NODE_LABELS,
    NODES_PER_HOP,
    TREE,
    SampleMessage,
    declared,
    key,
)
from gigl_loader.batch.padding import LEAST_DEAD, PadShape, padded
from tests.support.draws import examples

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")


def _message(nodes: int, edges: int, seeds: int) -> SampleMessage:
    return {
        NODE: torch.arange(nodes) + 7,
        NODE_FEATURES: torch.rand(nodes, 3).half(),
        NODE_LABELS: torch.arange(nodes) + 1,
        TREE: torch.arange(nodes) % seeds,
        INPUT_ID: torch.arange(seeds),
        BATCH: torch.arange(seeds) + 7,
        EDGE_INDEX: torch.randint(nodes, (2, edges)),
        EDGE: torch.arange(edges) + 5,
        EDGE_FEATURES: torch.rand(edges, 0),
        NODES_PER_HOP: torch.tensor([seeds, nodes - seeds]),
        EDGES_PER_HOP: torch.tensor([edges]),
        declared("node", "train_mask"): torch.ones(nodes, dtype=torch.bool),
        declared("edge", "weight"): torch.ones(edges),
    }


OF_NODES = (NODE, NODE_FEATURES, NODE_LABELS, TREE, declared("node", "train_mask"))
OF_EDGES = (EDGE, EDGE_FEATURES, declared("edge", "weight"))


@settings(max_examples=examples(200))
@given(
    seeds=st.integers(1, 5),
    more=st.integers(0, 40),
    edges=st.integers(0, 60),
    dead=st.integers(LEAST_DEAD, 30),
    dead_edges=st.integers(0, 70),
)
def test_what_is_real_stays_and_what_is_dead_is_apart(
    seeds: int, more: int, edges: int, dead: int, dead_edges: int
) -> None:
    nodes = seeds + more
    message = _message(nodes, edges, seeds)
    before = {name: value.clone() for name, value in message.items()}
    shape = PadShape({None: nodes + dead}, {None: edges + dead_edges})
    assert shape.fits(message)
    found = padded(message, shape, 9)
    assert all(torch.equal(message[name], value) for name, value in before.items()), "as it was"
    for names, count, size in (
        (OF_NODES, nodes, nodes + dead),
        (OF_EDGES, edges, edges + dead_edges),
    ):
        for name in names:
            assert found[name].dtype == message[name].dtype
            assert found[name].shape == (size, *message[name].shape[1:])
            assert torch.equal(found[name][:count], message[name])
            assert (found[name][count:] == (9 if name == TREE else 0)).all()
    assert torch.equal(found[EDGE_INDEX][:, :edges], message[EDGE_INDEX])
    src, dst = found[EDGE_INDEX][:, edges:]
    assert ((src >= nodes) & (src < nodes + dead) & (dst >= nodes) & (dst < nodes + dead)).all()
    assert (src != dst).all()
    assert found[NODES_PER_HOP].tolist() == [seeds, more + dead]
    assert found[EDGES_PER_HOP].tolist() == [edges + dead_edges]
    for name, count in (("pad_node_mask", nodes), ("pad_edge_mask", edges), ("seed_mask", seeds)):
        mask = found[declared("edge" if name == "pad_edge_mask" else "node", name)]
        assert mask.tolist() == [True] * count + [False] * (mask.numel() - count)
    for name in (INPUT_ID, BATCH):
        assert found[name] is message[name]


@pytest.mark.parametrize(
    ("nodes", "edges", "fits"), [(12, 8, True), (11, 8, False), (12, 7, False)]
)
def test_a_batch_needs_place_for_two_dead_nodes(nodes: int, edges: int, fits: bool) -> None:
    assert PadShape({None: nodes}, {None: edges}).fits(_message(10, 8, 2)) == fits


def test_ends_of_dead_edges_are_of_the_types_of_the_edge() -> None:
    message = {
        key(NODE, "user"): torch.arange(4),
        key(NODE, "item"): torch.arange(1),
        key(INPUT_ID, "user"): torch.arange(2),
        key(EDGE_INDEX, BUYS): torch.tensor([[0, 1], [0, 0]]),
        key(EDGE_INDEX, KNOWS): torch.empty(2, 0, dtype=torch.int64),
    }
    found = padded(message, PadShape({"user": 7, "item": 3}, {BUYS: 6, KNOWS: 5}), 2)
    assert found[key(EDGE_INDEX, BUYS)].tolist() == [[0, 1, 4, 5, 6, 4], [0, 0, 2, 1, 2, 1]]
    assert found[key(EDGE_INDEX, KNOWS)].tolist() == [[4, 5, 6, 4, 5], [5, 6, 4, 5, 6]]
    assert key(declared("node", "seed_mask"), "user") in found
    assert key(declared("node", "seed_mask"), "item") not in found


def _batch(nodes: int, edges: int) -> Data:
    return Data(x=torch.zeros(nodes, 1), edge_index=torch.zeros(2, edges, dtype=torch.int64))


@settings(max_examples=examples(200))
@given(
    counts=st.lists(st.tuples(st.integers(1, 500), st.integers(0, 900)), min_size=1, max_size=40),
    share=st.floats(0.01, 1),
)
def test_sizes_hold_at_least_the_share_of_batches(
    counts: list[tuple[int, int]], share: float
) -> None:
    sizes = padding_sizes([_batch(*one) for one in counts], share=share)
    fit = [n + LEAST_DEAD <= sizes["nodes"] and e <= sizes["edges"] for n, e in counts]
    assert sum(fit) >= share * len(counts)
    assert sizes["nodes"] <= max(n for n, _ in counts) + LEAST_DEAD + 7


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_out_of_range(share: float) -> None:
    with pytest.raises(ConfigError, match="share must be in"):
        padding_sizes([_batch(1, 1)], share=share)
