"""The commands on the page "How many machines?" print what stands below them there."""

import re
import shlex
from pathlib import Path

import pytest

from gigl_loader.commands.plan import main

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "how_many_machines.md"
BLOCKS = re.findall(
    r"^```console\n\$ gigl-loader plan ([^\n]+)\n([^$]+?)^```$", PAGE.read_text(), re.M
)


def test_the_three_graphs_are_there() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_a_plan_prints_its_figures(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in shown.splitlines():
        assert line.split() in printed, line
