"""Seeds per second over machines, drawn."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest

from gigl_loader.commands.capacity.model import estimate
from gigl_loader.commands.plan import draw
from gigl_loader.errors import ConfigError
from tests.commands.capacity.jobs_by_hand import COSTS, JOB

STORE = replace(JOB, machines=2, deployment="graph-store", num_servers=2, step_ms=5.0)


@pytest.mark.parametrize(
    "job", [replace(JOB, machines=2), STORE, replace(JOB, nodes=2, edges=1, batch_size=1)]
)
def test_each_limit_has_a_line_and_a_name(tmp_path: Path, job: Any) -> None:
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(tmp_path / "plan.svg", job, COSTS)
    drawn = ElementTree.parse(tmp_path / "plan.svg").getroot()
    texts = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {*estimate(job, COSTS).bounds, "what is left", "training machines"} <= texts
    counts = {text for text in texts if text and text.isdigit()}
    some = {"1", "2"} if job.nodes == 2 else {"1", "2", "4", "8", "16"}
    assert some <= counts, "an eighth to eight times as many, at least one, at most one a node"
    assert not counts & {"0", "32"}


def test_the_backend_stays_as_it_is(tmp_path: Path) -> None:
    before = matplotlib.get_backend()
    matplotlib.use("svg")
    try:
        draw(tmp_path / "plan.png", JOB, COSTS)
        assert matplotlib.get_backend() == "svg"
    finally:
        matplotlib.use(before)


def test_pictures_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"plan\.exe must end in one of: \..*\.png, .*\.svg"):
        draw(tmp_path / "plan.exe", JOB, COSTS)
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        draw(tmp_path / "none/plan.png", JOB, COSTS)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        draw(tmp_path / "plan.png", JOB, COSTS)
