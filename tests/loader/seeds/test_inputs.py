"""Seeds as users give them, against PyG's ``get_input_nodes``; no process is started."""

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.loader.utils import get_input_nodes

from gigl_loader import ConfigError, DistNeighborLoader
from gigl_loader.batch.message import INPUT_ID
from gigl_loader.loader.node_loader import local_input
from gigl_loader.testing import TinyGraph

PLAIN = TinyGraph.random(20, 80)
TYPED = TinyGraph.random(20, 80, heterogeneous=True)
MASK = torch.arange(20) % 7 == 2
GIVEN = {
    "ids": torch.tensor([5, 3, 5]),
    "list": [5, 3, 5],
    "array": np.array([5, 3, 5], dtype=np.int32),
    "range": range(4, 9),
    "none": [],
    "mask": MASK,
    "array of bools": MASK.numpy(),
    "empty mask": torch.zeros(20, dtype=torch.bool),
}


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("graph", [PLAIN, TYPED], ids=["plain", "typed"])
def test_seeds_and_input_id_are_pygs(graph: TinyGraph, kind: str) -> None:
    given = GIVEN[kind]
    as_pyg = torch.as_tensor(given) if isinstance(given, np.ndarray) else given
    wrapped = ("user", as_pyg) if graph.is_heterogeneous else as_pyg
    _, expected, input_id = get_input_nodes(graph.to_pyg(), wrapped)
    found = local_input(graph.dataset(), ("user", given) if graph.is_heterogeneous else given)
    assert found.node.dtype == torch.int64
    assert torch.equal(found.node, expected)
    if input_id is None:
        assert not found.extra
    else:
        assert torch.equal(found.extra[INPUT_ID], input_id)


def test_all_nodes_of_a_type() -> None:
    dataset = TYPED.dataset()
    for given in ("user", ("user", None)):
        found = local_input(dataset, given)
        assert found.input_type == "user"
        assert found.node.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0, 2.0], "integer node ids"),
        (np.array(["a"]), "integer node ids"),
        ([[1], [1, 2]], "cannot be read"),
        (np.array([2**63], np.uint64), "no node id"),
        (torch.ones(7, dtype=torch.bool), r"mask of shape \(7,\).*20 nodes"),
        ([20], r"\[0, 20\)"),
        ([[1, 2]], r"must be \[n\] int64"),
        ((0, 20), r"\[0, 20\)"),
    ],
)
def test_what_is_no_seed(given, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        local_input(PLAIN.dataset(), given)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("group")
def test_a_batch_of_a_mask_has_node_ids_as_input_id() -> None:
    how: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 3}
    with DistNeighborLoader(PLAIN.dataset(), [2], MASK, **how) as loader:
        batches = list(loader)
    assert sorted(i for b in batches for i in b.input_id.tolist()) == [2, 9, 16]
    assert all(torch.equal(b.input_id, b.batch) for b in batches)
