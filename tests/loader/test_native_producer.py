"""graphlearn-torch's own producer and channel through `BaseDistLoader`: its native library samples.

`make test-native` has a torch under which that library loads; elsewhere these are left out by name.
"""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from gigl_loader import BaseDistLoader, DistDataset
from gigl_loader.testing import TinyGraph
from tests.loader.test_other_producers import NUM_SEEDS, parts
from tests.support.glt import NodeSamplerInput, native_available

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.usefixtures("group"),
    pytest.mark.skipif(not native_available, reason="graphlearn-torch's library does not load"),
]

GRAPH = TinyGraph.random(60, 400, seed=5)


def _loader(dataset: DistDataset, seeds: Any, *, workers: int, **config: Any) -> BaseDistLoader:
    from graphlearn_torch.channel import ShmChannel
    from graphlearn_torch.distributed import DistMpSamplingProducer

    made = parts(dataset, **config)
    made["sampler_input"] = seeds
    options = made["worker_options"]
    options.num_workers = workers
    options.worker_devices = [torch.device("cpu")] * workers
    producer = DistMpSamplingProducer(
        dataset, seeds, made["sampling_config"], options, ShmChannel(64, "8MB")
    )
    return BaseDistLoader(**made, producer=producer)


@pytest.fixture(autouse=True)
def _spawns() -> Iterator[None]:
    """Its scripts run in processes of ``mp.spawn``, whose context its producer needs."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def _edges(index: torch.Tensor) -> set[tuple[int, int]]:
    return set(map(tuple, index.t().tolist()))


def test_whole_epochs_have_each_seed_once_and_edges_of_the_graph(workers: int) -> None:
    data = GRAPH.to_pyg()
    dataset, known = DistDataset.from_pyg(data), _edges(data.edge_index)
    seeds = NodeSamplerInput(torch.arange(30), None)
    with _loader(dataset, seeds, workers=workers, shuffle=True) as loader:
        for _ in range(3):
            batches = list(loader)
            assert len(batches) == 4
            found = torch.cat([batch.batch for batch in batches])
            assert sorted(found.tolist()) == list(range(30))
            for batch in batches:
                assert batch.x.equal(data.x[batch.node])
                assert batch.node[: batch.batch_size].tolist() == batch.batch.tolist()
                sampled = _edges(batch.node[batch.edge_index])
                assert sampled <= known
                # two neighbours of each seed, or all that it has
                for seed in batch.batch.tolist():
                    has = sum(target == seed for _, target in known)
                    drawn = sum(target == seed for _, target in sampled)
                    assert min(1, has) <= drawn <= 2


def test_a_typed_graph(workers: int) -> None:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(30.0)[:, None], torch.arange(20.0)[:, None]
    # its sampler asserts that a typed graph has labels
    data["user"].y, data["item"].y = torch.arange(30), torch.arange(20)
    draw = torch.Generator().manual_seed(1)
    ends = torch.randint(30, (90,), generator=draw), torch.randint(20, (90,), generator=draw)
    data["user", "buys", "item"].edge_index = torch.stack(ends)
    data["item", "of", "user"].edge_index = torch.stack(ends[::-1])
    dataset = DistDataset.from_pyg(data)
    seeds = NodeSamplerInput(torch.arange(NUM_SEEDS), "user")
    with _loader(dataset, seeds, workers=workers) as loader:
        for batch in loader:
            for edge_type, edges in zip(batch.edge_types, batch.edge_stores, strict=True):
                src, _, dst = edge_type
                named = torch.stack(
                    [batch[src].node[edges.edge_index[0]], batch[dst].node[edges.edge_index[1]]]
                )
                assert _edges(named) <= _edges(data[edge_type].edge_index)


def test_an_epoch_that_was_broken_off_leaves_nothing_to_the_next(workers: int) -> None:
    dataset = DistDataset.from_pyg(GRAPH.to_pyg())
    with _loader(dataset, NodeSamplerInput(torch.arange(30), None), workers=workers) as loader:
        for _ in loader:
            break
        found = torch.cat([batch.batch for batch in loader])
        assert sorted(found.tolist()) == list(range(30))
        processes = loader._mp_producer._workers
        assert len(processes) == workers
    assert not any(process.is_alive() for process in processes)
