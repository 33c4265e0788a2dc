"""Inputs of several servers as one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.client.producers import concatenated
from gigl_loader.graph_store.wire.producer_terms import digest_of
from tests.support.glt import NodeSamplerInput


def _input(nodes: list[int], kind: str | None = "user", **columns: Tensor) -> NodeSamplerInput:
    made = NodeSamplerInput(torch.tensor(nodes, dtype=torch.int64), kind)
    made.extra = columns
    return made


@given(
    tables=st.lists(
        st.integers(0, 3).flatmap(
            lambda width: st.lists(
                st.lists(st.integers(0, 9), min_size=width, max_size=width), min_size=1, max_size=4
            )
        ),
        min_size=1,
        max_size=4,
    )
)
def test_seeds_keep_their_columns_and_narrow_tables_are_padded(
    tables: list[list[list[int]]],
) -> None:
    numbers = iter(range(100))
    inputs = []
    for rows in tables:
        seeds = [next(numbers) for _ in rows]
        labels = torch.tensor(rows, dtype=torch.int64).view(len(rows), -1)
        inputs.append(_input(seeds, labels=labels, time=torch.tensor(seeds) * 10))
    whole = concatenated(inputs)
    width = max(len(rows[0]) for rows in tables)
    expected = [row + [-1] * (width - len(row)) for rows in tables for row in rows]
    assert whole.node.tolist() == list(range(len(expected)))
    assert whole.input_type == "user"
    assert whole.extra["labels"].tolist() == expected
    assert whole.extra["time"].tolist() == [10 * seed for seed in range(len(expected))]


def test_what_is_no_input_of_one_loader_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty list"):
        concatenated([])
    with pytest.raises(ConfigError, match="several types"):
        concatenated([_input([1]), _input([2], "item")])
    with pytest.raises(ConfigError, match="'time' of the input is missing for some servers"):
        concatenated([_input([1], time=torch.tensor([3])), _input([2])])
    whole = concatenated([_input([1], time=torch.tensor([3])), _input([])])
    assert whole.extra["time"].tolist() == [3], "a server without seeds has nothing to give"
    plain = NodeSamplerInput(torch.tensor([4]), "user")
    assert concatenated([plain]).extra == {}


def test_a_digest_tells_all_inputs_apart() -> None:
    base = _input([1, 2], time=torch.tensor([3, 4]))
    same = digest_of(base, "a config", [0, 1])
    assert same == digest_of(_input([1, 2], time=torch.tensor([3, 4])), "a config", (0, 1))
    strided = _input([1, 2], time=torch.tensor([[3, 0], [4, 0]])[:, 0])
    assert same == digest_of(strided, "a config", [0, 1]), "by values, however they lie"
    others = [
        digest_of(base, "another", [0, 1]),
        digest_of(base, "a config", [0]),
        digest_of(_input([2, 1], time=torch.tensor([3, 4])), "a config", [0, 1]),
        digest_of(_input([1, 2], "item", time=torch.tensor([3, 4])), "a config", [0, 1]),
        digest_of(_input([1, 2], time=torch.tensor([4, 3])), "a config", [0, 1]),
        digest_of(_input([1, 2], age=torch.tensor([3, 4])), "a config", [0, 1]),
        digest_of(_input([1, 2]), "a config", [0, 1]),
    ]
    assert len({same, *others}) == 1 + len(others)
