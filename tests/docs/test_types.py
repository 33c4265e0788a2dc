"""Type checkers accept the code of the docs as it stands, and see a misspelt choice.

Blocks fenced with `python` are one script for each page, as `test_pages.py` runs them. A block
fenced with `py` does not run here; it is a module of its own, whose missing names are given.
"""

import ast
import builtins
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gigl_loader
from gigl_loader import graph_store

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>python|py|\{code-block\} python)\n(?P<options>(?::\w+:.*\n)*)"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
OF_OTHERS = (
    "migrating",
    "from_glt",
    "from_gigl",
    "beside_gigl",
)  # its `py` blocks are the scripts of other libraries, before the move
USAGE = """
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DistABLPLoader, DistDataset, DistLinkNeighborLoader, DistNeighborLoader, DistSubGraphLoader,
    split_links,
)

dataset = DistDataset.from_pyg(Data(edge_index=torch.tensor([[0], [1]])))
typed = DistDataset.from_pyg(HeteroData())
DistNeighborLoader(dataset, num_neighbors=(5, 5), input_nodes=dataset.train_node_ids)
DistNeighborLoader(typed, [5, 5], input_nodes=("a", typed.train_node_ids["a"]), device="cpu")
DistNeighborLoader(typed, {("a", "to", "a"): [5, 5]}, "a", pin_memory_device="cpu")
DistLinkNeighborLoader(dataset, [5], torch.tensor([[0], [1]]), neg_sampling="binary", device=0)
DistSubGraphLoader(dataset, dataset.node_ids, [5], device=torch.device("cpu"), even_ranks="drop")
DistABLPLoader(typed, [5], ("a", typed.node_ids["a"]), ("a", "to", "a"), disjoint="by_time")
for batch in DistNeighborLoader(dataset, [5], shard="none", exchange="collective"):
    print(batch.x[: batch.batch_size].mean(), dataset.node_feature_info.dim + dataset.num_classes)
"""
PLANTED = """
from torch_geometric.data import Data

from gigl_loader import (
    DistDataset, DistLinkNeighborLoader, DistNeighborLoader, DistSubGraphLoader, EdgeTable,
    NodeTable, partition_graph, partition_tables,
)

dataset = DistDataset.from_pyg(Data())
table = NodeTable("nodes.parquet")
DistNeighborLoader(dataset, [5], shard="wrold")  # wrong
DistNeighborLoader(dataset, [5], even_ranks="pad")  # wrong
DistNeighborLoader(dataset, [5], exchange="tcp")  # wrong
DistNeighborLoader(dataset, [5], disjoint="time")  # wrong
DistNeighborLoader(dataset, [5], temporal_strategy="latest")  # wrong
DistNeighborLoader(dataset, [5], sampling_method="labour")  # wrong
DistNeighborLoader(dataset, [5], device=1.5)  # wrong
DistSubGraphLoader(dataset, shard="wrold")  # wrong
DistLinkNeighborLoader(dataset, [5], neg_sampling="binery")  # wrong beside a type of PyG
DistNeighborLoader(dataset, [5], subgraph_type="whole")  # wrong beside a type of PyG
DistDataset.load("parts", 0, verify="later")  # wrong
DistDataset.load("parts", 0, edge_dir="both")  # wrong
dataset.to("cuda", features="disk")  # wrong
dataset.split_node_ids("valid")  # wrong
partition_graph(Data(), 2, "parts", method="metsi")  # wrong
partition_graph(Data(), 2, "parts", order="size")  # wrong
partition_tables(table, EdgeTable("edges.parquet"), 2, "parts", engine="spark")  # wrong
partition_tables(table, EdgeTable("edges.parquet"), 2, "parts", format="csv")  # wrong
NodeTable("nodes.parquet", feature_dtype="int4")  # wrong
"""
OF_READERS = """
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disable-error-code="import-not-found,import-untyped"
"""
"""For mypy, at the end of each page: readers' functions may be bare, and other packages untyped."""


def _modules() -> Iterator[tuple[str, str]]:
    """Yield name and code of each module; its lines are where they stand on the page."""
    for page in PAGES:
        text, name = page.read_text(), "_".join(page.relative_to(ROOT).with_suffix("").parts)
        lines: list[str] = []
        for block in BLOCK.finditer(text):
            at = text[: block.start("code")].count("\n")
            code = [line.removeprefix(block["indent"]) for line in block["code"].splitlines()]
            if block["kind"] != "py":
                lines += [""] * (at - len(lines)) + code
            elif page.stem not in OF_OTHERS:
                # the names that it takes from its page are imported in the line before it
                yield f"{name}_{at}", "\n" * (at - 1) + _given("\n".join(code)) + "\n".join(code)
        if lines:
            yield name, "\n".join(lines)
    yield "usage", USAGE
    yield "planted", PLANTED


def _given(code: str) -> str:
    """Return a line that imports the names that ``code`` uses and does not define."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [one for one in nodes if isinstance(one, ast.Name)]
    stored = [one for one in names if isinstance(one.ctx, ast.Store)]
    # in `model = setup(model)` the name is read before it is there
    first = {one.id: one.lineno for one in reversed(sorted(stored, key=lambda one: one.lineno))}
    early = {
        one.id
        for one in names
        if isinstance(one.ctx, ast.Load)
        and one.lineno <= first.get(one.id, 0)
        and one.id not in _loops(nodes)
    }
    known = (first.keys() - early) | set(dir(builtins))
    known |= {one.arg for one in nodes if isinstance(one, ast.arg)}
    known |= {one.name for one in nodes if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    for one in nodes:
        if isinstance(one, ast.Import | ast.ImportFrom):
            known |= {(name.asname or name.name).split(".")[0] for name in one.names}
    found = []
    for missing in sorted({one.id for one in names} - known):
        for package in (gigl_loader, graph_store):
            if missing in package.__all__:
                found.append(f"from {package.__name__} import {missing}")
                break
        else:
            same = missing in ("os", "torch", "gigl_loader")
            found.append(f"import {missing}" if same else f"from given import {missing}")
    return "; ".join(found) + "\n"


def _loops(nodes: list[ast.AST]) -> set[str]:
    """Return the names that comprehensions define: these read them on the same line."""
    targets = [one.target for one in nodes if isinstance(one, ast.comprehension)]
    return {name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the code of all pages."""
    found = tmp_path_factory.mktemp("pages")
    for name, code in _modules():
        (found / f"{name}.py").write_text(code + "\n" + OF_READERS)
    (found / "given.py").write_text(
        "from typing import Any\n\ndef __getattr__(name: str) -> Any:\n    return name\n"
    )
    return found


def _checked(found: list[tuple[str, int, str]], *, reads_pyg: bool) -> None:
    """Check that there are errors in the planted lines and nowhere else."""
    ends = ("# wrong", "PyG") if reads_pyg else "# wrong"
    planted = {at for at, line in enumerate(PLANTED.splitlines(), 1) if line.endswith(ends)}
    assert [one for one in found if one[0] != "planted.py"] == []
    assert {line for _, line, _ in found} == planted


def _by_mypy(folder: Path) -> list[tuple[str, int, str]]:
    """By the project's own options, so that what `make lint` has read of torch is read once."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            f"--config-file={ROOT / 'pyproject.toml'}",
            f"--cache-dir={ROOT / '.mypy_cache'}",
            "--no-error-summary",
            "--hide-error-context",
            str(folder),
        ],
        env={**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'examples'}"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    # names without a folder: the pages alone
    errors = re.findall(r"^([\w.]+):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    assert errors, done.stdout + done.stderr
    return [(name, int(line), text) for name, line, text in errors]


def _by_pyright(folder: Path) -> list[tuple[str, int, str]]:
    (folder / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "include": ["*.py"],
                "extraPaths": [str(ROOT), str(ROOT / "examples")],
                # pyright's own default; basedpyright is its build that installs without a download
                "typeCheckingMode": "standard",
            }
        )
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--project",
            str(folder),
            "--outputjson",
            "--pythonpath",
            sys.executable,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert found, done.stdout
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in found
        if one["severity"] in ("error", "warning")
    ]


@pytest.mark.parametrize(
    ("errors_in", "reads_pyg"),
    [
        pytest.param(_by_mypy, False, id="mypy"),
        pytest.param(
            _by_pyright, True, id="pyright", marks=[pytest.mark.wide, pytest.mark.longest]
        ),
    ],
)
def test_checkers_accept_the_docs_and_see_misspelt_choices(
    errors_in: Callable[[Path], list[tuple[str, int, str]]], reads_pyg: bool, folder: Path
) -> None:
    _checked(errors_in(folder), reads_pyg=reads_pyg)
