"""A run of three layers that notes what it computes, and breaks off on request."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from gigl_loader import DistDataset, full_graph_inference
from gigl_loader.errors import PeerError
from tests.support.broken_groups import end_at_once

NUM_NODES, NUM_LAYERS, WORLD = 20, 3, 2


def graph() -> Data:
    ids = torch.arange(NUM_NODES)
    edges = torch.stack([ids.repeat(2), torch.cat([(ids + 1) % NUM_NODES, (ids * 3) % NUM_NODES])])
    return Data(x=torch.stack([ids, ids * ids % 7], 1).float(), edge_index=edges)


def expected() -> Tensor:
    """Return what the layers give, by the matrix of the whole graph: integers, so exactly."""
    data = graph()
    src, dst = data.edge_index
    matrix = torch.eye(NUM_NODES)
    matrix.index_put_((dst, src), torch.ones(len(src)), accumulate=True)
    return torch.linalg.matrix_power(matrix, NUM_LAYERS) @ data.x


def layers(begins: Callable[[int], None]) -> list[Any]:
    """Return layers that add the rows of in-neighbours; each first calls ``begins``."""

    def layer(index: int) -> Any:
        def compute(x: Tensor, edge_index: Tensor, num_dst: int) -> Tensor:
            begins(index)
            return x[:num_dst].clone().index_add_(0, edge_index[1], x[edge_index[0]])

        return compute

    return [layer(index) for index in range(NUM_LAYERS)]


def infer(rank: int, world: int, folder: Path, name: str, url: str, victim: int) -> None:
    """Write results to ``url``; ``victim`` is killed in the second layer.

    ``folder/cache<rank>`` is the cache of the rank's machine, and ``folder/<name><rank>`` has the
    layers that the rank began to compute, a digit for each chunk.
    """
    os.environ["GIGL_LOADER_CACHE_DIR"] = str(folder / f"cache{rank}")

    def begins(layer: int) -> None:
        if rank == victim and layer == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with (folder / f"{name}{rank}").open("a") as file:
            file.write(str(layer))

    book = torch.arange(NUM_NODES) % world
    dataset = DistDataset.from_pyg(
        graph(), partition_book=book, partition_idx=rank, num_partitions=world
    )
    with contextlib.suppress(PeerError):
        full_graph_inference(layers(begins), dataset, out=url, batch_size=4, progress=False)
    end_at_once()
