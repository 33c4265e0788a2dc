"""What the GPU benchmark measures: names, and sizes. Needs no package."""

import json
from dataclasses import asdict, dataclass
from typing import Any

MARK = "RESULT "
"""Before the result of a case, in what its process prints."""
FOUND = "FOUND "
"""Before each finding of a programme, in what its process prints."""
LEFT_OUT = "left out"
"""In place of a result: why a case was not started. The reason begins with the same words."""
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


@dataclass(frozen=True)
class Case:
    """What is measured, and at which size."""

    name: str
    device: str
    kernels: Any
    nodes: int
    degree: int
    dim: int
    fanout: tuple[int, ...]
    batch_size: int
    warmup: int
    batches: int
    windows: int
    """Times that ``batches`` batches are measured."""
    workers: int
    hidden: int = 512

    def to_json(self) -> str:
        """Return the argument of this script."""
        return json.dumps(asdict(self))
