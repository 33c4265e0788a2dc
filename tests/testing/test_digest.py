"""A digest tells all that a batch holds apart, and nothing else."""

import hashlib

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import ConfigError
from gigl_loader.testing import batch_digest


def _batch(**changes: object) -> Data:
    values = {
        "x": torch.arange(6.0).view(3, 2),
        "n_id": torch.tensor([4, 2, 9]),
        "batch_size": 2,
        "num_sampled_nodes": [2, 1],
        "y_positive": {0: torch.tensor([1]), 1: torch.tensor([], dtype=torch.int64)},
        "note": None,
        **changes,
    }
    return Data(**{name: value for name, value in values.items() if value is not ...})


def test_a_batch_has_one_digest() -> None:
    """The order of attributes, strides and views do not count."""
    backwards = Data(**dict(reversed(list(_batch().to_dict().items()))))
    strided = _batch(x=torch.arange(6.0).view(3, 2).t().contiguous().t())
    y_positive = {1: torch.arange(0), 0: torch.ones(1, dtype=torch.int64)}
    assert {batch_digest(one) for one in (_batch(), backwards, strided)} == {batch_digest(_batch())}
    assert batch_digest(_batch(y_positive=y_positive)) == batch_digest(_batch())


def test_what_is_hashed() -> None:
    values = (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    text = b"Datastr 12;'batch_size'int 1;1str 6;'n_id'tensor torch.int64 (2,);" + values
    batch = Data(n_id=torch.tensor([1, 2]), batch_size=1)
    assert batch_digest(batch) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.arange(6.0).view(2, 3)},
        {"x": torch.arange(6.0, dtype=torch.float64).view(3, 2)},
        {"x": torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.000001]])},
        {"x": torch.tensor([[-0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])},
        {"x": ...},
        {"x": None},
        {"z": torch.arange(2)},
        {"n_id": torch.tensor([4, 2, 9], dtype=torch.int32)},
        {"batch_size": 3},
        {"batch_size": 2.0},
        {"batch_size": "2"},
        {"num_sampled_nodes": [2, 1, 0]},
        {"num_sampled_nodes": [[2], 1]},
        {"y_positive": {0: torch.tensor([], dtype=torch.int64), 1: torch.tensor([1])}},
    ],
)
def test_what_differs(changes: dict[str, object]) -> None:
    assert batch_digest(_batch(**changes)) != batch_digest(_batch())


def test_names_and_stores_count() -> None:
    first, second = HeteroData(), HeteroData()
    first["user"].x, second["item"].x = torch.ones(2, 1), torch.ones(2, 1)
    empty = HeteroData()
    assert len({batch_digest(one) for one in (first, second, empty, Data())}) == 4
    named = Data(n_id=torch.ones(2)), Data(e_id=torch.ones(2))
    assert batch_digest(named[0]) != batch_digest(named[1])


def test_dtypes_that_numpy_lacks() -> None:
    found = {batch_digest(Data(x=torch.ones(2, dtype=t))) for t in (torch.bfloat16, torch.float16)}
    assert len(found) == 2


@pytest.mark.parametrize("value", [object(), torch.eye(2).to_sparse()])
def test_what_cannot_be_hashed_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match="extra"):
        batch_digest(_batch(extra=value))
