"""The picture on the first page shows the figures of the benchmark's page."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "examples" / "benchmarks" / "colocated"
RESULTS = max((BENCHMARK / "results").glob("????-??-??.json"))  # the latest run
RESULTS_KEYS = ("date", "machine", "case", "work", "table", "seeds_per_s")


def test_the_page_holds_the_figures_of_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    import page

    text = (BENCHMARK / "README.md").read_text()
    (tmp_path / "README.md").write_text(text)
    page.write(RESULTS, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == text
    for row in json.loads(RESULTS.read_text())["seeds_per_s"]:
        figures = f"| {row['median']:,} ({row['least']:,} to {row['most']:,}) |"
        assert figures in text, row["contestant"]
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(ValueError, match="needs the lines"):
        page.write(RESULTS, tmp_path / "README.md")
    sys.modules.pop("page", None)


def test_the_picture_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    import picture

    picture.draw(RESULTS, tmp_path / "throughput.png")
    drawn = (tmp_path / "throughput.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) > 10_000
    sys.modules.pop("picture", None)


WIDTH = 400  # of a phone's screen, which has two or more pixels for each of these


def test_the_pictures_fit_on_a_phone_and_have_no_white_box() -> None:
    from matplotlib import image

    static = ROOT / "docs" / "_static"
    for name in ("throughput.png", "throughput-dark.png"):
        drawn = image.imread(static / name)
        assert drawn.shape[1:] == (2 * WIDTH, 4), "red, green, blue and opacity"
        assert drawn[0, 0, 3] == drawn[-1, -1, 3] == 0.0, "transparent"
        red, green, blue, opacity = (drawn[..., color] for color in range(4))
        is_ours = (red > 0.9) & (abs(green - 0.5) < 0.1) & (blue < 0.2) & (opacity > 0.9)
        ours = np.flatnonzero(is_ours.any(axis=0))
        assert ours.min() < 0.1 * drawn.shape[1]
        assert 0.6 * drawn.shape[1] < ours.max() < drawn.shape[1], "the CPU time has a bar, too"
    readme = (ROOT / "README.md").read_text()
    assert f'src="docs/_static/throughput.png" width="{WIDTH}"' in readme
    dark = '(prefers-color-scheme: dark)" srcset="docs/_static/throughput-dark.png"'
    assert dark in readme
    site = (ROOT / "docs" / "index.md").read_text()
    for name, where in (("throughput.png", "only-light"), ("throughput-dark.png", "only-dark")):
        assert f"```{{image}} _static/{name}\n:width: {WIDTH}px\n:class: {where}\n" in site


def test_figures_are_not_cut_and_turn_dark_with_the_site() -> None:
    css = (ROOT / "docs" / "_static" / "wrap.css").read_text()
    assert "max-width: none" not in css
    assert ".content img {\n  max-width: 100%;\n" in css
    others = ".content img:not(.only-light):not(.only-dark):not(.as-is) {"
    assert f'body[data-theme="dark"] {others}' in css
    assert f'body:not([data-theme="light"]) {others}' in css


def test_the_chart_has_cpu_time_and_no_floor_that_is_beaten() -> None:
    found = json.loads(RESULTS.read_text())
    assert all(row["cpu_ms"] > 0 for row in found["seeds_per_s"])
    text = (BENCHMARK / "README.md").read_text() + (ROOT / "docs" / "benchmarks.md").read_text()
    assert "floor" not in text.replace("It is no floor", "")
    for page in ("README.md", "docs/index.md", "docs/benchmarks.md"):
        told = " ".join((ROOT / page).read_text().split())
        assert "21,700" in told, page
        assert "By CPU time" in told or "By it, PyG takes 4.4 times" in told, page


def test_a_run_gives_the_file_that_the_picture_is_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    import _summary
    import picture

    args = Namespace(
        case="throughput", nodes=10, edges=20, dim=3, fanout=[2], batch_size=4, batches=2, rounds=3
    )
    figures = {
        "gigl_loader, 1 worker": {0: 90.0, 1: 100.0, 2: 80.4},
        "PyG NeighborLoader, pyg-lib, 1 worker": {0: 10.0},
        "PyG NeighborLoader, pyg-lib, 2 workers": {0: 16.0},
        "bare loop: kernels and gather in one process": {0: 95.0},  # has no bar
        "gigl_loader, 1 worker, with replacement": {0: 130.0},  # nor has this
    }
    cpu_ms = {name: {0: 20.0, 1: 30.04, 2: 40.0} for name in figures}
    versions = {name: {"pyg_lib": "0.9"} if "pyg-lib" in name else {} for name in figures}
    summary = _summary.summarize(
        figures,
        cpu_ms,
        versions,
        args=args,
        machine="a busy machine",
        others_cpu=0.2,
        table="| a |\n| b |",
    )
    _summary.write(tmp_path / "results" / "one.json", summary)
    found = json.loads((tmp_path / "results" / "one.json").read_text())
    assert found == summary
    assert found["table"] == ["| a |", "| b |"]
    ours = {"median": 90, "least": 80, "most": 100, "cpu_ms": 30.0}
    theirs = {"median": 10, "least": 10, "most": 10, "cpu_ms": 30.0}
    assert found["seeds_per_s"] == [
        {"contestant": "gigl_loader", "versions": "", **ours, "best": {"workers": 1, **ours}},
        {
            "contestant": "PyG NeighborLoader, pyg-lib",
            "versions": "pyg_lib 0.9",
            **theirs,
            "best": {"workers": 2, "median": 16, "least": 16, "most": 16, "cpu_ms": 30.0},
        },
    ]
    assert set(RESULTS_KEYS) <= set(found)
    picture.draw(tmp_path / "results" / "one.json", tmp_path / "one.png")
    for name in ("_summary", "picture"):
        sys.modules.pop(name, None)


def test_both_first_pages_compare_alike() -> None:
    header = "| | gigl_loader |"
    of_readme, of_site = (
        (ROOT / page).read_text().split(header, 1)[1].split("\n\n", 1)[0]
        for page in ("README.md", "docs/index.md")
    )
    assert of_readme == of_site
    assert "hangs" in of_site
