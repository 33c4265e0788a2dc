"""What a process takes: memory that the kernel cannot drop, and seconds."""

import threading
import time
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, full_graph_inference

_EVERY_S = 0.01


class PeakMemory:
    """The most memory of this process inside a ``with`` block that the kernel cannot drop.

    Pages of mapped files count as free: they are written back, and read again, as memory is needed.
    """

    def __enter__(self) -> "PeakMemory":
        self.peak, self._ended = self.now(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.peak = max(self.peak, self.now())

    @staticmethod
    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        kinds = ("RssAnon:", "RssShmem:")
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


class Clock:
    """Wall seconds, and CPU seconds of this process: what others do on the machine adds to one."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def times(self, scale: float) -> str:
        """Return what was taken until now, ``scale`` times."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return f"{scale * wall:7.1f} s {scale * cpu:7.1f} CPU s"

    def __str__(self) -> str:
        return self.times(1.0)


def warm_up(rank: int, ranks: int, folder: Path | str) -> None:
    """Let a tiny graph load what is compiled, so that neither time nor memory count it."""
    tiny = Data(x=torch.randn(9, 3), edge_index=torch.arange(9).repeat(2, 1))
    book = torch.arange(9) % ranks
    part = DistDataset.from_pyg(tiny, partition_book=book, partition_idx=rank, num_partitions=ranks)
    full_graph_inference(GraphSAGE(3, 3, 1).eval(), part, out=f"{folder}/tiny")
