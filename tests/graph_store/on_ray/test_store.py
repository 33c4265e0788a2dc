"""The storage cluster on Ray: what is refused; a server is lost; the demo loses a worker, too."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.errors import ConfigError, PeerError, PeerTimeoutError, ServerDiedError, UsageError
from gigl_loader.graph_store.ray import start_graph_store
from gigl_loader.graph_store.ray.actor import Watchdog
from gigl_loader.runtime.transport import Mode, Security
from gigl_loader.runtime.transport.security import (
    INSECURE_VARIABLE,
    TLS_DIR_VARIABLE,
    TOKEN_VARIABLE,
)
from gigl_loader.testing import TinyGraph, batch_digest, wait_until

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "examples" / "ray" / "demo.py"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"num_servers": 0}, "num_servers must be at least 1, got 0"),
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"cpus_per_server": -1}, "cpus_per_server must be at least 0, got -1"),
        ({"cpus_per_server": float("nan")}, "cpus_per_server must be at least 0, got nan"),
        ({"max_restarts": -2}, "max_restarts must be at least 0"),
        ({"start_timeout": float("inf")}, "start_timeout must be a finite number"),
        (
            {"reconnect_timeout": 20.0},
            "reconnect_timeout=20.0 must be more than health_timeout=30.0",
        ),
        ({"network_timeout": 0}, "network_timeout must be a finite number"),
        ({"max_jobs": 0}, "max_jobs must be an integer >= 1, got 0"),
        ({"channel_memory": "much"}, "channel_memory must be bytes above 0"),
        ({"insecure": True, "tls_dir": "/nowhere"}, "nowhere"),
    ],
)
def test_bad_values_are_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start_graph_store("/data/graph", **{"num_servers": 2, **how})


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install \"gigl_loader\[ray\]\""):
        start_graph_store("/data/graph", num_servers=2)


def test_without_a_ray_cluster() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=r"ray\.init"):
        start_graph_store("/data/graph", num_servers=2)


def test_a_token_is_drawn_where_nothing_says_who_may_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (TOKEN_VARIABLE, INSECURE_VARIABLE, TLS_DIR_VARIABLE):
        monkeypatch.delenv(name, raising=False)

    def environment(token: str | None = None, insecure: bool | None = None) -> dict[str, str]:
        return Security.resolve(None, token, insecure).or_token().environment

    first, second = environment(), environment()
    assert list(first) == list(second) == [TOKEN_VARIABLE]
    assert first != second
    assert Security.resolve("", first[TOKEN_VARIABLE], False).mode is Mode.TOKEN
    assert environment("a token") == {TOKEN_VARIABLE: "a token"}
    assert environment(insecure=True) == {INSECURE_VARIABLE: "1"}
    monkeypatch.setenv(TOKEN_VARIABLE, "of the environment")
    assert environment() == {TOKEN_VARIABLE: "of the environment"}
    assert environment("given") == {TOKEN_VARIABLE: "given"}


class _Watchdog(Watchdog):
    """Tells what each server says, once; `wait_for` decides by that."""

    def __init__(self, *servers: dict[str, Any], error: ServerDiedError | None = None) -> None:
        super().__init__([], interval_s=1.0, timeout_s=1.0, lost_after_s=1.0)
        self.said, self.error = list(servers), error

    def health(self) -> list[dict[str, Any]]:
        return self.said


SERVING, LOADING = {"state": "serving", "why": ""}, {"state": "loading", "why": ""}
BACK = {"state": "serving", "served": True, "why": "it was ended by SIGKILL"}
AGAIN = {"state": "restarting", "why": "it ended with exit code 1", "last_log": ["no", "graph"]}
LOST = ServerDiedError("all of partition 1")


@pytest.mark.parametrize(
    ("watchdog", "error", "words"),
    [
        (_Watchdog(SERVING, SERVING), None, ""),
        (_Watchdog(SERVING, BACK), None, ""),
        (
            _Watchdog(SERVING, AGAIN),
            PeerError,
            r"^storage server 1 did not start: it ended with exit code 1\nno\ngraph$",
        ),
        (_Watchdog(LOADING, AGAIN, error=LOST), PeerError, "server 1 did not start"),
        (_Watchdog(SERVING, LOADING, error=LOST), ServerDiedError, "all of partition 1"),
        (
            _Watchdog(SERVING, LOADING),
            PeerTimeoutError,
            r"after 7 s: \{0: 'serving', 1: 'loading'\}",
        ),
    ],
)
def test_a_start_ends_when_all_serve_one_fails_or_the_time_is_over(
    watchdog: Any, error: type[Exception] | None, words: str
) -> None:
    if error is None:
        watchdog.wait_until_all_serve(0.0, 7.0)
        return
    with pytest.raises(error, match=words):
        watchdog.wait_until_all_serve(0.0, 7.0)


def _run_on_ray(*words: str, timeout_s: float) -> Any:
    """Run a script that starts Ray; return how it ended."""
    variables = {
        "PYTHONPATH": str(ROOT),
        # no worker for each CPU before there is work: actors need workers of another environment
        "RAY_prestart_worker_first_driver": "0",
    }
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


@pytest.mark.timeout(1800)  # some ten processes, most one after another
@pytest.mark.longest
def test_a_killed_server_is_started_again_and_the_epoch_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    graph = TinyGraph.random(60, 500)
    partition_graph(graph.to_pyg(), 2, tmp_path / "graph", progress=False)
    script = Path(__file__).parent / "small_job.py"
    done = _run_on_ray(str(script), str(tmp_path), timeout_s=1700)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-8000:]
    told = json.loads((tmp_path / "told").read_text())
    with DistNeighborLoader(
        graph.dataset(), [3, 2], torch.arange(60), batch_size=4, seed=1, shuffle=True, num_workers=0
    ) as loader:
        assert told["digests"] == [batch_digest(batch) for batch in loader]
    before, after = told["before"], told["after"]
    assert [one["state"] for one in before] == ["serving", "serving"]
    assert (after[0]["restarts"], after[0]["why"]) == (1, "it was ended by SIGKILL")
    assert before[0]["pid"] != after[0]["pid"]
    assert before[1]["pid"] == after[1]["pid"]
    pids = {one["pid"] for one in before + after}
    wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "all are gone")


def _undisturbed(epochs: int) -> dict[tuple[int, int], str]:
    """Return the digests of all batches by epoch and number, sampled in this process."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from _data import load_graph
    finally:
        sys.path.pop(0)
    graph = load_graph("digits", None)
    ids = graph.train_mask.nonzero().view(-1)
    found = {}
    with DistNeighborLoader(
        DistDataset.from_pyg(graph),
        [10, 10],
        ids,
        batch_size=32,
        shuffle=True,
        seed=0,
        num_workers=0,
    ) as loader:
        for epoch in range(epochs):
            for number, batch in enumerate(loader):
                found[epoch, number] = batch_digest(batch)
    return found


@pytest.mark.wide  # the trainer is Ray's
@pytest.mark.timeout(1800)  # some thirty processes, most one after another
@pytest.mark.longest
def test_a_job_survives_and_goes_on_with_fewer_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="needs ray[train], which the ray extra installs")
    done = _run_on_ray(str(DEMO), "--epochs=2", f"--notes={tmp_path}", "--verbose", timeout_s=1700)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-8000:]
    assert "killing storage server 0" in done.stdout
    assert "storage server 0 was started again" in done.stderr
    assert "2 workers ended in the middle of an epoch; 1 go on" in done.stdout
    accuracy = re.search(r"validation accuracy: ([\d.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy.group(1)) > 0.85

    found: dict[tuple[int, int], set[str]] = defaultdict(set)
    for line in (tmp_path / "batches").read_text().splitlines():
        epoch, number, digest = line.split()
        found[int(epoch), int(number)].add(digest)
    assert found == {key: {digest} for key, digest in _undisturbed(2).items()}
    pids = re.findall(r"serving, pid (\d+)", done.stdout)
    assert len(pids) == 2
    wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "both are gone")
