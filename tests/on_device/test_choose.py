"""Which kernels a device gets, and what a missing extra says."""

import logging
import sys

import pytest
import torch

from gigl_loader import ConfigError
from gigl_loader.on_device import device_kernels
from gigl_loader.on_device.device_kernels import TorchKernels, kernels_for
from gigl_loader.on_device.warp_kernels import WarpKernels

CPU = torch.device("cpu")
MODULE = "gigl_loader.on_device.warp_kernels"


@pytest.fixture
def without_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "warp", None)
    monkeypatch.delitem(sys.modules, MODULE)
    device_kernels._warn.cache_clear()


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
