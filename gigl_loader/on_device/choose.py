"""Which kernels a device is given."""

import torch

from gigl_loader.on_device.kernels import Kernels
from gigl_loader.on_device.torch_kernels import TorchKernels


def kernels_for(device: torch.device, name: str | None = None) -> Kernels:
    """Return the kernels of a device."""
    return TorchKernels(device)
