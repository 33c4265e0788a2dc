"""A script whose default device has no memory: what this package makes must name its device.

``python -m tests.default_device_jobs DEVICE FOLDER`` prints, as JSON, the digests of what it has
computed. Tensors of the script itself are made before the default changes, as those that a user
has read from a file.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from gigl_loader import DistDataset, DistNeighborLoader, full_graph_inference, partition_graph
from gigl_loader.testing import batch_digest
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES

WITH_WORKER = ["nodes", "typed nodes", "links, binary", "anchors", "nodes, ppr"]


def digest_of(values: Tensor) -> str:
    assert values.device.type == "cpu", values.device
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()


def results(device: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each result by its name."""
    graphs = {typed: cases.graph(typed) for typed in (False, True)}
    seeds = {name: case.seeds() for name, case in CASES.items()}
    pairs = cases.pairs()
    supervised = (pairs, pairs.roll(3, 1))
    split = {"train_mask": torch.arange(cases.NODES) % 3 > 0}
    model = torch.nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).view(2, 3))
    torch.set_default_device(device)

    datasets = {}
    for typed, data in graphs.items():
        for edge_dir in ("in", "out"):
            datasets[typed, edge_dir] = DistDataset.from_pyg(
                data,
                edge_dir=edge_dir,
                time_attr="time",
                supervision={cases.RELATIONS[0]: supervised} if typed else supervised,
            )
    for name, case in CASES.items():
        for workers in (0, 1) if name in WITH_WORKER else (0,):
            dataset = datasets[case.typed, case.edge_dir]
            with case.make(dataset, seeds[name], num_workers=workers) as loader:
                yield f"{name}, {workers} workers", cases.digest_of(cases.digests(loader))

    data = graphs[False].clone()
    data.update(split)
    dataset = DistDataset.from_pyg(data)
    with DistNeighborLoader(dataset, [4, 3], num_workers=0, seed=1, pad=True) as loader:
        yield "padded", batch_digest(next(iter(loader)))
    with DistNeighborLoader(dataset, [4, 3], num_workers=0, seed=1) as loader:
        yield "collated", batch_digest(loader.collate([5, 3]))
    yield "rows", digest_of(dataset.get_features(dataset.node_ids[3:8]))
    yield "weights", digest_of(dataset.edge_weights)
    yield "degrees", digest_of(dataset.degree_tensor)

    for method in ("contiguous", "random"):
        partition_graph(data, 2, folder / method, method=method, progress=False)
        parts = [DistDataset.load(folder / method, part) for part in range(2)]
        yield f"{method}, train", digest_of(parts[1].train_node_ids)
    partition_graph(graphs[True], 1, folder / "typed", progress=False)
    for mapped in (False, True):
        dataset = DistDataset.load(folder / "typed", 0, mmap=mapped)
        with CASES["typed nodes"].make(dataset, seeds["typed nodes"], num_workers=0) as loader:
            yield f"mapped: {mapped}", cases.digest_of(cases.digests(loader))

    layers = [lambda x, edge_index, num_dst: model(x[:num_dst])]
    found = full_graph_inference(layers, DistDataset.from_pyg(data), device="cpu", progress=False)
    yield "inference", digest_of(found.values)


if __name__ == "__main__":
    print(json.dumps(dict(results(sys.argv[1], Path(sys.argv[2])))))
