"""What `predicted.py` says of a measured case: here one of a directory of two partitions."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gigl_loader import partition_graph
from gigl_loader.testing import TinyGraph

FOLDER = Path(__file__).parents[2] / "examples/benchmarks/network"


def test_a_case_beside_its_prediction(
    tmp_path: Path, command_line: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    partition_graph(TinyGraph.random(100, 800).to_pyg(), 2, tmp_path / "graph", progress=False)
    case = {
        "graph": "tiny",
        "dtype": "float32",
        "parts": 2,
        "rate": "1gbit",
        "cache": "none",
        "folder": str(tmp_path / "graph"),
        "batch_size": 16,
        "seeds_per_s": 1000.0,
        "rows_per_seed": 100.0,
        "structure_per_seed": 10.0,
        "hit_rate": None,
        "cpu_s": [1.0, 1.0],
        "others": 0.0,
        "memory": [1e9, 2e9],
    }
    cases = [{**case, "deployment": one} for one in ("colocated", "graph store")]
    (tmp_path / "records").write_text("\n".join(map(json.dumps, cases)))
    spec = importlib.util.spec_from_file_location("predicted", FOLDER / "predicted.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    command_line("predicted.py", tmp_path / "records", "--fit")
    module.main()
    said = capsys.readouterr().out.splitlines()
    assert "of 2" in said[0]
    assert [line.split("|")[4].strip() for line in said[4:]] == ["colocated", "graph store"]
