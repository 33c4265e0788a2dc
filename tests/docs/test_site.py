"""The site links to names of other libraries by lists written by hand: each name is there."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

API = sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
INVENTORIES = sorted((Path(__file__).parents[2] / "docs" / "inventories").glob("*.txt"))


def _entries(inventory: Path) -> list[list[str]]:
    """Return name, kind and page of each entry."""
    head, *lines = inventory.read_text().splitlines()
    assert head == "# Sphinx inventory version 1"
    return [line.split() for line in lines[2:]]


def _import(name: str) -> object:
    """Return what a dotted name stands for: a module, or a member of one, at any depth."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    return getattr(importlib.import_module("builtins"), parts[0])


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.stem)
def test_names_of_other_libraries_are_there(inventory: Path) -> None:
    entries = _entries(inventory)
    names = [name for name, _, _ in entries]
    assert names == sorted(set(names))
    for name, kind, page in entries:
        assert page.endswith(".html")
        found = _import(name)
        assert isinstance(found, ModuleType) == (kind == "mod"), name
        assert isinstance(found, type) or kind not in ("class", "exception"), name


@pytest.mark.parametrize("page", API, ids=lambda path: path.stem)
def test_what_is_deprecated_comes_last_on_a_page(page: Path) -> None:
    text = page.read_text()
    listed = re.findall(r"^   ~([\w.]+)$", text, re.MULTILINE)
    shown = re.findall(r"^\.\. auto\w+:: (gigl_loader[\w.]*)$", text, re.MULTILINE)
    for names in (listed, shown):
        deprecated = [(_import(name).__doc__ or "").startswith("Deprecated") for name in names]
        assert deprecated == sorted(deprecated)
