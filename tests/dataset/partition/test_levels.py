"""Attributes, shapes and numbers of classes on their way through datasets and directories."""

from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, partition_graph
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N
from tests.dataset.dataset_reference import ring


def _values(rows, ids: torch.Tensor) -> list:
    return rows.values[rows.locate(ids)].tolist()


@pytest.mark.parametrize("format", ["mapped", "glt"])
@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_a_directory_keeps_attributes_shapes_and_classes(tmp_path, method, format) -> None:
    data = ring()
    partition_graph(data, 2, tmp_path / "g", method=method, progress=False, format=format)
    for partition_idx in range(2):
        dataset = DistDataset.load(tmp_path / "g", partition_idx)
        view = dataset.view()
        own: Any = dataset.node_ids
        assert dataset.num_classes == 4
        assert view.node_features[N].values.dim() == view.edge_features[E].values.dim() == 1
        assert _values(view.node_features[N], own) == data.x[own].tolist()
        assert _values(view.node_attributes[N, "time"], own) == data.time[own].tolist()
        assert _values(view.node_attributes[N, "train_mask"], own) == data.train_mask[own].tolist()
        edges = view.adjacency[E].edge_ids
        assert edges is not None
        assert edges.numel()
        assert _values(view.edge_features[E], edges) == data.edge_attr[edges].tolist()
        for name in ("edge_weight", "edge_time"):
            rows = view.edge_attributes[E, name]
            assert _values(rows, edges) == data[name][edges].tolist()
            assert rows.values.dtype == data[name].dtype
        of_nodes = [*view.node_attributes.values(), view.node_features[N]]
        index = {one.index.data_ptr() for one in of_nodes if one.index is not None}
        ranges = (method, format) == ("contiguous", "mapped")
        assert len(index) == (not ranges), "one index for all of a type"
        assert dataset.node_features.feature_tensor.dim() == 2, "as GLT's class has it"


def test_arrays_become_attributes_also_those_that_torch_does_not_take_as_they_are(tmp_path) -> None:
    np.save(tmp_path / "ages.npy", np.arange(8))
    data = ring()
    data.age = np.load(tmp_path / "ages.npy", mmap_mode="r")  # of which torch warns
    data.back = np.arange(8)[::-1]
    data.swapped = np.arange(8).astype(">i8")
    with pytest.warns(UserWarning, match=r"not carry: data\.swapped \(an array of >i8\)$"):
        attributes = DistDataset.from_pyg(data).view().node_attributes
    assert attributes[N, "age"].values.tolist() == list(range(8))
    assert attributes[N, "back"].values.tolist() == list(range(7, -1, -1))
    assert (N, "swapped") not in attributes
