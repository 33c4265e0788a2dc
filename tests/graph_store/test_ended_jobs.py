"""What a storage server keeps of jobs that ended: no descriptor, mapping, thread or seed."""

import ctypes
import gc
import logging
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from gigl_loader import CustomSamplerOptions
from gigl_loader.errors import GiglLoaderError
from gigl_loader.graph_store.client.storage_cluster import Cluster
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.runtime.transport import EndReason
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import create, joined, storage
from tests.support.glt import NodeSamplerInput

_NO_SUCH = CustomSamplerOptions("store_cluster.NoSuchSampler")
_SEEDS = 1 << 17
"""One MiB: 280 of them would be seen among all else that the process has."""


def _come_and_go(cluster: Cluster, how: int) -> None:
    """Run a job with one producer: it takes a batch and releases it, says goodbye, or is killed."""
    seeds = NodeSamplerInput(torch.arange(60).repeat(_SEEDS // 60), "default_homogeneous_node_type")
    producer, *_ = create(cluster, "the only one", sampler_input=seeds)
    call = partial(cluster.connection(0).call, producer_id=producer)
    call("start_new_epoch_sampling", epoch=0, request=None).result(60)
    call("fetch_one_sampled_message", consumer=0).result(60)
    if how == 0:
        call("release_sampling_producer", consumer=0, linger_s=0.0).result(60)
    elif how == 1:
        for caller in list(cluster.connection(0)._callers):
            caller.close(EndReason.GONE)
    elif how == 2:  # a producer that never comes up is remembered, too
        with pytest.raises(GiglLoaderError, match="NoSuchSampler"):
            create(cluster, "wrong", sampler_input=seeds, sampler_options=_NO_SUCH)


def _kept() -> tuple[int, int, int]:
    """Return the descriptors, mappings of shared memory and threads of this process."""
    maps = Path("/proc/self/maps").read_text().count("/memfd:")
    return len(os.listdir("/proc/self/fd")), maps, threading.active_count()


def _resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)  # else the C library keeps freed pages, more under load
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _inputs_held() -> int:
    gc.collect()
    return sum(type(o) is torch.Tensor and o.numel() > _SEEDS // 2 for o in gc.get_objects())


def _is_quiet() -> bool:
    """Collect what is in cycles, and return whether no thread of a producer or client is left."""
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    return not [name for name in names if name.startswith(("pump", "_release", "end of", "gigl"))]


def _run_jobs(endpoints: list[Endpoint], jobs: range) -> None:
    # names of their own: none waits until the one before it, which was killed, is given up
    for job in jobs:
        with joined(endpoints[0].address, len(endpoints), job_name=f"job {job}") as cluster:
            _come_and_go(cluster, job % 4)
    wait_until(lambda: endpoints[0].jobs_served == jobs.stop, "the jobs are over")
    wait_until(
        lambda: not any(endpoint.server.status()["producers"] for endpoint in endpoints),
        "no producer is left",
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("servers", "few", "many"),
    [(2, 8, 20), pytest.param(1, 20, 300, marks=[pytest.mark.wide, pytest.mark.longest])],
)
def test_a_server_keeps_nothing_of_jobs_that_ended(
    caplog: pytest.LogCaptureFixture, servers: int, few: int, many: int
) -> None:
    """It kept a descriptor, a mapping and the seeds of each loader: 39 of them were too many."""
    # pytest keeps records, with the errors in them and so the seeds in the errors' frames
    caplog.set_level(logging.CRITICAL, "gigl_loader")
    with storage(servers) as endpoints:
        _run_jobs(endpoints, range(few))
        wait_until(_is_quiet, "threads of the last job have ended")
        before = _kept()
        bytes_before = _resident()
        _run_jobs(endpoints, range(few, many))
        wait_until(_is_quiet, "threads of the last job have ended")
        assert all(now <= then for now, then in zip(_kept(), before, strict=True)), _kept()
        # a thread of the last job may be about to drop its last request
        wait_until(lambda: not _inputs_held(), "no input is held")
        # less than half of the seeds of these jobs
        assert _resident() - bytes_before < max(64 * 2**20, (many - few) * 8 * _SEEDS // 2)
