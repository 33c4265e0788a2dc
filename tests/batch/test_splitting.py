"""A batch that is split: what its sampler says of a value decides what each part has of it."""

import pytest
import torch

from gigl_loader import ConfigError
from gigl_loader.batch.message import (
    BATCH,
    EDGE,
    EDGE_INDEX,
    EDGES_PER_HOP,
    INPUT_ID,
    META,
    NODE,
    NODES_PER_HOP,
    SampleMessage,
    declared,
)
from gigl_loader.batch.padding import PadShape, padded
from gigl_loader.batch.splitting import SeedLayout, split_to_fit

ONE_SEED, BOTH = PadShape({None: 4}, {None: 1}), PadShape({None: 6}, {None: 2})
LAYOUT = SeedLayout(input_type=None)


def _message(**values: torch.Tensor) -> SampleMessage:
    """Return the batch of seeds 10 and 11: node 12 leads to the first, and node 13 to the other."""
    return {
        NODE: torch.tensor([10, 11, 12, 13]),
        EDGE_INDEX: torch.tensor([[2, 3], [0, 1]]),
        EDGE: torch.tensor([20, 21]),
        INPUT_ID: torch.tensor([7, 8]),
        BATCH: torch.tensor([10, 11]),
        NODES_PER_HOP: torch.tensor([2, 2]),
        EDGES_PER_HOP: torch.tensor([2]),
        **values,
    }


def test_values_whose_axis_is_declared_are_cut() -> None:
    whole = _message(
        **{
            declared("node", "depth"): torch.tensor([0, 1, 2, 3]),
            declared("edge", "age"): torch.tensor([4, 5]),
            declared("seed", "weight"): torch.tensor([6, 7]),
            declared("batch", "names"): torch.tensor([8, 9, 10]),
        }
    )
    first, second = split_to_fit(whole, ONE_SEED, LAYOUT)
    for part, node, edge, seed in ((first, [0, 2], 4, 6), (second, [1, 3], 5, 7)):
        assert part[NODE].tolist() == [10 + place for place in node]
        assert part[declared("node", "depth")].tolist() == node
        assert part[declared("edge", "age")].tolist() == [edge]
        assert part[declared("seed", "weight")].tolist() == [seed]
        assert part[declared("batch", "names")].tolist() == [8, 9, 10]


def test_a_value_that_nobody_can_cut_is_an_error_that_says_how_to_declare_it() -> None:
    """A copy of the whole value in each part would belong to other nodes."""
    depth = torch.tensor([0, 1, 2, 3])
    whole = _message(**{META + "depth": depth})
    with pytest.raises(ConfigError, match=r"\['#META.depth'\].*declared\(\"node\".*raise pad="):
        split_to_fit(whole, ONE_SEED, LAYOUT)
    (same,) = split_to_fit(whole, BOTH, LAYOUT)  # one that fits is not cut
    assert same is whole
    assert padded(same, BOTH, 2)[META + "depth"] is depth
