"""The five ranges of a batch in one trace; what workers did lies where it happened."""

import gzip
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gigl_loader import ConfigError, DevicePrefetcher, DistNeighborLoader, profile_workers
from gigl_loader.batch.device.prefetch import CopyEngine
from gigl_loader.batch.message import stays_on_host
from gigl_loader.loader.profile import WorkerRanges
from gigl_loader.testing import TinyGraph
from tests.batch.device.fake_gpu import FakeGpu

NAMES = {f"gigl_loader.{name}" for name in ("wait", "sample", "gather", "copy", "collate")}
SLACK_US = 2000.0
"""Between the profiler's clock and the system's."""


class FakeDeviceLoader(DistNeighborLoader):
    """Copies to a pretend GPU: on a CPU there would be no range of a copy."""

    def _make_engine(self) -> CopyEngine:
        return CopyEngine("cpu", backend=FakeGpu("eager"), keep_on_host=stays_on_host)


def _ranges(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = [e for e in trace["traceEvents"] if e.get("ph") == "X" and e["name"] == name]
    return sorted(found, key=lambda event: event["ts"])


def _rows(trace: dict[str, Any]) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name" and str(event["pid"]).startswith("gigl_loader")
    }


def _end(event: dict[str, Any]) -> float:
    return event["ts"] + event["dur"]


@pytest.mark.multiprocess
@pytest.mark.usefixtures("group")
def test_a_trace_holds_what_happened_to_every_batch(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with FakeDeviceLoader(
        TinyGraph.random(80, 600).dataset(),
        [4, 3],
        batch_size=8,
        num_workers=2,
        worker_concurrency=1,
        seed=1,
    ) as loader:
        list(loader)  # not profiled: it must not show
        with (
            profile(activities=[ProfilerActivity.CPU]) as profiler,
            profile_workers(loader) as workers,
            record_function("the loop"),
        ):
            list(loader)
        assert loader._recorders == []
    profiler.export_chrome_trace(str(path))
    workers.add_to(path)
    trace = json.loads(path.read_text())
    found = {name: _ranges(trace, name) for name in NAMES}
    for name in ("sample", "gather", "copy", "collate"):
        assert len(found[f"gigl_loader.{name}"]) == 10, name
    (loop,) = _ranges(trace, "the loop")
    for events in found.values():
        assert loop["ts"] - SLACK_US < events[0]["ts"]
        assert max(map(_end, events)) < _end(loop) + SLACK_US
    assert set(_rows(trace).values()) == {"worker 0", "worker 1"}
    # in order: the batch that is n-th to be copied was sampled and gathered before
    for name in ("sample", "gather"):
        done = sorted(map(_end, found[f"gigl_loader.{name}"]))
        for ended, copy in zip(done, found["gigl_loader.copy"], strict=True):
            assert ended < copy["ts"] + SLACK_US
    for row in _rows(trace):
        own = [e for name in NAMES for e in found[name] if e["tid"] == row]
        own.sort(key=lambda event: event["ts"])
        assert [e["name"][12:] for e in own] == ["sample", "gather"] * (len(own) // 2)
        assert all(_end(one) <= other["ts"] + 0.01 for one, other in pairwise(own))


def _trace(path: Path, base_ns: int = 0, **more: Any) -> Path:
    """Write a trace of the second from 1 s to 2 s after ``base_ns``."""
    event = {"ph": "X", "name": "op", "pid": 1, "tid": 1, "ts": 1e6, "dur": 1e6}
    text = json.dumps({"traceEvents": [event], "baseTimeNanoseconds": base_ns, **more})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _stats(ended_ms: float, worker: Any = 0, base_ns: int = 0) -> dict[str, Any]:
    ended_ns = base_ns + round(ended_ms * 1e6)
    return {"worker": worker, "sample_s": 0.003, "gather_s": 0.001, "ended_ns": ended_ns}


def _added(path: Path, *all_stats: dict[str, Any]) -> dict[str, Any]:
    ranges = WorkerRanges()
    for stats in all_stats:
        ranges.note(stats)
    ranges.add_to(path)
    found = path.read_bytes()
    return json.loads(gzip.decompress(found) if path.suffix == ".gz" else found)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_times_are_those_of_the_trace(tmp_path: Path, name: str) -> None:
    base = time.time_ns()
    trace = _added(_trace(tmp_path / name, base, schemaVersion=1), _stats(1500, base_ns=base))
    (sample,), (gather,) = (
        _ranges(trace, "gigl_loader.sample"),
        _ranges(trace, "gigl_loader.gather"),
    )
    assert (sample["ts"], _end(sample)) == pytest.approx((1_496_000, 1_499_000), abs=0.5)
    assert (gather["ts"], _end(gather)) == pytest.approx((1_499_000, 1_500_000), abs=0.5)
    assert trace["schemaVersion"] == 1


def test_what_was_not_profiled_is_left_out_or_cut(tmp_path: Path) -> None:
    ended = (900, 1002, 1500, 2000.5, 2100)
    trace = _added(_trace(tmp_path / "t"), *map(_stats, ended))
    assert [(e["ts"], e["dur"]) for e in _ranges(trace, "gigl_loader.sample")] == [
        (1_000_000, 1000),
        (1_496_000, 3000),
        (1_996_500, 3000),
    ]
    assert [e["dur"] for e in _ranges(trace, "gigl_loader.gather")] == [1000, 1000, 500]


def test_rows_of_workers_of_servers_and_of_several_loaders(tmp_path: Path) -> None:
    path = _trace(tmp_path / "t")
    _added(path, _stats(1100, (1, 0)), _stats(1200, (0, 2)), _stats(1202, (0, 2)))
    trace = _added(path, _stats(1100))
    where = {(e["pid"], e["tid"]) for e in _ranges(trace, "gigl_loader.sample")}
    names = [
        (event["args"]["name"], (event["pid"], event["tid"]) in where)
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    ]
    two_at_once = [("server 0 worker 2", True)] * 2
    assert names == [*two_at_once, ("server 1 worker 0", True), ("worker 0", True)]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"traceEvents": []}'])
def test_files_that_are_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no trace"):
        WorkerRanges().add_to(path)
    assert path.read_text() == text
    with pytest.raises(FileNotFoundError):
        WorkerRanges().add_to(tmp_path / "nowhere.json")


def test_loaders_that_have_no_workers() -> None:
    loader: Any
    for loader in ([torch.ones(1)], DevicePrefetcher([torch.ones(1)], "cpu")):
        with pytest.raises(ConfigError, match="takes a loader"), profile_workers(loader):
            pass
