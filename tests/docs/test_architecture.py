"""The page on architecture names modules and classes that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
FILES = sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE)))
FOLDERS = sorted(set(re.findall(r"`([\w/]+/)`", PAGE)))
CLASSES = sorted(set(re.findall(r"`([A-Z]\w+)(?:\(.*?\))?`", PAGE)) - {"Data", "HeteroData"})


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_what_is_named_is_there(name: str) -> None:
    where = ROOT if name.startswith(("tests/", "gigl_loader/")) else ROOT / "gigl_loader"
    assert (where / name).exists() or list(where.rglob(name)), name


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_that_is_named_is_there(name: str) -> None:
    texts = (path.read_text() for path in (ROOT / "gigl_loader").rglob("*.py"))
    assert any(re.search(rf"^class {name}\b", text, re.MULTILINE) for text in texts), name
