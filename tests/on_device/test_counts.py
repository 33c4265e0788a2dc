"""What the host does for a batch on a device, counted: launches, copies, waits and exchanges.

The host is the bound on a fast device: each operator or launch takes it some 10 to 20 us. So these
numbers are as much of the interface as the speed that follows from them.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from device_counts import counted
from torch_geometric.data import HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.testing import run_ranks

NODES = {"paper": 400, "author": 300, "institute": 40, "topic": 50}
EDGE_TYPES = [
    ("paper", "cites", "paper"), ("paper", "written_by", "author"), ("author", "writes", "paper"),
    ("author", "at", "institute"), ("institute", "of", "author"), ("paper", "about", "topic"),
    ("topic", "in", "paper"),
]  # fmt: skip
HOPS = [5, 4, 3]
HOW: dict[str, Any] = {"batch_size": 20, "num_workers": 0, "seed": 1}


def graph() -> HeteroData:
    """Return a graph of the types of MLPerf's R-GAT: four of nodes and seven of edges."""
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    for name, count in NODES.items():
        data[name].x = torch.rand(count, 8, generator=draw)
    data["paper"].y = torch.arange(NODES["paper"])
    for edge_type in EDGE_TYPES:
        ends = [torch.randint(NODES[edge_type[at]], (2000,), generator=draw) for at in (0, 2)]
        data[edge_type].edge_index = torch.stack(ends)
    return data


EXPANDED = 3 + 6 + 7
"""Edge types with nodes to expand, hop by hop: first those that lead to papers, at last all."""
LABELLED = 3 * len(HOPS)
"""Launches of Warp's for labels."""
FEATURES = len(NODES) + 1
"""Matrices of a batch: features of each type and labels. On a GPU torch gathers them."""


def _per_batch(kernels: Any, **how: Any) -> dict[str, float]:
    placed = DistDataset.from_pyg(graph()).to("cpu", kernels=kernels)
    with (
        DistNeighborLoader(placed, HOPS, ("paper", torch.arange(200)), **HOW, **how) as loader,
        counted() as counts,
    ):
        batches = len(list(loader))
    return {name: count / batches for name, count in counts.items()}


@pytest.mark.parametrize(
    ("how", "operators", "launches"),
    [({}, 105, 30), ({"replace": True}, 105, 30), ({"disjoint": True}, 280, 30),
     ({"with_edge": True}, 105, 37)],
    ids=["merged", "replace", "trees", "edge ids"],
)  # fmt: skip
def test_one_device(how: dict[str, Any], operators: int, launches: int) -> None:
    """With a label for each edge type there were 718 operators and 69 launches, by this counter."""
    found = _per_batch("warp", **how)
    assert 0 < found["operators"] <= operators
    assert found["launches"] == launches >= EXPANDED + LABELLED + FEATURES
    assert found["draws"] == EXPANDED
    assert found["uploads"] == found["downloads"] == found["waits"] == 1
    assert "swaps" not in found


def test_without_warp_a_draw_is_still_one_draw() -> None:
    found = _per_batch("torch")
    assert "launches" not in found
    assert found["draws"] == EXPANDED


def _of_a_rank(rank: int, size: int, folder: Path) -> None:
    if rank == 0:
        partition_graph(graph(), size, folder / "parts")
    dist.barrier()
    for edges in ("own", "whole"):
        dataset = DistDataset.load(folder / "parts", rank).to("cpu", kernels="warp", edges=edges)
        seeds = ("paper", torch.arange(rank, 200, size))
        with (
            DistNeighborLoader(dataset, HOPS, seeds, exchange="collective", **HOW) as loader,
            counted() as counts,
        ):
            batches = len(list(loader))
        note = {name: count / batches for name, count in counts.items()}
        (folder / f"{edges} of rank {rank}.json").write_text(json.dumps(note))


@pytest.mark.multiprocess
@pytest.mark.parametrize("size", [2, 3])
def test_partitions_on_several_devices(size: int, tmp_path: Path) -> None:
    """As many draws, waits and exchanges for any number of ranks."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(_of_a_rank, tmp_path, world_size=size, tmp_path=ranks, timeout=300)
    for edges, exchanges, waits in (("own", len(HOPS) + 1, 6), ("whole", 1, 3)):
        for rank in range(size):
            found = json.loads((tmp_path / f"{edges} of rank {rank}.json").read_text())
            assert found["draws"] <= EXPANDED, "one for the nodes of all ranks"
            assert found["waits"] <= waits, "once in each exchange, for counts, and at the end"
            rows = FEATURES - 1  # ids of rows go once, and then each matrix that is split
            assert found["swaps"] <= 2 * (exchanges - 1) + 1 + rows + 1
            assert found["meetings"] <= 2 * exchanges + 1
