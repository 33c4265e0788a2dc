"""Contestant: PyG's ``NeighborLoader`` and ``LinkNeighborLoader``.

They need pyg-lib or torch-sparse; with times, pyg-lib.
"""

import importlib
from typing import Any

import _job
import _tasks
import numpy as np
import torch
import torch_geometric
from torch_geometric import typing
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader


def _data(job: _job.Job) -> Data:
    arrays = job.graph
    nodes = arrays.indptr.size - 1
    target = np.repeat(np.arange(nodes), np.diff(arrays.indptr))
    data = Data(
        x=torch.from_numpy(np.array(arrays.x)),
        edge_index=torch.from_numpy(np.stack([arrays.indices, target])),
        num_nodes=nodes,
    )
    if job.task == "times":
        data.time = _tasks.edge_times(job)
    return data


def _loader(job: _job.Job) -> NeighborLoader | LinkNeighborLoader:
    """Return the task's loader with its defaults: features are gathered in the worker."""
    how: dict[str, Any] = {
        "batch_size": job.batch_size,
        "num_workers": job.num_workers,
        "replace": job.replace,
    }
    if job.task == "links":
        how |= {"edge_label_index": _tasks.links(job), "neg_sampling": "binary"}
        return LinkNeighborLoader(_data(job), job.fanout, is_sorted=True, **how)
    how["input_nodes"] = _job.seeds(job)
    if job.task == "times":  # not sorted: rows are by time in PyG, too, and it sees to it
        how |= {
            "input_time": _tasks.seed_times(job),
            "time_attr": "time",
            "temporal_strategy": job.temporal_strategy,
        }
        return NeighborLoader(_data(job), job.fanout, **how)
    return NeighborLoader(_data(job), job.fanout, is_sorted=True, **how)


def run(job: _job.Job) -> dict[str, Any]:
    """Measure what ``job.task`` says."""
    result = _job.measure(_tasks.batches(_loader(job), job), job)
    backend = importlib.import_module("pyg_lib" if typing.WITH_PYG_LIB else "torch_sparse")
    used = (torch_geometric, backend)
    return {**result, "versions": {module.__name__: module.__version__ for module in used}}


if __name__ == "__main__":
    _job.report(run)
