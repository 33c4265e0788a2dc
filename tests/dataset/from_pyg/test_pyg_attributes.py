"""What scripts for PyG do to `loader.data`: said no to by name, and nothing of it in silence."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, UsageError


def _dataset() -> DistDataset:
    return DistDataset.from_pyg(Data(x=torch.zeros(5, 2), edge_index=torch.arange(4).view(2, 2)))


@pytest.mark.parametrize("value", [torch.arange(5), np.arange(5)])
def test_a_new_tensor_would_reach_no_batch(value: Any) -> None:
    with DistNeighborLoader(_dataset(), [2], torch.arange(5), num_workers=0) as loader:
        data: Any = loader.data
        for kind in (UsageError, AttributeError):
            with pytest.raises(kind, match=r"dataset.foo = ... would reach no batch.*transform="):
                data.foo = value
        assert not hasattr(data, "foo")
        data.note, data._mine = "what is no tensor is the user's own", value
        del data.note
        assert not hasattr(data, "note")


def test_what_pygs_inference_example_does_is_answered() -> None:
    dataset: Any = _dataset()
    text = r"full_graph_inference\(model, dataset\)"
    with pytest.raises(UsageError, match=f"'x' cannot be deleted from a dataset.*{text}"):
        del dataset.x
    with pytest.raises(AttributeError, match=f"'y' cannot be deleted from a dataset.*{text}"):
        del dataset.y
    with pytest.raises(UsageError, match=f"dataset.num_nodes is known and cannot be set.*{text}"):
        dataset.num_nodes = 7
    assert dataset.num_nodes == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x", "get_features"),
        ("y", "get_labels"),
        ("edge_index", "dataset.graph"),
        ("edge_attr", "batches have"),
        ("train_mask", "dataset.train_node_ids"),
    ],
)
def test_an_attribute_of_data_is_answered(name: str, text: str) -> None:
    for kind in (UsageError, AttributeError):
        with pytest.raises(kind, match=f"a DistDataset has no '{name}': .*{text}"):
            getattr(_dataset(), name)
    assert not hasattr(_dataset(), name)
    assert getattr(_dataset(), name, 7) == 7


def test_other_attributes_have_pythons_own_error() -> None:
    with pytest.raises(AttributeError, match=r"^'DistDataset' object has no attribute 'nothing'$"):
        _ = _dataset().nothing
    empty = copy.copy(DistDataset())
    assert repr(pickle.loads(pickle.dumps(empty))) == repr(empty)


class Mine(DistDataset):
    """A subclass with data of its own, which are no business of batches."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.own_ids = torch.arange(3)

    @property
    def broken(self) -> Any:
        """Raise from within."""
        return self.note.text


def test_a_subclass_keeps_its_own_attributes() -> None:
    mine = Mine()
    mine.own_ids = mine.own_ids + 1
    assert mine.own_ids.tolist() == [1, 2, 3]
    with pytest.raises(AttributeError, match="has no attribute 'note'"):
        _ = mine.broken


def test_whether_there_are_edge_weights() -> None:
    plain = Data(num_nodes=5, edge_index=torch.arange(4).view(2, 2))
    assert DistDataset.from_pyg(plain).has_edge_weights is False
    plain.edge_weight = torch.ones(2)
    dataset = DistDataset.from_pyg(plain)
    assert dataset.has_edge_weights is True
    typed = HeteroData()
    typed["a"].num_nodes = 3
    for name in ("r", "s"):
        typed["a", name, "a"].edge_index = torch.arange(2).view(2, 1)
    assert DistDataset.from_pyg(typed).has_edge_weights is False
    typed["a", "s", "a"].edge_weight = torch.ones(1)
    assert DistDataset.from_pyg(typed).has_edge_weights is True
    typed["a", "s", "a"].w = torch.ones(1)
    del typed["a", "s", "a"].edge_weight
    by_name = DistDataset.from_pyg(typed)
    assert by_name.has_edge_weights is False
    assert by_name.weighted_by("w").has_edge_weights is True
