"""Costs of a machine, as a file."""

import re
from pathlib import Path

import pytest

from gigl_loader.commands.capacity.needs import SHIPPED, Costs
from gigl_loader.errors import ConfigError


def test_the_costs_that_come_with_the_package_are_read(tmp_path) -> None:
    costs = Costs.read(SHIPPED)
    assert costs.machine
    costs.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == costs
    (tmp_path / "costs.json").write_text("{}")
    with pytest.raises(ConfigError, match="must have the keys"):
        Costs.read(tmp_path / "costs.json")
    text = SHIPPED.read_text()
    (tmp_path / "costs.json").write_text(re.sub(r'("edge_s": )\S+', r'\1"much",', text, count=1))
    with pytest.raises(ConfigError, match="edge_s must be a number >= 0, got 'much'"):
        Costs.read(tmp_path / "costs.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        Costs.read(tmp_path / "none.json")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e-9", "true", "null"])
def test_a_cost_is_a_finite_number(tmp_path: Path, value: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(re.sub(r'("node_s": )[^,]+', rf"\g<1>{value}", SHIPPED.read_text(), count=1))
    with pytest.raises(ConfigError, match="node_s must be a number >= 0, got"):
        Costs.read(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="are no JSON"):
        Costs.read(path)
