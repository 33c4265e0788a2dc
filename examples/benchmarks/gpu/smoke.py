"""Eight ways from a graph to batches on the device: each has the bits of the CPU's batches.

``--part bits`` is one of them, small, by each kind of kernels; ``--part ranks`` two ranks on one
device, which exchange partitions with gloo: all that a single GPU shows of several.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from _cases import plain_graph, typed_graph
from _findings import Programme
from _sizes import case_of
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, PPRSamplerOptions
from gigl_loader.sampler.gpu.kernel_choice import kinds_on
from gigl_loader.testing import batch_digest, run_ranks

SEEDS, FANOUT = 192, [4, 3]
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
    """Return a graph of the benchmark's rehearsal, with times and weights."""
    data = typed_graph(case_of("R-GAT", "cpu")) if typed else plain_graph(case_of("", "cpu"))
    for store in data.edge_stores:
        store.edge_weight = torch.rand(store.num_edges, generator=torch.Generator().manual_seed(1))
        if typed:
            store.time = torch.arange(store.num_edges) * 11 % 50
    for store in data.node_stores:
        store.time = torch.arange(store.num_nodes) * 7 % 50
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
    typed, _, given = WAYS[way]
    how = dict(given)
    placed = {name: how.pop(name) for name in ("features", "cache") if name in how}
    dataset, nodes = DistDataset.from_pyg(graph(typed), time_attr="time"), torch.arange(SEEDS)
    if kernels is not None:
        dataset = dataset.to(device, kernels=kernels, **placed)
    seeds = ("paper", nodes) if typed else nodes
    if default_device is not None:
        torch.set_default_device(default_device)
    return _digests(dataset, seeds, device, **how)


def _digests(dataset: DistDataset, seeds: Any, device: str, **how: Any) -> list[str]:
    how = {"num_workers": 0, "pin_memory_device": torch.device(device), **how}
    loader = DistNeighborLoader(
        dataset, FANOUT, seeds, batch_size=16, seed=2026, shuffle=True, **how
    )
    with loader:
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
    book = torch.arange(data.num_nodes) * size // data.num_nodes
    part = DistDataset.from_pyg(data, partition_book=book, partition_idx=rank)
    known = _digests(DistDataset.from_pyg(data), nodes, "cpu")
    found = _digests(part.to(device, kernels=kernels), nodes, device, exchange="collective")
    assert found == known, f"rank {rank}: batches differ from those of the whole graph"


def two_ranks(device: str, kernels: Any) -> str:
    """Let two ranks with a partition each, on one device, have the batches of the whole graph."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(_rank, device, kernels, world_size=2, tmp_path=Path(folder), timeout=150)
    return "each rank has the batches of the whole graph"


def main() -> int:
    """Compare; return the exit status."""
    run = Programme(__doc__)
    kinds: list[Any] = kinds_on(torch.device(run.device))
    if run.part == "ranks":
        for kernels in kinds:
            run.attempt(f"two ranks, {kernels}", two_ranks, run.device, kernels)
        return int(run.failed)
    for way, (_, there, _) in WAYS.items():
        if not run.part or (run.part == "bits") == (way == "on the device"):
            for kernels in kinds if there else [None]:
                run.attempt(f"{way}, {kernels or 'host'}", compared, way, run.device, kernels)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
