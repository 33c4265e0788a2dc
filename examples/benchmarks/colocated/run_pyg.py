"""Contestant: PyG's ``NeighborLoader``. It needs pyg-lib or torch-sparse."""

from collections.abc import Iterator
from typing import Any

import _job
import numpy as np
import torch
import torch_geometric
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader


def _batches(loader: NeighborLoader) -> Iterator[_job.Batch]:
    for data in loader:
        yield data.x, data.edge_index


def run(job: _job.Job) -> dict[str, Any]:
    """Measure with the loader's defaults: features are gathered in the worker."""
    arrays = job.graph
    nodes = arrays.indptr.size - 1
    target = np.repeat(np.arange(nodes), np.diff(arrays.indptr))
    data = Data(
        x=torch.from_numpy(np.array(arrays.x)),
        edge_index=torch.from_numpy(np.stack([arrays.indices, target])),
        num_nodes=nodes,
    )
    loader = NeighborLoader(
        data,
        job.fanout,
        _job.seeds(job),
        batch_size=job.batch_size,
        replace=job.replace,
        num_workers=job.num_workers,
        is_sorted=True,
    )
    versions = {"torch_geometric": torch_geometric.__version__}
    return {**_job.measure(_batches(loader), job), "versions": versions}


if __name__ == "__main__":
    _job.report(run)
