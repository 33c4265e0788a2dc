import runpy
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "examples" / "benchmarks" / "device" / "bench_step.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT))["main"]([])
    assert "no CUDA device on this machine" in capsys.readouterr().out


@pytest.mark.gpu
def test_it_runs_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--nodes", "1000", "--features", "16", "--edges", "4000", "--hidden", "32"]
    options = ["--ratio", "1", "--steps", "3", "--rounds", "1", "--out", str(tmp_path)]
    runpy.run_path(str(SCRIPT))["main"]([*sizes, *options])
    assert "| compute/copy |" in capsys.readouterr().out
    assert (tmp_path / "results.json").exists()
    assert (tmp_path / "trace.json.gz").stat().st_size > 0


def test_the_verdict_follows_the_bars() -> None:
    result = runpy.run_path(str(SCRIPT))["Result"]
    times = {"wanted_ratio": 1.0, "copy_ms": 2.0, "resident_ms": 2.0, "blocking_ms": 4.0}
    good = result(
        compute_over_copy=1.0,
        overlapped_ms=2.05,
        exposed_share=0.024,
        speedup_over_blocking=1.95,
        **times,
    )
    bad = result(
        compute_over_copy=1.0,
        overlapped_ms=4.0,
        exposed_share=0.5,
        speedup_over_blocking=1.0,
        **times,
    )
    assert good.verdict() == "exposed share below 5%: met; 1.5 times blocking: met"
    assert bad.verdict().count("MISSED") == 2
