"""What the host does for a batch on a device, counted: launches, copies, waits and exchanges.

The host is the bound on a fast device: each operator or launch takes it some 16 us. So these
numbers are as much of the interface as the speed that follows from them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.commands.capacity.needs import SHIPPED, Costs
from gigl_loader.sampler.batch_bounds import batch_bounds
from gigl_loader.testing import run_ranks
from tests.sampler.gpu.device_counts import counted
from tests.sampler.gpu.tapes import TapedMemory

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "gpu.md"
NODES = {"paper": 400, "author": 300, "institute": 40, "topic": 50}
EDGE_TYPES = [
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("author", "writes", "paper"),
    ("author", "at", "institute"),
    ("institute", "of", "author"),
    ("paper", "about", "topic"),
    ("topic", "in", "paper"),
]
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


def _per_batch(kernels: Any, *, epochs_before: int = 0, **how: Any) -> dict[str, float]:
    placed = DistDataset.from_pyg(graph()).to("cpu", kernels=kernels)
    with DistNeighborLoader(placed, HOPS, ("paper", torch.arange(200)), **HOW, **how) as loader:
        for _ in range(epochs_before):
            list(loader)
        with counted() as counts:
            batches = len(list(loader))
    return {name: count / batches for name, count in counts.items()}


@pytest.mark.parametrize(
    ("how", "operators", "launches"),
    [({}, 105, 30), ({"disjoint": True}, 280, 30), ({"with_edge": True}, 105, 37)],
    ids=["merged", "trees", "edge ids"],
)
def test_one_device(how: dict[str, Any], operators: int, launches: int) -> None:
    """With a label for each edge type there were 718 operators and 69 launches, by this counter."""
    found = _per_batch("warp", **how)
    assert 0 < found["operators"] <= operators
    assert found["launches"] == launches >= EXPANDED + LABELLED + FEATURES
    assert found["draws"] == EXPANDED
    assert found["uploads"] == found["downloads"] == found["waits"] == 1
    assert "swaps" not in found


def test_replays(memory_of_devices: Callable[[type[DeviceMemory]], None]) -> None:
    """For a replayed batch the host launches the graph, copies of its results, and the rows."""
    memory_of_devices(TapedMemory)
    found = _per_batch("warp", epochs_before=1)
    assert "draws" not in found
    assert found["launches"] == FEATURES, "which torch gathers on a GPU"
    assert 0 < found["operators"] <= 23
    assert found["downloads"] == found["waits"] == 1
    seconds = (found["operators"] + found["launches"] + 1) * 16.5e-6
    page = " ".join(PAGE.read_text().split())
    counts = f"{found['operators']:.0f} operators, 5 of Warp and one CUDA graph."
    assert f"{counts} At 16.5 us each" in page
    assert f"and {seconds * 1e3:.1f} ms." in page


def _of_a_rank(rank: int, size: int, folder: Path) -> None:
    if rank == 0:
        partition_graph(graph(), size, folder / "parts")
    dist.barrier()
    for edges in ("own", "all"):
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
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.wide), 3])
def test_partitions_on_several_devices(size: int, tmp_path: Path) -> None:
    """As many draws, waits and exchanges for any number of ranks."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(_of_a_rank, tmp_path, world_size=size, tmp_path=ranks, timeout=300)
    wanted = {
        "own": {"operators": 551, "launches": 35, "waits": 6, "meetings": 9, "swaps": 12}
        | {"numbers": 14_300},  # 23,200 with those for places of no node
        "all": {"operators": 158, "launches": 35, "waits": 3, "meetings": 3, "swaps": 6}
        | {"numbers": 7_500},
    }
    for edges, limits in wanted.items():
        for rank in range(size):
            found = json.loads((tmp_path / f"{edges} of rank {rank}.json").read_text())
            assert found["draws"] <= EXPANDED, "one for the nodes of all ranks"
            over = {name: found[name] for name, most in limits.items() if found[name] > most}
            assert not over, (edges, rank)


def test_the_page_computes_with_these_numbers() -> None:
    """Speeds on paper: what a batch of R-GAT moves, by bandwidths, in milliseconds."""
    page = " ".join(PAGE.read_text().split())
    per_batch, seeds, nodes, edges, row = _per_batch("warp"), 1024, 828_000, 1_950_000, 2048
    igbh = {"paper": 269_346_174, "author": 277_220_883, "institute": 26_918, "topic": 712_960}
    fanouts = {name: (15, 10, 5) for name in EDGE_TYPES}
    bounds = batch_bounds(fanouts, {"paper": seeds}, igbh, edge_dir="in")
    places, labels = sum(bounds.edges.values()), sum(bounds.nodes.values())
    # A place: 230 bytes in order, and sectors of 32 for the neighbour, the key's position in the
    # table (tested, set, compared, set), and its smallest place, read twice. A label: its part of
    # the table, in each hop.
    drawn = places * (230 + 6 * 32) + len(HOPS) * labels * 32
    rows = nodes * row
    memory, bus = 0.6 * 3.35e12, 55e9
    host = (per_batch["operators"] + per_batch["launches"]) * 16.5e-6
    on_device = max(host, (drawn + 2 * rows) / memory)
    cost = Costs.read(SHIPPED)
    core = cost.batch_s + edges * cost.edge_s + nodes * cost.node_s + rows * cost.row_byte_s
    for seconds, said in ((on_device, "4.2 ms"), (rows / bus, "31 ms"), (core / 8, "50 ms")):
        speed = float(f"{seeds / seconds:.2g}")
        assert f"| {said} | {speed:,.0f} |" in page
        assert float(said.split()[0]) == pytest.approx(seconds * 1e3, rel=0.02)
    counts = f"{per_batch['operators']:.0f} operators of torch and {per_batch['launches']:.0f} of"
    assert counts in page
    assert f"{drawn / 1e9:.1f} GB for draws and labels, {2 * rows / 1e9:.1f} GB for rows" in page
    assert f"At 16.5 us each, that is computed to {host * 1e3:.1f} ms" in page
    budget = seeds / 46_000
    assert f"leave {budget * 1e3:.0f} ms for a batch" in page
    assert f"leave {(budget - on_device) * 1e3:.0f} ms of it to the model" in page
    assert f"keep {1 - budget / (rows / bus):.0%} of the rows" in page
