"""The command line, and the demo."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from store_cluster import HOST, free_port, tiny_graph

from gigl_loader import partition_graph
from gigl_loader.remote.command import main
from gigl_loader.testing import run_python, wait_until

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SERVE = [sys.executable, "-m", "gigl_loader.graph_store.serve"]


def _ask(port, **environment):
    words = "-m", "gigl_loader", "status", f"{HOST}:{port}", "--timeout=20"
    return run_python(*words, environment={**ENVIRONMENT, **environment}, timeout_s=120)


def test_a_server_tells_its_status_and_ends_on_a_signal(tmp_path):
    partition_graph(tiny_graph().to_pyg(), 1, tmp_path / "graph", progress=False)
    port, metrics = free_port(), free_port()
    log = (tmp_path / "log.txt").open("w")
    server = subprocess.Popen(
        [
            *SERVE, f"--root={tmp_path}/graph", f"--port={port}", "--jobs=0",
            f"--metrics-port={metrics}",
        ],
        env=ENVIRONMENT, stderr=log,
    )  # fmt: skip
    try:
        said = tmp_path / "log.txt"
        wait_until(lambda: "serves partition" in said.read_text(), "it has started", 300)
        wait_until(lambda: _ask(port).returncode == 0, "it serves", 120)
        status = json.loads(_ask(port).stdout)
        assert status["pid"] == server.pid
        assert status["clients"] == []
        with urllib.request.urlopen(f"http://{HOST}:{metrics}/metrics", timeout=60) as answer:
            assert b'gigl_loader_serving{server="0"} 1.0' in answer.read()
        words = *SERVE[1:], "--status", f"{HOST}:{port}"
        old = run_python(*words, environment=ENVIRONMENT)
        assert json.loads(old.stdout)["pid"] == server.pid
        stranger = _ask(port, GIGL_LOADER_CLUSTER_TOKEN="another", GIGL_LOADER_TLS_DIR="")
        assert stranger.returncode == 1
        assert "JoinRefusedError" in stranger.stdout
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        log.close()
    assert f"metrics at 127.0.0.1:{metrics}/metrics" in (tmp_path / "log.txt").read_text()
    assert re.search(r"INFO \[server=0 host=\S+\] gigl_loader", (tmp_path / "log.txt").read_text())


@pytest.mark.longest
def test_the_demo_learns(tmp_path):
    done = run_python(  # and the four processes that it starts
        str(ROOT / "examples/graph_store/demo.py"), "--epochs", "4",
        f"--figure={tmp_path}/curve.png", environment=ENVIRONMENT, timeout_s=380,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"test accuracy: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found.group(1)) > 0.9


def test_a_cluster_without_all_partitions_does_not_start(tmp_path, caplog):
    partition_graph(tiny_graph().to_pyg(), 2, tmp_path / "graph", progress=False)
    code = main([f"--root={tmp_path}/graph", "--num-servers=1", f"--port={free_port()}"])
    assert code == 1
    assert "no storage server loaded partitions [1] of 2" in caplog.text
