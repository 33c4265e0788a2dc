"""What the GPU benchmark measures: names, and sizes. Needs no package."""

import os
from dataclasses import dataclass
from typing import Any

FOUND = "FOUND "
"""Before each finding of a programme, in what its process prints."""
LEFT_OUT = "left out"
"""A finding: why a case was not started. The reason begins with the same words."""
FROM_PINNED = "GB/s from pinned memory"
GATHERED = "GB/s of rows of 512 B gathered there, both ways"
"""Findings of facts.py that others are compared with."""
OWN = (
    "workers",
    "in process",
    "on the device",
    "on the device, features on the host",
    "on the device, one shape",
)
"""Our loaders."""
PEERS = ("PyG's NeighborLoader", "R-GAT, PyG's NeighborLoader")
"""Loaders of other libraries: those that can run where the GPU is."""
TRAINING = (
    "R-GAT, workers",
    "R-GAT, on the device",
    "R-GAT, on the device, one shape",
    "R-GAT, on the device, lean layers",
    "R-GAT, on the device, one shape, lean layers, the whole step as one graph",
)
"""Our loaders, with a model."""
MLPERF_FANOUT = (15, 10, 5)
"""Neighbours per hop in MLPerf's R-GAT, from the seeds on."""
SMALL: dict[str, Any] = {
    "nodes": 2000,
    "degree": 8,
    "dim": 8,
    "fanout": (3, 2),
    "batch_size": 32,
    "warmup": 2,
    "batches": 6,
    "windows": 1,
    "workers": 1,
    "hidden": 16,
}
"""Sizes of a rehearsal."""


@dataclass(frozen=True)
class Case:
    """What is measured, and at which size."""

    name: str
    device: str
    nodes: int = 2_000_000
    degree: int = 25
    dim: int = 128
    fanout: tuple[int, ...] = (15, 10)
    batch_size: int = 1024
    warmup: int = 20
    batches: int = 300
    """Most of a window."""
    windows: int = 3
    """Times that ``batches`` batches are measured."""
    workers: int = min(8, os.cpu_count() or 1)
    hidden: int = 512


def case_of(name: str, device: str) -> Case:
    """Return a case at the size of the benchmark, or of a rehearsal, which is on the CPU."""
    sizes = SMALL if device == "cpu" else {}
    if name.startswith("R-GAT"):
        nodes, dim = (600, 16) if device == "cpu" else (1_000_000, 1024)
        sizes = {**sizes, "nodes": nodes, "dim": dim, "fanout": MLPERF_FANOUT}
    return Case(name, device, **sizes)
