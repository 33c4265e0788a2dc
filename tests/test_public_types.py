"""The package says what it takes: no public parameter is a bare ``Any``."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gigl_loader
from gigl_loader import graph_store, testing
from gigl_loader.compat import utils

PACKAGES = (gigl_loader, graph_store, testing, utils)


def _functions(owner: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module or class, constructors included, by name."""
    names = getattr(owner, "__all__", None) or vars(owner)
    for name in names:
        value = vars(owner).get(name) if inspect.isclass(owner) else getattr(owner, name)
        value = getattr(value, "__func__", value)
        if name.startswith("_") and name != "__init__":
            continue
        if inspect.isclass(value):
            yield from ((f"{name}.{inner}", one) for inner, one in _functions(value))
        elif inspect.isfunction(value):
            yield name, value


def _untyped(function: Callable[..., Any]) -> list[str]:
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in ("self", "cls")
        and parameter.annotation in (Any, "Any", parameter.empty)
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_no_public_parameter_is_any(package) -> None:
    functions = dict(_functions(package))
    assert len(functions) > 5
    found = {name: _untyped(function) for name, function in functions.items()}
    assert {name: bare for name, bare in found.items() if bare} == {}


def test_a_planted_any_is_found() -> None:
    def planted(first: int, second: Any, third: "Any", *rest: Any, fourth=None) -> None: ...

    assert _untyped(planted) == ["second", "third", "fourth"]
