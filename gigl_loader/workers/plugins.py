"""What users have workers run besides sampling: sent to them, or refused before they start."""

import ast
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gigl_loader.errors import ConfigError
from gigl_loader.workers.setup import Plugins


def pickled(plugins: Plugins) -> bytes:
    """Return ``plugins`` for workers.

    Raises:
        ConfigError: They cannot be sent.
    """
    # any: besides PicklingError, pickle raises what the objects' own methods do, and AttributeError
    # or TypeError for functions and handles that it cannot name
    try:
        return pickle.dumps(plugins)
    except Exception as error:
        raise ConfigError(
            f"worker_init_fn={plugins.init_fn!r}, or the keywords of the sampler "
            f"{plugins.sampler}, cannot be sent to workers ({error}): give a function of a module, "
            "or a functools.partial of one, and keywords that can be pickled"
        ) from error


def is_own(sampler: tuple[str, dict[str, Any]] | None) -> bool:
    """Return whether the class of a sampler is one of this package."""
    return sampler is None or sampler[0].startswith("gigl_loader.")


def main_path_of(function: Callable[..., Any] | None) -> str | None:
    """Return the path of the user's script where ``function`` is defined in it.

    Raises:
        ConfigError: Workers could not import it: this session has no script.
    """
    if function is None:
        return None
    if getattr(function, "__module__", "") != "__main__":
        return None
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or importlib.util.find_spec("gigl_loader") is None:
        raise ConfigError(
            "worker_init_fn is defined in an interactive session, where workers cannot import it: "
            "put it into a module"
        )
    _check_script(Path(path))
    return str(path)


def _check_script(path: Path) -> None:
    """Check that workers can run the user's script to find a function in it.

    Raises:
        ConfigError: There is no such file, or running it would start the whole job again.
    """
    if not path.is_file():
        raise ConfigError(
            f"worker_init_fn is defined in {str(path)!r}, which workers cannot import (a script "
            "from standard input?): put the function into a module, or the script into a file"
        )
    # the parsed script, not its text, in which a comment may name it as well
    if not any(
        isinstance(node, ast.Name) and node.id == "__name__"
        for node in ast.walk(ast.parse(path.read_bytes()))
    ):
        raise ConfigError(
            f"worker_init_fn is defined in {path}, which workers have to import, and which has no "
            '`if __name__ == "__main__":`, so that each of them would run all of it again: put '
            "what starts the job below that line, or the function into a module"
        )
