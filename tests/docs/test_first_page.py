"""The first pages say what a stranger looks for, and nothing that is not so."""

import inspect
import re
from pathlib import Path

from gigl_loader import DistNeighborLoader

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _first_column(page: str, title: str) -> list[str]:
    """Return the first cell of each row of the table in a section."""
    section = (ROOT / page).read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    _, _, *rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return rows


def test_five_keywords_are_enough_to_begin() -> None:
    five = [
        name.strip("`")
        for name in _first_column("docs/quickstart.md", "Which five keywords matter")
    ]
    assert len(five) == 5
    assert set(five) <= inspect.signature(DistNeighborLoader).parameters.keys()


def test_ten_faults_come_before_all_of_them() -> None:
    assert len(_first_column("docs/guide/when_things_fail.md", "The ten most common faults")) == 10
    index = (ROOT / "docs" / "index.md").read_text()
    assert index.index("guide/when_things_fail\n") < index.index("guide/faults\n")
    everything = (ROOT / "docs" / "guide" / "faults.md").read_text()
    assert everything.count("\n| ") > 50


def test_the_first_line_says_who_it_is_for() -> None:
    _, _, first, *_ = README.splitlines()
    assert first.startswith("`gigl_loader` is for people who ")


def test_its_state_is_told_before_its_speed() -> None:
    assert README.index("> **Status") < README.index("throughput.png")
    assert "killed_worker.svg" in README


def test_jobs_use_a_graph_store_at_the_same_time() -> None:
    assert "several jobs use a graph at the same time" in README
    assert "one after another" not in README
