"""What fits into a GPU, by hand."""

import json
from typing import Any

import pytest

from gigl_loader.commands.plan import main

GRAPH = ["--nodes", "1M", "--edges", "10M", "--dim", "100", "--batch-size", "1000"]


def plan(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*GRAPH, "--num-neighbors", "10,5", *more, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["gpu"]
    return found


def test_bytes_of_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--gpu", "80GB")
    assert found["where"] == "device"
    # row pointers and labels, neighbours, edge ids: what `DistDataset.to` copies
    assert found["structure"] == 16e6 + 40e6 + 80e6
    assert found["features"] == 400e6
    places, labels = 1000 * 10 + 10_000 * 5, 1000 + 10_000 + 50_000
    structure = places * 72 + labels * 32
    # six batches, and the graph of the launches of one, which has no rows
    rows = (found["batches"] - structure) / 6 - structure
    assert rows == labels * 400  # of all nodes that a batch may have, as the loader counts them


@pytest.mark.parametrize(
    ("memory", "where", "said"),
    [
        ("80GB", "device", 'fits: dataset.to("cuda"), num_workers=0'),
        ("400MB", "host", 'features="host"'),
        ("50MB", "workers", "DOES NOT FIT: sample with workers"),
    ],
)
def test_what_fits_where(
    memory: str, where: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(capsys, "--gpu", memory)["where"] == where
    assert main([*GRAPH, "--num-neighbors", "10,5", "--gpu", memory]) == 0
    assert said in capsys.readouterr().out


def test_without_a_gpu_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GRAPH, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"] is None
    assert main(GRAPH) == 0
    assert "GPU" not in capsys.readouterr().out


def test_all_neighbours_have_no_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GRAPH, "--num-neighbors", "-1,5", "--gpu", "80GB"]) == 2
    assert "makes room for all neighbours" in capsys.readouterr().err
