"""The bare loop: gigl_loader's kernels and a gather, in one process, results thrown away.

No workers, no messages, no batch objects, every output preallocated. It is no floor: a loader has
two processes that work at once, and gathers by a kernel of its own, so it may be faster.
"""

from collections.abc import Iterator
from typing import Any

import _job
import numpy as np
import torch

from gigl_loader.sampler.kernels import sampling_kernels as kernels


class _BareLoop:
    def __init__(self, job: _job.Job) -> None:
        arrays = job.graph
        self._indptr, self._indices = np.array(arrays.indptr), np.array(arrays.indices)
        self._features = torch.from_numpy(np.array(arrays.x))
        self._fanout, self._replace = job.fanout, job.replace
        most = job.batch_size * int(np.prod([fanout + 1 for fanout in job.fanout]))
        self._rows = [np.zeros(most, np.int64) for _ in range(3)]
        self._positions, self._neighbors = np.zeros(most, np.int64), np.zeros(most, np.int64)
        self._taken = np.zeros(int(np.diff(self._indptr).max()) + 1, np.uint8)
        self._edges = np.zeros((2, most), np.int64)
        self._nodes = np.zeros(most, np.int64)
        self._table = np.zeros(1 << (2 * most - 1).bit_length(), np.int64)
        self._mask = np.uint64(self._table.size - 1)
        self._x = torch.empty(most, self._features.shape[1])

    def sample(self, seeds: Any, key: int) -> _job.Batch:
        """Sample and gather one batch into the same memory as the last."""
        self._table.fill(0)
        self._nodes[: seeds.size] = seeds
        kernels.insert_nodes(self._table, self._mask, self._nodes, 0, seeds.size)
        first, last, edges = 0, seeds.size, 0
        for hop, fanout in enumerate(self._fanout):
            nodes, drawn = self._draw(first, last, fanout, np.uint64(key * 16 + hop))
            out = self._edges[:, edges : edges + drawn.size]
            last_before, edges = last, edges + drawn.size
            last = kernels.relabel(self._table, self._mask, self._nodes, last, drawn, out[0])
            kernels.repeat_rows(self._rows[2][: nodes.size], first, out[1])
            first = last_before
        x = self._x[:last]
        torch.index_select(self._features, 0, torch.from_numpy(self._nodes[:last]), out=x)
        return [x], [torch.from_numpy(self._edges[:, :edges])]

    def _draw(self, first: int, last: int, fanout: int, key: np.uint64) -> tuple[Any, Any]:
        nodes = self._nodes[first:last]
        starts, degrees, counts = (array[: nodes.size] for array in self._rows)
        total, _ = kernels.count_uniform(
            self._indptr, nodes, fanout, self._replace, starts, degrees, counts
        )
        positions, drawn = self._positions[:total], self._neighbors[:total]
        kernels.draw_uniform(
            nodes, starts, degrees, counts, self._replace, key, self._taken, positions
        )
        kernels.gather(self._indices, positions, drawn)
        return nodes, drawn


def _batches(floor: _BareLoop, job: _job.Job) -> Iterator[_job.Batch]:
    order = _job.seeds(job).numpy()
    for index in range(job.warmup + job.batches):
        yield floor.sample(order[index * job.batch_size : (index + 1) * job.batch_size], index)


def run(job: _job.Job) -> dict[str, Any]:
    """Measure with the threads that torch takes by default: all cores, as a lone worker has."""
    return _job.measure(_batches(_BareLoop(job), job), job)


if __name__ == "__main__":
    _job.report(run)
