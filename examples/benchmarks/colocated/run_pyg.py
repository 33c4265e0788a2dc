"""Contestant: PyG's ``NeighborLoader`` and ``LinkNeighborLoader``.

They need pyg-lib or torch-sparse; with times, weights or disjoint trees, pyg-lib.
"""

import importlib
from typing import Any

import _job
import _tasks
import torch_geometric
from torch_geometric import typing
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader


def _loader(job: _job.Job) -> NeighborLoader | LinkNeighborLoader:
    """Return the task's loader with its defaults: features are gathered in the worker."""
    data, fanout = _tasks.data(job), _tasks.fanout_of(job)
    how: dict[str, Any] = {
        "batch_size": job.batch_size,
        "num_workers": job.num_workers,
        "replace": job.replace,
    }
    if job.task == "links":
        how |= {"edge_label_index": _tasks.links(job), "neg_sampling": "binary"}
        return LinkNeighborLoader(data, fanout, is_sorted=True, **how)
    if job.task == "typed":
        return NeighborLoader(data, fanout, ("type0", _tasks.typed_seeds(job)), **how)
    how["input_nodes"] = _job.seeds(job)
    if job.task == "times":  # not sorted: rows are by time in PyG, too, and it sees to it
        how |= {
            "input_time": _tasks.seed_times(job),
            "time_attr": "time",
            "temporal_strategy": job.temporal_strategy,
        }
        return NeighborLoader(data, fanout, **how)
    return NeighborLoader(data, fanout, is_sorted=True, **how, **_OPTIONS.get(job.task, {}))


_OPTIONS: dict[str, dict[str, Any]] = {
    "disjoint": {"disjoint": True},
    "weighted": {"weight_attr": "edge_weight"},
    "induced": {"subgraph_type": "induced"},
}
"""Options of a task, beside those of all."""


def run(job: _job.Job) -> dict[str, Any]:
    """Measure what ``job.task`` says."""
    result = _job.measure(_tasks.batches(_loader(job), job), job)
    backend = importlib.import_module("pyg_lib" if typing.WITH_PYG_LIB else "torch_sparse")
    used = (torch_geometric, backend)
    return {**result, "versions": {module.__name__: module.__version__ for module in used}}


if __name__ == "__main__":
    _job.report(run)
