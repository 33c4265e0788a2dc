"""Names that are imported when they are first used."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gigl_loader import ConfigError, errors
from gigl_loader._lazy import lazy_names

STUB = """from gigl_loader import ConfigError as ConfigError
from gigl_loader.options import DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S
from gigl_loader.options import (
    Missing as Missing,
)
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    made: Any = ModuleType("made_up")
    made.__file__ = str(tmp_path / "__init__.py")
    (tmp_path / "__init__.pyi").write_text(STUB)
    monkeypatch.setitem(sys.modules, "made_up", made)
    made.__getattr__, made.__dir__, made.__all__ = lazy_names("made_up")
    module: ModuleType = made
    return module


def test_the_stub_lists_the_names(package: ModuleType) -> None:
    assert package.__all__ == ["DEFAULT_TIMEOUT_S", "Missing"]


def test_a_name_is_imported_once(package: ModuleType) -> None:
    assert "DEFAULT_TIMEOUT_S" not in vars(package)
    assert package.DEFAULT_TIMEOUT_S == 120.0
    assert vars(package)["DEFAULT_TIMEOUT_S"] == 120.0, "the next time __getattr__ is not asked"


def test_a_name_of_the_package_is_the_same_object(package: ModuleType) -> None:
    assert package.ConfigError is ConfigError is errors.ConfigError
    assert ConfigError.__module__ == "gigl_loader", "and keeps the path that users import"


def test_names_are_listed_before_they_are_used(package: ModuleType) -> None:
    assert {"DEFAULT_TIMEOUT_S", "Missing", "__name__"} <= set(dir(package))


@pytest.mark.parametrize("name", ["Nothing", "Missing"])
def test_what_is_not_there_is_an_attribute_error(package: ModuleType, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(package, name)
