"""A split that is not there is None; None as seeds is then refused in place of all nodes."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    DistSubGraphLoader,
)
from gigl_loader.testing import one_rank

HOW: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "seed": 1}
EVEN = torch.arange(10) % 2 == 0
LINKS = torch.arange(20).reshape(2, 10) % 10


@pytest.fixture(autouse=True, scope="module")
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


def _dataset(**other: Any) -> DistDataset:
    return DistDataset.from_pyg(Data(x=torch.zeros(10, 1), edge_index=LINKS, **other))


def _read(dataset: DistDataset, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(dataset, name)


def _seeds(loader: Any) -> list[int]:
    with loader:
        return sorted(torch.cat([batch.batch for batch in loader]).tolist())


def test_it_names_the_split_that_is_missing_and_those_that_are_there() -> None:
    dataset = _dataset(train_mask=EVEN, val_mask=~EVEN)
    seeds = _read(dataset, "test_node_ids")
    assert seeds is None
    with pytest.raises(ConfigError) as raised:
        DistNeighborLoader(dataset, [2], seeds, **HOW)
    text = str(raised.value)
    assert "input_nodes is None" in text
    assert "no test split" in text
    assert "train and val" in text
    assert "input_nodes=dataset.node_ids" in text
    assert _seeds(DistNeighborLoader(dataset, [2], dataset.node_ids, **HOW)) == list(range(10))
    assert _seeds(DistNeighborLoader(dataset, [2], dataset.train_node_ids, **HOW)) == [
        0,
        2,
        4,
        6,
        8,
    ]


@pytest.mark.parametrize("keyword", [True, False])
def test_other_loaders(keyword: bool) -> None:
    dataset = DistDataset.from_pyg(
        Data(x=torch.zeros(10, 1), edge_index=LINKS, train_mask=EVEN), supervision=(LINKS, None)
    )
    seeds = _read(dataset, "val_node_ids")
    given = {"input_nodes": seeds} if keyword else {}
    with pytest.raises(ConfigError, match="no val split"):
        DistSubGraphLoader(dataset, **given, **HOW)
    with pytest.raises(ConfigError, match="no val split"):
        DistABLPLoader(dataset, [2], **given, **HOW)
    with pytest.raises(ConfigError, match="no val split"):  # the dataset by other weights
        DistNeighborLoader(_weighted(seeds), [2], weight_attr="edge_w", **given, **HOW)


def _weighted(seeds: Any) -> DistDataset:
    dataset = _dataset(train_mask=EVEN, edge_w=torch.ones(10))
    assert _read(dataset, "val_node_ids") is seeds is None
    return dataset


def test_by_type() -> None:
    data = HeteroData()
    data["user"].num_nodes = 10
    data["user"].train_mask = EVEN
    data["user", "to", "user"].edge_index = LINKS
    dataset = DistDataset.from_pyg(data)
    assert _read(dataset, "test_node_ids") is None
    with pytest.raises(ConfigError, match=r"no test split.*train.*input_nodes='user'"):
        DistNeighborLoader(dataset, [2], ("user", None), **HOW)
    with DistNeighborLoader(dataset, [2], "user", **HOW) as loader:  # all of them, by name
        assert sum(batch["user"].batch_size for batch in loader) == 10


def test_the_types_of_labeled_graphs_have_a_name() -> None:
    dataset = DistDataset.from_pyg(
        Data(x=torch.zeros(10, 1), edge_index=LINKS, train_mask=EVEN), supervision=(LINKS, None)
    )
    assert _read(dataset, "test_node_ids") is None
    with pytest.raises(ConfigError, match=r"=gigl_loader.DEFAULT_HOMOGENEOUS_NODE_TYPE$"):
        DistNeighborLoader(dataset, [2], **HOW)
    loader = DistNeighborLoader(dataset, [2], DEFAULT_HOMOGENEOUS_NODE_TYPE, **HOW)
    assert _seeds(loader) == list(range(10))


def test_all_nodes_are_meant_where_no_split_was_missed() -> None:
    dataset = _dataset(train_mask=EVEN)
    assert dataset.train_node_ids.tolist() == [0, 2, 4, 6, 8]
    assert dataset.known_split("test") is None  # a look, without the question
    assert _seeds(DistNeighborLoader(dataset, [2], **HOW)) == list(range(10))


def test_a_graph_without_splits_has_all_nodes() -> None:
    dataset = _dataset()
    assert [_read(dataset, f"{split}_node_ids") for split in ("train", "test")] == [None, None]
    assert _seeds(DistNeighborLoader(dataset, [2], None, **HOW)) == list(range(10))


def test_a_split_that_came_later_is_there() -> None:
    dataset = _dataset(train_mask=EVEN)
    assert _read(dataset, "test_node_ids") is None
    dataset.test_idx = torch.tensor([1, 3])
    assert _seeds(DistNeighborLoader(dataset, [2], None, **HOW)) == list(range(10))


def test_the_warning_says_what_a_loader_does() -> None:
    with pytest.warns(UserWarning, match=r"no test split.*refuses input_nodes=None") as caught:
        assert _dataset(train_mask=EVEN).test_node_ids is None
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"no test split.*takes input_nodes=None as all nodes"):
        assert _dataset().test_node_ids is None
