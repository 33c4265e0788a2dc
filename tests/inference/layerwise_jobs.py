"""What the ranks of ``test_layerwise.py`` do; a module, so that their processes can import it."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
import torch.distributed as dist
import torch_geometric.nn as pyg
from torch import Tensor

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import PeerError
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.inference.results import Results
from tests.inference import full_jobs
from tests.support.broken_groups import end_at_once

WIDTH, OUT = full_jobs.WIDTH, full_jobs.OUT
NAMES = (
    "SAGE",
    "SAGE, max",
    "GCN",
    "GCN, improved",
    "GCN, no loops",
    "GAT",
    "GATv2",
    "GIN",
    "PNA",
    "EdgeCNN",
)


def make(name: str) -> Any:
    torch.manual_seed(1)
    if name == "SAGE, batch norm, linear at the end":
        return pyg.GraphSAGE(WIDTH, 8, 3, OUT, norm="batch", jk="last").eval()
    return full_jobs.MODELS[name]().eval()


def whole(model: Any) -> Tensor:
    """Return what the model computes in one process."""
    data = full_jobs.graph()
    with torch.no_grad():
        return model(data.x, data.edge_index)


def same_as_one_process(rank: int, world: int, folder: Path) -> None:
    dataset = full_jobs.partition(full_jobs.graph(), rank, world)
    for name in (*NAMES, "SAGE, batch norm, linear at the end"):
        model = make(name)
        found: Any = full_graph_inference(model, dataset, batch_size=7, edge_weight=False)
        full_jobs.check_close(name, found.values, whole(model)[found.ids])
        assert found.path is None
    _same_in_files(rank, world, dataset, folder)


def _same_in_files(rank: int, world: int, dataset: Any, folder: Path) -> None:
    model = make("SAGE")
    found: Any = full_graph_inference(model, dataset, out=folder / "npy", batch_size=7)
    assert found.path == folder / "npy" / f"part-{rank:05d}.npy"
    full_jobs.check_close("file", torch.from_numpy(np.load(found.path)), whole(model)[found.ids])
    ids = np.load(folder / "npy" / f"part-{rank:05d}.ids.npy")
    assert torch.equal(torch.from_numpy(ids), found.ids)
    assert not list((folder / "npy").glob(f"_part-{rank:05d}.layer*"))
    if world > 1:
        dist.barrier()
    found = full_graph_inference(
        model, dataset, out=folder / "parquet", batch_size=7, format="parquet"
    )
    table = parquet.read_table(found.path)
    assert table.column("id").to_pylist() == found.ids.tolist()
    rows = torch.tensor(table.column("embedding").to_pylist()).reshape(-1, OUT)
    full_jobs.check_close("parquet", rows, whole(model)[found.ids])


def a_rank_without_nodes(rank: int, world: int, folder: Path) -> None:
    data = full_jobs.graph()
    dataset = DistDataset.from_pyg(
        data,
        partition_book=torch.zeros(60, dtype=torch.int64),
        partition_idx=rank,
        num_partitions=world,
    )
    model = make("GCN")
    for _ in range(2):  # the second time all is there
        found: Any = full_graph_inference(model, dataset, out=folder, batch_size=16)
        assert found.values.shape == ((60, OUT) if rank == 0 else (0, OUT))
        full_jobs.check_close("one has all", found.values, whole(model)[found.ids])
        dist.barrier()


def killed(rank: int, world: int, folder: Path) -> None:
    """Rank 0 kills itself after the third chunk of layer 1; the other hears of it."""
    dataset = full_jobs.partition(full_jobs.graph(), rank, world)
    note = Results.note

    def note_and_die(self: Results, layer: int, chunk: int, rows: Tensor) -> None:
        note(self, layer, chunk, rows)
        if rank == 0 and (layer, chunk) == (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)

    Results.note = note_and_die
    with pytest.raises(PeerError):
        full_graph_inference(make("SAGE"), dataset, out=folder, batch_size=3)
    end_at_once()


def resumed(rank: int, world: int, folder: Path) -> None:
    dataset = full_jobs.partition(full_jobs.graph(), rank, world)
    note, noted = Results.note, []

    def count(self: Results, layer: int, chunk: int, rows: Tensor) -> None:
        noted.append((layer, chunk))
        note(self, layer, chunk, rows)

    Results.note = count
    model = make("SAGE")
    found: Any = full_graph_inference(model, dataset, out=folder, batch_size=3)
    full_jobs.check_close("resumed", found.values, whole(model)[found.ids])
    assert all(layer == 1 for layer, _ in noted), "layer 0 was finished"
    if rank == 0:
        assert noted == [(1, chunk) for chunk in range(3, -(-len(found.ids) // 3))]
