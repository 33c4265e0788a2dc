"""Versions are said where they are decided: what is needed in pyproject, what is tested in .ci."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TESTED = "docs/installation.md"
READ_FIRST = ["README.md", *(f"docs/{name}.md" for name in ("index", "quickstart", "installation"))]


def _needed(name: str) -> str:
    """Return the oldest version that the package asks for."""
    (version,) = re.findall(rf"^{name}>=([\d.]+)$", "\n".join(PROJECT["dependencies"]), re.M)
    return str(version)


def _tested(file: str) -> str:
    """Return the version of torch that a file of constraints has."""
    (version,) = re.findall(r"^torch==([\d.]+)$", (ROOT / ".ci" / file).read_text(), re.M)
    return str(version)


def test_what_is_needed_is_what_pyproject_asks_for() -> None:
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    for page, newer in (("README.md", "torch {} or newer"), (TESTED, "PyTorch {} or newer")):
        text = (ROOT / page).read_text()
        assert newer.format(_needed("torch")) in text, page
        assert f"Python {pythons[0]} to {pythons[-1]}" in text, page


def test_what_is_tested_is_said_once() -> None:
    text = (ROOT / TESTED).read_text()
    assert f"torch {_tested('constraints.txt')}" in text
    assert f"torch {_tested('constraints-oldest.txt')}" in text
    assert _tested("constraints-oldest.txt").startswith(_needed("torch"))


@pytest.mark.parametrize("page", READ_FIRST)
def test_no_other_page_says_which_torch_is_tested(page: str) -> None:
    text = (ROOT / page).read_text()
    said = re.findall(r"[^.]*\btest(?:ed|s)?\b[^.]*\btorch \d+\.\d+", text)
    assert page == TESTED or said == []
