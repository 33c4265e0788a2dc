"""graphlearn-torch's distributed examples train to their end, changed in their import line alone.

Read from the git directory that ``GLT_REPOSITORY`` names; without one these are left out. They have
no words for a machine without GPUs: `cuda_stand_ins` gives them a CPU in the place of each.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import partition_graph
from tests.graph_store.store_cluster import free_port
from tests.support.glt import available

COMMIT = "26fe3d4e050b081bc51a79dc9547f244f5d314da"
REPOSITORY = os.environ.get("GLT_REPOSITORY")
HERE = Path(__file__).parent
NUM_NODES, EPOCHS = 240, 3
pytestmark = pytest.mark.multiprocess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with the files that the examples read, in graphlearn-torch's format."""
    if REPOSITORY is None:
        pytest.skip("GLT_REPOSITORY names no repository of graphlearn-torch's")
    if not available:
        pytest.skip("graphlearn-torch is not installed")
    draw = torch.Generator().manual_seed(1)
    label = torch.arange(NUM_NODES) % 3
    data = Data(
        x=torch.eye(100)[label],  # the examples have 100 features
        y=label,
        edge_index=torch.randint(NUM_NODES, (2, 4 * NUM_NODES), generator=draw),
    )
    root = tmp_path / "ogbn-products-partitions"
    partition_graph(data, 2, root, format="glt", edge_dir="out", progress=False)
    owner = torch.as_tensor(torch.load(root / "node_pb.pt"))
    saved = {"label/label.pt": label}
    for k in range(2):
        own = (owner == k).nonzero().view(-1)
        saved[f"train-partitions/partition{k}.pt"] = own[::2].clone()
        saved[f"test-partitions/partition{k}.pt"] = own[1::2].clone()
    for name, values in saved.items():
        path = tmp_path / f"ogbn-products-{name}"
        path.parent.mkdir(exist_ok=True)
        torch.save(values, path)
    return tmp_path


def _start(folder: Path, script: str, **flags: object) -> subprocess.Popen[str]:
    """Start an example of theirs with one changed line."""
    name = f"{COMMIT}:examples/distributed/{script}.py"
    show = ["git", "-C", str(REPOSITORY), "show", name]
    text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    text, count = re.subn(
        "^import graphlearn_torch as", "import gigl_loader.glt as", text, flags=re.M
    )
    assert count == 1
    path = folder / f"{Path(script).name}.py"
    path.write_text(text)
    flags = {"dataset_root_dir": folder, **flags}
    command = [sys.executable, str(path), *(f"--{name}={value}" for name, value in flags.items())]
    paths = os.pathsep.join(map(str, (HERE / "cuda_stand_ins", HERE.parents[2])))
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _outputs(started: list[subprocess.Popen[str]]) -> list[str]:
    try:
        said = [one.communicate(timeout=180)[0] for one in started]
    finally:
        for one in started:
            one.kill()
            one.wait()
    assert [one.returncode for one in started] == [0] * len(started), said
    return said


def _accuracies(text: str, who: str) -> list[float]:
    return [float(one) for one in re.findall(rf"\[{who}\] Test Accuracy: ([\d.]+)", text)]


def _ports(*names: str) -> dict[str, int]:
    return {f"{name}_master_port": free_port() for name in names}


def test_train_sage_supervised(folder: Path) -> None:
    how = {"num_training_procs": 1, "epochs": EPOCHS, "batch_size": 16}
    how |= _ports("training_pg", "train_loader", "test_loader")
    script = "dist_train_sage_supervised"
    _outputs([_start(folder, script, node_rank=rank, **how) for rank in range(2)])
    said = (folder / "dist_sage_sup.txt").read_text()
    for rank in range(2):
        first, *_, last = _accuracies(said, f"Trainer {rank}")
        assert last > max(first, 0.5)  # a guess is right a third of the time


def test_server_client_mode(folder: Path) -> None:
    how = {"num_server_nodes": 2, "num_client_nodes": 1, "num_server_procs_per_node": 1}
    how |= {"num_client_procs_per_node": 2, **_ports("server_client")}
    for_clients = {"epochs": EPOCHS, "batch_size": 16}
    for_clients |= _ports("training_pg", "train_loader", "test_loader")
    place = "server_client_mode/sage_supervised"
    started = [_start(folder, f"{place}_server", node_rank=rank, **how) for rank in range(2)]
    started.append(_start(folder, f"{place}_client", **how, **for_clients))
    *servers, clients = _outputs(started)
    for rank in range(2):
        assert f"[Server {rank}] Exited" in servers[rank]
        assert f"[Client {rank}] Exited" in clients
        first, *_, last = _accuracies(clients, f"Client {rank}")
        assert last > max(first, 0.5)
