"""Names of graphlearn-torch's packages: each is here, or its import says what to use."""

import ast
import importlib.util
import random
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from gigl_loader.compat import glt
from tests.support.glt import available

PACKAGES = ("channel", "data", "distributed", "utils")


def _names(package: str) -> list[str]:
    """Return the public classes and functions of a package of graphlearn-torch's."""
    spec = importlib.util.find_spec("graphlearn_torch")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / package
    found: list[str] = []
    shown = [
        node
        for node in ast.parse((folder / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom)
    ]
    for node in shown:
        names = [alias.name for alias in node.names]
        if names == ["*"]:
            body = ast.parse((folder / f"{node.module}.py").read_text()).body
            names = [one.name for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
        found += [name for name in names if not name.startswith("_")]
    return found


@pytest.mark.skipif(not available, reason="graphlearn-torch is not installed")
@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_here_or_says_what_to_use(package: str) -> None:
    path = f"gigl_loader.glt.{package}"
    module = import_module(path)
    names = _names(package)
    assert len(names) > 3
    for name in names:
        if name not in vars(module):
            with pytest.raises(ImportError, match=f"{path} has no {name!r}: "):
                getattr(module, name)


def test_packages_are_attributes_and_an_unknown_name_is_none_of_theirs() -> None:
    assert glt.data.Graph.__name__ == "Graph"
    assert glt.channel.ChannelBase.__name__ == "ChannelBase"
    with pytest.raises(ImportError, match="there is no RPC to set up"):
        _ = glt.distributed.init_rpc
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = glt.utils.nothing


def test_helpers_of_scripts(tmp_path: Path) -> None:
    glt.utils.ensure_dir(str(tmp_path / "a" / "b"))
    glt.utils.ensure_dir(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    drawn = []
    for _ in range(2):
        glt.utils.seed_everything(7)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]
