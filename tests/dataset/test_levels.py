"""Attributes, shapes and numbers of classes on their way through datasets and directories."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import (
    ConfigError,
    DistDataset,
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
    UsageError,
    partition_graph,
)
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N


def _ring(size: int = 8) -> Data:
    ids = torch.arange(size)
    data = Data(x=ids.float(), edge_index=torch.stack([ids, (ids + 1) % size]), y=ids % 4)
    data.edge_attr = -ids
    data.edge_weight = ids / 2
    data.edge_time = ids.to(torch.int16)
    data.time = ids * 10
    data.train_mask = ids < 3
    return data


def _values(rows, ids: torch.Tensor) -> list:
    return rows.values[rows.locate(ids)].tolist()


@pytest.mark.parametrize("format", ["mapped", "glt"])
@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_a_directory_keeps_attributes_shapes_and_classes(tmp_path, method, format) -> None:
    data = _ring()
    partition_graph(data, 2, tmp_path / "g", method=method, progress=False, format=format)
    for partition_idx in range(2):
        dataset = DistDataset.load(tmp_path / "g", partition_idx)
        view, own = dataset.view(), dataset.node_ids
        assert dataset.num_classes == 4
        assert view.node_features[N].values.dim() == view.edge_features[E].values.dim() == 1
        assert _values(view.node_features[N], own) == data.x[own].tolist()
        assert _values(view.node_attributes[N, "time"], own) == data.time[own].tolist()
        assert _values(view.node_attributes[N, "train_mask"], own) == data.train_mask[own].tolist()
        edges = view.adjacency[E].edge_ids
        assert edges.numel()
        assert _values(view.edge_features[E], edges) == data.edge_attr[edges].tolist()
        for name in ("edge_weight", "edge_time"):
            rows = view.edge_attributes[E, name]
            assert _values(rows, edges) == data[name][edges].tolist()
            assert rows.values.dtype == data[name].dtype
        rows = [*view.node_attributes.values(), view.node_features[N]]
        index = {one.index.data_ptr() for one in rows if one.index is not None}
        ranges = (method, format) == ("contiguous", "mapped")
        assert len(index) == (not ranges), "one index for all of a type"
        assert dataset.node_features.feature_tensor.dim() == 2, "as GLT's class has it"


def test_a_directory_of_the_first_format_still_loads(tmp_path) -> None:
    partition_graph(_ring(), 2, tmp_path / "g", progress=False, format="glt")
    path = tmp_path / "g" / "gigl_loader.json"
    made = json.loads(path.read_text())
    later = ("node_attributes", "edge_attributes", "num_classes", "flat_nodes", "flat_edges")
    path.write_text(json.dumps({key: made[key] for key in made if key not in later}))
    for part in ("part0", "part1"):
        for group in ("node_attributes", "edge_attributes"):
            shutil.rmtree(tmp_path / "g" / part / "gigl_loader" / group)
    dataset = DistDataset.load(tmp_path / "g", 1)
    view = dataset.view()
    assert view.node_features[N].values.shape == (4, 1)
    assert set(view.edge_attributes) == {(E, "edge_weight")}, "it had weights"
    assert not view.node_attributes
    with pytest.raises(UsageError, match=r"partition 1 of 2.*partition_graph"):
        _ = dataset.num_classes


def _output(**fields) -> PartitionOutput:
    ids = torch.arange(4)
    edges = GraphPartitionData(torch.stack([ids, ids.roll(-1)]), ids, torch.tensor([1.0, 2, 3, 4]))
    values = {"node_partition_book": torch.zeros(4, dtype=torch.int64),
              "edge_partition_book": torch.zeros(4, dtype=torch.int64),
              "partitioned_edge_index": edges, **fields}  # fmt: skip
    return PartitionOutput(**values)


def _built(**fields) -> DistDataset:
    dataset = DistDataset()
    dataset.build(partition_output=_output(**fields))
    return dataset


def test_labels_of_one_column_are_flat_as_in_gigl_and_stay_in_from_pyg() -> None:
    labels = FeaturePartitionData(torch.tensor([[2], [0], [1], [1]]), torch.arange(4))
    dataset = _built(partitioned_node_labels=labels)
    assert dataset.view().node_labels[N].values.shape == (4,)
    assert dataset.num_classes == 3
    wide = FeaturePartitionData(torch.zeros(4, 5), torch.arange(4))
    assert _built(partitioned_node_labels=wide).view().node_labels[N].values.shape == (4, 5)
    data = _ring()
    data.y = data.y.unsqueeze(1)
    assert DistDataset.from_pyg(data).view().node_labels[N].values.shape == (8, 1)


def test_weights_of_a_partition_output_are_carried() -> None:
    rows = _built().view().edge_attributes[E, "edge_weight"]
    assert rows.values.tolist() == [1, 2, 3, 4]
    assert _built().schema.edge_attributes == {E: ("edge_weight",)}


def test_weights_without_an_edge_book_are_named_as_not_carried() -> None:
    dataset = DistDataset(0, 2)
    book = torch.tensor([0, 0, 0, 0, 1])
    with pytest.warns(UserWarning, match="weights of .*no edge partition book"):
        dataset.build(partition_output=_output(node_partition_book=book, edge_partition_book=None))
    assert not dataset.view().edge_attributes


@pytest.mark.parametrize("name", ["partitioned_node_features", "partitioned_node_labels"])
def test_rows_for_ids_that_there_are_not(name: str) -> None:
    beyond = FeaturePartitionData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 3, 9]))
    with pytest.raises(ConfigError, match=r"\[9\].*partition book has 4 nodes"):
        _built(**{name: beyond})
    twice = FeaturePartitionData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 3, 1]))
    with pytest.raises(ConfigError, match="several rows"):
        _built(**{name: twice})


def test_edge_rows_for_ids_that_there_are_not() -> None:
    beyond = FeaturePartitionData(torch.zeros(5, 2), torch.tensor([0, 1, 2, 3, 7]))
    with pytest.raises(ConfigError, match=r"\[7\].*partition book has 4 edges"):
        _built(partitioned_edge_features=beyond)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(torch.tensor([0, 5, -1, 2, 0, 0, 0, 0]), 6), (torch.zeros(8, 7), 7),
     (torch.tensor([0.0, 1, 0, 1, 1, 1, 0, 0]), 2), (None, 0)],
)  # fmt: skip
def test_num_classes_is_as_pyg_counts(labels, expected: int) -> None:
    data = _ring()
    data.y = labels
    assert DistDataset.from_pyg(data).num_classes == expected


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_tensors_without_plain_values_are_refused() -> None:
    data = _ring()
    data.x = torch.quantize_per_tensor(torch.rand(8, 2), 0.1, 0, torch.qint8)
    with pytest.raises(ConfigError, match=r"data.x is quantised .*dequantize"):
        DistDataset.from_pyg(data)
    data.x = torch.empty(8, 2, device="meta")
    with pytest.raises(ConfigError, match=r"data.x is on the meta device"):
        DistDataset.from_pyg(data)


def test_arrays_become_attributes_also_those_that_torch_does_not_take_as_they_are(tmp_path) -> None:
    np.save(tmp_path / "ages.npy", np.arange(8))
    data = _ring()
    data.age = np.load(tmp_path / "ages.npy", mmap_mode="r")  # of which torch warns
    data.back = np.arange(8)[::-1]
    data.swapped = np.arange(8).astype(">i8")
    with pytest.warns(UserWarning, match=r"not carry: data\.swapped \(an array of >i8\)$"):
        attributes = DistDataset.from_pyg(data).view().node_attributes
    assert attributes[N, "age"].values.tolist() == list(range(8))
    assert attributes[N, "back"].values.tolist() == list(range(7, -1, -1))
    assert (N, "swapped") not in attributes
