"""`make release-check`: what it finds in files, and the pages that it runs."""

import ast
import importlib.util
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.test_pages import PAGES
from tests.support.pages import blocks, script

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RIGHT = {
    "gigl_loader/__init__.py": "",
    "gigl_loader/py.typed": "",
    "gigl_loader/commands/capacity/costs.json": "{}",
    "gigl_loader-0.1.0.dist-info/licenses/LICENSE": "",
    "gigl_loader-0.1.0.dist-info/METADATA": (
        f"Metadata-Version: 2.4\nName: gigl_loader\nVersion: {PROJECT['version']}\n"
        f"Summary: {PROJECT['description']}\nRequires-Python: {PROJECT['requires-python']}\n"
        "Description-Content-Type: text/markdown\n\n# A title\n"
    ),
}
Make = Callable[[dict[str, str]], Path]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "release_check", ROOT / ".ci" / "release_check.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path: Path) -> Make:
    def make(files: dict[str, str]) -> Path:
        path = tmp_path / "gigl_loader-0.1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as opened:
            for name, text in files.items():
                opened.writestr(name, text)
        return path

    return make


def test_a_wheel_that_is_right(check: ModuleType, wheel: Make, tmp_path: Path) -> None:
    assert list(check.faults_of(wheel(RIGHT))) == []
    sdist = tmp_path / "gigl_loader-0.1.0.tar.gz"
    for name, text in RIGHT.items():
        path = tmp_path / "gigl_loader-0.1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(sdist, "w:gz") as opened:
        opened.add(tmp_path / "gigl_loader-0.1.0", "gigl_loader-0.1.0")
    assert list(check.faults_of(sdist)) == []


def test_what_is_wrong_with_files(
    check: ModuleType, wheel: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = {name: text for name, text in RIGHT.items() if "LICENSE" not in name}
    del lacks["gigl_loader/py.typed"]
    (told,) = check.faults_of(wheel(lacks))
    assert told.endswith("lacks gigl_loader/py.typed, LICENSE")
    (told,) = check.faults_of(wheel(RIGHT | {"tests/test_a.py": ""}))
    assert told.endswith("has tests beside the package")
    (told,) = check.faults_of(wheel(RIGHT | {"gigl_loader/__pycache__/a.nbi": ""}))
    assert told.endswith("has compiled files: gigl_loader/__pycache__/a.nbi")
    monkeypatch.setitem(check.LARGEST, ".whl", 100)
    (told,) = check.faults_of(wheel(RIGHT))
    assert told.endswith("bytes, more than 100")


def test_metadata_is_the_projects(check: ModuleType, wheel: Make) -> None:
    assert list(check.metadata_faults(wheel(RIGHT), PROJECT)) == []
    name = "gigl_loader-0.1.0.dist-info/METADATA"
    other = RIGHT | {name: RIGHT[name].replace("Requires-Python: >=3.11", "Requires-Python: >=3")}
    (told,) = check.metadata_faults(wheel(other), PROJECT)
    assert told.endswith("Requires-Python is '>=3'")
    other = RIGHT | {name: RIGHT[name].replace("Version: 0.1.0", "Version: 0.1.1")}
    found = list(check.metadata_faults(wheel(other), PROJECT))
    assert "Version is '0.1.1', not '0.1.0'" in found[0]


def test_ten_tasks_of_the_docs_are_pages_that_run(check: ModuleType) -> None:
    assert len(set(check.TASKS)) == 10
    assert set(check.TASKS) <= set(PAGES)
    # where the wheel is alone there are no extras and no examples
    there = {"gigl_loader", "torch", "torch_geometric", "numpy", "tqdm", *sys.stdlib_module_names}
    for page in check.TASKS:
        for node in ast.walk(ast.parse(script((ROOT / page).read_text()))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= there, page


def test_a_page_as_a_script_has_the_lines_of_the_page() -> None:
    text = (
        "# A\n\n```python\na = 1\n```\n\n```py\nnot this\n```\n\n```python\nb = a\n\nc = b\n```\n"
    )
    assert script(text).splitlines() == ["", "", "", "a = 1", *[""] * 7, "b = a", "", "c = b"]
    assert [block.count("\n") for block in blocks(text)] == [4, 14]
    assert script("no code") == "\n"


def test_trials_are_a_table_by_python(check: ModuleType) -> None:
    trials = [
        check.Trial("3.11.7", "2.13.0+cpu", "README.md", 4.24, True),
        check.Trial("3.13.0", "2.14.1", "README.md", 5.0, False),
        check.Trial("3.11.7", "2.13.0+cpu", "import", 0.5, True),
    ]
    assert check.table(trials).splitlines() == [
        "|  | 3.11.7, torch 2.13.0+cpu | 3.13.0, torch 2.14.1 |",
        "| README.md | 4.2 s | FAILED |",
        "| import | 0.5 s |  |",
    ]


def test_what_only_a_person_can_do(check: ModuleType) -> None:
    steps = "\n".join(check.for_a_person(PROJECT))
    for words in ("trusted publisher", f"push the tag v{PROJECT['version']}", "conda-forge"):
        assert words in steps
    assert ("[project.urls]" in steps) == ("urls" not in PROJECT)
    assert "[project.urls]" not in "\n".join(check.for_a_person(PROJECT | {"urls": {}}))
    unreleased = f"\n## {PROJECT['version']}\n" not in (ROOT / "docs/changelog.md").read_text()
    assert ("date the release" in steps) == unreleased
    assert re.search(r"README's \d+ relative links", steps)
