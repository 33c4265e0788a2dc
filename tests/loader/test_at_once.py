"""The batch of given seeds, at once."""

import copy
import gc
import pickle
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import (
    ConfigError,
    CustomSamplerOptions,
    DistDataset,
    DistNeighborLoader,
    SamplingError,
    UsageError,
)
from gigl_loader.errors import WrongTypeError
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sources.workers import pipe
from gigl_loader.testing import TinyGraph, batch_digest, check_batch, check_same_batches

pytestmark = pytest.mark.multiprocess

GRAPH = TinyGraph.random(60, 400, seed=3)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_threads_that_ask_at_one_time_get_their_own(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As handlers of a service do; beside an epoch, which is taken in another thread."""
    known_sample = NeighborSampler.sample
    inside: list[Any] = []
    overlaps: list[Any] = []

    def sample(self: Any, request: Any) -> Any:  # of this process, not of workers
        overlaps.extend(inside)
        inside.append(request)
        time.sleep(0.0002)  # another thread's turn
        try:
            return known_sample(self, request)
        finally:
            inside.remove(request)

    monkeypatch.setattr(NeighborSampler, "sample", sample)
    how: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 8, "seed": 4}
    with DistNeighborLoader(GRAPH.dataset(), num_workers=num_workers, **how) as loader:
        whole = [batch.input_id.tolist() for batch in loader]
        known = [loader([at, 2 * at]).n_id.tolist() for at in range(20)]
        wrong: list[object] = []

        def ask() -> None:
            for _ in range(5):
                for at, expected in enumerate(known):
                    if loader([at, 2 * at]).n_id.tolist() != expected:
                        wrong.append(at)

        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(ask) for _ in range(3)]
            for _ in range(5):
                assert [batch.input_id.tolist() for batch in loader] == whole
            for one in asked:
                one.result(timeout=120)
        assert wrong == []
        assert overlaps == []


def test_the_collector_may_end_an_iterator_within_any_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a cycle, as of an error's frames; its end is told to the workers, by a send, too."""
    send_packed = pipe.send_packed
    ended: list[int] = []

    def sending(*given: Any, **how: Any) -> None:
        gc.collect()
        send_packed(*given, **how)

    how: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 4, "seed": 4}
    with DistNeighborLoader(GRAPH.dataset(), num_workers=1, **how) as loader:
        whole, at_once = [batch_digest(batch) for batch in loader], batch_digest(loader([3, 5]))
        for epoch in range(3):
            loader.set_epoch(0)
            iterator = iter(loader)
            assert batch_digest(next(iterator)) == whole[0]
            weakref.finalize(iterator, ended.append, epoch)
            cycle: list[Any] = [iterator]
            cycle.append(cycle)
            with monkeypatch.context() as patched:
                patched.setattr(pipe, "send_packed", sending)
                del iterator, cycle
                assert ended == [*range(epoch)], "it lives until something is sent"
                assert batch_digest(loader([3, 5])) == at_once
            assert ended == [*range(epoch + 1)], "the collector came within the send"
            loader.set_epoch(0)
            assert [batch_digest(batch) for batch in loader] == whole


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_is_neither_copied_nor_pickled(copied: Callable[[Any], Any]) -> None:
    with DistNeighborLoader(GRAPH.dataset(), [2], num_workers=0, batch_size=30) as loader:
        with pytest.raises(UsageError, match="DistNeighborLoader cannot be copied or pickled"):
            copied(loader)
        gc.collect()
        assert len(list(loader)) == 2, "a copy that goes would have shut it down"


def test_workers_and_this_process_give_the_same_beside_an_epoch() -> None:
    seeds = torch.arange(59, 9, -1)
    how: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "input_nodes": seeds,
        "batch_size": 8,
        "seed": 4,
    }
    with (
        DistNeighborLoader(GRAPH.dataset(), num_workers=2, channel_size="8KB", **how) as workers,
        DistNeighborLoader(GRAPH.dataset(), num_workers=0, **how) as here,
    ):
        whole = list(workers)
        epoch = iter(workers)
        begun = next(epoch)
        index = [7, 0, 7, 49, *range(20)]  # more than a batch of the epoch, and repeats
        batch = workers(index)
        for other in (
            here(index),
            here.collate(torch.tensor(index)),
            workers(np.array(index, np.int32)),
        ):
            check_same_batches([batch], [other])
        assert batch.batch.tolist() == seeds[index].tolist()
        assert batch.input_id.tolist() == index
        assert batch.batch_size == 24
        check_batch(batch, GRAPH, seeds=seeds[index], num_neighbors=[3, 2])
        empty = workers([])
        assert empty.n_id.numel() == 0
        assert empty.edge_index.shape == (2, 0)
        assert empty.x.shape == (0, 2)
        rest = [begun, *epoch]
        assert [b.input_id.tolist() for b in rest] == [b.input_id.tolist() for b in whole]
        assert workers.stats()["batches"] == 2 * len(whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_is_refused(workers: int) -> None:
    with DistNeighborLoader(GRAPH.dataset(), [2], torch.arange(9), num_workers=workers) as loader:
        with pytest.raises(ConfigError, match=r"index\[1\] = 9 .* 9 seeds"):
            loader([0, 9])
        with pytest.raises(WrongTypeError, match="positions"):
            loader(torch.tensor([[1]]))
        with pytest.raises(WrongTypeError, match="positions"):
            loader(3)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(ConfigError, match="integer"):
            loader([1.5])  # type: ignore[list-item]  # wrong on purpose
        assert loader([8]).batch.tolist() == [8]
    with pytest.raises(UsageError, match="shut down"):
        loader([0])


class Fails(NeighborSampler):
    """Raises where a batch has the seed 5 alone."""

    def sample(self, request):
        if request.seeds.tolist() == [5]:
            raise ZeroDivisionError("on purpose")
        return super().sample(request)


def test_a_failure_is_told_where_it_belongs() -> None:
    """That of a batch at once ends no epoch, and that of the epoch is not lost."""
    options = CustomSamplerOptions(f"{__name__}.Fails")
    with DistNeighborLoader(
        GRAPH.dataset(), [2], torch.arange(12), batch_size=2, sampler_options=options
    ) as loader:
        epoch = iter(loader)
        assert next(epoch).batch.tolist() == [0, 1]
        with pytest.raises(SamplingError, match="on purpose"):
            loader([5])
        assert [b.batch[0].item() for b in epoch] == [2, 4, 6, 8, 10]
    with DistNeighborLoader(
        GRAPH.dataset(), [2], torch.tensor([1, 5, 2]), sampler_options=options
    ) as loader:
        epoch = iter(loader)
        assert next(epoch).batch.tolist() == [1]
        for _ in range(3):  # what the epoch's worker says meanwhile is kept
            assert loader([0, 2]).batch.tolist() == [1, 2]
        with pytest.raises(SamplingError, match="on purpose"):
            list(epoch)


def test_a_graph_without_edges_gives_batches_without_edges() -> None:
    data = Data(x=torch.arange(6.0).view(6, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))
    with DistNeighborLoader(
        DistDataset.from_pyg(data), [3, -1], batch_size=4, num_workers=0
    ) as loader:
        for batch in (*loader, loader([5, 1])):
            assert batch.edge_index.shape == (2, 0)
            assert batch.edge_index.dtype == torch.int64
            assert batch.n_id.tolist() == batch.batch.tolist()
            assert batch.x.view(-1).tolist() == batch.n_id.tolist()
            assert batch.num_sampled_edges == [0, 0]
