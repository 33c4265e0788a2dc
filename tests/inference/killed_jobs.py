"""Ranks that are killed at any moment of an inference, for ``test_killed.py``."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import typed_layers
from support.broken_groups import end_at_once

from gigl_loader import inference
from gigl_loader.errors import PeerError
from gigl_loader.inference.layerwise import full_graph_inference

_TRACED = (str(Path(inference.__file__).parent), "pathlib", "numpy/lib", "numpy\\lib")
"""What decides, and what writes: `Results`, its files of JSON and of rows."""


class Moments:
    """Counts the lines that this thread runs; kills the process at one of them.

    Args:
        last: The moment to die at; 0: never.
    """

    def __init__(self, last: int) -> None:
        self.count, self._last = 0, last

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in _TRACED):
            return None
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return self


def infer(rank: int, world: int, folder: Path, victim: int, moment: int) -> None:
    """Compute a heterogeneous graph to Parquet; ``victim`` dies at ``moment``."""
    data = typed_layers.graph()
    moments = Moments(moment if rank == victim else 0)
    dataset, model = typed_layers.partition(data, rank, world), typed_layers.layers()
    sys.settrace(moments)
    with contextlib.suppress(PeerError):
        full_graph_inference(
            model, dataset, out=folder, batch_size=6, format="parquet", edge_weight=True,
            edge_attr=True,
        )  # fmt: skip
    sys.settrace(None)
    (folder / f"moments-{rank}").write_text(str(moments.count))
    end_at_once()
