"""``transform_sampler_output``: rows follow their nodes and edges, whatever is made of these."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gigl_loader import ConfigError
from gigl_loader.batch.collate import transform_outputs
from gigl_loader.batch.message import (
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    INPUT_ID,
    IS_HETERO,
    NODE,
    NODE_FEATURES,
    NODES_PER_HOP,
    SEED_TIME,
    TREE,
    declared,
    key,
)

KNOWS = ("user", "knows", "user")


def _message(nodes: list[int], edges: list[int]) -> dict[str, torch.Tensor]:
    """Return a message whose rows say whose they are: features are ids, attributes 10 * ids."""
    node, edge = torch.tensor(nodes, dtype=torch.int64), torch.tensor(edges, dtype=torch.int64)
    return {
        IS_HETERO: torch.tensor(0, dtype=torch.uint8),
        NODE: node,
        NODE_FEATURES: node.view(-1, 1).float(),
        declared("node", "age"): 10 * node,
        EDGE: edge,
        EDGE_FEATURES: edge.view(-1, 1).float(),
        declared("edge", "weight"): 10 * edge,
        EDGE_INDEX: torch.zeros(2, len(edges), dtype=torch.int64),
        NODES_PER_HOP: torch.tensor([1, len(nodes) - 1]),
        INPUT_ID: torch.tensor([3]),
        SEED_TIME: torch.tensor([8]),
    }


def _run(message: dict, change: Any) -> dict[str, torch.Tensor]:
    return transform_outputs(message, change, [], [])


# ids repeat, as they do over trees and where edges are drawn with replacement
@given(
    nodes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    edges=st.lists(st.integers(0, 9), max_size=8),
    data=st.data(),
)
def test_rows_follow_ids_whatever_is_dropped_repeated_or_reordered(
    nodes: list[int], edges: list[int], data: Any
) -> None:
    kept = data.draw(st.lists(st.sampled_from(nodes), max_size=10))
    walked = data.draw(st.lists(st.sampled_from(edges), max_size=10)) if edges else []

    def change(out: SamplerOutput) -> SamplerOutput:
        out.node, out.edge = torch.tensor(kept, dtype=torch.int64), torch.tensor(walked).long()
        out.row = out.col = torch.zeros(len(walked), dtype=torch.int64)
        return out

    message = _message(nodes, edges)
    before = dict(message)
    found = _run(message, change)
    assert found[NODE].tolist() == found[NODE_FEATURES].view(-1).tolist() == kept
    assert found[declared("node", "age")].tolist() == [10 * node for node in kept]
    assert found[EDGE].tolist() == found[EDGE_FEATURES].view(-1).tolist() == walked
    assert found[declared("edge", "weight")].tolist() == [10 * edge for edge in walked]
    assert found[EDGE_INDEX].shape == (2, len(walked))
    assert all(message[name] is value for name, value in before.items())


def test_a_transform_sees_what_pyg_shows_it_and_what_it_drops_is_gone() -> None:
    message = _message([4, 6], [1]) | {TREE: torch.tensor([0, 0])}
    seen: list[SamplerOutput] = []

    def change(out: SamplerOutput) -> SamplerOutput:
        seen.append(
            SamplerOutput(
                out.node,
                out.row,
                out.col,
                out.edge,
                out.batch,
                out.num_sampled_nodes,
                out.num_sampled_edges,
                metadata=out.metadata,
            )
        )
        out.batch = out.num_sampled_nodes = None
        out.num_sampled_edges = [1, 0]
        return out

    found = _run(message, change)
    (out,) = seen
    assert out.batch is message[TREE]
    assert (out.num_sampled_nodes, out.num_sampled_edges) == ([1, 1], None)
    assert [one.tolist() for one in out.metadata] == [[3], [8]]
    assert found[NODE_FEATURES] is message[NODE_FEATURES]  # the same nodes: nothing is copied
    assert not {TREE, NODES_PER_HOP} & set(found)
    assert found["num_sampled_edges"].tolist() == [1, 0]


def test_types_change_on_their_own() -> None:
    message = {
        IS_HETERO: torch.tensor(1, dtype=torch.uint8),
        key(NODE, "user"): torch.tensor([5, 6]),
        key(NODE_FEATURES, "user"): torch.eye(2),
        key(NODE, "item"): torch.tensor([1]),
        key(NODE_FEATURES, "item"): torch.ones(1, 1),
        key(EDGE_INDEX, KNOWS): torch.tensor([[1], [0]]),
    }

    def change(out: HeteroSamplerOutput) -> HeteroSamplerOutput:
        assert out.edge is None
        assert out.batch is None
        out.node["user"] = out.node["user"].flip(0)
        out.row[KNOWS], out.col[KNOWS] = out.col[KNOWS], out.row[KNOWS]
        return out

    found = transform_outputs(message, change, ["item", "user"], [KNOWS])
    assert found[key(NODE_FEATURES, "user")].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert found[key(NODE_FEATURES, "item")] is message[key(NODE_FEATURES, "item")]
    assert found[key(EDGE_INDEX, KNOWS)].tolist() == [[0], [1]]


def _set(**values: Any) -> Any:
    def change(out: Any) -> Any:
        for name, value in values.items():
            setattr(out, name, value)
        return out

    return change


ZEROS = torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda out: out.node, "must return the SamplerOutput .* got Tensor"),
        (_set(node=torch.tensor([4, 99])), "names 99, a node of the graph that was not sampled"),
        (_set(edge=torch.tensor([1, 0])), "names 0, an edge of the graph"),
        (_set(row=ZEROS, col=ZEROS), "there are 1 edges and 2"),
        (_set(edge=None), "2 edges and no ids"),
        (_set(row=ZEROS), "`row` and `col` in step: they have 1 and 2"),
    ],
)
def test_what_was_not_sampled_has_no_rows(change: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _run(_message([4, 6], [1, 2]), change)


def test_nothing_was_sampled_and_something_is_named() -> None:
    with pytest.raises(ConfigError, match="names 3, an edge"):
        _run(_message([4], []), _set(row=ZEROS, col=ZEROS, edge=torch.tensor([3])))


def test_rows_of_edges_without_ids_cannot_follow_them() -> None:
    """Edges that PPR makes have scores and no ids: with one dropped, the scores were another's."""
    message = _message([4, 6], [1, 2])
    del message[EDGE]
    with pytest.raises(ConfigError, match="left 1 of 2 edges that have 'edge_attr' and no ids"):
        _run(message, _set(row=ZEROS, col=ZEROS))
    ends = torch.tensor([1, 0])
    found = _run(message, _set(row=ends, col=ends))
    assert found[EDGE_INDEX].tolist() == [[1, 0], [1, 0]]
