"""The graphs of the examples: one that comes with scikit-learn, and Cora from PyG's raw files."""

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

NEIGHBORS = 8


def load_graph(name: str, root: str | None) -> Data:
    """Return ``digits`` or ``cora`` with ``train_mask``, ``val_mask`` and ``test_mask``."""
    if name == "digits":
        return digits()
    if root is None:
        raise SystemExit("--dataset cora needs --root DIR, the folder that holds Cora/raw")
    return cora(root)


def digits() -> Data:
    """Return 1,797 images of handwritten digits, each joined to the 8 that look most alike.

    Pixels are the features, the digit is the label; the split is 60, 20 and 20%.
    """
    from sklearn.datasets import load_digits

    images = load_digits()
    near = nearest(torch.from_numpy(images.data), NEIGHBORS)
    image = torch.arange(len(near)).repeat_interleave(NEIGHBORS)
    data = Data(
        x=torch.from_numpy(images.data).float() / 16,
        y=torch.from_numpy(images.target).long(),
        edge_index=torch.stack([near.reshape(-1), image]),
    )
    order = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(0))
    train, val = int(0.6 * len(order)), int(0.8 * len(order))
    for split, ids in zip(("train", "val", "test"), order.tensor_split([train, val]), strict=True):
        mask = torch.zeros(len(order), dtype=torch.bool)
        mask[ids] = True
        data[f"{split}_mask"] = mask
    return data


def nearest(points: Tensor, number: int) -> Tensor:
    """Return ``[num_points, number]``, the nearest other points of each, the lower id of a tie.

    Pixels are whole numbers, and so are squared distances: exact in float64. Were ties left to the
    library, another number of threads would give another graph.
    """
    squares = points.pow(2).sum(dim=1)
    distances = squares[:, None] + squares[None, :] - 2 * points @ points.t()
    distances.fill_diagonal_(float("inf"))
    return distances.sort(dim=1, stable=True).indices[:, :number]


def cora(root: str) -> Data:
    """Return Cora with its public split, read from ``root/Cora/raw``; writes nothing there."""
    from torch_geometric.io import read_planetoid_data
    from torch_geometric.transforms import NormalizeFeatures

    raw = Path(root) / "Cora" / "raw"
    if not (raw / "ind.cora.x").is_file():
        raise SystemExit(f"no Planetoid files in {raw}: --root must hold Cora/raw/ind.cora.x, ...")
    return NormalizeFeatures()(read_planetoid_data(str(raw), "cora"))
