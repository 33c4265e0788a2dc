"""Chooses the kernels of a device."""

import importlib
import logging
from functools import cache

import torch

from gigl_loader.errors import ConfigError
from gigl_loader.on_device.device_kernels import Kernels
from gigl_loader.on_device.torch_kernels import TorchKernels

logger = logging.getLogger(__name__)

_MISSING = "compiled kernels for GPUs need NVIDIA Warp: pip install 'gigl_loader[gpu]'"


def kernels_for(device: torch.device, kind: str | None = None) -> Kernels:
    """Return the kernels of a device; one call for each thread that samples.

    Args:
        device: Device of the graph.
        kind: ``"torch"`` or ``"warp"``, which draw the same; None: Warp's on CUDA if Warp is
            installed, otherwise torch's.

    Raises:
        ConfigError: Warp's were requested, and it is not installed.
    """
    if kind == "torch" or (kind is None and device.type != "cuda"):
        return TorchKernels(device)
    try:
        # Warp takes half a second to load; processes that sample elsewhere save that.
        found = importlib.import_module("gigl_loader.on_device.warp_kernels")
    except ImportError as error:
        if kind is not None:
            raise ConfigError(_MISSING) from error
        _warn()
        return TorchKernels(device)
    kernels: Kernels = found.WarpKernels(device)
    return kernels


@cache  # once for the process, not for each thread
def _warn() -> None:
    logger.warning("%s; until then torch's operators draw there, slower", _MISSING)
