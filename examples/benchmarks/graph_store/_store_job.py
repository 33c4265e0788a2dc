"""What the graph-store contestants share: who is who, which seeds, and the clock.

Ranks below ``SERVERS`` are storage servers, the others are compute processes.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "colocated"))

import _cpu
import _job
import torch

SERVERS = 2
HOST = "127.0.0.1"


def partition(job: _job.Job, server: int) -> _job.Job:
    """Return the job of one of two ranks that each own a partition."""
    return replace(job, rank=server, world_size=SERVERS)


def client_seeds(job: _job.Job) -> list[torch.Tensor]:
    """Return a compute process's seeds by server: as many of each, in a fixed order."""
    client, clients = job.rank - SERVERS, job.world_size - SERVERS
    own = []
    for server in range(SERVERS):
        wanted = replace(partition(job, server), warmup=job.warmup * clients + clients)
        wanted = replace(wanted, batches=job.batches * clients)
        count = job.needed_seeds // SERVERS
        own.append(_job.seeds(wanted)[client::clients][:count].contiguous())
    return own


def measure(batches: Iterable[_job.Batch], job: _job.Job) -> dict[str, Any]:
    """Take one epoch; time what follows the warm-up."""
    source = iter(batches)
    _check(next(source), job)
    for _ in range(job.warmup - 1):
        next(source)
    rows = taken = 0
    cpu, begun = _cpu.CpuClock.now(), time.perf_counter()
    for x, _ in source:
        rows += x.shape[0]
        taken += 1
        float(x[-1, 0])
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "seeds_per_s": taken * job.batch_size / seconds,
        "rows_per_batch": rows / taken,
        "others_cpu": _cpu.share_of_others(cpu, _cpu.CpuClock.now()),
    }


def _check(batch: _job.Batch, job: _job.Job) -> None:
    x, edge_index = batch
    ids = x[:, 0].long()
    assert torch.equal(x[:, 1].long(), ids % 997), "a feature row is torn"
    assert torch.isin(ids[: job.batch_size], torch.cat(client_seeds(job))).all(), "wrong seeds"
    source, target = ids[edge_index[:, 0]].tolist()
    row = job.graph.indices[job.graph.indptr[target] : job.graph.indptr[target + 1]]
    assert source in row, "not an edge of the graph"


NOTHING = {"seconds": 0.0, "seeds_per_s": 0.0}
"""What a storage server reports."""
