"""The bytes of an epoch on paper, against graphs that are drawn."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "examples/benchmarks/full_graph/on_paper.py"


def _script() -> Any:
    spec = importlib.util.spec_from_file_location("on_paper", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    __import__("sys").modules["on_paper"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("machines", [2, 5])
def test_the_halo_is_that_of_a_random_graph(machines: int) -> None:
    nodes, edges = 20_000, 60_000
    generator = torch.Generator().manual_seed(0)
    sources, targets = torch.randint(nodes, (2, edges), generator=generator)
    own, others = targets % machines == 0, sources % machines != 0
    drawn = torch.unique(sources[own & others]).numel()
    script = _script()
    args = script.parse_args(
        ["--machines", str(machines), "--nodes", str(nodes), "--edges", str(edges)]
    )
    assert script.halo_rows(args) == pytest.approx(drawn, rel=0.02)
    first, second, _ = script.layers(args)
    assert first.backward_bytes == 0
    assert second.forward_bytes == second.backward_bytes == pytest.approx(drawn * 1024, rel=0.02)
