"""Public names that are imported on first use; each package lists its own in a stub.

Type checkers read the stub, ``__init__.pyi`` beside ``__init__.py``; it is the only list.

A name of another library gets advice, from `gigl_loader.foreign_names`. As an attribute it is
missing with that text; but ``from package import name`` replaces the text of a missing attribute by
its own. Before it does, it looks for a module of that name, where `_Adviser` raises the advice.
"""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import FunctionType
from typing import Any

_NAME = re.compile(r"^from ([\w.]+) import \(?\s*(\w+) as \2\b", re.MULTILINE)


def lazy_names(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, the ``__dir__`` and the ``__all__`` of a package.

    A name that the stub takes from ``gigl_loader`` itself can be imported from the package, too,
    but is not its own: it is not in ``__all__``.

    Args:
        package: Its ``__name__``.
    """
    namespace = vars(sys.modules[package])
    with open(os.path.join(os.path.dirname(namespace["__file__"]), "__init__.pyi")) as stub:
        modules = {name: module for module, name in _NAME.findall(stub.read())}
    public = sorted(name for name, module in modules.items() if module != "gigl_loader")

    def getattr_(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(
                _advice_on(package, name) or f"module {package!r} has no attribute {name!r}"
            )
        value = getattr(import_module(module), name)
        if name in public and isinstance(value, (type, FunctionType)):
            value.__module__ = package  # tracebacks, pickles and docs show the path users import
        # Python calls __getattr__ for missing names: once per name
        namespace[name] = value
        return value

    def dir_() -> list[str]:
        return sorted({*namespace, *public})

    return getattr_, dir_, public


def _advice_on(package: str, name: str) -> str | None:
    # Imported when it is needed, which is hardly ever: it is a long table.
    return import_module("gigl_loader.foreign_names").advice_on(package, name)  # type: ignore[no-any-return]


class _Adviser(MetaPathFinder):
    """Raises advice for a name of another library that is imported as if it were a module here."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Find nothing.

        Raises:
            ImportError: The name is one of another library.
        """
        package, _, name = fullname.rpartition(".")
        # Public names only: the import system looks for modules such as `__main__`, too.
        if package.startswith("gigl_loader") and not name.startswith("_"):
            text = _advice_on(package, name)
            if text is not None:
                # No ModuleNotFoundError: `from package import name` takes that for "no module"
                # and goes on to its own text.
                raise ImportError(text, name=fullname)


# At the end: it is asked only for names that no other finder knows.
sys.meta_path.append(_Adviser())
