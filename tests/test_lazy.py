"""Names that are imported when they are first used."""

import sys
from types import ModuleType

import pytest

from gigl_loader import ConfigError, errors
from gigl_loader._lazy import lazy_names


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", made)
    modules = {"DEFAULT_TIMEOUT_S": "options", "Missing": "options"}
    made.__getattr__, made.__dir__ = lazy_names(  # type: ignore[method-assign]
        "made_up", modules, aliases=("ConfigError",)
    )
    return made


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
