"""Contestant: DGL's GraphBolt. A subprocess samples; the main process gathers features."""

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")

import _job
import dgl
import dgl.graphbolt as gb
import numpy as np
import torch


def _batches(loader: Any) -> Iterator[_job.Batch]:
    for batch in loader:
        x = batch.node_features["x"]
        # GraphBolt keeps one matrix per hop: join them, the outermost hop last, as the others do
        hops = [layer.sampled_csc for layer in reversed(batch.sampled_subgraphs)]
        parts = []
        for csc in hops:
            target = torch.repeat_interleave(csc.indptr.diff())
            parts.append(torch.stack([csc.indices, target]))
        yield [x], [torch.cat(parts, dim=1)]


def run(job: _job.Job) -> dict[str, Any]:
    """Measure the data pipe of GraphBolt's tutorials."""
    arrays = job.graph
    graph = gb.fused_csc_sampling_graph(
        torch.from_numpy(np.array(arrays.indptr)), torch.from_numpy(np.array(arrays.indices))
    )
    features = gb.BasicFeatureStore(
        {("node", None, "x"): gb.TorchBasedFeature(torch.from_numpy(np.array(arrays.x)))}
    )
    items = gb.ItemSet(_job.seeds(job), names="seed_nodes")
    pipe = gb.ItemSampler(items, batch_size=job.batch_size)
    draw = pipe.sample_layer_neighbor if job.task == "labor" else pipe.sample_neighbor
    pipe = draw(graph, list(reversed(job.fanout)), replace=job.replace)
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    loader = gb.DataLoader(pipe, num_workers=job.num_workers)
    return {**_job.measure(_batches(loader), job), "versions": {"dgl": dgl.__version__}}


if __name__ == "__main__":
    _job.report(run)
