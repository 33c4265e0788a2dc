"""Whose kernels draw on a device: Warp's, which are compiled, or torch's operators."""

import importlib
import logging
from functools import cache
from typing import Any

import torch

from gigl_loader.errors import ConfigError
from gigl_loader.sampler.gpu.device_kernels import TorchKernels

logger = logging.getLogger(__name__)

_MISSING = "compiled kernels for GPUs need NVIDIA Warp: pip install 'gigl_loader[gpu]'"


def kernels_for(device: torch.device, kind: str | None = None) -> TorchKernels:
    """Return the kernels of a device; one call for each thread that samples.

    Args:
        device: Device of the graph.
        kind: ``"torch"`` or ``"warp"``, which draw the same; None: Warp's on CUDA if Warp is
            installed and has the device, otherwise torch's.

    Raises:
        ConfigError: Warp's were requested, and it is not installed, or does not have the device.
    """
    if kind == "torch" or (kind is None and device.type != "cuda"):
        return TorchKernels(device)
    reason, module = reason_against_warp(device)
    if reason is None:
        kernels: TorchKernels = module.WarpKernels(device)
        return kernels
    if kind is not None:
        raise ConfigError(reason)
    _warn(reason)
    return TorchKernels(device)


def reason_against_warp(device: torch.device) -> tuple[str | None, Any]:
    """Return why a device cannot have Warp's kernels, or None; and the module that has them."""
    try:
        # Warp takes half a second to load; processes that sample elsewhere save that.
        module = importlib.import_module("gigl_loader.sampler.gpu.warp_kernels")
    except ImportError:
        return _MISSING, None
    return module.reason_against(device), module


def kinds_on(device: torch.device) -> list[str]:
    """Return the kinds of kernels that a device can have, the fastest last."""
    return ["torch"] if reason_against_warp(device)[0] else ["torch", "warp"]


@cache  # once for the process, not for each thread
def _warn(reason: str) -> None:
    logger.warning("%s; until then torch's operators draw there, slower", reason)
