"""Eight ways from a graph to batches on the device: each has the bits of the CPU's batches.

``--part bits`` is one of them, small, by each kind of kernels; ``--part ranks`` two ranks on one
device, which exchange partitions with gloo: all that a single GPU shows of several.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from _findings import Programme
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, PPRSamplerOptions
from gigl_loader.testing import batch_digest, run_ranks

NODES, DEGREE, SEEDS, FANOUT = 2000, 9, 192, [4, 3]
ONE: dict[str, Any] = {"batch_size": 16, "seed": 2026, "shuffle": True}
RELATIONS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")
WAYS: dict[str, tuple[bool, bool, dict[str, Any]]] = {
    "workers": (False, False, {"num_workers": 2}),
    "on the device": (False, True, {}),
    "padded": (False, True, {"pad": True}),
    "by PageRank": (
        False,
        False,
        {"num_workers": 1, "sampler_options": PPRSamplerOptions(max_ppr_nodes=9)},
    ),
    "typed": (True, True, {}),
    "by time": (False, True, {"time_attr": "time", "input_time": torch.arange(SEEDS) % 50}),
    "weighted": (False, True, {"with_weight": True}),
    "features on the host": (True, True, {"features": "host", "cache": "30%"}),
}
"""By name: whether nodes have types; whether the device samples; keywords."""


def graph(typed: bool) -> Data | HeteroData:
    """Return a graph; few nodes have most of the edges."""
    made, data = torch.Generator().manual_seed(1), HeteroData() if typed else Data()
    for name in ("user", "item") if typed else ("",):
        store = data[name] if typed else data
        store.x, store.y = torch.rand(NODES, 16, generator=made), torch.arange(NODES) % 5
        store.time = torch.arange(NODES) * 7 % 50
    for relation in RELATIONS if typed else ("",):
        store = data[relation] if typed else data
        ends = torch.rand(2, NODES * DEGREE, generator=made) ** 2 * NODES
        store.edge_index = ends.long()
        store.edge_weight = torch.rand(NODES * DEGREE, generator=made)
        if typed:
            store.time = torch.arange(NODES * DEGREE) * 11 % 50
    return data


def batches(
    way: str, device: str, kernels: Any = None, default_device: str | None = None
) -> list[str]:
    """Return digests of two epochs on a device.

    Args:
        way: Of `WAYS`.
        device: Where batches are.
        kernels: Of the device; None: the host samples.
        default_device: What the user's script sets behind its data, for good.
    """
    typed, _, how = WAYS[way]
    how = {"num_workers": 0, **how}
    placed = {name: how.pop(name) for name in ("features", "cache") if name in how}
    dataset, nodes = DistDataset.from_pyg(graph(typed), time_attr="time"), torch.arange(SEEDS)
    if kernels is not None:
        dataset = dataset.to(device, kernels=kernels, **placed)
    seeds = ("user", nodes) if typed else nodes
    how |= {**ONE, "pin_memory_device": torch.device(device)}
    if default_device is not None:
        torch.set_default_device(default_device)
    with DistNeighborLoader(dataset, FANOUT, seeds, **how) as loader:
        return [batch_digest(batch) for _ in range(2) for batch in loader]


def compared(way: str, device: str, kernels: Any) -> str:
    """Return how many batches have the bits of the CPU's.

    Raises:
        RuntimeError: Not all have.
    """
    known, found = batches(way, "cpu"), batches(way, device, kernels)
    wrong = [at for at, pair in enumerate(zip(known, found, strict=False)) if pair[0] != pair[1]]
    if wrong or len(known) != len(found):
        raise RuntimeError(f"{len(found)} of {len(known)} batches came, {wrong} differ")
    return f"{len(found)} batches have the bits of the CPU"


def _rank(rank: int, size: int, device: str, kernels: Any) -> None:
    data, nodes = graph(False), torch.arange(SEEDS)[rank::size].clone()
    book = torch.arange(NODES) * size // NODES
    part = DistDataset.from_pyg(data, partition_book=book, partition_idx=rank)
    found = []
    for dataset, more in (
        (DistDataset.from_pyg(data), {"pin_memory_device": torch.device("cpu")}),
        (
            part.to(device, kernels=kernels),
            {"pin_memory_device": torch.device(device), "exchange": "collective"},
        ),
    ):
        with DistNeighborLoader(dataset, FANOUT, nodes, num_workers=0, **ONE, **more) as loader:
            found.append([batch_digest(batch) for _ in range(2) for batch in loader])
    assert found[0] == found[1], f"rank {rank}: batches differ from those of the whole graph"


def two_ranks(device: str, kernels: Any) -> str:
    """Let two ranks with a partition each, on one device, have the batches of the whole graph."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_rank, device, kernels, world_size=2, tmp_path=Path(folder), timeout=150)
    return "each rank has the batches of the whole graph"


def main() -> int:
    """Compare; return the exit status."""
    run = Programme(__doc__)
    if run.part == "ranks":
        for kernels in run.kernels:
            run.attempt(f"two ranks, {kernels}", two_ranks, run.device, kernels)
        return int(run.failed)
    for way, (_, there, _) in WAYS.items():
        if run.part is None or (run.part == "bits") == (way == "on the device"):
            for kernels in run.kernels if there else [None]:
                run.attempt(f"{way}, {kernels or 'host'}", compared, way, run.device, kernels)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
