"""The line that says how far inference is."""

import re
from typing import Any

import full_jobs
import pytest
from layerwise_jobs import make

from gigl_loader.dataset import progress
from gigl_loader.dataset.progress import ProgressLine
from gigl_loader.inference.layerwise import full_graph_inference

DATASET = full_jobs.partition(full_jobs.graph(), 0, 1)


class _Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_what_an_earlier_run_computed_counts_as_done_and_not_as_fast(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine(1000, shown=True)
    line.skip(500)
    clock.now += 2.0
    line.add(100, "layer 2 of 3")
    assert line.rows_per_s == 50.0
    text = capsys.readouterr().err
    assert text.startswith("\rlayer 2 of 3   60%  50 rows/s  0:08 left ")
    assert "\n" not in text


def test_it_is_written_twice_a_second_at_most(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine(100, shown=True)
    for _ in range(30):
        clock.now += 0.125
        line.add(1, "layer 1 of 1")
    assert capsys.readouterr().err.count("\r") == 6
    line.end()
    assert capsys.readouterr().err == "\r" + "30 rows, 8 rows/s".ljust(70) + "\n"


@pytest.mark.parametrize("total", [0, 10])
def test_no_time_and_no_rows(total: int, clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(total, shown=True)
    line.add(0, "layer 1 of 1")
    assert "0%" in capsys.readouterr().err


def test_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    full_graph_inference(make("SAGE"), DATASET, progress=True)
    shown = capsys.readouterr().err
    assert re.search(r"layer 1 of 2 +50% +[\d,]+ rows/s +\d+:\d\d left", shown)
    assert "120 rows," in shown
    full_graph_inference(make("SAGE"), DATASET)
    assert capsys.readouterr().err == ""
