"""Docstrings name what exists: each argument that they explain, and each class."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "gigl_loader"
ELSEWHERE = {
    "BatchNorm",
    "DataLoader",
    "DistRangePartitioner",
    "EdgeSamplerInput",
    "FeatureStore",
    "ForkingPickler",
    "InMemoryDataset",
    "LinkNeighborLoader",
    "RandomLinkSplit",
    "SerializedGraphMetadata",
    "SerializedTFRecordInfo",
    "StatefulDataLoader",
    "TensorFrame",
}
"""Classes of other libraries that no module of ours imports."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SECTION = re.compile(r"^(?P<indent> *)Args:\n(?P<text>(?:(?P=indent) +.*\n|\n)*)", re.MULTILINE)
_QUOTED = re.compile(r"`{1,2}~?([A-Za-z_][\w.]*)(?:\(\))?`{1,2}")


@cache  # when a test asks: each process that collects tests imports this module
def _trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


def _documented(docstring: str) -> list[str]:
    """Return the names that the section ``Args`` explains."""
    found = _SECTION.search(docstring + "\n")
    if found is None:
        return []
    # the first level below the section's head: what is deeper goes on with an explanation
    indent = len(found["indent"]) + 4
    line = re.compile(rf"^ {{{indent}}}([*\w][\w*, ]*):", re.MULTILINE)
    names = [name for head in line.findall(found["text"]) for name in head.split(",")]
    return [name.strip().lstrip("*") for name in names]


def _arguments(function: _Function) -> set[str]:
    given = function.args
    some = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in some if one is not None}


def _taken_by(node: ast.AST) -> set[str] | None:
    """Return what a function or class takes; None: that stands elsewhere."""
    if isinstance(node, _Function):
        # filled in by `with_keywords`, or handed on
        return None if node.args.kwarg is not None else _arguments(node)
    assert isinstance(node, ast.ClassDef)
    for one in node.body:
        if isinstance(one, _Function) and one.name in ("__init__", "__new__"):
            return None if one.args.kwarg is not None else _arguments(one)
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return fields or None


@cache
def _docstrings() -> list[tuple[str, ast.AST, str]]:
    """Return where each docstring stands, what it is of, and its text."""
    return list(_each_docstring())


def _each_docstring() -> Iterator[tuple[str, ast.AST, str]]:
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | _Function):
                name, line = getattr(node, "name", "module"), getattr(node, "lineno", 1)
                where = f"{file.relative_to(PACKAGE)}:{line} {name}"
                if text := ast.get_docstring(node):
                    yield where, node, text


def test_documented_arguments_exist() -> None:
    wrong = []
    for where, node, text in _docstrings():
        taken = None if isinstance(node, ast.Module) else _taken_by(node)
        if taken is not None:
            wrong += [f"{where}: {name}" for name in _documented(text) if name not in taken]
    assert wrong == []


def _names_of(tree: ast.AST) -> set[str]:
    """Return the names that a module defines or imports, in whichever scope."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | _Function):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).split(".")[0] for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Names by dotted module; "" has all of them, and those of Python."""
    found = {}
    for file, tree in _trees().items():
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = _names_of(tree)
    for stub in PACKAGE.rglob("*.pyi"):  # public names, which their packages import when used
        module = ".".join(stub.relative_to(PACKAGE.parent).parent.parts)
        found[module] |= _names_of(ast.parse(stub.read_text()))
    found[""] = {*dir(builtins), *ELSEWHERE, *(name for some in found.values() for name in some)}
    return found


def _is_class_name(name: str) -> bool:
    return re.fullmatch(r"_?[A-Z][a-z0-9]+[A-Za-z0-9]*", name) is not None


def _resolves(quoted: str, known: dict[str, set[str]]) -> bool:
    parts = quoted.split(".")
    at = next((number for number, part in enumerate(parts) if _is_class_name(part)), None)
    if at is None:
        return True  # a function, a value, a word
    module = ".".join(parts[:at])
    # of another library, or said without its module
    where = module if module in known else ""
    return (module != "" and module.split(".")[0] != "gigl_loader" and where == "") or (
        parts[at] in known[where] and (where != "" or not module)
    )


def test_classes_that_docstrings_name_exist(known: dict[str, set[str]]) -> None:
    wrong = [
        f"{where}: {quoted}"
        for where, _, text in _docstrings()
        for quoted in _QUOTED.findall(text)
        if not _resolves(quoted, known)
    ]
    assert wrong == []


def test_what_the_checks_would_find(known: dict[str, set[str]]) -> None:
    text = "Do.\n\nArgs:\n    one: Is\n        this: that.\n    two, *three: Others.\n"
    text += "\nReturns:\n    x: y.\n"
    assert _documented(text) == ["one", "two", "three"]
    assert _documented("Args stand elsewhere.") == []
    assert not _resolves("NoSuchClass", known)
    assert not _resolves("gigl_loader.sampler.rows.reader.NoSuchReader", known)
    assert not _resolves("NoSuchClass.method", known)
    assert _resolves("gigl_loader.sampler.rows.reader.LocalReader", known)
    assert _resolves("LocalReader.answer_draw", known)
    assert _resolves("torch.utils.data.DataLoader", known)
