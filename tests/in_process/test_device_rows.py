"""Rows from device to device in ``exchange="collective"``; a stand-in where there is no GPU."""

from collections.abc import Callable
from pathlib import Path

import device_rows_jobs
import pytest
import torch

from gigl_loader import ConfigError
from gigl_loader.in_process.collective import host_backend
from gigl_loader.in_process.device_rows import backend_for
from gigl_loader.ranks import backends_of, exchanged_on
from gigl_loader.testing import run_ranks

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
        getattr(device_rows_jobs, job), world_size=world, tmp_path=tmp_path, may_die=may_die,
        timeout=300,
    )  # fmt: skip


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
    config: str, on_host: str, on_gpu: str | None, cpu_tensors_on: str,
    backends: Callable[[str], None],
) -> None:  # fmt: skip
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
