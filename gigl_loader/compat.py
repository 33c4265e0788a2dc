"""For scripts written for GiGL that cannot be edited: their imports of it mean gigl_loader."""

import sys

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.lazy_names import ADVISER

_HERE = "gigl_loader"


def install(name: str = "gigl.distributed") -> None:
    """Let imports of ``name`` in this process mean gigl_loader.

    ::

        from gigl_loader.compat import install

        install("gigl.distributed")
        from gigl.distributed.dist_dataset import DistDataset  # gigl_loader's

    Every module below ``name`` is the one of the same path here. ``types`` beside it, as in
    ``gigl.types.graph``, is ``gigl_loader.types``, unless a package of that name is installed. The
    packages above ``name`` are empty ones, unless they are installed. For the processes that a
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
    if ADVISER.aliases.get(name) == _HERE:
        return
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", "this process")
        raise UsageError(f"{name} is imported already, from {origin}: call install before that")
    ADVISER.add_alias(name, _HERE, at_once=True)
    if parts[1:]:
        ADVISER.add_alias(".".join([*parts[:-1], "types"]), f"{_HERE}.types", at_once=False)
