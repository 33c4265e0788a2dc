"""Limits of the machine, and scripts that workers cannot import: our error, the cause, what to do.

Each in a process of its own: limits and ``__main__`` belong to a process.
"""

from pathlib import Path
from textwrap import indent

import pytest

from tests.support.scripts import run_python

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
BUILD = """
import torch
from gigl_loader import ConfigError, DistNeighborLoader, ResourceError
from gigl_loader.testing import TinyGraph

dataset = TinyGraph.random(20, 60).dataset()
def build(**how):
    return DistNeighborLoader(dataset, [2], **how)
"""
HOOK = """
def hook(worker):
    pass
"""


def _run(code: str, *arguments: str) -> str:
    done = run_python(*arguments, text=code, folder=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_too_few_files() -> None:
    code = """
import resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
loaders = []
try:
    for _ in range(60):
        loaders.append(build())
except ResourceError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
for loader in loaders:
    assert len(list(loader)) == 20
    loader.shutdown()
"""
    told = _run(BUILD + code, "-")
    assert "may open no more files: raise the limit (ulimit -n" in told


def test_a_hook_of_a_script_from_standard_input() -> None:
    code = """
try:
    build(worker_init_fn=hook)
except ConfigError as error:
    print(error)
"""
    assert "put the function into a module, or the script into a file" in _run(
        BUILD + HOOK + code, "-"
    )


def test_a_hook_of_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "print('started')\n"
        + BUILD
        + HOOK
        + """
try:
    build(worker_init_fn=hook)
except ConfigError as error:
    print(error)
"""
    )
    told = _run("", str(script))
    assert told.count("started") == 1
    assert 'which has no `if __name__ == "__main__":`' in told


def test_a_hook_of_a_script_with_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        HOOK
        + """
if __name__ == "__main__":
"""
        + indent(
            BUILD, "    "
        )  # below it: the worker imports the script, and need not import torch
        + """
    with build(worker_init_fn=hook) as loader:
        print(len(list(loader)))
"""
    )
    assert _run("", str(script)) == "20\n"
