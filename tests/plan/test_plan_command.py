"""``gigl-loader plan``, from the shell's point of view."""

import json
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import partition_graph
from gigl_loader.cli import main

FIGURES = ["plan", "--nodes", "111M", "--edges", "1.6B", "--dim", "128", "--dtype", "float16"]


def test_figures_give_a_table_and_json(capsys, tmp_path: Path) -> None:
    given = [*FIGURES, "--machines", "16", "--ranks-per-machine", "8", "--link", "25Gbit",
             "--step-ms", "40", "--cache", "10%"]  # fmt: skip
    assert main([*given, "--picture", str(tmp_path / "plan.png")]) == 0
    text = capsys.readouterr().out
    assert "seeds/s of all ranks" in text
    assert "memory of a training machine" in text
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.5 < found["seeds_per_second"] / min(found["bounds"].values()) <= 1
    assert found["job"]["link_gbit"] == 25
    assert found["job"]["cache"] == 0.1


@pytest.mark.parametrize("count", [1, 2])
def test_a_directory_gives_its_own_figures(capsys, tmp_path: Path, count: int) -> None:
    ring = torch.arange(50)
    data = Data(x=torch.ones(50, 3), edge_index=torch.stack([ring, (ring + 1) % 50]))
    partition_graph(data, count, tmp_path / "graph", method="random", progress=False)
    given = ["plan", "--root", str(tmp_path / "graph"), "--fanouts", "2,2", "--batch-size", "4"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["job"]["nodes"], found["job"]["edges"], found["job"]["dim"]) == (50, 50, 3)
    assert found["batch"]["edges"] == pytest.approx(8, rel=0.1)  # one neighbour each, twice
    files = list((tmp_path / "graph").glob("part0/node_features/**/*.bin"))
    assert found["memory"]["rows and labels"] >= sum(file.stat().st_size for file in files) > 0
    assert found["memory"]["edges"] > 0


@pytest.mark.parametrize(
    ("given", "text"),
    [(["plan"], "give --root, or --nodes, --edges, --dim"),
     ([*FIGURES, "--batch-size", "200000000"], "batch_size must be 1 to"),
     ([*FIGURES, "--costs", "nowhere.json"], "cannot be read"),
     ([*FIGURES, "--servers", "2"], "servers must be"),
     ([*FIGURES, "--memory", "-8"], "memory_gb must be above 0"),
     ([*FIGURES, "--picture", "nowhere/plan.png"], "there is no folder nowhere"),
     ([*FIGURES, "--picture", "plan.exe"], "--picture plan.exe must end in one of"),
     (["plan", "--calibrate", "nowhere/costs.json"], "there is no folder nowhere"),
     (["plan", "--calibrate", "."], "it is a folder"),
     (["plan", "--with", "127.0.0.1:1"], "--with belongs to --calibrate"),
     (["plan", "--calibrate", "costs.json", "--with", "127.0.0.1:1"], "127.0.0.1:1"),
     (["plan", "--answer", "0.0.0.0:0"], "--insecure"),
     (["plan", "--root", "nowhere"], "nowhere")],
)  # fmt: skip
def test_mistakes_are_answered(capsys, given: list[str], text: str) -> None:
    assert main(given) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def test_a_machine_that_is_too_small_is_said(capsys) -> None:
    assert main([*FIGURES, "--memory", "8"]) == 0
    assert "DOES NOT FIT" in capsys.readouterr().out
