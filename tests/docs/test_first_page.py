"""The README says what a stranger looks for first, and nothing that is not so."""

from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_first_line_says_who_it_is_for() -> None:
    _, _, first, *_ = README.splitlines()
    assert first.startswith("`gigl_loader` is for people who ")


def test_its_state_is_told_before_its_speed() -> None:
    assert README.index("> **Status") < README.index("throughput.png")
    assert "killed_worker.svg" in README


def test_jobs_use_a_graph_store_one_after_another() -> None:
    assert "several jobs use a graph one after another" in README
    assert "jobs share" not in README
