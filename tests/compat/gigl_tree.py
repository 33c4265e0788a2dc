"""GiGL's files of one commit, without those that `gigl_loader` takes the place of."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gigl_loader.compat.utils import get_free_port
from tests.support.glt import available

COMMIT = "fee4ba5047cf8d066d04344690b41725a312c711"
REPOSITORY = os.environ.get("GIGL_REPOSITORY")
HERE = Path(__file__).parent
_LEFT_OUT = ("gigl/distributed/", "gigl/src/mocking/")
OWN = (
    "dist_partitioner",
    "dist_range_partitioner",
    "graph_store/messages",
    "graph_store/sharding",
    "utils/partition_book",
    "utils/serialized_graph_metadata_translator",
)
"""Modules of ``gigl.distributed`` that are GiGL's own: they make values that its tests give."""


def write_tree(root: Path) -> Path:
    """Write GiGL's packages, its examples and tests; return ``root``. Skip where there are none."""
    if REPOSITORY is None:
        pytest.skip("GIGL_REPOSITORY names no repository of GiGL's")
    if not available:
        pytest.skip("GiGL's files import graphlearn-torch, which is not installed")
    git = ["git", "-C", REPOSITORY]
    listed = [*git, "ls-tree", "-r", "--name-only", COMMIT, "examples", "gigl", "snapchat", "tests"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    wanted = [n for n in names if n.endswith(".py") and not n.startswith(_LEFT_OUT)]
    wanted += [f"gigl/distributed/{name}.py" for name in OWN]
    content = subprocess.run([*git, "archive", COMMIT, *wanted], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(content.stdout)) as archive:
        archive.extractall(root, filter="data")
    return root


def run_python(
    tree: Path, root: Path, *command: str, limit_s: float = 150.0, **more: str
) -> tuple[str, str]:
    """Run Python with GiGL and the cloud of ``root``; return what it printed, and its log.

    Args:
        tree: Where GiGL is.
        root: A directory of the test.
        command: What Python is given.
        limit_s: Seconds that it may take.
        more: Further environment.
    """
    environment = {
        **os.environ,
        "GIGL_CLOUD": f"{root}/cloud",
        "GIGL_DISABLE_CLOUD_LOGGING": "1",
        "GIGL_RESOURCE_CONFIG_URI": f"{root}/resources.yaml",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(get_free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE / "gigl_stand_ins", tree, HERE.parents[1]))),
        "RANK": "0",
        "TMPDIR": str(root),
        "WORLD_SIZE": "1",
        **more,
    }
    run = [sys.executable, *command]
    done = subprocess.run(
        run, check=False, capture_output=True, text=True, cwd=tree, env=environment, timeout=limit_s
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr
