"""GiGL's 13 example scripts import with `gigl_loader` in the place of ``gigl.distributed``.

Read from the git directory that ``GIGL_REPOSITORY`` names; without one these are left out. What the
scripts import from elsewhere (models, losses, cloud clients) is a stand-in with any name.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMIT = "fee4ba5047cf8d066d04344690b41725a312c711"
REPOSITORY = os.environ.get("GIGL_REPOSITORY")
SCRIPTS = [
    f"examples/{folder}/{kind}_{use}"
    for folder, kinds in {
        "link_prediction": ("homogeneous", "heterogeneous"),
        "node_classification": ("homogeneous",),
        "tutorial/KDD_2025": ("heterogeneous",),
        "link_prediction/graph_store": ("homogeneous", "heterogeneous"),
    }.items()
    for kind in kinds
    for use in ("training", "inference")
] + ["examples/link_prediction/graph_store/storage_main"]
PROGRAM = """
import collections, importlib.abc, importlib.machinery, sys, types
from pathlib import Path
from unittest import mock

from gigl_loader.compat import install
import torch, torch_geometric  # ours, not stand-ins

install("gigl.distributed")
asked = set()


TYPES = {
    "EdgeType": collections.namedtuple("EdgeType", "src_node_type relation dst_node_type"),
    "NodeType": str,
    "Relation": str,
}


class Anything(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return TYPES.get(name) or mock.MagicMock(name=f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("gigl.distributed", "gigl_loader")):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        asked.add(module.__name__)


sys.meta_path.append(StandIns())  # after all others: for what is not there
text = Path(sys.argv[1]).read_text()
exec(compile(text, sys.argv[1], "exec"), {"__name__": "script"})
assert not any(name.startswith(("gigl.distributed", "gigl_loader")) for name in asked), asked
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_imports(script: str, tmp_path: Path) -> None:
    if REPOSITORY is None:
        pytest.skip("GIGL_REPOSITORY names no repository of GiGL's")
    show = ["git", "-C", REPOSITORY, "show", f"{COMMIT}:{script}.py"]
    path = tmp_path / "script.py"
    path.write_text(subprocess.run(show, check=True, capture_output=True, text=True).stdout)
    run = [sys.executable, "-c", PROGRAM, str(path)]
    # elsewhere: this repository has examples of the same names
    done = subprocess.run(run, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
