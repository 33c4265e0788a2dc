"""Sampling in the training process: alone, and with other ranks by collectives."""

import contextlib
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from gigl_loader import (
    ConfigError,
    CustomSamplerOptions,
    DistABLPLoader,
    DistNeighborLoader,
    PeerTimeoutError,
    SamplingError,
    UsageError,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sources.in_process.in_process_source import wait_for_lanes
from gigl_loader.sources.staggered_start import WorkerTurns
from gigl_loader.testing import check_same_batches, run_ranks
from tests.sources.in_process import in_process_jobs
from tests.sources.in_process.in_process_jobs import CASES, COMMON, GRAPH, linked
from tests.support.glt import CollocatedDistSamplingWorkerOptions
from tests.support.sources import source_of


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("job", "world", "may_die"),
    [
        ("same_batches_as_workers", 2, []),
        ("ranks_that_have_fewer_batches", 3, []),
        ("all_break_off", 2, []),
        ("a_rank_dies", 2, [1]),
        pytest.param("a_rank_stops", 2, [1], marks=pytest.mark.longest),
        pytest.param("a_rank_stops_beside_two", 3, [1], marks=pytest.mark.longest),
        ("a_sampler_raises", 2, []),
        ("different_epochs", 2, []),
        ("beside_other_collectives", 2, []),
    ],
)
def test_ranks(job: str, world: int, may_die: list[int], tmp_path: Path) -> None:
    run_ranks(
        getattr(in_process_jobs, job),
        world_size=world,
        tmp_path=tmp_path,
        may_die=may_die,
        timeout=300,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", CASES)
def test_one_partition_gives_the_batches_of_workers(name: str) -> None:
    graph, edge_dir, given, how = CASES[name]
    make = {"dataset": graph.dataset(edge_dir=edge_dir), "input_nodes": given, **COMMON, **how}
    with DistNeighborLoader(**make) as workers, DistNeighborLoader(**make, num_workers=0) as here:
        assert isinstance(here.worker_options, CollocatedDistSamplingWorkerOptions)
        for _ in range(2):
            check_same_batches(workers, here)
        it = iter(here)
        first = [next(it) for _ in range(3)]
        state = here.state_dict()
        here.load_state_dict(state)
        workers.set_epoch(2)
        check_same_batches(workers, [*first, *here])
        assert here.stats()["batches"] > 0
        assert "workers=0" in repr(here)


@pytest.mark.multiprocess
def test_labels_too() -> None:
    how: dict[str, Any] = {"batch_size": 7, "seed": 2, "shuffle": True}
    with (
        DistABLPLoader(linked(0, 1), [2, 2], torch.arange(60), **how) as workers,
        DistABLPLoader(linked(0, 1), [2, 2], torch.arange(60), num_workers=0, **how) as here,
    ):
        check_same_batches(workers, here)


class Watched(NeighborSampler):
    """Notes the threads that it runs in."""

    threads: ClassVar[set[Any]] = set()

    def sample(self, request: Any) -> Any:
        self.threads.add(threading.current_thread())
        return super().sample(request)


class Failing(NeighborSampler):
    def sample(self, request: Any) -> Any:
        raise ZeroDivisionError("on purpose")


def _watched(sampler: type[NeighborSampler] = Watched, **how: Any) -> DistNeighborLoader:
    options = CustomSamplerOptions(f"{__name__}.{sampler.__name__}", {})
    return DistNeighborLoader(GRAPH.dataset(), [2], num_workers=0, sampler_options=options, **how)


def test_it_samples_in_the_thread_that_asks() -> None:
    Watched.threads.clear()
    before = set(threading.enumerate())
    with _watched() as loader:
        assert len(list(loader)) == 60
        assert set(threading.enumerate()) <= before
    assert Watched.threads == {threading.current_thread()}


def test_an_error_of_the_sampler_is_named() -> None:
    with (
        _watched(Failing) as loader,
        pytest.raises(SamplingError, match=r"in this process, epoch 0, batch 0, .*on purpose"),
    ):
        next(iter(loader))


def test_after_shutdown_it_says_so() -> None:
    loader = _watched()
    loader.shutdown()
    with pytest.raises(UsageError, match="was shut down"):
        iter(loader)


def test_another_partition_needs_collectives_or_workers() -> None:
    with pytest.raises(ConfigError, match=r'partition 1 of 2: add exchange="collective"'):
        DistNeighborLoader(GRAPH.partitions(2)[1], [2], num_workers=0)


class _Rounds:
    """Other ranks that have a round each time that they are asked.

    With the round ``count`` they end the epoch, or, where nobody is told, have stopped.
    """

    size = 2

    def __init__(self, count: int, ended: threading.Event | None) -> None:
        self._count, self._ended, self._seen = count, ended, 0

    @property
    def rounds(self) -> int:
        if self._seen < self._count or self._ended is not None:
            self._seen += 1
        if self._seen == self._count and self._ended is not None:
            self._ended.set()
        return self._seen


@pytest.mark.parametrize(("rounds", "error"), [(10, None), (3, "exchanged nothing for 0.01 s")])
def test_an_epoch_waits_for_the_one_before_while_ranks_live(rounds: int, error: Any) -> None:
    ended = threading.Event()
    peers: Any = _Rounds(rounds, None if error else ended)
    lane = threading.Thread(target=ended.wait)
    lane.start()
    with contextlib.ExitStack() as stack:
        if error:
            stack.enter_context(pytest.raises(PeerTimeoutError, match=error))
        wait_for_lanes([lane], [peers], 0.01)
        assert not lane.is_alive()
    ended.set()
    lane.join()


@pytest.mark.parametrize("placed", [False, True], ids=["in this process", "on a device"])
@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cpu", False)])
def test_batches_that_go_to_a_gpu_are_written_to_pinned_memory(
    device: str, pinned: bool, placed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies from other memory make the host wait, and overlap nothing."""
    graph, edge_dir, given, how = CASES["plain"]
    dataset = graph.dataset(edge_dir=edge_dir)
    if placed:
        dataset = dataset.to("cpu", kernels="torch")
    requests: list[bool] = []
    make_empty = torch.empty

    def empty(*shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        requests.append(pin_memory)
        return make_empty(*shape, **more)

    with DistNeighborLoader(dataset, input_nodes=given, **COMMON, **how, num_workers=0) as loader:
        expected = list(loader)
        source: Any = source_of(loader)
        source._device = torch.device(device)
        source.open(WorkerTurns())  # as if the loader had been built for it
        monkeypatch.setattr(torch, "empty", empty)
        loader.set_epoch(0)
        for batch, same in zip(loader, expected, strict=True):
            assert batch.x.equal(same.x)
            assert batch.batch.equal(same.batch)
    assert any(requests) == pinned
