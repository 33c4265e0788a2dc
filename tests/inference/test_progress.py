"""The line that says how far inference is."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest

from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.runtime import progress
from gigl_loader.runtime.progress import ProgressLine
from tests.inference import full_jobs
from tests.inference.layerwise_jobs import make
from tests.support.conditions import Clock

DATASET = full_jobs.partition(full_jobs.graph(), 0, 1)


@pytest.fixture
def clock(clock_of: Callable[..., Clock]) -> Clock:
    return clock_of(progress)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_an_earlier_run_computed_counts_as_done_and_not_as_fast(clock: Clock) -> None:
    with contextlib.redirect_stderr(_Terminal()) as terminal:
        line = ProgressLine(1000, shown=True)
        line.skip(500)
        clock.now += 2.0
        line.add(100, "layer 2 of 3")
    assert line.per_second == 50.0
    text = terminal.getvalue()
    assert text.startswith("\rlayer 2 of 3: 600 of 1,000 rows, 50 rows/s, 2.0 s, 8 s left ")
    assert "\n" not in text


def test_it_is_written_twice_a_second_at_most(clock: Clock) -> None:
    with contextlib.redirect_stderr(_Terminal()) as terminal:
        line = ProgressLine(100, shown=True)
        for _ in range(30):
            clock.now += 0.125
            line.add(1, "layer 1 of 1")
        before = terminal.getvalue()
        assert before.count("\r") == 6
        line.end()
    text = "layer 1 of 1: 30 of 100 rows, 8 rows/s, 3.8 s, 9 s left"
    assert terminal.getvalue() == before + "\r" + text.ljust(90) + "\n"


def test_elsewhere_it_is_a_line_for_each_ten_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine(100, shown=True, name="sort", unit="edges")
    for _ in range(30):
        clock.now += 1.0
        line.add(2)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "sort: 22 of 100 edges, 2 edges/s, 11.0 s, 39 s left"
    assert second.startswith("sort: 44 of 100 edges, ")


@pytest.mark.parametrize("total", [0, 10])
def test_no_time_and_no_rows(total: int, clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(total, shown=True)
    line.add(0, "layer 1 of 1")
    line.end()
    assert f"layer 1 of 1: 0 of {total} rows, 0 rows/s" in capsys.readouterr().err


def test_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    full_graph_inference(make("SAGE"), DATASET, progress=True)
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("layer 2 of 2: 120 of 120 rows, ")
    full_graph_inference(make("SAGE"), DATASET)
    assert capsys.readouterr().err == ""
