"""The page for contributors: what `make test` leaves to `make test-all`, and that it is no more."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / ".github" / "CONTRIBUTING.md").read_text()


WHOLE = {("graph_store/on_ray/test_store.py", "test_a_job_survives_and_goes_on_with_fewer_workers")}
"""Functions that are wide as a whole: examples whose parts other tests show."""


def _wide(tree: ast.AST) -> list[ast.AST]:
    return [one for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.attr == "wide"]


def _files_with_wide_tests() -> dict[str, ast.Module]:
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "mark.wide" in (text := path.read_text()):
            found[path.relative_to(ROOT / "tests").as_posix()] = ast.parse(text)
    del found["docs/test_contributing.py"]
    return found


def test_the_page_names_each_file_with_wide_tests() -> None:
    (table,) = re.findall(r"^\| matrix \|.*?\n\n", PAGE, re.M | re.S)
    named = re.findall(r"`([\w/]+/test_\w+\.py)`", table)
    assert sorted(named) == list(_files_with_wide_tests())


def test_a_function_is_never_wide_as_a_whole() -> None:
    """Only cells of its matrix are, `make test` runs the others; but for those of `WHOLE`."""
    whole = set()
    for file, tree in _files_with_wide_tests().items():
        for node in ast.walk(tree):
            decorators = getattr(node, "decorator_list", [])
            if [one for one in decorators if one in _wide(tree)]:
                assert isinstance(node, ast.FunctionDef), (file, node)
                whole.add((file, node.name))
            if isinstance(node, ast.Assign):
                names = {one.id for one in node.targets if isinstance(one, ast.Name)}
                assert "pytestmark" not in names or not _wide(node), file
    assert whole == WHOLE


def _recipe(target: str) -> str:
    return subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_what_the_targets_run() -> None:
    assert '-m pytest -n 4 -m "not wide"' in _recipe("test")
    assert "wide" not in _recipe("test-all")
    assert "-m pytest -n 4 --hypothesis-profile=all" in _recipe("test-all")
    for target in ("lint", "test", "test-all"):
        for check in ("ruff check .", "ruff format --check .", "mypy", "shellcheck .ci/in-venv"):
            assert check in _recipe(target), target
    gate = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "make test-all" in gate
    assert "make test" not in gate, "test-all has all of it"
