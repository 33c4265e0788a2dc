"""``gigl-loader plan``, from the shell's point of view."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import partition_graph
from gigl_loader.commands.cli import main

FIGURES = ["plan", "--nodes", "111M", "--edges", "1.6B", "--dim", "128", "--dtype", "float16"]


def test_figures_give_a_table_and_json(capsys, tmp_path: Path) -> None:
    given = [
        *FIGURES,
        "--machines",
        "16",
        "--ranks-per-machine",
        "8",
        "--link",
        "25Gbit",
        "--step-ms",
        "40",
        "--remote-cache",
        "10%",
    ]
    assert main([*given, "--picture", str(tmp_path / "plan.png")]) == 0
    text = capsys.readouterr().out
    assert "seeds/s of all ranks" in text
    assert "memory of a training machine" in text
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.5 < found["seeds_per_second"] / min(found["bounds"].values()) <= 1
    assert found["job"]["link_gbit"] == 25
    assert found["job"]["remote_cache"] == 0.1


@pytest.mark.parametrize("count", [1, 2])
def test_a_directory_gives_its_own_figures(capsys, tmp_path: Path, count: int) -> None:
    ring = torch.arange(50)
    data = Data(x=torch.ones(50, 3), edge_index=torch.stack([ring, (ring + 1) % 50]))
    partition_graph(data, count, tmp_path / "graph", method="random", progress=False)
    given = [
        "plan",
        "--root",
        str(tmp_path / "graph"),
        "--num-neighbors",
        "2,2",
        "--batch-size",
        "4",
    ]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["job"]["nodes"], found["job"]["edges"], found["job"]["dim"]) == (50, 50, 3)
    assert found["batch"]["edges"] == pytest.approx(8, rel=0.1)  # one neighbour each, twice
    files = list((tmp_path / "graph").glob("part0/node_features/**/*.bin"))
    assert found["memory"]["rows and labels"] >= sum(file.stat().st_size for file in files) > 0
    assert found["memory"]["edges"] > 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["plan"], "give --root, or --nodes, --edges, --dim"),
        ([*FIGURES, "--batch-size", "200000000"], "batch_size must be 1 to"),
        ([*FIGURES, "--costs", "nowhere.json"], "cannot be read"),
        ([*FIGURES, "--num-servers", "2"], "servers must be"),
        ([*FIGURES, "--step-ms", "inf"], "step_ms must not be negative"),
        ([*FIGURES, "--step-ms", "nan"], "step_ms must not be negative"),
        ([*FIGURES, "--machines", "200000000"], "111,000,000 nodes cannot be in 200,000,000 parts"),
        ([*FIGURES, "--picture", "/proc/plan.png"], "/proc/plan.png cannot be written"),
        ([*FIGURES, "--calibrate", "costs.json"], "leave out --nodes, --edges, --dim, --dtype"),
        (["plan", "--answer", "127.0.0.1:0", "--calibrate", "costs.json"], "on the second host"),
        ([*FIGURES, "--picture", "nowhere/plan.png"], "there is no folder nowhere"),
        ([*FIGURES, "--picture", "plan.exe"], "--picture plan.exe must end in one of"),
        (["plan", "--calibrate", "nowhere/costs.json"], "there is no folder nowhere"),
        (["plan", "--calibrate", "."], "it is a folder"),
        (["plan", "--with", "127.0.0.1:1"], "--with belongs to --calibrate"),
        (["plan", "--calibrate", "costs.json", "--with", "127.0.0.1:1"], "127.0.0.1:1"),
        (["plan", "--answer", "0.0.0.0:0"], "--insecure"),
        (["plan", "--root", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_answered(capsys, given: list[str], text: str) -> None:
    is_refused = text != "127.0.0.1:1"  # there is nobody: that is seen when it is asked
    assert main(given) == (2 if is_refused else 1)
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def _found(capsys, *given: str) -> dict[str, Any]:
    assert main([*given, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_machine_that_is_too_small_is_said_with_how_many_would_do(capsys) -> None:
    assert main([*FIGURES, "--memory", "8"]) == 0
    said = capsys.readouterr().out
    assert "DOES NOT FIT" in said
    enough = _found(capsys, *FIGURES, "--memory", "8")["enough"]
    assert f"it would fit with {enough} machines" in said
    given = [*FIGURES, "--memory", "8GB", "--machines"]
    assert [_found(capsys, *given, str(n))["fits"] for n in (enough - 1, enough)] == [False, True]
    assert _found(capsys, *FIGURES, "--memory", "0.1")["enough"] is None


def test_a_cache_of_so_many_bytes_takes_them(capsys) -> None:
    found = _found(capsys, *FIGURES, "--machines", "4", "--remote-cache", "2GB")
    assert 0.97 * 2e9 < found["memory"]["cache"] <= 2e9
    assert 0.03 < found["job"]["remote_cache"] < 0.06
    assert found["batch"]["hit_rate"] > 0
    more_than_all = _found(capsys, *FIGURES, "--machines", "4", "--remote-cache", "900GB")
    assert more_than_all["job"]["remote_cache"] == 1
    assert _found(capsys, *FIGURES, "--remote-cache", "2GB")["job"]["remote_cache"] == 0, (
        "nothing is elsewhere"
    )


@pytest.mark.parametrize(("dtype", "nbytes"), [("int8", 1), ("float16", 2), (None, 4)])
def test_a_directory_is_planned_as_its_rows_are_stored(
    capsys, tmp_path: Path, dtype: str | None, nbytes: int
) -> None:
    ring = torch.arange(60)
    data = Data(x=torch.rand(60, 5), edge_index=torch.stack([ring, (ring + 1) % 60]))
    partition_graph(data, 2, tmp_path / "graph", progress=False, feature_dtype=dtype)
    given = ["plan", "--root", str(tmp_path / "graph"), "--batch-size", "4"]
    found = _found(capsys, *given)
    assert (found["job"]["machines"], found["job"]["dim"]) == (2, 5)
    rows = found["batch"]["nodes"] * found["job"]["remote_share"] * (5 * nbytes + 4) / 4
    assert found["network"]["rows between partitions"] == pytest.approx(rows)
    assert found["job"]["remote_share"] == pytest.approx(2 / 60), "where the ring is cut"
    assert _found(capsys, *given, "--remote-share", "30%")["job"]["remote_share"] == 0.3
    alone = _found(capsys, *given, "--machines", "1")
    assert sum(alone["network"].values()) == 0
    for part in ("rows and labels", "edges"):
        assert alone["memory"][part] == 2 * found["memory"][part]
    store = _found(capsys, *given, "--deployment", "graph-store")
    assert (store["job"]["machines"], store["job"]["num_servers"]) == (1, 2)


def test_fanouts_may_begin_with_all(capsys) -> None:
    for first in ("-1", "all"):
        found = _found(capsys, *FIGURES, "--num-neighbors", f"{first},10")
        assert found["job"]["num_neighbors"] == [-1, 10]


def test_a_prediction_has_two_digits_and_says_that_no_cluster_confirmed_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [*FIGURES, "--machines", "40", "--ranks-per-machine", "8", "--link", "25Gbit"]
    assert main(given) == 0
    text = capsys.readouterr().out
    assert "no cluster has confirmed it" in text
    predicted = text.split("connections, and descriptors", 1)[0].replace(",", "")
    figures = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*-)", predicted)
    long = [one for one in figures if len(one.replace(".", "").strip("0")) > 2]
    assert set(long) <= {"1024"}, long  # the batch size, which was given
    assert main([*given, "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)["seeds_per_second"]
    first = text.splitlines()[0].split()[0].replace(",", "")
    assert float(first) == float(f"{exact:.2g}") != exact
