"""Rows from device to device in ``exchange="collective"``; a stand-in where there is no GPU."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import ConfigError
from gigl_loader.runtime.ranks.collectives import backends_of, exchanged_on
from gigl_loader.sources.in_process.collective import CollectivePeers, host_backend
from gigl_loader.sources.in_process.device_rows import backend_for, device_group
from gigl_loader.sources.in_process.device_source import PartitionedSource, PlacedSource
from gigl_loader.sources.staggered_start import WorkerTurns
from gigl_loader.testing import run_ranks
from tests.sources.in_process import device_rows_jobs

pytestmark = pytest.mark.usefixtures("starts_no_workers")

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("job", "world", "may_die"),
    [
        ("rows_stay_on_the_device", 3, []),
        ("a_rank_dies_while_rows_are_exchanged", 2, [1]),
        ("a_device_passes_nothing", 2, []),
        pytest.param("gpus", 2, [], marks=pytest.mark.gpu),
    ],
)
def test_ranks(job: str, world: int, may_die: list[int], tmp_path: Path) -> None:
    run_ranks(
        getattr(device_rows_jobs, job),
        world_size=world,
        tmp_path=tmp_path,
        may_die=may_die,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("config", "on_host", "on_gpu", "cpu_tensors_on"),
    [
        ("cpu:gloo,cuda:gloo", "gloo", None, "cpu"),
        ("cpu:gloo,cuda:nccl", "gloo", "nccl", "cpu"),
        ("cuda:nccl", "gloo", "nccl", "cuda"),
        ("cpu:ucc,cuda:ucc", "ucc", "ucc", "cpu"),
        ("cpu:mpi", "gloo", None, "cpu"),
        ("xpu:ccl", "gloo", None, "xpu"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_which_backend_carries_what(
    config: str,
    on_host: str,
    on_gpu: str | None,
    cpu_tensors_on: str,
    backends: Callable[[str], None],
) -> None:
    backends(config)
    assert host_backend() == on_host
    assert backend_for(CUDA) == on_gpu
    assert backend_for(CPU) is None, "batches go to the CPU: nothing lies on a device"
    assert exchanged_on(CPU).type == cpu_tensors_on
    assert exchanged_on(CUDA) == (CUDA if "cuda" in backends_of() else exchanged_on(CPU))


def test_a_group_that_takes_nothing_is_refused(backends: Callable[[str], None]) -> None:
    backends("cuda:gloo")
    with pytest.raises(ConfigError, match=r"\(cuda:gloo\) has no backend for tensors of cuda:0"):
        exchanged_on(CUDA)


@pytest.mark.usefixtures("gpus")
def test_nccls_watchdog_comes_after_our_own_errors(
    backends: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the process, and names nothing."""
    backends("cpu:gloo,cuda:nccl")
    deadlines: list[tuple[str, timedelta]] = []
    monkeypatch.setattr(
        dist, "new_group", lambda backend, timeout: deadlines.append((backend, timeout))
    )
    monkeypatch.setattr(dist, "all_to_all_single", lambda *given, group: None)
    peers: Any = object.__new__(CollectivePeers)
    peers.timeout_s, peers.size, peers._groups = 30.0, 1, []
    peers.least = lambda value: value
    waits: list[float] = []

    def wait(event: None, seconds: float) -> bool:
        waits.append(seconds)
        return True

    memory: Any = SimpleNamespace(
        device=CUDA, in_use=nullcontext, empty=torch.empty, mark=lambda: None, wait=wait
    )
    device_group(peers, memory)
    peers.new_group("gloo")
    assert waits == [30.0]
    assert deadlines == [("nccl", timedelta(seconds=90)), ("gloo", timedelta(seconds=30))]


@pytest.mark.parametrize(("value", "warns"), [(None, True), ("LAZY", True), ("EAGER", False)])
def test_kernels_that_are_loaded_late_are_warned_of(
    value: str | None,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_MODULE_LOADING", value)
    monkeypatch.setattr(PlacedSource, "open", lambda source, turns: None)
    tried: list[bool] = []
    source: Any = object.__new__(PartitionedSource)
    source._placement = SimpleNamespace(device=CUDA)
    source._try_one_batch = lambda: tried.append(True)
    source.open(WorkerTurns())
    assert tried == [True]
    assert ("CUDA_MODULE_LOADING=EAGER is not set" in caplog.text) == warns
