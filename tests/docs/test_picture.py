"""The picture on the first page shows the figures of the benchmark's page."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "examples" / "benchmarks" / "colocated"
RESULTS = BENCHMARK / "results" / "2026-11-21.json"


def test_the_result_file_holds_the_figures_of_the_page() -> None:
    page = (BENCHMARK / "README.md").read_text()
    found = json.loads(RESULTS.read_text())
    assert found["machine"] in page
    for row in found["seeds_per_s"]:
        figures = f"| {row['median']:,} ({row['least']:,} to {row['most']:,}) |"
        assert figures in page, row["contestant"]


def test_the_picture_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    import picture

    picture.draw(RESULTS, tmp_path / "throughput.png")
    drawn = (tmp_path / "throughput.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) > 10_000
    sys.modules.pop("picture", None)


def test_both_first_pages_compare_alike() -> None:
    header = "| | gigl_loader |"
    of_readme, of_site = (
        (ROOT / page).read_text().split(header, 1)[1].split("\n\n", 1)[0]
        for page in ("README.md", "docs/index.md")
    )
    assert of_readme == of_site
    assert "hangs" in of_site
