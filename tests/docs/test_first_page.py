"""The first pages say what a stranger looks for, and nothing that is not so."""

import inspect
import re
from pathlib import Path

import pytest

from gigl_loader import DistNeighborLoader
from tests.support.pages import script

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _first_column(page: str, title: str) -> list[str]:
    """Return the first cell of each row of the table in a section."""
    section = (ROOT / page).read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    _, _, *rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return rows


def _rows(page: str, title: str) -> list[str]:
    section = (ROOT / page).read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("| ")]


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


@pytest.mark.multiprocess
def test_the_example_ends_with_an_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(script(README), "README.md", "exec"), {"__name__": "page"})
    last = capsys.readouterr().out.splitlines()[-1]
    figure = re.fullmatch(r"test accuracy: (0\.\d\d|1\.00)", last)
    assert figure, last
    assert float(figure[1]) > 0.3  # five classes: a guess is right in 0.2


def test_the_example_is_the_same_on_both_first_pages() -> None:
    codes = [
        "".join(script((ROOT / page).read_text()).split()).replace(",)", ")")
        for page in ("README.md", "docs/index.md")
    ]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_it_does_comes_in_the_order_of_need(page: str) -> None:
    steps = "\n".join(_rows(page, "What it does"))
    places = [
        steps.index(word)
        for word in (
            "guide/tables.md",
            "guide/table_versions.md",
            "guide/object_storage.md",
            "guide/graph_store.md",
            "guide/graph_store_jobs.md",
            "guide/after_training.md",
            "guide/padding.md",
            "guide/gpu.md",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_where_to_start_has_tables_urls_and_inference(page: str) -> None:
    start = "\n".join(_rows(page, "Where to start"))
    for target in ("guide/tables.md", "guide/object_storage.md", "guide/after_training.md"):
        assert target in start
