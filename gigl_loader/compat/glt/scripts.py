"""What graphlearn-torch's scripts use of its ``typing`` and ``utils``.

The modules of those names only show it, under two paths.
"""

import os
import random
from enum import Enum

import numpy as np
import torch


class Split(Enum):
    """Nodes of a split, which stay on their servers as seeds of a loader."""

    train = "train"
    valid = "valid"
    test = "test"


def ensure_dir(dir_path: str) -> None:
    """Make a directory, and those above it, unless it is there."""
    os.makedirs(dir_path, exist_ok=True)


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch. A loader's ``seed`` decides its batches, whatever these are."""
    random.seed(seed)
    np.random.seed(seed)  # the one that scripts of graphlearn-torch draw from
    torch.manual_seed(seed)
