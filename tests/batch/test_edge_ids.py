"""`batch.e_id` of a batch without edge ids, which stays a batch of PyG in all else."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch_geometric import transforms
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.storage import EdgeStorage, GlobalStorage

from gigl_loader import DistDataset, DistNeighborLoader, UsageError

HOW: dict[str, Any] = {"num_workers": 0, "batch_size": 4}
BUYS, LIKES = ("user", "buys", "item"), ("user", "likes", "item")


def _graph() -> Data:
    return Data(x=torch.arange(20.0).view(20, 1), edge_index=torch.arange(40).view(2, 20) % 20)


def _typed() -> HeteroData:
    data = HeteroData()
    data["user"].x = data["item"].x = torch.arange(9.0).view(9, 1)
    for edge_type in (BUYS, LIKES):
        data[edge_type].edge_index = torch.arange(9).repeat(2, 1)
    return data


def _first(data: Any, seeds: Any, **how: Any) -> Any:
    with DistNeighborLoader(DistDataset.from_pyg(data), [2], seeds, **{**HOW, **how}) as loader:
        return next(iter(loader))


def _check_missing(store: Any) -> None:
    for name in ("e_id", "edge"):
        text = f"this batch has no '{name}'.*with_edge=True of the loader"
        for kind in (UsageError, AttributeError):
            with pytest.raises(kind, match=text):
                getattr(store, name)
        assert not hasattr(store, name)
        assert getattr(store, name, 7) == 7
        assert name not in store
    with pytest.raises(AttributeError, match=r"'(Global|Edge)Storage' object has no attribute 'z'"):
        _ = store.z


def test_it_is_an_error_that_names_the_keyword() -> None:
    batch = _first(_graph(), torch.arange(8))
    assert type(batch) is Data
    _check_missing(batch)
    batch.e_id = torch.arange(3)
    assert batch.e_id.tolist() == [0, 1, 2]
    typed = _first(_typed(), ("item", torch.arange(8)))
    assert type(typed) is HeteroData
    for edge_type in (BUYS, LIKES):
        _check_missing(typed[edge_type])
    with pytest.raises(AttributeError):
        _ = typed["user"].z


def test_with_edge_ids_all_is_pygs() -> None:
    for data, seeds in ((_graph(), torch.arange(8)), (_typed(), ("item", torch.arange(8)))):
        batch = _first(data, seeds, with_edge=True)
        assert all(type(store) in (EdgeStorage, GlobalStorage) for store in batch.edge_stores)
        assert all(store.e_id.equal(store.edge) for store in batch.edge_stores)


@pytest.mark.parametrize(
    ("data", "seeds"), [(_graph(), torch.arange(8)), (_typed(), ("item", torch.arange(8)))]
)
def test_it_is_copied_and_pickled_as_pygs(data: Any, seeds: Any) -> None:
    batch, file = _first(data, seeds), io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    for again in (pickle.loads(pickle.dumps(batch)), torch.load(file, weights_only=False)):
        assert type(again) is type(batch)
        assert all(type(store) in (EdgeStorage, GlobalStorage) for store in again.edge_stores)
        assert again.to_dict().keys() == batch.to_dict().keys()
        assert str(again) == str(batch)
    assert b"gigl_loader" not in pickle.dumps(batch), "whoever reads it may not have it"
    for copied in (copy.copy(batch), copy.deepcopy(batch), batch.clone()):
        assert str(copied) == str(batch)
        _check_missing(copied.edge_stores[0])


def test_pygs_functions_take_it() -> None:
    batch = _first(_graph(), torch.arange(8))
    two = Batch.from_data_list([batch, batch])
    assert two.num_nodes == 2 * batch.num_nodes
    assert two.get_example(1).x.equal(batch.x)
    both = transforms.ToUndirected()(copy.copy(batch))
    looped = transforms.AddSelfLoops()(copy.copy(batch))
    assert both.num_edges >= batch.num_edges
    assert looped.num_edges == batch.num_edges + batch.num_nodes
    typed = _first(_typed(), ("item", torch.arange(8)))
    assert typed.to_homogeneous().num_edges == typed.num_edges
    assert typed.edge_type_subgraph([BUYS]).edge_types == [BUYS]
    assert ("item", "rev_buys", "user") in transforms.ToUndirected()(typed).edge_types
