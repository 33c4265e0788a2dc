"""Public names that are imported on first use; each package lists its own in a stub.

Type checkers read the stub, ``__init__.pyi`` beside ``__init__.py``; it is the only list.

A name of another library gets advice, from `gigl_loader.foreign_names`. As an attribute it is
missing with that text; but ``from package import name`` replaces the text of a missing attribute by
its own. Before it does, it looks for a module of that name, where `_Adviser` raises the advice.

`_Adviser` also makes the modules of GiGL that are no files here, and modules under another name for
those that are, see `gigl_loader.compat`. They hold nothing: each name is looked up where it is.
"""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import FunctionType, ModuleType
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


def _table() -> ModuleType:
    # Imported when it is needed, which is hardly ever: it is a long table.
    return import_module("gigl_loader.foreign_names")


def _advice_on(package: str, name: str) -> str | None:
    advice: str | None = _table().advice_on(package, name)
    return advice


class _NamedAsAFunction(ModuleType):
    """A module that has the name of its function: importing it hides that in its package."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **keywords)


class _Adviser(MetaPathFinder, Loader):
    """Finds modules of GiGL's by `foreign_names.MODULES`, and raises the advice on other names."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        """Names of modules, and the modules here that they stand for."""
        self.parents: set[str] = set()
        """Packages that aliases are in, for programs in which no other package has the name."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of GiGL's, or of an alias.

        Raises:
            ImportError: The name is one of another library.
        """
        if fullname in self.parents:
            return ModuleSpec(fullname, self, is_package=True)
        module = self._module_here(fullname)
        # Public names only: the import system looks for modules such as `__main__`, too.
        if module is None or module.rpartition(".")[2].startswith("_"):
            return None
        if module != fullname:
            # The spec of a name with advice is the advice, raised below.
            known = module == "gigl_loader" or find_spec(module) is not None
        else:
            known = module.removeprefix("gigl_loader.") in _table().MODULES
            text = None if known else _advice_on(*module.rsplit(".", 1))
            if text is not None:
                # No ModuleNotFoundError: `from package import name` takes that for "no module"
                # and goes on to its own text.
                raise ImportError(text, name=fullname)
        # A package: the import system asks a finder for a missing name of packages alone.
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def exec_module(self, module: ModuleType) -> None:
        """Let the module look its names up."""
        here, namespace = self._module_here(module.__name__), vars(module)
        if here is None:  # a parent
            return
        known = _table().MODULES.get(here.removeprefix("gigl_loader."))
        # None: an alias, which has the names of the module that it stands for
        names = known if here == module.__name__ else None

        def getattr_(name: str) -> Any:
            if names is None and (name == "__all__" or not name.startswith("__")):
                return getattr(import_module(here), name)
            if names is None or name not in names:
                raise AttributeError(
                    _advice_on(here, name)
                    or f"module {module.__name__!r} has no attribute {name!r}"
                )
            namespace[name] = value = getattr(import_module(names[name]), name)
            return value

        namespace["__getattr__"] = getattr_
        namespace["__dir__"] = lambda: [*namespace, *(names or dir(import_module(here)))]
        if names is not None:
            namespace["__all__"] = sorted(names)
        if here.rpartition(".")[2] in (known or ()):
            module.__class__ = _NamedAsAFunction

    def _module_here(self, fullname: str) -> str | None:
        """Return the module of gigl_loader that a name is, or stands for; None: no such."""
        if fullname.startswith("gigl_loader."):
            return fullname
        for alias, here in self.aliases.items():
            if f"{fullname}.".startswith(f"{alias}."):
                return here + fullname.removeprefix(alias)
        return None

    def add_alias(self, alias: str, here: str, *, at_once: bool) -> None:
        """Let ``alias`` stand for the module ``here``.

        Args:
            alias: The dotted name of a module.
            here: A module of this package.
            at_once: Even if another finder has a module of that name; else only if none has.
        """
        parent, _, name = alias.rpartition(".")
        packages = alias.split(".")[:-1]
        self.parents.update(".".join(packages[:end]) for end in range(1, len(packages) + 1))
        self.aliases[alias] = here
        if not at_once:
            return
        module = module_from_spec(ModuleSpec(alias, self, is_package=True))
        self.exec_module(module)
        if parent:  # as the import system does when it has loaded a module
            setattr(import_module(parent), name, module)
        sys.modules[alias] = module


ADVISER = _Adviser()
"""The finder of this process."""
# At the end: it is asked only for names that no other finder knows.
sys.meta_path.append(ADVISER)
