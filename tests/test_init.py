import ast
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gigl_loader
from gigl_loader import errors, graph_store
from gigl_loader.compat.advice import ADVICE
from gigl_loader.graph_store import ray
from tests.support import glt

utils = importlib.import_module("gigl_loader.utils")  # which type checkers do not see
PACKAGES: tuple[ModuleType, ...] = (gigl_loader, graph_store, ray)


def _in_a_fresh_process(statement: str, before: str = "") -> dict[str, Any]:
    """Run ``statement`` in a new interpreter; return what it did to that process, and ``noted``."""
    script = f"""
import json, logging, os, sys
noted = {{}}
{before}
environment, handlers = dict(os.environ), list(logging.getLogger().handlers)
{statement}
torch = sys.modules.get("torch")
print(json.dumps({{
    "modules": sorted(sys.modules),
    "roots": sorted({{name.partition(".")[0] for name in sys.modules}}),
    "same_environment": dict(os.environ) == environment,
    "same_log_handlers": logging.getLogger().handlers == handlers,
    "cuda_initialized": torch is not None and torch.cuda.is_initialized(),
    **noted,
}}))
"""
    # GLT sets it: a process that inherits it would see no change
    inherited = {name: one for name, one in os.environ.items() if name != "TORCH_CPP_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=inherited,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_what_type_checkers_see_is_what_there_is(package: ModuleType) -> None:
    """By the grammar of Python, where the package itself reads its stub by a pattern."""
    stub = ast.parse(Path(package.__file__ or "").with_suffix(".pyi").read_text())
    seen = []
    for node in stub.body:
        if isinstance(node, ast.ImportFrom) and node.module != "gigl_loader":
            assert all(name.asname == name.name for name in node.names), "else it is not exported"
            seen += [name.name for name in node.names]
    assert package.__all__ == sorted(seen)


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in PACKAGES for name in package.__all__]
)
def test_name_resolves_to_the_public_path(package: ModuleType, name: str) -> None:
    value = getattr(package, name)
    assert name in dir(package)
    assert name in vars(package), "the second time it is there"
    if callable(value):
        ours = value.__module__ == package.__name__
        assert ours or value.__module__.startswith("graphlearn_torch")
        assert pickle.loads(pickle.dumps(value)) is value


@pytest.mark.parametrize("name", ["GraphStoreInfo", "RemoteDistDataset"])
def test_a_name_of_the_package_can_be_imported_from_a_part_of_it(name: str) -> None:
    """It is the same object, and keeps the path of the package that lists it."""
    value = getattr(graph_store, name)
    assert value is getattr(gigl_loader, name)
    assert value.__module__ == "gigl_loader"
    assert name not in PACKAGES[1].__all__


def test_every_name_is_in_the_docs() -> None:
    pages = (Path(__file__).parent.parent / "docs" / "api").glob("*.md")
    text = "\n".join(page.read_text() for page in pages) + "\n"
    names = [f"{package.__name__}.{name}" for package in PACKAGES for name in package.__all__]
    assert [name for name in names if f":: {name}\n" not in text] == []


def test_every_error_is_public() -> None:
    defined = {n for n, v in vars(errors).items() if isinstance(v, type) and n.endswith("Error")}
    assert defined <= set(PACKAGES[0].__all__)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"'{package.__name__}' has no .* 'DistNeighbour'"):
        package.DistNeighbour  # noqa: B018


FOREIGN = [(package, name) for package, some in ADVICE.items() for name in some]


@pytest.mark.parametrize(("package", "name"), FOREIGN)
def test_a_name_of_another_library_gets_advice_where_it_is_imported(
    package: str, name: str
) -> None:
    text = re.escape(f"{package} has no {name!r}: {ADVICE[package][name]}")
    with pytest.raises(ImportError, match=f"^{text}$") as caught:
        exec(f"from {package} import {name}")
    assert not isinstance(caught.value, ModuleNotFoundError), "the statement would hide it"
    module = importlib.import_module(package)
    if "/compat/" in (module.__file__ or ""):  # a module of GiGL's or of graphlearn-torch's
        with pytest.raises(ImportError, match=f"^{text}$"):
            getattr(module, name)
        return
    with pytest.raises(ImportError, match=f"^{text}$"):
        importlib.import_module(f"{package}.{name}")
    if not hasattr(module, "__getattr__"):  # a module of ours, which has names of its own
        return
    with pytest.raises(AttributeError, match=f"^{text}$"):
        getattr(module, name)
    assert not hasattr(module, name)
    assert getattr(module, name, 7) == 7


def test_advice_names_what_there_is() -> None:
    known = {name for package in (*PACKAGES, utils) for name in package.__all__}
    theirs = {"DataLoader", "ZipLoader"}
    for package, name in FOREIGN:
        text = ADVICE[package][name]
        assert name not in getattr(importlib.import_module(package), "__all__", ())
        camel = set(re.findall(r"\b(?:[A-Z][a-z]+|PPR)(?:[A-Z]+[a-z]+)+\b", text)) - {"PyG"}
        called = set(re.findall(r"(?<![.\w])([a-z_]+)\(", text)) - {"build"}
        named = {one for one in camel | called if not hasattr(gigl_loader.BaseDistLoader, one)}
        assert named <= known | theirs, name
        dotted = re.findall(r"\b(gigl_loader(?:\.graph_store|\.glt)?)\.([a-z_]\w*)", text)
        for module, attribute in dotted:
            assert hasattr(importlib.import_module(module), attribute), text


def test_a_name_that_nobody_knows_has_pythons_own_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'DistNeighbour' from 'gigl_loader'"):
        exec("from gigl_loader import DistNeighbour")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'gigl_loader\.no_such'"):
        importlib.import_module("gigl_loader.no_such")


def test_importing_the_package_loads_nothing_else() -> None:
    after = _in_a_fresh_process(
        "import gigl_loader\nassert set(gigl_loader.__all__) <= set(dir(gigl_loader))"
    )
    assert "gigl_loader.compat.advice" not in after["modules"]
    heavy = {"torch", "torch_geometric", "graphlearn_torch", "numpy", "numba"}
    assert not heavy & set(after["roots"])


@pytest.fixture(scope="module")
def loader_and_all_names() -> dict[str, Any]:
    """What loaders in one process have done to it, and then the use of each public name."""
    return _in_a_fresh_process(
        _LOADERS
        + "import gigl_loader\nfor name in gigl_loader.__all__: getattr(gigl_loader, name)",
        before="import torch_geometric",  # torch sets a variable for its compiler's cache
    )


_LOADERS = """
import torch
from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from torch_geometric.data import Data

dataset = DistDataset.from_pyg(Data(edge_index=torch.tensor([[0, 1], [1, 0]])))
for kind in (DistNeighborLoader, DistLinkNeighborLoader):
    with kind(dataset, [1], num_workers=0) as loader:
        assert len(list(loader)) == 2
noted["modules of loaders"] = sorted(sys.modules)
"""


def test_a_colocated_loader_imports_nothing_of_a_graph_store(
    loader_and_all_names: dict[str, Any],
) -> None:
    """Those modules would take a tenth of a second of its start."""
    loaded = loader_and_all_names["modules of loaders"]
    assert {"gigl_loader.loader.ablp", "gigl_loader.loader.build_parts"} <= {*loaded}
    of_stores = tuple(f"gigl_loader.{one}" for one in ("wire", "server", "client", "graph_store"))
    assert [name for name in loaded if name.startswith(of_stores)] == []


def test_using_glt_leaves_environment_logging_and_cuda_alone(
    loader_and_all_names: dict[str, Any],
) -> None:
    after = loader_and_all_names
    assert ("graphlearn_torch" in after["roots"]) is glt.available
    assert after["same_environment"]
    assert after["same_log_handlers"]
    assert not after["cuda_initialized"]


def test_a_worker_starts_without_torch() -> None:
    """torch takes longer to import than all else that a worker does before its first batch."""
    after = _in_a_fresh_process("import gigl_loader.sources.workers.supervisor")
    assert "gigl_loader.sources.workers.worker" in after["modules"]
    assert not {"torch", "torch_geometric", "graphlearn_torch"} & set(after["roots"])
    assert after["same_environment"]
