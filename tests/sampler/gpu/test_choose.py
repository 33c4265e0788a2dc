"""Which kernels a device gets, and what a missing extra says."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import warp

from gigl_loader import ConfigError
from gigl_loader.commands import diagnose
from gigl_loader.sampler.gpu import kernel_choice
from gigl_loader.sampler.gpu.device_kernels import TorchKernels
from gigl_loader.sampler.gpu.kernel_choice import kernels_for
from gigl_loader.sampler.gpu.warp_kernels import WarpKernels
from tests.support.conditions import Gpus

CPU = torch.device("cpu")
MODULE = "gigl_loader.sampler.gpu.warp_kernels"


@pytest.fixture
def without_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "warp", None)
    monkeypatch.delitem(sys.modules, MODULE)
    kernel_choice._warn.cache_clear()


def test_the_cpu_gets_torchs_unless_others_are_asked_for() -> None:
    assert type(kernels_for(CPU)) is TorchKernels
    assert type(kernels_for(CPU, "warp")) is WarpKernels


@pytest.mark.usefixtures("without_warp")
def test_a_missing_extra_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'gigl_loader\[gpu\]'"):
        kernels_for(CPU, "warp")


@pytest.mark.usefixtures("without_warp")
def test_a_gpu_without_warp_gets_torchs_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="gigl_loader"):
        for _ in range(2):
            assert type(kernels_for(torch.device("cuda"))) is TorchKernels
    assert [record.getMessage() for record in caplog.records] == [
        "compiled kernels for GPUs need NVIDIA Warp: pip install 'gigl_loader[gpu]'; "
        "until then torch's operators draw there, slower"
    ]


# --- Warp is there, and does not have the GPU that torch has --------------------------------------

GPU = torch.device("cuda", 0)
OLD_DRIVER = (
    f"NVIDIA Warp {warp.__version__} has no cuda:0: it needs a driver of CUDA 13, and this one is "
    "of CUDA 12.4: update the driver, or install a release of Warp for CUDA 12"
)


@pytest.fixture
def warp_says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let Warp answer as it does beside another driver; an old one has no devices at all."""

    def answer(**answers: object) -> None:
        for question, told in answers.items():
            monkeypatch.setattr(warp, question, lambda *which, told=told: told)

    answer(
        get_cuda_driver_version=(12, 4), get_cuda_toolkit_version=(13, 0), get_cuda_device_count=0
    )
    kernel_choice._warn.cache_clear()
    return answer


def test_an_older_driver_than_warps_leaves_torchs_and_one_warning(
    warp_says: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="gigl_loader"):
        for _ in range(2):
            assert type(kernels_for(GPU)) is TorchKernels
    assert [record.getMessage() for record in caplog.records] == [
        f"{OLD_DRIVER}; until then torch's operators draw there, slower"
    ]


def test_warps_that_were_asked_for_name_the_driver(warp_says: Any) -> None:
    with pytest.raises(ConfigError, match=r"has no cuda:0: .*of CUDA 12\.4: update the driver"):
        kernels_for(GPU, "warp")
    warp_says(get_cuda_driver_version=None)
    with pytest.raises(ConfigError, match="needs a driver of CUDA 13, and finds none"):
        kernels_for(torch.device("cuda"), "warp")


def test_a_gpu_that_is_too_old_for_warp_is_named(warp_says: Any) -> None:
    warp_says(
        get_cuda_device_count=1,
        get_cuda_device=SimpleNamespace(arch=70),
        get_cuda_supported_archs=[75, 80],
    )
    with pytest.raises(ConfigError, match="for sm_75 and later, and cuda:0 is of sm_70"):
        kernels_for(GPU, "warp")


def test_the_report_on_a_machine_names_the_driver(warp_says: Any, gpus: Gpus) -> None:
    gpus.append(10**9)
    (finding,) = [line for line in diagnose.versions() if line.name == "kernels for GPUs"]
    assert finding.bad
    assert finding.text == f"torch's operators: {OLD_DRIVER}"
