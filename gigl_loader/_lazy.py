"""Public names that are imported when they are first used."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import FunctionType
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str], aliases: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package.

    Args:
        package: Its ``__name__``.
        modules: Where each public name is defined: a module below ``gigl_loader``.
        aliases: Names of ``gigl_loader`` itself that can be imported from here too.
    """
    own = vars(sys.modules[package])

    def getattr_(name: str) -> Any:
        if name in aliases:
            return getattr(import_module("gigl_loader"), name)
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"gigl_loader.{module}"), name)
        if isinstance(value, (type, FunctionType)):
            value.__module__ = package  # tracebacks, pickles and docs show the path users import
        # __getattr__ is asked for what is not there: once for each name
        own[name] = value
        return value

    def dir_() -> list[str]:
        return sorted({*own, *modules})

    return getattr_, dir_
