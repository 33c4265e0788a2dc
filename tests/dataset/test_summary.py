"""What people look at first: counts, feature sizes, and a table of both."""

import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset

RING = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])


def test_a_graph_of_one_type() -> None:
    mask = torch.tensor([True, True, False, False, False, False])
    data = Data(x=torch.ones(6, 3), y=torch.arange(6), edge_index=RING, train_mask=mask)
    dataset = DistDataset.from_pyg(data)
    assert (dataset.num_edges, dataset.num_features) == (6, 3)
    assert dataset.summary().splitlines() == [
        "partition 0 of 1",
        "",
        "nodes  count  here          x      y  train  val  test",
        "all        6     6  3 float32  int64      2    -     -",
        "",
        "edges  here  edge_attr  weights",
        "all       6          -        -",
    ]


def test_a_graph_with_types() -> None:
    data = HeteroData()
    data["paper"].x = torch.ones(6, 3, dtype=torch.float16)
    data["author"].num_nodes = 2
    data["paper", "cites", "paper"].edge_index = RING
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [3, 4]])
    data["author", "writes", "paper"].edge_attr = torch.ones(2, 5)
    dataset = DistDataset.from_pyg(data)
    assert dataset.num_edges == {("paper", "cites", "paper"): 6, ("author", "writes", "paper"): 2}
    assert dataset.num_features == {"paper": 3}
    assert dataset.summary().splitlines() == [
        "partition 0 of 1",
        "",
        "nodes   count  here          x  y  train  val  test",
        "paper       6     6  3 float16  -      -    -     -",
        "author      2     2          -  -      -    -     -",
        "",
        "edges                  here  edge_attr  weights",
        "paper__cites__paper       6          -        -",
        "author__writes__paper     2  5 float32        -",
    ]


def test_one_of_two_partitions_says_what_it_has() -> None:
    dataset = DistDataset.from_pyg(
        Data(edge_index=RING, num_nodes=6),
        partition_book=torch.tensor([0, 0, 0, 0, 1, 1]),
        partition_idx=1,
        num_partitions=2,
    )
    assert dataset.num_edges == 2
    assert dataset.num_features == 0
    text = dataset.summary().splitlines()
    assert text[0] == "partition 1 of 2"
    assert text[3].split()[:3] == ["all", "6", "2"]
