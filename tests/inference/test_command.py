"""``gigl-loader infer`` as its user runs it."""

import json
from pathlib import Path

import full_jobs
import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from support.scripts import run_python

from gigl_loader import partition_graph
from gigl_loader.inference.command import main

OPTIONS = {"in_channels": full_jobs.WIDTH, "hidden_channels": 8, "num_layers": 2, "out_channels": 4}


def _arguments(tmp_path: Path, num_partitions: int) -> tuple[list[str], torch.Tensor]:
    """Return the command's arguments, and what it has to compute."""
    data = full_jobs.graph()
    partition_graph(data, num_partitions, tmp_path / "graph", method="random", progress=False)
    model = pyg.GraphSAGE(**OPTIONS).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    arguments = {
        "root": tmp_path / "graph", "out": tmp_path / "out",
        "model": "torch_geometric.nn:GraphSAGE",
        "model-options": json.dumps(OPTIONS), "checkpoint": tmp_path / "model.pt", "batch-size": 9,
    }  # fmt: skip
    flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
    return flags, model(data.x, data.edge_index).detach()


def _check(out: Path, wanted: torch.Tensor, num_partitions: int) -> None:
    ids, rows = (
        np.concatenate([np.load(out / f"part-{i:05d}{end}") for i in range(num_partitions)])
        for end in (".ids.npy", ".npy")
    )
    assert sorted(ids) == list(range(60))
    torch.testing.assert_close(torch.from_numpy(rows), wanted[ids], rtol=1e-5, atol=1e-5)


@pytest.mark.multiprocess
def test_it_starts_a_rank_for_each_partition(tmp_path: Path) -> None:
    arguments, wanted = _arguments(tmp_path, 2)
    done = run_python("-m", "gigl_loader.inference.command", *arguments, timeout_s=300)
    assert done.returncode == 0, done.stderr
    assert "rank 1: " in done.stdout
    _check(tmp_path / "out", wanted, 2)


@pytest.mark.multiprocess
def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    arguments, wanted = _arguments(tmp_path, 2)
    done = run_python(
        "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "gigl_loader",
        "infer", *arguments, timeout_s=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 1: " in done.stdout
    _check(tmp_path / "out", wanted, 2)


def test_one_partition_needs_no_other_process(tmp_path: Path) -> None:
    arguments, wanted = _arguments(tmp_path, 1)
    assert main(arguments) == 0
    _check(tmp_path / "out", wanted, 1)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("--model", "torch_geometric.nn:Nothing"), "--model torch_geometric.nn:Nothing cannot"),
        (("--model", "no_such_module:Model"), "cannot be made: No module"),
        (("--checkpoint", "missing.pt"), "--checkpoint missing.pt cannot be loaded"),
        (("--root", "missing"), "root='missing' does not exist"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    wrong: tuple[str, str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, _ = _arguments(tmp_path, 1)
    assert main([*arguments, *wrong]) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
