"""graphlearn-torch's ``utils``: what its scripts call, and what takes the place of the others."""

import os
import random

import numpy as np
import torch

from gigl_loader.compat.advice import advise
from gigl_loader.compat.utils import get_free_port
from gigl_loader.runtime.sizes import parse_size

__all__ = ["ensure_dir", "get_free_port", "parse_size", "seed_everything"]


def ensure_dir(dir_path: str) -> None:
    """Make a directory, and those above it, unless it is there."""
    os.makedirs(dir_path, exist_ok=True)


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch. A loader's ``seed`` decides its batches, whatever these are."""
    random.seed(seed)
    np.random.seed(seed)  # the one that scripts of graphlearn-torch draw from
    torch.manual_seed(seed)


__getattr__ = advise("gigl_loader.glt.utils")
