"""Every public name of GiGL's modules, at its path; and scripts that import GiGL's own paths."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gigl_loader
from gigl_loader import ConfigError, graph_store
from gigl_loader.compat import paths
from tests.support.scripts import run_python

utils = importlib.import_module("gigl_loader.utils")  # which type checkers do not see

NAMES: dict[str, list[str]] = json.loads((Path(__file__).parent / "gigl_names.json").read_text())
"""Public names of Snapchat/GiGL at fee4ba50 (August 2026), by module below ``gigl.distributed``, or
``gigl`` for ``types.graph``: what each defines, and of packages what they import. No code of it."""


FILES = sorted(
    path.with_suffix("").as_posix().removesuffix("/__init__").replace("/", ".")
    for path in (
        file.relative_to(paths.__path__[0]) for file in Path(paths.__path__[0]).rglob("*.py")
    )
)
OURS = {"", "glt", "diagnose", "errors", "ray"}
"""Old public paths of ours, and what stands in for the package itself."""
MODULES = [name for name in FILES if name not in {*OURS, "__init__", "graph_store", "types"}]


def _path(module: str) -> str:
    return f"gigl_loader.{module}".rstrip(".")


def _passed_on(module: str) -> list[str]:
    """Return the names that a module passes on: those that it imports under their own name."""
    found: Any = importlib.import_module(_path(module))
    if hasattr(found, "__all__"):
        return list(found.__all__)
    tree = ast.parse(Path(found.__file__).read_text())
    given = (one.names for one in tree.body if isinstance(one, ast.ImportFrom))
    return [one.name for names in given for one in names if one.asname == one.name]


def _imported(path: str, name: str) -> tuple[ImportError | None, dict[str, Any]]:
    """Return the error of an import, and what it imported."""
    namespace: dict[str, Any] = {}
    try:
        exec(f"from {path} import {name}", namespace)
    except ImportError as error:
        return error, {}
    return None, namespace


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_there_or_says_what_to_use(module: str) -> None:
    path = _path(module)
    for name in NAMES[module]:
        error, here = _imported(path, name)
        if error is not None:
            assert type(error) is ImportError, "a missing module has no advice"
            assert str(error).startswith(f"{path} has no {name!r}: "), error
            continue
        for package in (gigl_loader, graph_store, utils):
            if name in package.__all__:
                known = getattr(package, name)
                # a function that its module hides is compared below
                is_hidden = isinstance(known, ModuleType)
                assert is_hidden or here[name] is known, f"{path}.{name} is another object"


@pytest.mark.parametrize("module", NAMES)
def test_what_exists_here_is_found_at_gigls_path(module: str) -> None:
    """Else the table of a path has been forgotten."""
    public = {name for package in (gigl_loader, graph_store, utils) for name in package.__all__}
    found = importlib.import_module(_path(module))
    assert [name for name in NAMES[module] if name in public and not hasattr(found, name)] == []


def test_paths_have_no_more_than_gigl() -> None:
    assert set(MODULES) <= set(NAMES)
    for module in MODULES:
        if module != "utils":  # an old public path, too
            assert set(_passed_on(module)) <= set(NAMES[module]), module


@pytest.mark.parametrize("module", [name for name in MODULES if _passed_on(name)])
def test_a_module_of_gigl_is_a_module(module: str) -> None:
    found = importlib.import_module(_path(module))
    names = _passed_on(module)
    assert len(set(names)) == len(names)
    assert set(names) <= set(dir(found))
    here: dict[str, Any] = {}
    exec(f"from {found.__name__} import *", here)
    assert set(names) <= set(here)
    with pytest.raises(ImportError, match="cannot import name 'Unheard' from"):
        exec(f"from {found.__name__} import Unheard")
    with pytest.raises(AttributeError, match=f"{found.__name__}' has no attribute 'Unheard'"):
        found.Unheard  # noqa: B018


def test_a_function_with_the_name_of_its_module_can_still_be_called() -> None:
    module = importlib.import_module("gigl_loader.utils.init_neighbor_loader_worker")
    assert module.get_process_group_name(3) == "distributed-process-3"
    for function in (utils.init_neighbor_loader_worker, module.init_neighbor_loader_worker):
        with pytest.raises(ConfigError, match=r"^rank must be in \[0, 2\), got 2$"):
            function("host", 0, 1, 2, 2, 0, torch.device("cpu"))


# --- gigl_loader.compat ---------------------------------------------------------------------------

INSTALL = "from gigl_loader.compat import install\ninstall('gigl.distributed')\n"


def _run(script: str, *folders: Path) -> str:
    """Return what a script prints in a process of its own, which sees modules in ``folders``."""
    path = [f"import sys; sys.path[:0] = {[str(folder) for folder in folders]}"] if folders else []
    done = run_python("-c", "\n".join([*path, script]))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installing_loads_no_torch() -> None:
    script = (
        f"{INSTALL}import gigl.distributed, gigl.types\n"
        "import sys; assert 'torch' not in sys.modules and 'gigl_loader.utils' not in sys.modules\n"
        "import gigl.distributed.dist_dataset as one, gigl.types.graph\n"
        "assert gigl.distributed.dist_dataset is one"
    )
    done = subprocess.run(  # what is forked has imported all of it
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


SCRIPT = """
import pickle
import torch
import gigl.distributed
import gigl.distributed.utils
import gigl.distributed as of_gigl
from torch_geometric.data import Data
from gigl.distributed import DistDataset, DistNeighborLoader, graph_store
from gigl.distributed.base_dist_loader import BaseDistLoader, DistributedRuntimeInfo
from gigl.distributed.distributed_neighborloader import *
from gigl.distributed.graph_store.dist_server import DistServer
from gigl.distributed.utils.init_neighbor_loader_worker import get_process_group_name
from gigl.distributed.utils.networking import get_free_port
from gigl.types.graph import DEFAULT_HOMOGENEOUS_NODE_TYPE, to_homogeneous
import gigl_loader, gigl_loader.errors, gigl_loader.utils

assert gigl.distributed is of_gigl and of_gigl.DistDataset is gigl_loader.DistDataset
assert DistNeighborLoader is gigl_loader.DistNeighborLoader
assert BaseDistLoader is gigl_loader.BaseDistLoader
assert DistServer is gigl_loader.graph_store.DistServer is graph_store.DistServer
assert get_free_port is gigl.distributed.utils.get_free_port is gigl_loader.utils.get_free_port
assert pickle.loads(pickle.dumps(DistributedRuntimeInfo)) is DistributedRuntimeInfo
gigl.distributed.utils.init_neighbor_loader_worker(
    "host", 0, 1, 0, 1, 0, torch.device("cpu"), should_use_cpu_workers=True)

import gigl.distributed.errors as errors  # no second copy of a module: its classes would be others
assert errors.ConfigError is gigl_loader.errors.ConfigError

for statement in ("from gigl.distributed import DistPartitioner",
                  "from gigl.distributed.dist_partitioner import DistPartitioner",
                  "from gigl.distributed.utils import write_readiness_signal"):
    try:
        exec(statement)
    except ImportError as error:
        assert type(error) is ImportError and " has no " in str(error), error
    else:
        raise AssertionError(statement)
for name in ("gigl.common", "gigl.distributed.unheard"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        assert name in str(error)
    else:
        raise AssertionError(name)

edges = torch.randint(50, (2, 400))
dataset = DistDataset.from_pyg(Data(x=torch.randn(50, 4), edge_index=edges))
ids = to_homogeneous({DEFAULT_HOMOGENEOUS_NODE_TYPE: dataset.node_ids})
with DistNeighborLoader(dataset, [3, 2], ids, num_workers=0, batch_size=16) as loader:
    print(sum(batch.batch_size for batch in loader))
"""


@pytest.mark.multiprocess
def test_a_script_with_gigls_imports_alone() -> None:
    assert _run(INSTALL + SCRIPT) == "50\n"


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.multiprocess
def test_what_is_installed_of_the_other_package_stays(tmp_path: Path) -> None:
    theirs = _write(
        tmp_path,
        {
            "gigl/__init__.py": "",
            "gigl/common.py": "VALUE = 7",
            "gigl/types/__init__.py": "",
            "gigl/types/graph.py": "FeatureInfo = 'theirs'",
            "gigl/distributed/__init__.py": "1 / 0",
            "gigl/distributed/dist_dataset.py": "1 / 0",
        },
    )
    _run(
        INSTALL + "import gigl.common, gigl.distributed.dist_dataset\n"
        "from gigl.types.graph import FeatureInfo\n"
        "assert gigl.common.VALUE == 7 and FeatureInfo == 'theirs'\n"
        "import gigl_loader\n"
        "assert gigl.distributed.dist_dataset.DistDataset is gigl_loader.DistDataset",
        theirs,
    )


@pytest.mark.multiprocess
def test_both_are_imported_side_by_side(tmp_path: Path) -> None:
    """Without `install`, whichever comes first."""
    theirs = _write(
        tmp_path,
        {
            "gigl/__init__.py": "",
            "gigl/distributed/__init__.py": "class DistNeighborLoader: pass",
            "gigl/types/__init__.py": "",
            "gigl/types/graph.py": "FeatureInfo = 'theirs'",
        },
    )
    ours = (
        "import gigl_loader, gigl_loader.graph_store, gigl_loader.types.graph\n"
        "assert not {'gigl', 'gigl.distributed', 'gigl.types'} & {*sys.modules} - before\n"
    )
    both = "import gigl.distributed\nfrom gigl.types.graph import FeatureInfo\n"
    check = (
        "assert FeatureInfo == 'theirs' and gigl_loader.FeatureInfo != 'theirs'\n"
        "assert gigl.distributed.DistNeighborLoader.__module__ == 'gigl.distributed'\n"
        "assert gigl_loader.DistNeighborLoader.__module__.startswith('gigl_loader')\n"
    )
    for script in (f"before = set()\n{ours}{both}", f"{both}before = {{*sys.modules}}\n{ours}"):
        _run(f"import sys\n{script}{check}", theirs)


@pytest.mark.multiprocess
def test_a_package_that_is_imported_already_is_not_replaced(tmp_path: Path) -> None:
    theirs = _write(tmp_path, {"mine/__init__.py": "", "mine/distributed.py": "VALUE = 1"})
    _run(
        "import mine.distributed\nfrom gigl_loader import UsageError\n"
        "from gigl_loader.compat import install\n"
        "try:\n    install('mine.distributed')\n"
        "except UsageError as error:\n"
        "    assert 'distributed.py: call install before' in str(error)\n"
        "else:\n    raise AssertionError('it was replaced')\n"
        "assert mine.distributed.VALUE == 1\n"
        "for _ in range(2):\n    install('their.fork.distributed')\n"
        "from their.fork.distributed.dist_context import DistributedContext\n"
        "from their.fork.types.graph import FeatureInfo\n"
        "import their.fork\nassert DistributedContext is their.fork.distributed.DistributedContext",
        theirs,
    )


@pytest.mark.multiprocess
def test_processes_of_a_script_find_it_by_their_site(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "sitecustomize.py": INSTALL,
            "script.py": "from multiprocessing import get_context\n"
            "from gigl.distributed.constants import __name__ as name\n"
            "def job(queue):\n    queue.put(name)\n"
            "if __name__ == '__main__':\n"
            "    context = get_context('spawn')\n    queue = context.SimpleQueue()\n"
            "    child = context.Process(target=job, args=(queue,))\n    child.start()\n"
            "    print(queue.get())\n    child.join(60)\n",
        },
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout == "gigl.distributed.constants\n", done.stderr


@pytest.mark.parametrize("name", ["", "gigl..distributed", "gigl_loader.compat", "a-b", 3, None])
def test_what_is_no_package_to_stand_in_for(name: Any) -> None:
    install = importlib.import_module("gigl_loader.compat").install
    with pytest.raises(ConfigError, match=r'such as "gigl\.distributed", got '):
        install(name)
