"""Public names that are imported on first use; each package lists its own in a stub.

Type checkers read the stub, ``__init__.pyi`` beside ``__init__.py``; it is the only list.
"""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import Any

_NAME = re.compile(r"^from ([\w.]+) import \(?\s*(\w+) as \2\b", re.MULTILINE)


def lazy_names(
    package: str, advice: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, the ``__dir__`` and the ``__all__`` of a package.

    A name that the stub takes from ``gigl_loader`` itself can be imported from the package, too,
    but is not its own: it is not in ``__all__``.

    Args:
        package: Its ``__name__``.
        advice: A module whose ``advice_on(package, name)`` gives the text of the error for a
            missing name, or None. Imported when a name is missing: it is a long table.
    """
    namespace = vars(sys.modules[package])
    with open(os.path.join(os.path.dirname(namespace["__file__"]), "__init__.pyi")) as stub:
        modules = {name: module for module, name in _NAME.findall(stub.read())}
    public = sorted(name for name, module in modules.items() if module != "gigl_loader")

    def getattr_(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            text = import_module(advice).advice_on(package, name) if advice else None
            raise AttributeError(text or f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        # tracebacks, pickles and docs show the path users import; classes of GLT keep theirs
        if (
            name in public
            and isinstance(value, (type, FunctionType))
            and value.__module__.startswith("gigl_loader")
        ):
            value.__module__ = package
        # Python calls __getattr__ for missing names: once per name
        namespace[name] = value
        return value

    def dir_() -> list[str]:
        return sorted({*namespace, *public})

    return getattr_, dir_, public
