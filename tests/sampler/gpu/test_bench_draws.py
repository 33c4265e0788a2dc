import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "benchmarks" / "draws" / "bench_draws.py"


def test_all_three_draw_the_same_and_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT))["main"](["--rows", "300", "--fanout", "5", "--rounds", "1"])
    table = capsys.readouterr().out.splitlines()
    names = [line.split("|")[1].strip() for line in table if line.startswith("|")]
    assert names == ["draw", "---", "uniform", "with replacement", "weighted", "labor"]
