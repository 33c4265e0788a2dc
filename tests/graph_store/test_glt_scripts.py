"""Scripts for graphlearn-torch's server-client mode, with their import changed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.testing import wait_until
from tests.graph_store.store_cluster import free_port
from tests.support.scripts import ForkedPython

pytestmark = pytest.mark.multiprocess

SCRIPTS = Path(__file__).parent / "glt_scripts"
THEIRS, OURS = "import graphlearn_torch as glt\n", "import gigl_loader.glt as glt\n"
EPOCHS = 3


def communities() -> Data:
    """Return a graph of four communities, whose nodes have noisy features of their community."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(400) % 4
    # nine of ten edges stay in the community
    ends = torch.randint(100, (2, 3000), generator=generator) * 4
    group = torch.randint(4, (3000,), generator=generator)
    other = torch.where(torch.rand(3000, generator=generator) < 0.9, group, (group + 1) % 4)
    edge_index = torch.stack([ends[0] + group, ends[1] + other])
    x = torch.randn(400, 8, generator=generator) + 2 * F.one_hot(y, 8)
    return Data(x=x, y=y, edge_index=edge_index)


def _trained(data: Data, seeds: torch.Tensor) -> dict[str, Any]:
    """Return the parameters after the steps of two clients, computed in this process."""
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, num_layers=2, out_channels=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with DistNeighborLoader(
        DistDataset.from_pyg(data, edge_dir="out"),
        [5, 5],
        seeds,
        batch_size=16,
        shuffle=True,
        seed=3,
        num_workers=0,
    ) as loader:
        for _ in range(EPOCHS):
            batches = list(loader)
            # a client has every second batch of each of two servers
            clients = [
                [b for i, b in enumerate(batches) if i // 2 % 2 == rank] for rank in range(2)
            ]
            for step in zip(*clients, strict=True):
                optimizer.zero_grad()
                for batch in step:  # DDP takes the mean of the clients' gradients
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    (F.cross_entropy(out, batch.y[: batch.batch_size]) / 2).backward()
                optimizer.step()
    return model.state_dict()


def _right(data: Data, model: torch.nn.Module, seeds: torch.Tensor) -> list[int]:
    right = 0
    with (
        DistNeighborLoader(
            DistDataset.from_pyg(data, edge_dir="out"),
            [5, 5],
            seeds,
            batch_size=16,
            seed=3,
            num_workers=0,
        ) as loader,
        torch.no_grad(),
    ):
        for batch in loader:
            out = model.eval()(batch.x, batch.edge_index)[: batch.batch_size].argmax(-1)
            right += int((out == batch.y[: batch.batch_size]).sum())
    return [right, seeds.numel()]


def _run(root: Path) -> str:
    """Run two servers and two clients; return all that they print."""
    port = free_port()
    for name in ("server", "client"):
        text = (SCRIPTS / f"{name}.py").read_text()
        assert text.count(THEIRS) == 1
        (root / f"{name}.py").write_text(text.replace(THEIRS, OURS))
    words = ["--num_servers=2", "--num_clients=2", f"--port={port}", f"--root={root}"]
    logs = [root / f"{name}{rank}.log" for name in ("server", "client") for rank in range(2)]
    started = []
    try:
        for log in logs:
            name, rank = log.stem[:-1], log.stem[-1]
            more = [f"--epochs={EPOCHS}"] if name == "client" else []
            command = [sys.executable, str(root / f"{name}.py"), f"--rank={rank}", *words, *more]
            with log.open("w") as output:  # a session of its own: what it starts ends with it
                started.append(
                    ForkedPython(
                        command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
        wait_until(
            lambda: (
                all(process.poll() is not None for process in started)
                or any(process.poll() for process in started)
            ),
            "the scripts end",
            400.0,
        )
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    printed = "\n".join(log.read_text() for log in logs)
    assert [process.returncode for process in started] == [0] * 4, printed
    return printed


def test_scripts_run_with_the_import_changed(tmp_path: Path) -> None:
    data = communities()
    partition_graph(data, 2, tmp_path / "parts", method="random", edge_dir="out", format="glt")
    torch.save(data.y, tmp_path / "labels.pt")
    parts = [DistDataset.load(tmp_path / "parts", part).node_ids for part in range(2)]
    seeds = {"train": [ids[ids < 192] for ids in parts], "test": [ids[ids >= 192] for ids in parts]}
    for name, by_server in seeds.items():
        for server, ids in enumerate(by_server):
            torch.save(ids, tmp_path / f"{name}{server}.pt")
    printed = _run(tmp_path)
    for rank in range(2):
        assert f"server {rank} serves" in printed
        assert f"server {rank} has ended" in printed
    first, second = (torch.load(tmp_path / f"client{rank}.pt") for rank in range(2))
    train, test = torch.cat(seeds["train"]), torch.cat(seeds["test"])
    assert sorted(first["seeds"] + second["seeds"]) == sorted(train.tolist() * EPOCHS)
    assert min(len(first["seeds"]), len(second["seeds"])) == EPOCHS * 6 * 16, "each has its half"
    model = GraphSAGE(8, 16, num_layers=2, out_channels=4)
    expected = _trained(data, train)
    for name, value in expected.items():
        assert torch.allclose(first["model"][name], value, atol=1e-4), name
    model.load_state_dict(first["model"])
    assert first["right"] == second["right"] == _right(data, model, test)
    model.load_state_dict(expected)
    assert _right(data, model, test) == first["right"], "as accurate as in one process"
    assert first["right"][0] / first["right"][1] > 0.9
