"""Ranks that are killed at any moment of an inference, for ``test_killed.py``."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from gigl_loader import inference
from gigl_loader.errors import ConfigError, PeerError
from gigl_loader.inference.layerwise import full_graph_inference
from tests.inference import typed_layers
from tests.support.broken_groups import end_at_once

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


def infer_on(rank: int, world: int, folder: Path, fits: bool) -> None:
    """Compute a graph on ``world`` ranks into a folder of a run on two."""
    dataset = typed_layers.partition(typed_layers.graph(), rank, world)
    kind: Any = contextlib.nullcontext()
    if not fits:  # ranks 0 and 1 find a part of that run, others do not
        words = r"rank 0 could not begin its inference: .*\['data', 'ids', 'ranks'\]"
        words = r"of a run that differs in \['data', 'ids', 'ranks'\]" if rank < 2 else words
        kind = pytest.raises(ConfigError if rank < 2 else PeerError, match=words)
    with kind:
        full_graph_inference(
            typed_layers.layers(),
            dataset,
            out=folder,
            batch_size=6,
            edge_weight=True,
            edge_attr=True,
        )
    dist.barrier()  # the group is in step


def infer(rank: int, world: int, folder: Path, victim: int, moment: int) -> None:
    """Compute a heterogeneous graph to Parquet; ``victim`` dies at ``moment``."""
    data = typed_layers.graph()
    moments = Moments(moment if rank == victim else 0)
    dataset, model = typed_layers.partition(data, rank, world), typed_layers.layers()
    sys.settrace(moments)
    with contextlib.suppress(PeerError):
        full_graph_inference(
            model,
            dataset,
            out=folder,
            batch_size=6,
            format="parquet",
            edge_weight=True,
            edge_attr=True,
        )
    sys.settrace(None)
    (folder / f"moments-{rank}").write_text(str(moments.count))
    end_at_once()
