"""``gigl-loader infer --server``: a job of its own on a graph store."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

from gigl_loader import GraphStoreInfo
from gigl_loader.commands import infer, infer_run
from gigl_loader.errors import GiglLoaderError
from gigl_loader.graph_store import status
from gigl_loader.graph_store.client.compute_process import job_name_of
from gigl_loader.graph_store.server.storage_process import Endpoint
from gigl_loader.graph_store.wire.graph_store_info import info_of_servers
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.runtime.transport import Security
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import storage
from tests.graph_store.store_cluster import HOST, free_port, info_of, processes, serve_partition
from tests.inference import full_jobs
from tests.support.scripts import ForkedPython, run_python

OPTIONS = {"in_channels": full_jobs.WIDTH, "hidden_channels": 8, "num_layers": 2, "out_channels": 4}
GRAPH = full_jobs.graph()


def _partition(rank: int, servers: int) -> Any:
    return full_jobs.partition(GRAPH, rank, servers)


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[Endpoint]]:
    """Two storage servers of `GRAPH`, in threads of this process."""
    with storage(2, partition=_partition) as serving:
        yield serving


def _where(endpoint: Endpoint) -> str:
    return f"{endpoint.address[0]}:{endpoint.address[1]}"


@pytest.fixture
def arguments(endpoints: list[Endpoint], tmp_path: Path) -> list[str]:
    """Arguments of the command that computes what `wanted` returns."""
    model = pyg.GraphSAGE(**OPTIONS)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    return [
        "--server",
        _where(endpoints[0]),
        "--out",
        str(tmp_path / "out"),
        "--quiet",
        "--model",
        "torch_geometric.nn:GraphSAGE",
        "--model-options",
        json.dumps(OPTIONS),
        "--checkpoint",
        str(tmp_path / "model.pt"),
        "--batch-size",
        "9",
    ]


def _check(folder: Path, num_ranks: int) -> None:
    """Compare files of ids and embeddings with one process that has the whole graph."""
    model = pyg.GraphSAGE(**OPTIONS).eval()
    model.load_state_dict(torch.load(folder / "model.pt"))
    wanted = model(GRAPH.x, GRAPH.edge_index).detach()
    ids, rows = (
        np.concatenate([np.load(folder / f"out/part-{i:05d}{end}") for i in range(num_ranks)])
        for end in (".ids.npy", ".npy")
    )
    assert ids.tolist() == list(range(60)), "each rank computes a range of the nodes"
    torch.testing.assert_close(torch.from_numpy(rows), wanted, rtol=1e-5, atol=1e-5)


def _clients(endpoint: Endpoint) -> list[int]:
    return endpoint.status()["clients"]


def _is_left(endpoints: list[Endpoint]) -> bool:
    return all(not _clients(endpoint) for endpoint in endpoints)


def test_without_torchrun_it_is_one_process_and_a_job_of_its_own(
    arguments: list[str], endpoints: list[Endpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def note_jobs(*args: Any, **how: Any) -> Any:
        names.extend(endpoints[0].status()["jobs"])
        return full_graph_inference(*args, **how)

    monkeypatch.setattr(infer_run, "full_graph_inference", note_jobs)
    assert infer.main(arguments) == 0
    _check(tmp_path, 1)
    assert infer.main([*arguments, "--job", "nightly"]) == 0, "with nothing left to compute"
    monkeypatch.setenv("GIGL_LOADER_JOB", "of the environment")
    assert infer.main(arguments) == 0
    own, *given = names
    assert own.startswith("infer on ")
    assert str(os.getpid()) in own, "two processes of a machine are two jobs"
    assert given == ["nightly", "of the environment"]
    wait_until(partial(_is_left, endpoints), "the servers have noticed")


@pytest.mark.multiprocess
def test_under_torchrun_each_rank_is_a_compute_process(
    arguments: list[str], endpoints: list[Endpoint], tmp_path: Path
) -> None:
    done = run_python("-m", "gigl_loader", "infer", *arguments, ranks=2, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert {line[:7] for line in done.stdout.splitlines()} == {"rank 0:", "rank 1:"}
    _check(tmp_path, 2)
    wait_until(partial(_is_left, endpoints), "the servers have noticed")


def test_ranks_of_a_launcher_have_the_name_that_init_compute_process_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "compute0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    name = infer_run._job_name(None)
    assert job_name_of(name, info_of_servers(2, "storage0", 29600)) == "compute0:29500"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["--root", "graph"], "argument --root: not allowed with argument --server"),
        (["--cache-dir", "copies"], "--cache-dir: for a --root in object storage"),
        (["--cache-size", "1GB"], "--cache-size: for a --root in object storage"),
        (["--server", "storage0"], "argument --server: takes HOST:PORT, got 'storage0'"),
        (["--job", "two\nlines"], "printable"),
        (["--model", "torch_geometric.nn:Nothing"], "--model torch_geometric.nn:Nothing cannot"),
    ],
)
def test_wrong_uses_are_refused_before_anything_starts(
    wrong: list[str],
    text: str,
    arguments: list[str],
    endpoints: list[Endpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served = endpoints[0].jobs_served
    code: object
    try:
        code = infer.main([*arguments, *wrong])
    except SystemExit as ended:  # of argparse
        code = ended.code
    assert code == 2
    assert text in capsys.readouterr().err
    assert endpoints[0].jobs_served == served
    assert _is_left(endpoints)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [["--job", "nightly"], ["--tls", "certs"], ["--insecure"]])
def test_options_of_a_graph_store_are_refused_with_a_root(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ["--out", "out", "--model", "torch_geometric.nn:GraphSAGE"]
    assert infer.main(["--root", "graph", *needed, *option]) == 2
    words = f"{option[0]}: for a graph store: give --server in place of --root"
    assert words in capsys.readouterr().err


def test_one_of_root_and_server_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        infer.main(["--out", "out", "--model", "torch_geometric.nn:GraphSAGE"])
    assert ended.value.code == 2
    assert "one of the arguments --root --server is required" in capsys.readouterr().err


def test_a_server_that_is_not_there_and_one_that_is_not_server_0_are_named(
    arguments: list[str],
    endpoints: list[Endpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = f"{HOST}:{free_port()}"
    assert infer.main([*arguments, "--server", nowhere]) == 1
    assert nowhere in capsys.readouterr().err
    second = _where(endpoints[1])
    assert infer.main([*arguments, "--server", second]) == 2
    words = f"--server {second} is storage server 1: give the address of server 0"
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- ends in the middle of a run ------------------------------------------------------------------

STOPS = """
import time
from pathlib import Path

def layers():
    def layer(x, edge_index, num_dst):
        Path("begun").touch()
        while not Path("go on").exists():
            time.sleep(0.01)
        return x[:num_dst] + 1
    return [layer, layer]
"""
SOON_GIVEN_UP = """
import sys
from functools import partial
from gigl_loader.commands import infer, infer_run
infer_run.RemoteDistDataset = partial(infer_run.RemoteDistDataset, reconnect_timeout=0.0)
sys.exit(infer.main(sys.argv[1:]))
"""
"""The command, which waits for no server that is lost to come back: a minute, otherwise."""


@pytest.fixture
def start_stopping(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Return a function that starts the command with a model that stops in its first chunk."""
    (tmp_path / "stopping.py").write_text(STOPS)
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        words = (*words, "--model", "stopping:layers", "--out", "out", "--batch-size", "1")
        process = ForkedPython(
            [sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        wait_until((tmp_path / "begun").exists, "it computes", 120.0)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.multiprocess
def test_ctrl_c_leaves_the_store_as_it_was_and_the_next_run_goes_on(
    start_stopping: Callable[..., "subprocess.Popen[str]"],
    endpoints: list[Endpoint],
    tmp_path: Path,
) -> None:
    words = ("-m", "gigl_loader", "infer", "--server", _where(endpoints[0]), "--quiet")
    process = start_stopping(*words)
    assert all(_clients(endpoint) == [0] for endpoint in endpoints)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_until(partial(_is_left, endpoints), "it has left", 60.0)
    assert all(path.name.startswith("_") for path in (tmp_path / "out").iterdir())
    (tmp_path / "go on").touch()
    again = start_stopping(*words)
    _, told = again.communicate(timeout=120)
    assert again.returncode == 0, told
    rows = torch.from_numpy(np.load(tmp_path / "out/part-00000.npy"))
    torch.testing.assert_close(rows, GRAPH.x + 2)


@pytest.mark.multiprocess
def test_a_killed_server_is_named(
    start_stopping: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    info = info_of(2, 1)
    (tmp_path / "notes").mkdir()
    with processes(tmp_path / "notes") as started:
        servers = [started.start(_serve, info, rank) for rank in range(2)]
        address = HOST, info.rpc_master_port
        wait_until(partial(_serves, address, 2), "both servers are there", 120.0)
        where = f"{HOST}:{info.rpc_master_port}"
        process = start_stopping("-c", SOON_GIVEN_UP, "--server", where, "--quiet")
        servers[1].kill()
        servers[1].join()
        (tmp_path / "go on").touch()
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1, told
    assert "storage server 1" in told
    assert "Traceback" not in told


def _serve(info: GraphStoreInfo, rank: int) -> None:
    serve_partition(info, rank, _partition, None, reconnect_timeout=0)


def _serves(address: tuple[str, int], num_servers: int) -> bool:
    try:
        known = status.ask(address, Security.local())
    except GiglLoaderError:  # it does not listen yet
        return False
    return len(known["servers"]) == num_servers - 1
