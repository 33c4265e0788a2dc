"""Features from a PyG ``FeatureStore`` of the user's."""

from typing import Any, ClassVar

import pytest
import torch
from torch_geometric.data import FeatureStore, TensorAttr

from gigl_loader import (
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    FeatureStoreOptions,
    SamplingError,
)
from gigl_loader.testing import TinyGraph

pytestmark = pytest.mark.multiprocess

GRAPH = TinyGraph.random(40, 200)
USERS = TinyGraph.random(30, 150, heterogeneous=True)


class Numbers(FeatureStore):
    """Row i of a group is ``[i, length of its name]``; fails where it is told to."""

    asked: ClassVar[list[tuple[Any, list[int]]]] = []

    def __init__(self, fails_at: int = -1, gives: str = "") -> None:
        super().__init__()
        self._fails_at, self._gives = fails_at, gives

    def _get_tensor(self, attr: TensorAttr) -> Any:
        ids = attr.index
        self.asked.append((attr.group_name, ids.tolist()))
        if self._fails_at in ids.tolist():
            raise ConnectionResetError("the bucket is gone")
        if self._gives == "nothing":
            return None
        if self._gives == "less" and len(ids) > 1:
            return torch.zeros(len(ids) - 1, 2)
        if self._gives == "other" and len(ids) > 1:
            return torch.zeros(len(ids), 2, dtype=torch.float64)
        rows = torch.stack([ids, torch.full_like(ids, len(attr.group_name or ""))], 1)
        return rows.float().numpy() if self._gives == "numpy" else rows.float()

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return (40, 2)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(None, "x")]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError


def options(**how: Any) -> FeatureStoreOptions:
    names = {"node_types", "cache_bytes"}
    given = {name: how.pop(name) for name in list(how) if name in names}
    return FeatureStoreOptions(f"{__name__}.Numbers", how, **given)


def without_features(graph: TinyGraph) -> Any:
    data = graph.to_pyg()
    for store in data.node_stores:
        del store.x
    return data


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_come_from_the_store(workers: int) -> None:
    data = DistDataset.from_pyg(
        without_features(GRAPH), supervision=(torch.tensor([[1], [2]]), None)
    )
    how: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "num_workers": workers,
        "batch_size": 8,
        "seed": 1,
    }
    how["feature_store"] = options(gives="numpy", cache_bytes=100)
    with (
        DistNeighborLoader(data, **how) as nodes,
        DistABLPLoader(data, input_nodes=torch.tensor([1]), **how) as labels,
        DistLinkNeighborLoader(data, edge_label_index=torch.tensor([[1], [5]]), **how) as edges,
    ):
        for batch in (*nodes, *labels, *edges, nodes([])):
            assert batch.x.dtype == torch.float32
            assert batch.x.tolist() == [[i, 0] for i in batch.n_id.tolist()]
            assert batch.y.shape[0] == batch.num_nodes


def test_types_with_features_of_their_own_keep_them() -> None:
    data = without_features(USERS)
    data["item"].x = torch.arange(30.0).view(30, 1)
    how: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "input_nodes": "user",
        "num_workers": 0,
        "batch_size": 9,
    }
    for store in (options(), options(node_types=("user",))):
        with DistNeighborLoader(DistDataset.from_pyg(data), feature_store=store, **how) as loader:
            for batch in loader:
                assert batch["item"].x.view(-1).tolist() == batch["item"].n_id.tolist()
                assert batch["user"].x.tolist() == [[i, 4] for i in batch["user"].n_id.tolist()]


def test_a_row_that_was_used_lately_is_not_asked_for_again() -> None:
    Numbers.asked.clear()
    data = DistDataset.from_pyg(without_features(GRAPH))
    how: dict[str, Any] = {"num_neighbors": [2], "num_workers": 0, "batch_size": 8}
    with DistNeighborLoader(data, feature_store=options(), **how) as loader:
        list(loader)
        list(loader)
    asked = [i for _, ids in Numbers.asked[1:] for i in ids]  # the first tells what rows look like
    assert sorted(asked) == sorted(set(asked)) == list(range(40))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_it_raises_is_told_in_its_own_words(workers: int) -> None:
    data = DistDataset.from_pyg(without_features(GRAPH))
    how: dict[str, Any] = {
        "num_neighbors": [2],
        "input_nodes": torch.arange(40),
        "num_workers": workers,
    }
    with (
        DistNeighborLoader(data, feature_store=options(fails_at=17), **how) as loader,
        pytest.raises(SamplingError, match="ConnectionResetError: the bucket is gone"),
    ):
        list(loader)
    for gives, text in (("less", r"gave, for \d+ rows of 'x'"), ("other", "float64")):
        with (
            DistNeighborLoader(data, feature_store=options(gives=gives), **how) as loader,
            pytest.raises(SamplingError, match=text),
        ):
            list(loader)


def test_what_cannot_work_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="class_path"):
        FeatureStoreOptions("Numbers")
    with pytest.raises(ConfigError, match="cache_bytes"):
        FeatureStoreOptions("a.B", cache_bytes=-1)
    with pytest.raises(ConfigError, match="let the class open"):
        FeatureStoreOptions("a.B", {"lock": __import__("threading").Lock()})
    for graph, store, text in (
        (GRAPH, options(), "have features in the dataset already"),
        (USERS, options(node_types=("user",)), "have features in the dataset already"),
        (USERS, options(node_types=("shop",)), r"names \['shop'\]"),
    ):
        given = "user" if graph is USERS else None
        with pytest.raises(ConfigError, match=text):
            DistNeighborLoader(graph.dataset(), [2], given, feature_store=store)
    data = DistDataset.from_pyg(without_features(GRAPH))
    with pytest.raises(ConfigError, match=r"gave, for 1 rows of 'x' of .* nothing"):
        DistNeighborLoader(data, [2], num_workers=0, feature_store=options(gives="nothing"))
