"""Scripts of other libraries: GiGL's and graphlearn-torch's names, paths and interface.

Face: public names; `paths` and `answers` are files that `gigl_loader` has in its ``__path__``.
Must not know: `commands` and `testing`. For scripts that cannot be edited, `install` lets their
imports mean gigl_loader.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from gigl_loader.errors import ConfigError, UsageError

_HERE = "gigl_loader"
_PATHS = Path(__file__).with_name("paths")
_installed = set[str]()


def install(name: str = "gigl.distributed") -> None:
    """Let imports of ``name`` in this process mean gigl_loader.

    ::

        from gigl_loader.compat import install

        install("gigl.distributed")
        from gigl.distributed.dist_dataset import DistDataset  # gigl_loader's

    Every module of GiGL's below ``name`` is the one of the same path here. ``types`` beside it, as
    in ``gigl.types.graph``, is ``gigl_loader.types``, unless a package of that name is installed.
    The packages above ``name`` are empty ones, unless they are installed. For the processes that a
    script starts, call this in a ``sitecustomize.py`` on their ``PYTHONPATH``. It imports no torch.

    Args:
        name: The package that the script imports. GiGL's, or that of a copy of it.

    Raises:
        ConfigError: It is no dotted name, or it is this package's own.
        UsageError: It is imported already.
    """
    parts = name.split(".") if isinstance(name, str) else []
    if not parts or not all(part.isidentifier() for part in parts) or parts[0] == _HERE:
        raise ConfigError(
            f'install takes the name of the package to stand in for, such as "gigl.distributed", '
            f"got {name!r}"
        )
    if name in _installed:
        return
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", "this process")
        raise UsageError(f"{name} is imported already, from {origin}: call install before that")
    parent = None
    for end in range(1, len(parts)):
        parent = _package_above(".".join(parts[:end]), parent)
    _put(name, _PATHS, parent)
    if parent is not None and find_spec(types := f"{parent.__name__}.types") is None:
        _put(types, _PATHS / "types", parent)
    _installed.add(name)


def _package_above(name: str, parent: ModuleType | None) -> ModuleType:
    """Return the package of that name; if none is installed, a new one without modules."""
    if name not in sys.modules and find_spec(name) is None:
        _add(name, module_from_spec(ModuleSpec(name, None, is_package=True)), parent)
    return import_module(name)


def _add(name: str, module: ModuleType, parent: ModuleType | None) -> None:
    """Do what the import system does when it has found a module."""
    sys.modules[name] = module
    if parent is not None:
        setattr(parent, name.rpartition(".")[2], module)


def _put(name: str, folder: Path, parent: ModuleType | None) -> None:
    """Import the package of a folder under ``name``."""
    spec = spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    _add(name, module, parent)
    spec.loader.exec_module(module)
