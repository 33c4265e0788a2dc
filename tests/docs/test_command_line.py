"""The page "Command line and environment variables" names each option and variable that is read."""

import re
from pathlib import Path

import pytest

from gigl_loader.commands import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/command_line.md").read_text()
VERBS = list(cli.VERBS)
VARIABLE = re.compile(r"\b(?:GIGL|COMPUTE_CLUSTER|NUMBA|GLOO|RAY_ADDRESS)(?:_[A-Z]+)*\b")
OPTION = re.compile(r"--[a-z][a-z_-]+")


def section(verb: str) -> str:
    """Return what the page says of a verb."""
    return PAGE.split(f"\n## {verb}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("verb", VERBS)
def test_the_synopsis_is_that_of_the_help(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")  # in one line
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    usage = capsys.readouterr().out.partition("\n")[0].removeprefix("usage: ")
    text = section(verb)
    shown = re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert shown[1].split() == usage.replace(" [-h]", "").split()
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `--"))
    told = {name for line in rows.splitlines() for name in OPTION.findall(line.split(" | ")[0])}
    assert told == set(OPTION.findall(usage))


def test_each_verb_has_a_row() -> None:
    first = PAGE.split("\n## ", 1)[0]
    assert re.findall(r"^\| \[`([\w-]+)`\]", first, re.MULTILINE) == re.findall(
        r"^## ([\w-]+)$", PAGE, re.MULTILINE
    )
    assert set(VERBS) <= set(re.findall(r"^## ([\w-]+)$", PAGE, re.MULTILINE))


def test_the_variables_are_those_that_the_package_names() -> None:
    sources = (path.read_text() for path in (ROOT / "gigl_loader").rglob("*.py"))
    named = {name for text in sources for name in VARIABLE.findall(text)}
    table = PAGE.split("\n## Environment variables\n", 1)[1]
    told = set(VARIABLE.findall(table))
    assert told == named
