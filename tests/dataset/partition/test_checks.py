"""Tensors and numbers that users pass."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.checks import (
    check_edge_dir,
    check_edge_index,
    check_edge_type,
    check_ids,
    check_mask,
    check_matrix,
    check_partitions,
    check_weights,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from tests.dataset.dataset_reference import N, ring


def test_arrays_are_taken_also_those_of_a_mapped_file(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for x in (rows, rows[::-1][::-1], mapped):
        data = Data(x=x, edge_index=torch.tensor([[0, 1], [5, 4]]))
        found = DistDataset.from_pyg(data).view().node_features[N].values
        assert found.tolist() == rows.tolist()
    data = Data(x=rows.astype(str), edge_index=torch.tensor([[0], [5]]))
    with pytest.raises(WrongTypeError, match=r"data\.x is a numpy array of <U"):
        DistDataset.from_pyg(data)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_without_plain_values_are_refused() -> None:
    data = ring()
    data.x = torch.quantize_per_tensor(torch.rand(8, 2), 0.1, 0, torch.qint8)
    with pytest.raises(ConfigError, match=r"data.x is quantised .*dequantize"):
        DistDataset.from_pyg(data)
    data.x = torch.empty(8, 2, device="meta")
    with pytest.raises(ConfigError, match=r"data.x is on the meta device"):
        DistDataset.from_pyg(data)


def test_ids_and_masks() -> None:
    assert check_ids(np.array([2, 0, 2]), 3, "ids").tolist() == [2, 0, 2]
    assert check_ids(torch.tensor([2**40]), None, "ids").tolist() == [2**40]
    assert check_ids(torch.empty(0, dtype=torch.int64), 0, "ids").numel() == 0
    assert check_mask(torch.tensor([True, False, True]), 3, "mask").tolist() == [0, 2]
    assert check_edge_index(torch.empty((2, 0), dtype=torch.int64), 0, 0, "e").shape == (2, 0)


def test_weights_become_float32_in_one_dimension() -> None:
    found = check_weights(torch.tensor([[1], [0]]), 2, "w")
    assert (found.tolist(), found.dtype) == ([1, 0], torch.float32)
    learned = torch.ones(2, requires_grad=True)
    assert not check_weights(learned, 2, "w").requires_grad
    with pytest.raises(ConfigError, match="w has NaN or infinite"):
        check_weights(torch.tensor([1e300], dtype=torch.float64), 1, "w")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: check_ids(torch.tensor([3]), 3, "ids"), ConfigError, "ids has id 3.*3 nodes"),
        (lambda: check_ids(torch.tensor([-1]), 3, "ids"), ConfigError, "negative id -1"),
        (lambda: check_ids(torch.tensor([1], dtype=torch.int32), 3, "ids"), ConfigError, "int32"),
        (lambda: check_ids([1], 3, "ids"), WrongTypeError, "ids must be a torch.Tensor, got list"),
        (lambda: check_matrix(torch.ones(2), 3, "node", "x"), ConfigError, "3 expected"),
        (lambda: check_matrix(torch.tensor(1.0), 1, "node", "x"), ConfigError, r"shape \(\)"),
        (lambda: check_mask(torch.ones(3, dtype=torch.bool), 4, "m"), ConfigError, "3 entries"),
        (lambda: check_partitions(True, 0), WrongTypeError, "num_partitions must be an int"),
        (lambda: check_partitions(0, 0), ConfigError, "at least 1, got 0"),
        (lambda: check_partitions(2, 2), ConfigError, r"partition_idx must be in \[0, 2\)"),
        (lambda: check_edge_dir("both"), ConfigError, '"in" or "out", got \'both\''),
        (lambda: check_edge_type(("a", "b"), "t"), WrongTypeError, "t: an edge type is a tuple"),
        (lambda: check_edge_type(("a", 1, "b"), "t"), WrongTypeError, "of strings"),
        (lambda: check_edge_type(["a", "to", "b"], "t"), WrongTypeError, "got"),
    ],
)
def test_what_is_refused(call, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call()
