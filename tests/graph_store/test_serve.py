"""The command line, and the demo."""

import contextlib
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader import partition_graph
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.serve import check, main, parse_serve, serve
from gigl_loader.testing import wait_until
from tests.graph_store.store_cluster import HOST, free_port, tiny_graph
from tests.support.scripts import ForkedPython, run_python

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SERVE = [sys.executable, "-m", "gigl_loader.graph_store.serve"]


def _ask(port, **environment):
    words = "-m", "gigl_loader", "status", f"{HOST}:{port}", "--json", "--timeout=20"
    return run_python(*words, environment={**ENVIRONMENT, **environment}, timeout_s=120)


def test_a_server_tells_its_status_and_ends_on_a_signal(tmp_path):
    partition_graph(tiny_graph().to_pyg(), 1, tmp_path / "graph", progress=False)
    port, metrics = free_port(), free_port()
    log = (tmp_path / "log.txt").open("w")
    server = ForkedPython(
        [
            *SERVE,
            f"--root={tmp_path}/graph",
            f"--master-port={port}",
            "--num-jobs=0",
            f"--metrics-port={metrics}",
        ],
        env=ENVIRONMENT,
        stderr=log,
    )
    try:
        said = tmp_path / "log.txt"
        wait_until(lambda: "serves partition" in said.read_text(), "it has started", 300)
        wait_until(lambda: _ask(port).returncode == 0, "it serves", 120)
        status = json.loads(_ask(port).stdout)
        assert status["pid"] == server.pid
        assert status["clients"] == []
        with urllib.request.urlopen(f"http://{HOST}:{metrics}/metrics", timeout=60) as answer:
            assert b'gigl_loader_serving{server="0"} 1.0' in answer.read()
        words = *SERVE[1:], "--status", "--json", f"{HOST}:{port}"
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
    done = run_python(  # and the five processes that it starts
        str(ROOT / "examples/graph_store/demo.py"),
        "--epochs",
        "3",
        f"--figure={tmp_path}/curve.png",
        environment=ENVIRONMENT,
        timeout_s=380,
    )
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"(\w+): test accuracy: ([\d.]+)", done.stdout))
    assert found.keys() == {"first", "second"}
    assert all(float(accuracy) > 0.9 for accuracy in found.values())


def test_a_cluster_without_all_partitions_does_not_start(tmp_path, caplog):
    partition_graph(tiny_graph().to_pyg(), 2, tmp_path / "graph", progress=False)
    code = main([f"--root={tmp_path}/graph", "--num-servers=1", f"--master-port={free_port()}"])
    assert code == 2
    assert "no storage server loaded partitions [1] of 2" in caplog.text


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The option that names a graph of two partitions."""
    folder = tmp_path_factory.mktemp("served") / "graph"
    partition_graph(tiny_graph().to_pyg(), 2, folder, progress=False)
    return f"--root={folder}"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `serve` asks for, in place of a server: one whose metrics are at "bug" has one."""
    found: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def process(rank: int, info: Any, dataset: Any, **how: Any) -> Iterator[Any]:
        if how["metrics_host"] == "bug":
            raise KeyError("a bug")
        found.append((rank, info, dataset.partition_idx, how))
        others = list(dataset.view().other_edges)
        assert others == ([1 - dataset.partition_idx] if how["host"] == "all edges" else [])
        yield SimpleNamespace(wait=lambda: 5)

    monkeypatch.setattr(
        "gigl_loader.graph_store.server.storage_process.init_storage_process", process
    )
    # of this process it would be for all tests
    monkeypatch.setattr("gigl_loader.graph_store.serve.use_one_heap", lambda: None)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_server_is_told_by_torchrun_who_it_is(served: Any, root: str, monkeypatch) -> None:
    alone = parse_serve([root])
    assert (alone.rank, alone.num_servers, alone.master_addr) == (0, 1, HOST)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert serve(parse_serve([root, "--master-port=7000", "--num-jobs=0"])) == 5
    rank, info, partition, how = served.pop()
    assert (rank, info.num_storage_nodes, info.rpc_master_port) == (3, 4, 7000)
    assert info.storage_cluster_master_ip == "10.0.0.1"
    assert partition == 1, "of 2 partitions, server 3 has the second one"
    assert how["num_jobs"] is None, "until told to stop"
    serve(
        parse_serve(
            [root, "--rank=0", "--allow-samplers=a", "--allow-samplers=b.C", "--allow-functions=c"]
        )
    )
    rank, _, partition, how = served.pop()
    assert (rank, partition, how["num_jobs"]) == (0, 0, None), "none leaves by itself"
    assert how["allow_samplers"] == ["a", "b.C"]
    assert how["allow_functions"] == ["c"]
    serve(parse_serve([root, "--edges=all", "--host=all edges"]))
    with pytest.raises(SystemExit):
        parse_serve([root, "--edges=whole"])
    for option in ("--num-jobs=2", "--num_server_sessions=2"):  # GiGL's name
        serve(parse_serve([root, option]))
        assert served.pop()[-1]["num_jobs"] == 2


def test_threads_of_a_server_share_a_heap(
    served: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each heap kept what its threads had freed: 28 MB after four minutes of attacks."""
    before: list[int] = []
    monkeypatch.setattr(
        "gigl_loader.graph_store.serve.use_one_heap", lambda: before.append(len(served))
    )
    serve(parse_serve([root]))
    assert (before, len(served)) == ([0], 1)


def test_a_server_says_where_it_listens(served: Any, root: str) -> None:
    one, several = [root], [root, "--num-servers=2", "--rank=1"]
    with pytest.raises(ConfigError, match="give --master-port 7000 in place of --port"):
        check(parse_serve([*one, "--port=7000"]))
    for flags in ([*one, "--port=29600"], [*several, "--port=7000", "--host=10.0.0.2"]):
        serve(parse_serve(flags))
    how = served.pop()[-1]
    assert (how["host"], how["port"]) == ("10.0.0.2", 7000)


@pytest.mark.usefixtures("served")
def test_only_errors_that_say_what_to_do_are_told_without_a_traceback(root: str, caplog) -> None:
    assert main([root, "--port=7000"]) == 2
    assert "ConfigError: the only server listens on --master-port" in caplog.text
    with pytest.raises(KeyError, match="a bug"):
        main([root, "--metrics-host=bug", f"--master-port={free_port()}"])
